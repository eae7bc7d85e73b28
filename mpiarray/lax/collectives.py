"""Collectives for the bodies of `shard_map`: psum, all_gather, psum_scatter, all_to_all, ppermute and their kin.

`axis_name` is a manual mesh axis, the name of an axis that `vmap` maps, or a tuple of these.  The group of an instance are those that differ from it only along these axes,
its index counts the first axis most.  Every instance of the group must call, in the same order; each call is one MPI
operation per leaf (sums: one per dtype).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpiarray.core.plan import axes_size, mesh_order
from mpiarray.core.trace import current_trace, state
from mpiarray.core.value import Value, aval_of, literal
from mpiarray.higher_order.manual_trace import ManualTrace
from mpiarray.higher_order.shortcuts import remembered
from mpiarray.numpy.promotion import cast
from mpiarray.ops import collectives as ops
from mpiarray.ops import manual
from mpiarray.ops.linear import reshape, squeeze
from mpiarray.types import dtypes, tree
from mpiarray.types.aval import ShapedArray

AxisName = Any
Groups = Any

__all__ = [
    "all_gather", "all_to_all", "axis_index", "axis_size", "pbroadcast", "pcast", "pmax", "pmean", "pmin", "ppermute", "pshuffle", "psum",
    "psum_scatter", "pswapaxes", "pvary",
]  # fmt: skip


def bound_axes(axis_name: AxisName, what: str) -> tuple[Any, ...]:
    """The axes as a tuple; NameError for those that no enclosing shard_map makes manual and no enclosing vmap names."""
    names = tuple(axis_name) if isinstance(axis_name, (tuple, list)) else (axis_name,)
    known = state.abstract_mesh.manual_axes
    mapped = _mapped_sizes() if state.mapped else {}
    for name in names:
        if name not in known and name not in mapped:
            raise NameError(
                f"unbound axis name: {name}. Found an unbound axis name in {what}; the manual axes here are {tuple(known)}, those of vmap {tuple(mapped)}"
            )
    if len(names) > 1 and len(set(names)) != len(names):
        raise ValueError(f"{what}: axis names {names} must be different")
    return names


def _each(f: Callable[[Any], Any], x: Any) -> Any:
    """`f` of every leaf; a single array, the common case, needs no tree."""
    return f(x) if isinstance(x, Value) else tree.map(f, x)


def _mapped_sizes() -> dict[Any, int]:
    """The axes that enclosing vmaps name, with their sizes."""
    mesh = state.abstract_mesh
    return {axis.name: axis.size * axes_size(mesh, axis.split) for axis in state.mapped if axis.name is not None}


def _split(axes: tuple[Any, ...], what: str, groups: Groups = None) -> tuple[tuple[Any, ...], tuple[str, ...]]:
    """(the axes of vmaps, the mesh's)."""
    if not state.mapped:
        return (), axes
    sizes = _mapped_sizes()
    mapped = tuple(a for a in axes if a in sizes)
    if mapped and groups is not None:
        raise NotImplementedError(f"axis_index_groups are not supported in {what} over the axis {mapped[0]!r} of vmap")
    return mapped, tuple(a for a in axes if a not in sizes)


def _only_mesh(axes: tuple[Any, ...], what: str) -> tuple[str, ...]:
    mapped, rest = _split(axes, what)
    if mapped:
        raise NotImplementedError(
            f"{what} over the axis {mapped[0]!r} of vmap: values do not vary over it in their types"
        )
    return rest


def _size(axes: Sequence[Any]) -> int:
    sizes = _mapped_sizes() if state.mapped else {}
    return math.prod(sizes[a] if a in sizes else axes_size(state.abstract_mesh, (a,)) for a in axes)


def _ordered(axes: Any) -> tuple[str, ...]:
    return mesh_order(state.abstract_mesh, axes)


def axis_size(axis_name: AxisName) -> int:
    """The number of instances along an axis (or several): a Python int."""
    return _size(bound_axes(axis_name, "axis_size"))


def axis_index(axis_name: AxisName) -> Any:
    """This instance's index along an axis (or several, the first most significant): an int32 scalar that varies over it."""
    axes = bound_axes(axis_name, "axis_index")
    mapped, _ = _split(axes, "axis_index")
    if not mapped:
        return ops.axis_index(axis_name=axes if len(axes) > 1 else axes[0])
    index = ops.axis_index(axis_name=axes[0])
    for a in axes[1:]:
        index = index * _size((a,)) + ops.axis_index(axis_name=a)
    return index


# -- what a value is along axes --------------------------------------------------------------------------


def _state_of(aval: ShapedArray, axis: str) -> str:
    kinds = aval.manual
    if axis in kinds.varying:
        return "varying"
    return "unreduced" if axis in kinds.unreduced else "reduced" if axis in kinds.reduced else "invarying"


def _one_state(aval: ShapedArray, axes: Sequence[str], what: str) -> str:
    found = {_state_of(aval, a) for a in axes}
    if len(found) > 1:
        raise ValueError(
            f"{what} can only accept axis_name which corresponds to one of varying, unreduced, reduced or invarying state of the input. Got {tuple(axes)} in "
            f"states {tuple(_state_of(aval, a) for a in axes)} for type {aval.str_short()}. Use `jax.lax.pcast` on the odd ones first."
        )
    return found.pop() if found else "varying"


def vary(x: Any, axes: Sequence[str]) -> Any:
    """`x`, cast to vary over axes where it does not yet."""
    if not state.check_vma:
        return x
    kinds = aval_of(x).manual
    if kinds.varying.issuperset(axes):
        return x
    missing = _ordered([a for a in axes if _state_of(aval_of(x), a) == "invarying"])
    return manual.pvary(x, axes=missing) if missing else x


def pcast(x: Any, axis_name: AxisName, *, to: str) -> Any:
    """`x` (or a tree) with another state along axes: `to` is 'varying', 'unreduced' or 'reduced'.  Free at run time.

    invariant -> varying or reduced, varying -> unreduced, reduced -> varying; all else raises ValueError.
    """
    if isinstance(axis_name, (set, frozenset)):
        raise TypeError(f"axis_name must be a tuple or a str in pcast. Got {axis_name!r}: sets have no order")
    if to not in ("varying", "reduced", "unreduced"):
        raise ValueError(f"Got unexpected `to` value {to!r} for pcast: expected 'varying', 'reduced' or 'unreduced'")
    axes = _only_mesh(bound_axes(axis_name, "pcast"), "pcast")
    return tree.map(lambda leaf: _pcast(leaf, axes, to), x)


_CASTS: dict[tuple[str, str], Any] = {
    ("invarying", "varying"): manual.pvary,
    ("invarying", "reduced"): manual.preduced,
    ("varying", "unreduced"): manual.vary_unreduced_cast,
    ("reduced", "varying"): manual.reduced_vary_cast,
}


def _pcast(x: Any, axes: tuple[str, ...], to: str) -> Any:
    if not axes:
        return x
    if not state.check_vma and to == "varying":
        return x
    x = x if isinstance(x, Value) else _as_value(x)
    have = _one_state(aval_of(x), axes, "pcast")
    op = _CASTS.get((have, to))
    if op is None:
        raise ValueError(f"Unsupported pcast from={have}, to={to!r} over {axes} for type {aval_of(x).str_short()}")
    return op(x, axes=_ordered(axes))


def pvary(x: Any, axis_name: AxisName) -> Any:
    """`pcast(x, axis_name, to='varying')`."""
    return pcast(x, axis_name, to="varying")


def _as_value(x: Any) -> Any:
    aval = aval_of(x)
    return literal(x, aval.dtype, aval.weak_type) if not aval.ndim else x


def _refuse_sums(x: Any, axes: Sequence[str], what: str) -> None:
    aval = aval_of(x)
    if not aval.manual.unreduced and not aval.manual.reduced:
        return
    found = [a for a in axes if _state_of(aval, a) in ("unreduced", "reduced")]
    if found:
        raise ValueError(
            f"{what} cannot accept args which are unreduced or reduced over {found}: got {aval.str_short()}. Use psum or psum_scatter."
        )


# -- groups -------------------------------------------------------------------------------------------------


def _groups(groups: Groups, axes: tuple[str, ...], what: str, *, equal: bool = True) -> Any:
    """axis_index_groups as a tuple of tuples, checked: a partition of the indices, of equal sizes where these matter."""
    if groups is None:
        return None
    if len(axes) != 1:
        raise ValueError(f"{what}: axis_index_groups needs a single axis name, got {axes}")
    found = tuple(tuple(int(i) for i in g) for g in groups)
    if sorted(i for g in found for i in g) != list(range(_size(axes))):
        raise ValueError(f"{what}: axis_index_groups {found} must cover all indices exactly once: 0..{_size(axes) - 1}")
    if equal and len({len(g) for g in found}) > 1:
        raise ValueError(f"{what}: the groups of axis_index_groups must have equal sizes, got {found}")
    return found


def _grouped_needs_no_check(groups: Groups, what: str) -> None:
    if groups is not None and state.check_vma:
        raise NotImplementedError(
            f"axis_index_groups is not supported in {what} with check_vma=True: its result varies between the groups. Use check_vma=False."
        )


# -- reductions -----------------------------------------------------------------------------------------------


@remembered
def psum(x: Any, axis_name: AxisName, *, axis_index_groups: Groups = None) -> Any:
    """The sum over the instances along axes, the same on all of them.  Bools count as int32; Python and numpy constants need no message."""
    axes = bound_axes(axis_name, "psum")
    groups = _groups(axis_index_groups, axes, "psum", equal=False)
    _grouped_needs_no_check(groups, "psum")
    return _sums(x, axes, groups)


def _sums(x: Any, axes: tuple[str, ...], groups: Groups) -> Any:
    """The sums of a tree's leaves.  Where blocks are summed at once, those of one dtype go together; compilers combine later."""
    if isinstance(x, Value):
        return _psum(x, axes, groups)
    leaves, structure = tree.flatten(x)
    trace = current_trace()
    if len(leaves) < 2 or not isinstance(trace, ManualTrace) or state.mapped:
        return structure.unflatten([_psum(leaf, axes, groups) for leaf in leaves])
    prepared = [_sum_of(leaf, axes, groups) for leaf in leaves]
    results = [x for _, x, _ in prepared]
    waiting = [k for k, (op, _, _) in enumerate(prepared) if op is not None]
    sums = trace.sums([prepared[k] for k in waiting])
    for k, total in zip(waiting, sums):
        results[k] = total
    return structure.unflatten(results)


def _psum(x: Any, axes: tuple[str, ...], groups: Groups) -> Any:
    op, x, params = _sum_of(x, axes, groups)
    return x if op is None else op(x, **params)


def _sum_of(x: Any, axes: tuple[str, ...], groups: Groups) -> tuple[Any, Any, dict[str, Any]]:
    """(the op that sums over the mesh's axes, its operand, its parameters); without an op, the operand is the sum."""
    if not axes:
        return None, x, {}
    if not isinstance(x, Value):
        if groups is not None and len({len(g) for g in groups}) > 1:
            raise ValueError(f"psum of a constant needs groups of equal sizes, got {groups}")
        count = len(groups[0]) if groups is not None else _size(axes)
        if isinstance(x, bool):
            x = int(x)
        if isinstance(x, (np.ndarray, np.generic)) and x.dtype == bool:
            x = x.astype(np.int32)
        return None, x * count, {}
    if dtypes.is_bool(aval_of(x).dtype):
        x = cast(x, dtypes.default_dtype(int))
    mapped, axes = _split(axes, "psum", groups)
    for a in mapped:
        x = ops.psum(x, axes=(a,), axis_index_groups=None)
    if not axes:
        return None, x, {}
    if not state.check_vma:
        return ops.psum, x, {"axes": axes, "axis_index_groups": groups}
    have = _one_state(aval_of(x), axes, "psum")
    if have == "unreduced":
        return manual.unreduced_psum, x, {"axes": axes}
    if have == "reduced":
        raise ValueError(f"psum cannot accept args which are reduced: got {aval_of(x).str_short()} over {axes}")
    return manual.psum_invariant, vary(x, axes), {"axes": axes}


@remembered
def pmean(x: Any, axis_name: AxisName, *, axis_index_groups: Groups = None) -> Any:
    """The mean over the instances along axes; of integers in float32."""
    axes = bound_axes(axis_name, "pmean")
    groups = _groups(axis_index_groups, axes, "pmean")
    _grouped_needs_no_check(groups, "pmean")
    count = len(groups[0]) if groups is not None else _size(axes)

    def mean(leaf: Any, total: Any) -> Any:
        if not isinstance(leaf, Value):
            return leaf
        dtype = aval_of(total).dtype
        if not dtypes.is_inexact(dtype):
            total = cast(total, dtypes.to_inexact(dtype))
        return total / count

    totals = _sums(x, axes, groups)
    return mean(x, totals) if isinstance(x, Value) else tree.map(mean, x, totals)


def _extreme(op: Any, what: str) -> Callable[..., Any]:
    def call(x: Any, axis_name: AxisName, *, axis_index_groups: Groups = None) -> Any:
        axes = bound_axes(axis_name, what)
        groups = _groups(axis_index_groups, axes, what, equal=False)
        _grouped_needs_no_check(groups, what)
        return _each(lambda leaf: _one_extreme(op, leaf, axes, groups, what), x)

    call.__name__ = call.__qualname__ = what
    call.__doc__ = f"The {'largest' if what == 'pmax' else 'smallest'} value over the instances along axes, element by element; a NaN wins."
    return call


def _one_extreme(op: Any, x: Any, axes: tuple[str, ...], groups: Groups, what: str) -> Any:
    if not isinstance(x, Value) or not axes:
        return x
    mapped, axes = _split(axes, what, groups)
    for a in mapped:
        x = op(x, axes=(a,), axis_index_groups=None)
    if not axes:
        return x
    _refuse_sums(x, axes, what)
    return op(vary(x, axes), axes=axes, axis_index_groups=groups)


pmax = remembered(_extreme(ops.pmax, "pmax"))
pmin = remembered(_extreme(ops.pmin, "pmin"))


# -- gathers and exchanges ----------------------------------------------------------------------------------------


@remembered
def all_gather(
    x: Any,
    axis_name: AxisName,
    *,
    axis_index_groups: Groups = None,
    axis: int = 0,
    tiled: bool = False,
    to: str = "varying",
) -> Any:
    """The blocks of all instances along axes: stacked in a new dim `axis`, or side by side along it (`tiled`).

    to: 'varying'; 'invarying', which types the result as equal on all; 'reduced', whose cotangent is unreduced.
    """
    if to not in ("varying", "invarying", "reduced"):
        raise ValueError(
            f"Got unexpected `to` value {to!r} for `jax.lax.all_gather`: expected 'varying', 'invarying' or 'reduced'"
        )
    axes = bound_axes(axis_name, "all_gather")
    groups = _groups(axis_index_groups, axes, "all_gather")
    return _each(lambda leaf: _all_gather(leaf, axes, groups, axis, tiled, to), x)


def _all_gather(x: Any, axes: tuple[str, ...], groups: Groups, axis: int, tiled: bool, to: str) -> Any:
    if not axes:
        return x
    x = x if isinstance(x, Value) else _as_value(x)
    aval = aval_of(x)
    _refuse_sums(x, axes, "all_gather")
    size = len(groups[0]) if groups is not None else _size(axes)
    ndim = aval.ndim if tiled else aval.ndim + 1
    if not -ndim <= axis < ndim:
        raise ValueError(f"all_gather: axis {axis} is out of bounds for {aval.str_short()} with tiled={tiled}")
    if _split(axes, "all_gather", groups)[0]:
        return _gather_each(x, axes, axis % ndim, tiled, to)
    params = {
        "all_gather_dimension": axis % ndim,
        "axis_name": axes,
        "axis_size": size,
        "axis_index_groups": groups,
        "tiled": tiled,
    }
    if not state.check_vma or to == "varying":
        return ops.all_gather(vary(x, axes), **params)
    if to == "reduced":
        if any(_state_of(aval, a) != "varying" for a in axes):
            raise ValueError(
                f"all_gather with to='reduced' only accepts inputs that are varying over {axes}: got {aval.str_short()}"
            )
        return manual.all_gather_reduced(x, **params)
    return manual.all_gather_invariant(vary(x, axes), **params)


def _gather_each(x: Any, axes: tuple[Any, ...], axis: int, tiled: bool, to: str) -> Any:
    """Over axes of vmaps, and others with them: one after another, the last (which counts least) first."""
    for a in reversed(axes):
        if _split((a,), "all_gather")[0]:
            x = ops.all_gather(
                x, all_gather_dimension=axis, axis_name=(a,), axis_size=_size((a,)), axis_index_groups=None, tiled=tiled
            )
        else:
            x = _all_gather(x, (a,), None, axis, tiled, to)
    return x if tiled else _joined(x, axis, len(axes))


def _joined(x: Any, axis: int, count: int) -> Any:
    """`count` dims from `axis` on as one."""
    shape = aval_of(x).shape
    if count == 1:
        return x
    sizes = (*shape[:axis], math.prod(shape[axis : axis + count]), *shape[axis + count :])
    return reshape(x, new_sizes=sizes, dimensions=None, sharding=None)


@remembered
def psum_scatter(
    x: Any, axis_name: AxisName, *, scatter_dimension: int = 0, axis_index_groups: Groups = None, tiled: bool = False
) -> Any:
    """The sum over the instances along axes, of which each keeps its part along `scatter_dimension` (which goes unless `tiled`)."""
    axes = bound_axes(axis_name, "psum_scatter")
    groups = _groups(axis_index_groups, axes, "psum_scatter")
    return _each(lambda leaf: _psum_scatter(leaf, axes, groups, scatter_dimension, tiled), x)


def _psum_scatter(x: Any, axes: tuple[str, ...], groups: Groups, dimension: int, tiled: bool) -> Any:
    if not axes:
        return x
    x = x if isinstance(x, Value) else _as_value(x)
    if dtypes.is_bool(aval_of(x).dtype):
        x = cast(x, dtypes.default_dtype(int))
    aval = aval_of(x)
    size = len(groups[0]) if groups is not None else _size(axes)
    if _split(axes, "psum_scatter", groups)[0]:
        return _scatter_each(x, axes, dimension % max(aval.ndim, 1), tiled)
    params = {
        "scatter_dimension": dimension % max(aval.ndim, 1), "axis_name": axes, "axis_size": size, "axis_index_groups": groups, "tiled": tiled,
    }  # fmt: skip
    have = _one_state(aval, axes, "psum_scatter") if state.check_vma else "varying"
    if have == "unreduced":
        return manual.unreduced_reduce_scatter(x, **params)
    if have == "reduced":
        raise ValueError(f"psum_scatter cannot accept args which are reduced: got {aval.str_short()} over {axes}")
    return ops.reduce_scatter(vary(x, axes), **params)


def _scatter_each(x: Any, axes: tuple[Any, ...], dimension: int, tiled: bool) -> Any:
    """Over axes of vmaps, and others with them: one after another, the first (which counts most) first."""
    if len(axes) == 1:
        return ops.reduce_scatter(
            x, scatter_dimension=dimension, axis_name=axes, axis_size=_size(axes), axis_index_groups=None, tiled=tiled
        )
    shape = aval_of(x).shape
    if not tiled and shape[dimension] != _size(axes):
        raise ValueError(
            f"psum_scatter operand scatter dimension size {shape[dimension]} must match shard count {_size(axes)} when tiled=False"
        )
    for a in axes:
        x = _psum_scatter(x, (a,), None, dimension, True)
    return x if tiled else squeeze(x, dimensions=(dimension,))


@remembered
def all_to_all(
    x: Any,
    axis_name: AxisName,
    split_axis: int,
    concat_axis: int,
    *,
    axis_index_groups: Groups = None,
    tiled: bool = False,
) -> Any:
    """Part k of each instance's block along `split_axis` goes to instance k, which puts what it gets together along `concat_axis`."""
    axes = bound_axes(axis_name, "all_to_all")
    groups = _groups(axis_index_groups, axes, "all_to_all")
    return _each(lambda leaf: _all_to_all(leaf, axes, groups, split_axis, concat_axis, tiled), x)


def _all_to_all(x: Any, axes: tuple[str, ...], groups: Groups, split_axis: int, concat_axis: int, tiled: bool) -> Any:
    if not axes:
        return x
    x = x if isinstance(x, Value) else _as_value(x)
    aval = aval_of(x)
    _refuse_sums(x, axes, "all_to_all")
    for name, axis in (("split_axis", split_axis), ("concat_axis", concat_axis)):
        if not -aval.ndim <= axis < aval.ndim:
            raise ValueError(f"all_to_all: {name} {axis} is out of bounds for {aval.str_short()}")
    size = len(groups[0]) if groups is not None else _size(axes)
    mapped, rest = _split(axes, "all_to_all", groups)
    params = {
        "axis_name": axes if len(axes) > 1 else axes[0], "split_axis": split_axis % aval.ndim, "concat_axis": concat_axis % aval.ndim,
        "axis_index_groups": groups, "tiled": tiled, "axis_size": size,
    }  # fmt: skip
    if mapped:
        ops.all_to_all.type_rule(aval, **params)  # raises where sizes do not fit
    return ops.all_to_all(vary(x, rest), **params)


@remembered
def ppermute(x: Any, axis_name: AxisName, perm: Sequence[tuple[int, int]]) -> Any:
    """The block of `source` on `destination` for each pair of `perm`; zeros where nothing arrives.

    Several axes number the group in mesh order, whatever their order here.
    """
    axes = bound_axes(axis_name, "ppermute")
    pairs = _checked_pairs(perm, _size(axes))
    return _each(lambda leaf: _ppermute(leaf, axes, pairs), x)


def _checked_pairs(perm: Sequence[tuple[int, int]], n: int) -> tuple[tuple[int, int], ...]:
    pairs = []
    for s, d in perm:
        s, d = int(s), int(d)
        if not (-n <= s < n and -n <= d < n):
            raise ValueError(f"ppermute: the pair {(s, d)} is out of range for {n} instances")
        pairs.append((s % n, d % n))
    sources, targets = [s for s, _ in pairs], [d for _, d in pairs]
    if len(set(sources)) != len(sources) or len(set(targets)) != len(targets):
        raise ValueError(f"ppermute sources and destinations must be unique, got {list(perm)}")
    return tuple(pairs)


def _ppermute(x: Any, axes: tuple[str, ...], pairs: tuple[tuple[int, int], ...]) -> Any:
    if not axes:
        return x
    x = x if isinstance(x, Value) else _as_value(x)
    mapped, rest = _split(axes, "ppermute")
    _refuse_sums(x, rest, "ppermute")
    if mapped:
        ordered = iter(_ordered(rest))
        axes = tuple(a if a in mapped else next(ordered) for a in axes)
    return ops.ppermute(vary(x, rest), axis_name=axes, perm=pairs)


def pshuffle(x: Any, axis_name: AxisName, perm: Sequence[int]) -> Any:
    """The block of instance `perm[k]` on instance k; `perm` is a permutation."""
    axes = bound_axes(axis_name, "pshuffle")
    if sorted(int(p) for p in perm) != list(range(_size(axes))):
        raise ValueError(f"pshuffle: `perm` does not represent a permutation of {_size(axes)} instances: {list(perm)}")
    return ppermute(x, axis_name, [(int(p), k) for k, p in enumerate(perm)])


def pswapaxes(x: Any, axis_name: AxisName, axis: int, *, axis_index_groups: Groups = None) -> Any:
    """Swap a mesh axis with a dim of its size."""
    return all_to_all(x, axis_name, axis, axis, axis_index_groups=axis_index_groups)


def pbroadcast(x: Any, axis_name: AxisName, source: int) -> Any:
    """The block of instance `source` on all instances."""
    axes = bound_axes(axis_name, "pbroadcast")
    if not 0 <= source < _size(axes):
        raise ValueError(f"pbroadcast: source {source} is out of range for {_size(axes)} instances")
    _, rest = _split(axes, "pbroadcast")
    return _each(lambda leaf: manual.pbroadcast(vary(leaf, rest), axis_name=axes, source=source), x)
