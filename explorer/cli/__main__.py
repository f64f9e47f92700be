"""`python -m explorer.cli`: the command line without its installed script."""

import sys

from explorer.cli import main

if __name__ == "__main__":
    sys.exit(main())
