"""`ouroboros.commands.audit`, from a checkout."""

from ouroboros.commands.audit import main

if __name__ == "__main__":
    raise SystemExit(main())
