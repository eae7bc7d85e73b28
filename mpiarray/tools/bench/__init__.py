"""`python -m mpiarray bench`: this library beside hand-written numpy and MPI, on the ranks it is started on, and beside JAX.

programs       the programs, written once for this library and for JAX
hand_arrays, hand_networks, hand_grids   what an expert would write instead
timing         how two sides are timed and compared
rows           a program and its hand-written side -> a row
machine        what the network and the memory give
processes      what is started as processes of its own: whole commands, and JAX
jax_side       the script that JAX's Python runs
command        options, table, JSON
"""

from mpiarray.tools.bench.command import main

__all__ = ["main"]
