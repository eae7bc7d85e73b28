"""mpiarray: JAX's sharding model on numpy and MPI.

    import mpiarray as jax
    import mpiarray.numpy as jnp

    jax.set_mesh(jax.make_mesh((4, 2), ("x", "y")))
    x = jax.device_put(jnp.arange(32.0).reshape(8, 4), jax.P("x", "y"))
    print(jax.typeof(x.sum(0)))  # float32[4@y]

One MPI rank owns one device of a mesh; every rank runs the same program.  Importing starts no MPI.
"""

from mpiarray import (
    ad_checkpoint,
    custom_derivatives,
    debug,
    dtypes,
    errors,
    experimental,
    lax,
    memory,
    nn,
    numpy,
    profiler,
    random,
    scipy,
    sharding,
    tree,
    tree_util,
)
from mpiarray.config import config
from mpiarray.higher_order import checkpoint_policies
from mpiarray.higher_order.checkpoint import checkpoint
from mpiarray.higher_order.checkpoint import checkpoint as remat
from mpiarray.higher_order.custom_derivatives import closure_convert, custom_gradient, custom_jvp, custom_vjp
from mpiarray.higher_order.derivatives import grad, jvp, linear_transpose, linearize, value_and_grad, vjp
from mpiarray.higher_order.jacobians import hessian, jacfwd, jacobian, jacrev
from mpiarray.higher_order.jit import jit
from mpiarray.higher_order.shard_map import shard_map, smap
from mpiarray.higher_order.stages import eval_shape, make_jaxpr, typeof
from mpiarray.higher_order.vmap import vmap
from mpiarray.numpy.array import Array
from mpiarray.runtime.api import block_until_ready, clear_caches, device_get, disable_jit, distributed, enable_x64
from mpiarray.runtime.assemble import (
    make_array_from_callback,
    make_array_from_process_local_data,
    make_array_from_single_device_arrays,
)
from mpiarray.runtime.context import (
    default_backend,
    device_count,
    devices,
    local_device_count,
    local_devices,
    make_mesh,
    process_count,
    process_index,
    set_mesh,
)
from mpiarray.runtime.debug import pure_callback
from mpiarray.runtime.placement import device_put, reshard
from mpiarray.types.aval import ShapeDtypeStruct
from mpiarray.types.mesh import Device, Mesh
from mpiarray.types.partition_spec import PartitionSpec
from mpiarray.types.sharding import NamedSharding

P = PartitionSpec
__version__ = "0.1.0"

__all__ = [
    "Array", "Device", "Mesh", "NamedSharding", "P", "PartitionSpec", "ShapeDtypeStruct", "block_until_ready", "checkpoint", "checkpoint_policies", "clear_caches", "closure_convert", "config", "custom_gradient", "custom_jvp", "custom_vjp", "debug",
    "default_backend", "device_count", "device_get", "device_put", "devices", "disable_jit", "distributed", "dtypes", "enable_x64", "errors",
    "eval_shape", "experimental", "grad", "hessian", "jacfwd", "jacobian", "jacrev", "jit", "jvp", "lax", "linear_transpose", "linearize", "local_device_count", "local_devices", "make_array_from_callback",
    "make_array_from_process_local_data", "make_array_from_single_device_arrays", "make_jaxpr", "make_mesh", "memory", "nn", "numpy", "process_count",
    "process_index", "profiler", "pure_callback", "random", "remat", "reshard", "scipy", "set_mesh", "shard_map", "sharding", "smap", "tree", "tree_util", "typeof",
    "value_and_grad", "vjp", "vmap",
]  # fmt: skip
