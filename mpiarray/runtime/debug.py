"""Looking into programs: drawings of shardings, `debug.print`, callbacks."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpiarray.core import redistribution as rd
from mpiarray.core.op import Out
from mpiarray.core.trace import state
from mpiarray.core.value import Value, aval_of
from mpiarray.ops import callbacks as ops
from mpiarray.runtime.array import ArrayImpl
from mpiarray.runtime.context import resolve
from mpiarray.types import dtypes, tree
from mpiarray.types.drawing import draw_sharding
from mpiarray.types.partition_spec import PartitionSpec
from mpiarray.types.sharding import Sharding


def visualize_sharding(shape: Sequence[int], sharding: Sharding, **unused: Any) -> None:
    """Print which devices hold which part of a 1-D or 2-D array.  Every rank that calls it prints; nothing is communicated."""
    text = draw_sharding(tuple(shape), sharding)
    if importlib.util.find_spec("rich") is not None and sys.stdout.isatty() and not unused.get("plain"):
        _print_with_rich(text)
        return
    sys.stdout.write(text)


def _print_with_rich(text: str) -> None:
    rich_print = importlib.import_module("rich").get_console().print
    rich_print(text, end="", markup=False, highlight=True)


def visualize_array_sharding(arr: Any, **kwargs: Any) -> None:
    """Draw where an array's blocks are.

        jax.debug.visualize_array_sharding(x)

    Raises ValueError for arrays of more than 2 dimensions.  Every rank that calls it prints; nothing is communicated.
    """
    if isinstance(arr, ArrayImpl):
        visualize_sharding(arr.shape, arr.sharding, **kwargs)
    elif isinstance(arr, Value):
        inspect_array_sharding(arr, callback=lambda s: visualize_sharding(arr.aval.shape, s, **kwargs))
    else:
        visualize_sharding(np.shape(arr), arr.sharding, **kwargs)


def redistribution_plan(x: Any, sharding: Any) -> str:
    """How `device_put(x, sharding)` would move the blocks: steps, bytes, messages, peak memory, as text.  No communication.

    print(jax.debug.redistribution_plan(x, jax.P(None, 'x')))
    """
    target = resolve(sharding, "redistribution_plan") if isinstance(sharding, PartitionSpec) else sharding
    return str(rd.plan(tuple(x.shape), dtypes.storage(x.dtype).itemsize, x.sharding, target))


def inspect_array_sharding(value: Any, *, callback: Callable[[Sharding], None]) -> None:
    """Call `callback` with the sharding of a value: the array's, or while tracing that of its type."""
    callback(value.sharding if isinstance(value, ArrayImpl) else aval_of(value).sharding)


def print_(fmt: str, *args: Any, ordered: bool = False, **kwargs: Any) -> None:
    """Print values when a program runs: `jax.debug.print("x = {x}", x=x)`.

    For global values the mesh's first rank prints, and all ranks of the mesh must come here (the values are read collectively).
    """
    callback(lambda *a, **k: sys.stdout.write(fmt.format(*a, **k) + "\n"), *args, ordered=ordered, **kwargs)


def callback(fun: Callable[..., Any], *args: Any, ordered: bool = False, **kwargs: Any) -> None:
    """Call a host function with the values of arrays when a program runs."""
    leaves, structure = tree.flatten((args, kwargs))

    def flat(*values: Any) -> None:
        a, k = tree.unflatten(structure, values)
        fun(*a, **k)

    ops.debug_callback(*leaves, callback=flat, everywhere=bool(state.abstract_mesh.manual_axes))


def pure_callback(fun: Callable[..., Any], result_shape_dtypes: Any, *args: Any, **kwargs: Any) -> Any:
    """A host function as part of a program: takes numpy arrays (whole values), returns arrays of the given shapes and dtypes.

    Runs on every rank of the mesh and must return the same there.
    """
    return _host_call(ops.pure_callback, fun, result_shape_dtypes, args, kwargs)


def io_callback(
    fun: Callable[..., Any], result_shape_dtypes: Any, *args: Any, ordered: bool = False, **kwargs: Any
) -> Any:
    """`pure_callback` for functions with effects: it runs even when nobody uses its result."""
    return _host_call(ops.io_callback, fun, result_shape_dtypes, args, kwargs)


def _host_call(op: Any, fun: Callable[..., Any], result_shape_dtypes: Any, args: Any, kwargs: Any) -> Any:
    leaves, structure = tree.flatten((args, kwargs))
    wanted, out_tree = tree.flatten(result_shape_dtypes)
    results = tuple(Out(tuple(w.shape), dtypes.canonicalize(w.dtype)) for w in wanted)

    def flat(*values: Any) -> list[Any]:
        a, k = tree.unflatten(structure, values)
        return tree.leaves(fun(*a, **k))

    return tree.unflatten(out_tree, op(*leaves, callback=flat, result_types=results))
