"""`ouroboros.commands.tune`, from a checkout."""

from ouroboros.commands.tune import main

if __name__ == "__main__":
    raise SystemExit(main())
