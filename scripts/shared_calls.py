"""`ouroboros shared_calls`, from a checkout."""

import sys

from ouroboros.cli.command_line import main

if __name__ == "__main__":
    raise SystemExit(main(["shared_calls", *sys.argv[1:]]))
