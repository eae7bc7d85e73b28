"""Updates that overwrite their operand: steps of loop bodies, for carries that nobody else holds.

An update makes a new array, which costs a loop that writes one element per iteration a copy of the whole array each
time.  Where the body of a loop is prepared, updates of carries are exchanged for these (`OVERWRITING`), if the
operand's block is the loop's own and nothing reads it afterwards.  The result is the operand's memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mpiarray.core.device import DeviceContext
from mpiarray.core.op import Op, Undefined, define
from mpiarray.ops.gather import scatter, write_mode
from mpiarray.ops.indexed import overwrite
from mpiarray.ops.inside import own_part, update_inside
from mpiarray.ops.slicing import dynamic_update_slice, window

_NEVER = Undefined("it only stands in the bodies of compiled loops, after derivatives are taken")


def _update(x: np.ndarray, update: Any, *starts: Any) -> np.ndarray:
    x[tuple(map(window, starts, x.shape, np.shape(update)))] = update
    return x


def _scatter(
    x: np.ndarray, updates: Any, *indices: Any, dims: Any, batch_dims: int, mode: str, combine: str, **_: Any
) -> np.ndarray:
    return overwrite(x, updates, indices, dims, batch_dims, write_mode(mode), combine)


def _build_inside(ctx: DeviceContext, **params: Any) -> Callable[..., Any]:
    box = own_part(ctx, **params)

    def run(x: np.ndarray, new: Any) -> np.ndarray:
        x[box] = new[box]
        return x

    return run


def _overwriting(op: Op, impl: Any, build: Any = None) -> Op:
    return define(
        f"{op.name}_in_place",
        type_rule=op.type_rule,
        plan=op.plan,
        impl=impl,
        build=build,
        jvp=_NEVER,
        transpose=_NEVER,
        batch=_NEVER,
        hlo_name=op.hlo_name,
    )


OVERWRITING: dict[Op, Op] = {
    dynamic_update_slice: _overwriting(dynamic_update_slice, _update),
    scatter: _overwriting(scatter, _scatter),
    update_inside: _overwriting(update_inside, None, _build_inside),
}
