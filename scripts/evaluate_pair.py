"""`ouroboros.commands.evaluate_pair`, from a checkout."""

from ouroboros.commands.evaluate_pair import main

if __name__ == "__main__":
    raise SystemExit(main())
