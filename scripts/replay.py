"""`ouroboros.commands.replay`, from a checkout."""

from ouroboros.commands.replay import main

if __name__ == "__main__":
    raise SystemExit(main())
