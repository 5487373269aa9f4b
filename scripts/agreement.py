"""`ouroboros.commands.agreement`, from a checkout."""

from ouroboros.commands.agreement import main

if __name__ == "__main__":
    raise SystemExit(main())
