"""The commands: they parse, call the library, and print.

Each command is a function in the module of the same name. It takes its options and returns its
exit code and a JSON document for programs, which `main` prints as the last line.
"""
