"""`python -m explorer.cli`: the command line without its installed script."""

from explorer.cli import main

if __name__ == "__main__":
    main()
