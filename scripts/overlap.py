"""`ouroboros.commands.overlap`, from a checkout."""

from ouroboros.commands.overlap import main

if __name__ == "__main__":
    raise SystemExit(main())
