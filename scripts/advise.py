"""`ouroboros.commands.advise`, from a checkout."""

from ouroboros.commands.advise import main

if __name__ == "__main__":
    raise SystemExit(main())
