"""`jax.sharding`: meshes, specs, shardings, and the contexts and decorators that go with them."""

from mpiarray.compiler import machine
from mpiarray.higher_order.axes import auto_axes, explicit_axes
from mpiarray.higher_order.shard_specs import Infer
from mpiarray.higher_order.shardings import AUTO
from mpiarray.runtime.context import get_abstract_mesh, get_mesh, set_mesh, use_abstract_mesh
from mpiarray.runtime.placement import reshard
from mpiarray.types.mesh import AbstractDevice, AbstractMesh, AxisType, Mesh
from mpiarray.types.partition_spec import PartitionSpec
from mpiarray.types.sharding import NamedSharding, Sharding, SingleDeviceSharding

P = PartitionSpec

__all__ = [
    "AUTO", "AbstractDevice", "AbstractMesh", "AxisType", "Infer", "Mesh", "NamedSharding", "P", "PartitionSpec", "Sharding", "SingleDeviceSharding",
    "auto_axes", "explicit_axes", "get_abstract_mesh", "get_mesh", "machine", "reshard", "set_mesh", "use_abstract_mesh",
]  # fmt: skip
