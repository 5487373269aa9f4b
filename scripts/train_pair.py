"""`ouroboros.commands.train_pair`, from a checkout."""

from ouroboros.commands.train_pair import main

if __name__ == "__main__":
    raise SystemExit(main())
