"""`ouroboros.commands.profiling`, from a checkout."""

from ouroboros.commands.profiling import main

if __name__ == "__main__":
    raise SystemExit(main())
