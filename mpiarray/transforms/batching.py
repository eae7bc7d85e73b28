"""Batching: values that stand for one example of many, and the trace that applies the ops' batching rules to them.

A `BatchTracer` has the type of an example; its value holds all examples along one dim, which may be sharded.  An op with a
mapped operand becomes one op on all examples; ops without one go to the trace below unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from mpiarray.core.jaxpr import ClosedJaxpr
from mpiarray.core.op import Op
from mpiarray.core.plan import spec_from
from mpiarray.core.trace import Trace, Tracer, current, leaked, mapping, state
from mpiarray.core.value import aval_of
from mpiarray.errors import (
    ConcretizationTypeError,
    TracerArrayConversionError,
    TracerBoolConversionError,
    TracerIntegerConversionError,
)
from mpiarray.numpy.array import Array
from mpiarray.ops.common import BatchAxis
from mpiarray.ops.linear import batch_to, move_dim
from mpiarray.ops.manual import align
from mpiarray.transforms.evaluate import Derived, DerivedCache, eval_jaxpr
from mpiarray.transforms.stage import trace_to_jaxpr
from mpiarray.types.aval import ShapedArray
from mpiarray.types.sharding import NamedSharding


class BatchTracer(Array, Tracer):
    """One example: `value` has the mapped dim at `dim`."""

    __slots__ = ("aval", "dim", "owner", "value")

    owner: BatchTrace

    def __init__(self, trace: BatchTrace, value: Any, dim: int):
        self.owner, self.value, self.dim = trace, value, dim
        self.aval = example_aval(aval_of(value), dim)

    def __repr__(self) -> str:
        return f"BatchTracer({self.aval}, dim {self.dim} of {aval_of(self.value)})"

    __str__ = __repr__

    @property
    def sharding(self) -> NamedSharding:
        return self.aval.sharding

    def _refusal(self, error: type[Exception], what: str, hint: str) -> Exception:
        stands = f"it stands for {self.owner.axis.size} examples at once in vmap"
        return error(f"{what} of traced array with shape {self.aval.short()}: {stands}. {hint}")

    def __bool__(self) -> bool:
        raise self._refusal(TracerBoolConversionError, "Attempted boolean conversion", "Use `jnp.where` or `lax.cond`.")

    def _concretize(self, what: str) -> NoReturn:
        said = f"Abstract tracer value encountered where concrete value is expected: {what}"
        raise self._refusal(ConcretizationTypeError, said, "Keep it an array.")

    def __float__(self) -> float:
        self._concretize("`float()`")

    def __int__(self) -> int:
        self._concretize("`int()`")

    def __complex__(self) -> complex:
        self._concretize("`complex()`")

    def item(self, *args: Any) -> Any:
        self._concretize("`.item()`")

    def tolist(self) -> Any:
        self._concretize("`.tolist()`")

    def __index__(self) -> int:
        said = "The __index__() method was called, which needs one integer,"
        raise self._refusal(TracerIntegerConversionError, said, "Use `lax.dynamic_slice` or `jnp.take`.")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        said = "The numpy.ndarray conversion method __array__() was called, which needs the value,"
        raise self._refusal(
            TracerArrayConversionError, said, "Use the functions of `mpiarray.numpy` instead of numpy's."
        )


def example_aval(aval: ShapedArray, dim: int) -> ShapedArray:
    """The type of one example of a value mapped along `dim`."""
    shape = aval.shape[:dim] + aval.shape[dim + 1 :]
    if aval.sharding.mesh.empty:
        return ShapedArray(shape, aval.dtype, aval.weak_type, None, aval.manual)
    spec = aval.sharding.spec
    dims = spec.dims[:dim] + spec.dims[dim + 1 :]
    return ShapedArray(
        shape,
        aval.dtype,
        aval.weak_type,
        NamedSharding(aval.sharding.mesh, spec_from(dims, spec.unreduced, spec.reduced)),
        aval.manual,
    )


def batched_aval(aval: ShapedArray, axis: BatchAxis, dim: int) -> ShapedArray:
    """The type of all examples, mapped along `dim`, of an example's type."""
    shape = (*aval.shape[:dim], axis.size, *aval.shape[dim:])
    if axis.split and state.check_vma:
        aval = aval.update(manual=aval.manual.update(varying=aval.vma | set(axis.split)))
    mesh = aval.sharding.mesh
    if mesh.empty:
        if not axis.spec:
            return ShapedArray(shape, aval.dtype, aval.weak_type, None, aval.manual)
        mesh = axis.mesh
    spec = aval.sharding.spec
    dims = (*spec.dims[:dim], axis.spec, *spec.dims[dim:])
    return ShapedArray(
        shape,
        aval.dtype,
        aval.weak_type,
        NamedSharding(mesh, spec_from(dims, spec.unreduced, spec.reduced)),
        aval.manual,
    )


class BatchTrace(Trace):
    """Applies batching rules.  Values of other traces are the same for all examples."""

    def __init__(self, axis: BatchAxis, parent: Trace | None):
        self.axis, self.parent = axis, parent
        self.alive = True

    def process(self, op: Op, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
        if state.abstract_mesh.manual_axes:
            args = tuple(align(op, args))
        values, dims = [], []
        mapped = False
        for a in args:
            if isinstance(a, Tracer):
                if a.owner is self:
                    values.append(a.value)  # type: ignore[attr-defined]
                    dims.append(a.dim)  # type: ignore[attr-defined]
                    mapped = True
                    continue
                if not a.owner.alive:
                    raise leaked(a, op.name)
            values.append(a)
            dims.append(None)
        with current(self.parent):
            if not mapped and not self.names(op, params):
                return op(*values, **params)
            out, out_dims = op.batch(op, self.axis, values, dims, **params)
            if op.multiple_results:
                return [self.wrap(x, d) for x, d in zip(out, out_dims, strict=True)]
            return self.wrap(out, out_dims)

    def names(self, op: Op, params: dict[str, Any]) -> bool:
        """Whether an op communicates over the axis that is mapped here."""
        if self.axis.name is None or op.build is None:
            return False
        return self.axis.name in axis_names(params)

    def wrap(self, x: Any, dim: int | None) -> Any:
        return x if dim is None else BatchTracer(self, x, dim)

    def part(self, x: Any) -> tuple[Any, int | None]:
        """A result of the traced function as (value, mapped dim)."""
        if isinstance(x, BatchTracer) and x.owner is self:
            return x.value, x.dim
        return x, None


def axis_names(params: dict[str, Any]) -> tuple[Any, ...]:
    """The axes that a collective's parameters name."""
    found = params.get("axes", params.get("axis_name", ()))
    return found if isinstance(found, tuple) else (found,)


def batch_flat(
    f: Callable[..., Sequence[Any]], axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None]
) -> tuple[list[Any], list[int | None]]:
    """Results of `f`, which takes and returns flat values, for all examples, with the mapped dim of each (None: the same for all)."""
    trace = BatchTrace(axis, state.trace)
    examples = [trace.wrap(x, d) for x, d in zip(args, dims, strict=True)]
    try:
        with current(trace), mapping(axis):
            outs = f(*examples)
    finally:
        trace.alive = False
    pairs = [trace.part(x) for x in outs]
    return [x for x, _ in pairs], [d for _, d in pairs]


# -- of jaxprs ---------------------------------------------------------------------------------------------

_cache = DerivedCache()


class BatchedJaxpr(Derived):
    """The jaxpr for all examples: mapped inputs and results have the mapped dim in front; `mapped[i]` for each result."""

    def __init__(self, closed: ClosedJaxpr, mapped: tuple[bool, ...]):
        super().__init__(closed)
        self.mapped = mapped


def batch_jaxpr(
    closed: ClosedJaxpr, axis: BatchAxis, mapped: Sequence[bool], force: bool | Sequence[bool] = False
) -> BatchedJaxpr:
    """Map a jaxpr over the inputs whose `mapped` is set.  force: which results must be mapped although they are the same for all."""
    forced = (force,) * len(closed.jaxpr.outvars) if isinstance(force, bool) else tuple(force)
    key = (closed, axis, tuple(mapped), forced, state.mapped)
    return _cache.get(key, lambda: _batched(closed, axis, tuple(mapped), forced))


def _batched(closed: ClosedJaxpr, axis: BatchAxis, mapped: tuple[bool, ...], forced: tuple[bool, ...]) -> BatchedJaxpr:
    avals = [batched_aval(a, axis, 0) if m else a for a, m in zip(closed.in_avals, mapped, strict=True)]
    found: list[tuple[bool, ...]] = []

    def f(*args: Any) -> list[Any]:
        run = lambda *examples: eval_jaxpr(closed.jaxpr, closed.consts, examples)
        outs, dims = batch_flat(run, axis, args, [0 if m else None for m in mapped])
        placed = [to_front(x, axis, d) if d is not None or force else x for x, d, force in zip(outs, dims, forced)]
        found.append(tuple(d is not None or force for d, force in zip(dims, forced)))
        return placed

    jaxpr = trace_to_jaxpr(f, avals, name=closed.jaxpr.debug_name, record_source=False)
    return BatchedJaxpr(jaxpr, found[0])


def to_front(x: Any, axis: BatchAxis, dim: int | None) -> Any:
    """`x` with its mapped dim in front, made by broadcasting when it is the same for all."""
    return batch_to(x, axis, dim, 0)


def front(args: Sequence[Any], dims: Sequence[int | None]) -> list[Any]:
    """Operands with their mapped dims in front; others as they are."""
    return [x if d is None else move_dim(x, d, 0) for x, d in zip(args, dims)]


def call_batch(name: str = "jaxpr") -> Callable[..., Any]:
    """The batching rule of an op that just calls the jaxpr in its parameter `name`."""

    def rule(
        op: Op, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None], **params: Any
    ) -> tuple[list[Any], list[int | None]]:
        derived = batch_jaxpr(params[name], axis, [d is not None for d in dims])
        outs = op(*derived.consts, *front(args, dims), **params | {name: derived.jaxpr})
        return list(outs), [0 if m else None for m in derived.mapped]

    return rule
