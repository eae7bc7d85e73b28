"""Host functions in programs: `pure_callback`, `io_callback`, `debug_callback`.

On global values every rank of the mesh runs the function with the whole value (operands are replicated first), so results
of pure callbacks must be equal; prints then show once, on the mesh's first rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mpiarray.core.device import DeviceContext
from mpiarray.core.op import Out, Undefined, define
from mpiarray.core.plan import Plan, replicated
from mpiarray.ops.linear import zero_jvp
from mpiarray.types import dtypes
from mpiarray.types.aval import ShapedArray

_NO_DERIVATIVE = Undefined("host functions have no derivative; wrap them in `jax.custom_jvp` or `jax.custom_vjp`")
_NO_BATCH = Undefined("host functions take whole values: call them outside of vmap, or with vectorized values")


def _plan(avals: tuple[ShapedArray, ...], *, result_types: tuple[Out, ...], **params: Any) -> Plan:
    return Plan(tuple(replicated(a.ndim) for a in avals), tuple(replicated(len(o.shape)) for o in result_types))


def _results(*avals: ShapedArray, result_types: tuple[Out, ...], **params: Any) -> tuple[Out, ...]:
    return result_types


def _call(
    *blocks: Any, callback: Callable[..., Any], result_types: tuple[Out, ...], **params: Any
) -> tuple[np.ndarray, ...]:
    found = callback(*(np.array(b) for b in blocks))
    out = []
    for value, want in zip(found, result_types, strict=True):
        value = np.array(value)  # the function may use its own array again
        if value.shape != want.shape:
            raise ValueError(
                f"pure_callback: the function returned shape {value.shape} where result_shape_dtypes says {want.shape}"
            )
        out.append(dtypes.cast(value, want.dtype))
    return tuple(out)


pure_callback = define(
    "pure_callback",
    type_rule=_results,
    plan=_plan,
    impl=_call,
    jvp=_NO_DERIVATIVE,
    transpose=_NO_DERIVATIVE,
    batch=_NO_BATCH,
    multiple_results=True,
    hlo_name="custom-call",
)

io_callback = define(
    "io_callback",
    type_rule=_results,
    plan=_plan,
    impl=_call,
    jvp=_NO_DERIVATIVE,
    transpose=_NO_DERIVATIVE,
    batch=_NO_BATCH,
    multiple_results=True,
    effects=True,
    hlo_name="custom-call",
)


def _debug_build(ctx: DeviceContext, *, callback: Callable[..., Any], everywhere: bool) -> Callable[..., Any]:
    """The first rank of the mesh alone runs it for global values; inside shard_map every rank does."""

    def run(*blocks: Any) -> tuple[Any, ...]:
        if everywhere or ctx.position == 0:
            callback(*(np.array(b) for b in blocks))
        return ()

    return run


debug_callback = define(
    "debug_callback",
    type_rule=lambda *avals, callback, everywhere: (),
    plan=lambda avals, *, callback, everywhere: Plan(
        tuple(a.sharding.spec if everywhere else replicated(a.ndim) for a in avals), ()
    ),
    build=_debug_build,
    jvp=zero_jvp,
    transpose=_NO_DERIVATIVE,
    batch=_NO_BATCH,
    multiple_results=True,
    effects=True,
    hlo_name="custom-call",
)
