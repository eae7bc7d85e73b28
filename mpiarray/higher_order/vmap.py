"""`jax.vmap`: a function of examples as a function of arrays of examples.

The mapped dim may be sharded: then the function sees types without its mesh axes, which are taken, and every result is
sharded over them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from mpiarray.core.plan import entry
from mpiarray.core.trace import state
from mpiarray.core.value import Literal, Value, aval_of
from mpiarray.higher_order.arguments import leaf_path, operand
from mpiarray.higher_order.jit_function import flatten_result, fun_name
from mpiarray.numpy.host import as_array
from mpiarray.numpy.vectorizing import set_vmap
from mpiarray.ops.common import BatchAxis
from mpiarray.ops.linear import batch_to
from mpiarray.transforms.batching import batch_flat
from mpiarray.types import tree


def vmap(
    fun: Callable[..., Any],
    in_axes: Any = 0,
    out_axes: Any = 0,
    axis_name: Any = None,
    axis_size: int | None = None,
    spmd_axis_name: Any = None,
) -> Callable[..., Any]:
    """Map a function over one dim of its arguments: `vmap(f)(xs)[k] = f(xs[k])`, computed for all k at once.

    in_axes: the mapped dim of each positional argument: an int, None (the same for all), or a tuple of these and of trees of them
    (prefixes of the arguments); keyword arguments are mapped along dim 0.  out_axes: where the mapped dim goes in each
    result, a prefix tree; None for results that are the same for all.
    axis_name: a name for collectives (`lax.psum(x, name)`) inside.  axis_size: needed when nothing is mapped.
    spmd_axis_name: the mesh axis (or tuple of them) that a `shard_map` inside shards the mapped dim over.

    Raises ValueError when mapped dims differ in size or sharding, when arguments have too few dims, or when a result
    with out_axes None differs between examples.  Communicates as the function on all examples does.
    """
    if not callable(fun):
        raise TypeError(f"vmap: expected a callable value, got {fun!r} of type {type(fun)}")
    in_axes = tuple(in_axes) if isinstance(in_axes, list) else in_axes
    if not (in_axes is None or isinstance(in_axes, (int, tuple, dict))):
        raise TypeError(
            "vmap in_axes must be an int, None, or a tuple of entries corresponding to the positional arguments passed to the function, "
            f"but got {in_axes!r}."
        )
    _check_leaves(in_axes, "in_axes")
    _check_leaves(out_axes, "out_axes")
    spmd = (
        ()
        if spmd_axis_name is None
        else tuple(spmd_axis_name)
        if isinstance(spmd_axis_name, (tuple, list))
        else (spmd_axis_name,)
    )

    @functools.wraps(fun, updated=())
    def mapped(*args: Any, **kwargs: Any) -> Any:
        return _Call(fun, args, kwargs, in_axes, out_axes).run(axis_name, axis_size, spmd)

    return mapped


def _none(x: Any) -> bool:
    return x is None


def _check_leaves(axes: Any, what: str) -> None:
    if not all(x is None or (isinstance(x, int) and not isinstance(x, bool)) for x in tree.leaves(axes, is_leaf=_none)):
        raise TypeError(
            f"vmap {what} must be an int, None, or (nested) container with those types as leaves, but got {axes!r}."
        )


class _Call:
    """One call of a mapped function: the leaves of its arguments and which of their dims are mapped."""

    def __init__(
        self, fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], in_axes: Any, out_axes: Any
    ):
        self.fun, self.name, self.out_axes = fun, fun_name(fun), out_axes
        self.args, self.kwargs = args, kwargs
        self.in_axes = in_axes
        leaves, self.structure = tree.flatten((args, kwargs))
        self.leaves = [self._value(x, i) for i, x in enumerate(leaves)]
        self.dims = self._dims(in_axes)

    def _value(self, x: Any, i: int) -> Any:
        return x if isinstance(x, Value) else operand(x, self.name, lambda: leaf_path(self.args, self.kwargs, i))

    def _dims(self, in_axes: Any) -> list[int | None]:
        """The mapped dim of each leaf, from the front."""
        if isinstance(in_axes, tuple) and len(in_axes) != len(self.args):
            raise ValueError(
                "vmap in_axes must be an int, None, or a tuple of entries corresponding to the positional arguments passed to the function, "
                f"but got len(in_axes)={len(in_axes)}, len(args)={len(self.args)} for {self.name}"
            )
        try:
            found = tree.flatten_prefix(in_axes, self.args, what="vmap in_axes", is_leaf=_none)
        except ValueError as e:
            raise ValueError(
                f"vmap in_axes specification must be a tree prefix of the corresponding value, got specification {in_axes} for value tree "
                f"{tree.structure(self.args)}: {e}"
            ) from None
        found += [0] * (len(self.leaves) - len(found))
        return [self._from_front(k, d) for k, d in enumerate(found)]

    def _from_front(self, k: int, d: int | None) -> int | None:
        if d is None:
            return None
        aval = aval_of(self.leaves[k])
        if not -aval.ndim <= d < aval.ndim:
            raise ValueError(
                f"vmap was requested to map its argument along axis {d}, which implies that its rank should be at least {d + 1 if d >= 0 else -d}, "
                f"but is only {aval.ndim} (its shape is {aval.shape}): {self._described(k)} of {self.name}"
            )
        return d % aval.ndim

    def _described(self, k: int) -> str:
        path = leaf_path(self.args, self.kwargs, k)
        try:
            names = list(inspect.signature(self.fun).parameters)
        except (TypeError, ValueError):
            names = []
        index = path.removeprefix("args[").partition("]")[0]
        named = f" ({names[int(index)]!r})" if index.isdigit() and int(index) < len(names) else ""
        return f"argument {path}{named} of type {aval_of(self.leaves[k]).str_short()}"

    def axis(self, name: Any, size: int | None, spmd: tuple[str, ...]) -> BatchAxis:
        """What is mapped.  Raises ValueError when the mapped dims do not agree."""
        mapped = [(k, d, aval_of(self.leaves[k])) for k, d in enumerate(self.dims) if d is not None]
        if not mapped and size is None:
            if not self.leaves:
                raise ValueError(
                    "vmap wrapped function must be passed at least one argument containing an array, or axis_size."
                )
            raise ValueError(
                f"vmap must have at least one non-None value in in_axes, got in_axes={self.in_axes} for {self.name}; or give axis_size."
            )
        sizes = {a.shape[d] for _, d, a in mapped} | (set() if size is None else {size})
        if len(sizes) > 1:
            lines = [f"  * one axis had size {a.shape[d]}: axis {d} of {self._described(k)}" for k, d, a in mapped]
            lines += [f"  * axis_size was given as {size}"] if size is not None else []
            raise ValueError(
                f"vmap got inconsistent sizes for array axes to be mapped in {self.name}:\n" + "\n".join(lines)
            )
        entries = {a.dims[d]: a.sharding.mesh for _, d, a in mapped}
        if len(entries) > 1:
            shown = " vs ".join(repr(entry(e)) for e in entries)
            raise ValueError(
                "Mapped away dimension of inputs passed to vmap should be sharded the same. Got inconsistent axis specs: "
                f"{shown} in {self.name}: {'; '.join(self._described(k) for k, _, _ in mapped)}. Use `jax.reshard` on one of them."
            )
        ((spec, mesh),) = entries.items() if entries else (((), None),)
        if spec and spmd:
            if spmd != spec:
                raise ValueError(
                    f"vmap of {self.name}: the mapped dimension is sharded over {entry(spec)!r} of an Explicit mesh, but spmd_axis_name is "
                    f"{entry(spmd)!r}; leave spmd_axis_name out"
                )
            spmd = ()  # the types say it
        return BatchAxis(sizes.pop(), name, spec, mesh if spec else None, spmd)

    def run(self, name: Any, size: int | None, spmd: tuple[str, ...]) -> Any:
        axis = self.axis(name, size, spmd)
        found: list[Any] = []

        def flat(*examples: Any) -> Sequence[Any]:
            args, kwargs = tree.unflatten(self.structure, examples)
            outs, structure = flatten_result(self.name, self.fun(*args, **kwargs))
            found.append(structure)
            return outs

        outs, dims = batch_flat(flat, axis, self.leaves, self.dims)
        targets = self.targets(found[0])
        results = [self.result(x, axis, d, t) for x, d, t in zip(outs, dims, targets)]
        return tree.unflatten(found[0], results)

    def targets(self, structure: Any) -> list[int | None]:
        full = tree.unflatten(structure, range(structure.num_leaves))
        try:
            return tree.flatten_prefix(self.out_axes, full, what="vmap out_axes", is_leaf=_none)
        except ValueError as e:
            raise ValueError(
                f"vmap out_axes specification must be a tree prefix of the corresponding value, got specification {self.out_axes} for value tree "
                f"{structure}: {e}"
            ) from None

    def result(self, x: Any, axis: BatchAxis, dim: int | None, target: int | None) -> Any:
        """A result with the mapped dim where out_axes says."""
        if target is None:
            if dim is not None:
                raise ValueError(
                    f"vmap of {self.name} got axis spec None but output was batched on axis {dim}: out_axes is None for a result of type "
                    f"{aval_of(x).str_short()} that differs between examples. Say where the mapped dim goes, or reduce over it."
                )
            return as_array(x) if isinstance(x, Literal) else x
        ndim = aval_of(x).ndim + (dim is None)
        if not -ndim <= target < ndim:
            raise ValueError(
                f"vmap of {self.name}: axis {target} in out_axes is out of bounds for a result of dimension {ndim}"
            )
        return as_array(batch_to(x, axis, dim, target % ndim))


def mapped_mesh_axes() -> frozenset[str]:
    """The mesh axes that enclosing vmaps' mapped dims are sharded over: they cannot be used inside."""
    return frozenset(a for axis in state.mapped for a in axis.spec)


set_vmap(vmap)
