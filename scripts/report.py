"""`ouroboros.commands.report`, from a checkout."""

from ouroboros.commands.report import main

if __name__ == "__main__":
    raise SystemExit(main())
