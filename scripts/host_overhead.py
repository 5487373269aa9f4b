"""`ouroboros.commands.host_overhead`, from a checkout."""

from ouroboros.commands.host_overhead import main

if __name__ == "__main__":
    raise SystemExit(main())
