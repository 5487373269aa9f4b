"""`python -m ouroboros COMMAND ...`, which is also what the installed command `ouroboros` calls."""

from ouroboros.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
