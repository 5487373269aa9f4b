"""`ouroboros evaluate_pair`, from a checkout."""

import sys

from ouroboros.cli.command_line import main

if __name__ == "__main__":
    raise SystemExit(main(["evaluate_pair", *sys.argv[1:]]))
