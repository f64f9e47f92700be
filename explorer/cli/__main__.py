"""`python -m explorer.cli`: the command line without its installed script."""

from explorer.cli import command

if __name__ == "__main__":
    command()
