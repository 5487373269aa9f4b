"""`ouroboros report`, from a checkout."""

import sys

from ouroboros.cli.command_line import main

if __name__ == "__main__":
    raise SystemExit(main(["report", *sys.argv[1:]]))
