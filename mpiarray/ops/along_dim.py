"""What ops that work along one whole dim (cumulative ops, sort, top_k) share.

The dim must be unsharded in Explicit mode: the type would otherwise promise a result whose making moves everything.
Where only Auto axes shard it, a local program may do what it likes to give the right values; here are the ways to
have a whole dim on each rank for a moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpiarray.core.plan import LocalContext, dims_of
from mpiarray.core.value import aval_of
from mpiarray.errors import ShardingTypeError
from mpiarray.ops.collectives import gather, own_slice, swap
from mpiarray.types.aval import ShapedArray


def refuse_explicit(name: str, aval: ShapedArray, dim: int, message: str) -> tuple[str, ...]:
    """The Auto axes that shard a dim; ShardingTypeError `message` when an Explicit axis does."""
    axes = dims_of(aval)[dim]
    explicit = [a for a in axes if a in aval.sharding.mesh.explicit_axes]
    if explicit:
        spec = aval.sharding.spec
        raise ShardingTypeError(
            f"{name}: {message}, but dimension {dim} of {aval.str_short()} is sharded over "
            f"{', '.join(explicit)} (spec {spec}). Use `jax.reshard` to unshard "
            "it first, or wrap the call in `jax.sharding.auto_axes`."
        )
    return axes


class WholeDim:
    """Blocks with one dim whole, and the way back.

    The dim's axes go to another dim whose block they divide (one all-to-all, which moves each element once); where
    there is none the dim is gathered, and every rank of the group does the same work.
    """

    def __init__(self, ctx: LocalContext, axes: Sequence[str], dim: int, shape: Sequence[int]):
        self.axes, self.dim = tuple(axes), dim
        size = ctx.size(axes)
        fitting = [d for d, n in enumerate(shape) if d != dim and n and n % size == 0]
        self.other = max(fitting, key=lambda d: shape[d], default=None)

    def whole(self, block: Any) -> Any:
        if self.other is None:
            return gather(block, self.axes, self.dim)
        return swap(block, self.axes, split=self.other, concat=self.dim)

    def back(self, block: Any) -> Any:
        if self.other is None:
            return own_slice(block, self.axes, self.dim)
        return swap(block, self.axes, split=self.dim, concat=self.other)


def whole_dim(ctx: LocalContext, dim: int, block: Any) -> WholeDim:
    """For the first operand of a local program, and all that are laid out alike."""
    return WholeDim(ctx, dims_of(ctx.ins[0])[dim], dim, aval_of(block).shape)
