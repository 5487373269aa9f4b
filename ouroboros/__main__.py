"""`python -m ouroboros COMMAND ...`, the same as the installed command `ouroboros`."""

from ouroboros.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
