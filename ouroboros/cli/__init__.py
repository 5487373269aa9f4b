"""The commands: parse options, call the library, print.

Each command is a function in the module of the same name. It takes options and returns the exit
code and a JSON document for programs, which `main` prints as the last line.
"""
