"""`jax.lax`: the functions that numpy's are made of; strict about dtypes, ranks and shardings."""

# ruff: noqa: F403

from mpiarray.higher_order.control_flow.cond import cond, switch
from mpiarray.higher_order.control_flow.maps import associative_scan, map
from mpiarray.higher_order.control_flow.scan import scan
from mpiarray.higher_order.control_flow.while_loop import fori_loop, while_loop
from mpiarray.lax import linalg
from mpiarray.lax.collectives import *
from mpiarray.lax.elementwise import *
from mpiarray.lax.fourier import *
from mpiarray.lax.reductions import *
from mpiarray.lax.shape import *
from mpiarray.lax.windows import *
from mpiarray.runtime.placement import reshard, with_sharding_constraint
