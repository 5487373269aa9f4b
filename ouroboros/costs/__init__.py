"""What calls cost, as data: milliseconds by nodes and context.

`surface` is the data, `named` has some by name. They are measured by `calls` (in full) and `probe`
(at load, in a few seconds), or computed by `roofline` where nobody measured; `bandwidth` says what
any call must read, and how fast this machine copies.
"""
