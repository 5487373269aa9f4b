"""`ouroboros.commands.standin`, from a checkout."""

from ouroboros.commands.standin import main

if __name__ == "__main__":
    raise SystemExit(main())
