"""`ouroboros.commands.campaign`, from a checkout."""

from ouroboros.commands.campaign import main

if __name__ == "__main__":
    raise SystemExit(main())
