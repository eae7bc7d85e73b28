"""Loops and conditionals: `scan`, `while_loop`, `cond` and what is written with them.

Each is one equation that carries the jaxprs of its bodies, so that a compiled loop runs prepared steps in every iteration and
traces, types and plans nothing.  The op records (`*_op.py`) stand apart from the functions for users, which trace the bodies and check them.
"""
