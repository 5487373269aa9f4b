"""The commands: they parse, call the library, and print.

A command is the function of its name in the module of its name. It takes its options and returns
its exit code and a document for programs, which `main` prints as the last line.
"""
