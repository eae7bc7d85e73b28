"""lax's reductions, scans, sorts and products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mpiarray.core import trace as core_trace
from mpiarray.core.value import aval_of
from mpiarray.numpy.promotion import cast
from mpiarray.numpy.promotion import out_sharding as checked_sharding
from mpiarray.ops import cumulative, extremes, linear, reduce_by, reductions, searching, sorting
from mpiarray.ops.dot import dot_general as dot_general_op
from mpiarray.transforms.stage import trace_to_jaxpr
from mpiarray.types import dtypes, tree
from mpiarray.types.aval import ShapedArray
from mpiarray.types.mesh import EMPTY_ABSTRACT_MESH

__all__ = [
    "argmax", "argmin", "batch_matmul", "cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum", "dot",
    "dot_general", "reduce", "reduce_and", "reduce_max", "reduce_min", "reduce_or", "reduce_prod", "reduce_sum",
    "reduce_xor", "sort", "sort_key_val", "top_k",
]  # fmt: skip


def _axes(axes: Sequence[int], ndim: int) -> tuple[int, ...]:
    return tuple(a % ndim for a in axes)


def reduce_sum(operand: Any, axes: Sequence[int], *, out_sharding: Any = None) -> Any:
    """The sum over dims; `out_sharding=P(..., unreduced={axis})` leaves it unreduced, without communication."""
    aval = aval_of(operand)
    axes = _axes(axes, aval.ndim)
    shape = tuple(n for d, n in enumerate(aval.shape) if d not in axes)
    return linear.reduce_sum(operand, axes=axes, out_sharding=checked_sharding(out_sharding, shape, "reduce_sum"))


def _reducer(op: Any, doc: str) -> Callable[..., Any]:
    def call(operand: Any, axes: Sequence[int], *, out_sharding: Any = None) -> Any:
        if out_sharding is not None:
            raise NotImplementedError(f"{op.name}: out_sharding is only for reduce_sum")
        return op(operand, axes=_axes(axes, aval_of(operand).ndim))

    call.__name__ = call.__qualname__ = op.name
    call.__doc__ = f"{doc} over dims.  One Allreduce when a reduced dim is sharded."
    return call


reduce_max = _reducer(reductions.reduce_max, "The largest element")
reduce_min = _reducer(reductions.reduce_min, "The smallest element")
reduce_prod = _reducer(reductions.reduce_prod, "The product")
reduce_and = _reducer(reductions.reduce_and, "Bitwise and")
reduce_or = _reducer(reductions.reduce_or, "Bitwise or")
reduce_xor = _reducer(reductions.reduce_xor, "Bitwise exclusive or")


def argmax(operand: Any, axis: int, index_dtype: Any) -> Any:
    """The index of the largest element along a dim (the first of equals; a NaN wins)."""
    return extremes.argmax(operand, axes=(axis % aval_of(operand).ndim,), index_dtype=dtypes.canonicalize(index_dtype))


def argmin(operand: Any, axis: int, index_dtype: Any) -> Any:
    """The index of the smallest element along a dim (the first of equals; a NaN wins)."""
    return extremes.argmin(operand, axes=(axis % aval_of(operand).ndim,), index_dtype=dtypes.canonicalize(index_dtype))


def reduce(operands: Any, init_values: Any, computation: Callable[..., Any], dimensions: Sequence[int]) -> Any:
    """Fold dims by an associative function of two arguments (of trees like `operands`), starting from `init_values`.

    `lax.add`, `lax.max` and the like become the reduction of that name.
    """
    xs, structure = tree.flatten(operands)
    inits = [cast(v, aval_of(x).dtype) for x, v in zip(xs, tree.leaves(init_values), strict=True)]
    axes = _axes(dimensions, aval_of(xs[0]).ndim)
    scalars = [ShapedArray((), aval_of(x).dtype) for x in xs]

    def flat(*values: Any) -> list[Any]:
        half = len(xs)
        return tree.leaves(
            computation(tree.unflatten(structure, values[:half]), tree.unflatten(structure, values[half:]))
        )

    with core_trace.abstract_mesh(EMPTY_ABSTRACT_MESH):
        jaxpr = trace_to_jaxpr(flat, scalars * 2, name=getattr(computation, "__name__", "computation"))
    return tree.unflatten(structure, reduce_by.reduce_with(xs, inits, jaxpr, axes, computation))


def _scan(op: Any, doc: str) -> Callable[..., Any]:
    def call(operand: Any, axis: int = 0, reverse: bool = False) -> Any:
        return op(operand, axis=axis % max(aval_of(operand).ndim, 1), reverse=reverse)

    call.__name__ = call.__qualname__ = op.name
    call.__doc__ = f"{doc} along a dim, which must be unsharded on Explicit axes."
    return call


cumsum = _scan(cumulative.cumsum, "Running sum")
cumprod = _scan(cumulative.cumprod, "Running product")
cummax = _scan(cumulative.cummax, "Running maximum")
cummin = _scan(cumulative.cummin, "Running minimum")
cumlogsumexp = _scan(cumulative.cumlogsumexp, "Running log-sum-exp")


def sort(operand: Any, dimension: int = -1, is_stable: bool = True, num_keys: int = 1) -> Any:
    """Sorted along a dim; a tuple of operands is sorted by the first `num_keys` of them."""
    several = isinstance(operand, (tuple, list))
    xs = list(operand) if several else [operand]
    out = sorting.sort(*xs, dimension=dimension % aval_of(xs[0]).ndim, is_stable=is_stable, num_keys=num_keys)
    return tuple(out) if several else out[0]


def sort_key_val(keys: Any, values: Any, dimension: int = -1, is_stable: bool = True) -> tuple[Any, Any]:
    """Keys sorted along a dim, and values in the same order."""
    k, v = sort((keys, values), dimension, is_stable, 1)
    return k, v


def top_k(operand: Any, k: int, *, axis: int = -1) -> Any:
    """The k largest elements along a dim and their indices, largest first."""
    return list(searching.top_k(operand, axis=axis % aval_of(operand).ndim, k=int(k)))


def dot_general(
    lhs: Any,
    rhs: Any,
    dimension_numbers: Any,
    precision: Any = None,
    preferred_element_type: Any = None,
    *,
    out_sharding: Any = None,
) -> Any:
    """Sum of products over contracting dims, side by side over batch dims: `((lhs_contract, rhs_contract), (lhs_batch, rhs_batch))`."""
    (lc, rc), (lb, rb) = dimension_numbers
    a, b = aval_of(lhs), aval_of(rhs)
    shape = (
        [a.shape[d] for d in lb]
        + [n for d, n in enumerate(a.shape) if d not in (*lc, *lb)]
        + [n for d, n in enumerate(b.shape) if d not in (*rc, *rb)]
    )
    numbers = ((tuple(lc), tuple(rc)), (tuple(lb), tuple(rb)))
    preferred = None if preferred_element_type is None else dtypes.canonicalize(preferred_element_type)
    placed = checked_sharding(out_sharding, tuple(shape), "dot_general")
    return dot_general_op(
        lhs, rhs, dimension_numbers=numbers, precision=precision, preferred_element_type=preferred, out_sharding=placed
    )


def dot(
    lhs: Any, rhs: Any, precision: Any = None, preferred_element_type: Any = None, *, out_sharding: Any = None
) -> Any:
    """Product of vectors and matrices."""
    a, b = aval_of(lhs), aval_of(rhs)
    if not 1 <= a.ndim <= 2 or not 1 <= b.ndim <= 2:
        raise TypeError(f"lax.dot takes vectors and matrices, got {a.str_short()} and {b.str_short()}")
    return dot_general(
        lhs, rhs, (((a.ndim - 1,), (0,)), ((), ())), precision, preferred_element_type, out_sharding=out_sharding
    )


def batch_matmul(lhs: Any, rhs: Any, precision: Any = None) -> Any:
    """Matrix products side by side over all leading dims."""
    n = aval_of(lhs).ndim
    batch = tuple(range(n - 2))
    return dot_general(lhs, rhs, (((n - 1,), (n - 2,)), (batch, batch)), precision)
