"""`python -m ouroboros COMMAND ...`, which is also what the installed command `ouroboros` calls."""

from ouroboros.cli.command_line import main

if __name__ == "__main__":
    raise SystemExit(main())
