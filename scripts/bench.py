"""`ouroboros.commands.bench`, from a checkout."""

from ouroboros.commands.bench import main

if __name__ == "__main__":
    raise SystemExit(main())
