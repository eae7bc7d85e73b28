"""What the ops of linear algebra share: stacks of matrices whose batch dims may be sharded and whose matrix dims may
not.

`matrix_op` makes an op from its type rule, its kernel and its derivative: the plan (batch dims stay where they are,
matrix dims that only Auto axes shard are gathered), batching and 16-bit floats are the same for all.  Below it are the
small products and masks that derivatives are written in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpiarray.core.op import Op, Out, Undefined, define
from mpiarray.core.plan import Plan, dims_of, entry, spec_from
from mpiarray.core.value import aval_of, literal
from mpiarray.errors import ShardingTypeError
from mpiarray.ops.arithmetic import mul, sub
from mpiarray.ops.common import BatchAxis
from mpiarray.ops.comparison import eq, ge
from mpiarray.ops.complex_parts import conj
from mpiarray.ops.dot import dot_general
from mpiarray.ops.linear import (
    add_any,
    batch_to,
    broadcast_in_dim,
    convert_element_type,
    expand_dims,
    full_of,
    reduce_sum,
    sharding_of,
    transpose,
)
from mpiarray.ops.partial_sums import refuse_unreduced
from mpiarray.ops.select import where
from mpiarray.ops.shape import iota
from mpiarray.types import dtypes
from mpiarray.types.aval import ShapedArray

NOT_LINEAR = Undefined("it is not linear")

# -- making ops --------------------------------------------------------------------------------------------


def matrix_op(
    name: str,
    core_in: Sequence[int],
    core_out: Sequence[int],
    *,
    type_rule: Callable[..., Any],
    impl: Callable[..., Any],
    jvp: Any,
    transpose: Any = NOT_LINEAR,
    hlo_name: str | None = None,
) -> Op:
    """An op on stacks.  `core_in` and `core_out` say how many trailing dims of each operand and result belong to
    one matrix.
    """

    def plan(avals: tuple[Any, ...], **params: Any) -> Plan:
        return _stack_plan(name, avals, core_in, core_out)

    return define(
        name,
        type_rule=type_rule,
        plan=plan,
        impl=impl,
        jvp=jvp,
        transpose=transpose,
        batch=_stack_batch,
        multiple_results=len(core_out) > 1,
        partial_sums=refuse_unreduced,
        hlo_name=hlo_name,
    )


def _stack_plan(name: str, avals: tuple[Any, ...], core_in: Sequence[int], core_out: Sequence[int]) -> Plan:
    batch: list[tuple[str, ...]] = [()] * (avals[0].ndim - core_in[0])
    for k, (a, core) in enumerate(zip(avals, core_in)):
        explicit = set(a.sharding.mesh.explicit_axes) if not a.sharding.mesh.empty else set()
        dims = dims_of(a)
        first = a.ndim - core
        if any(explicit & set(axes) for axes in dims[first:]):
            raise ShardingTypeError(
                f"Input {k} to {name} must be unsharded on non-batch dimensions, but got {a.short()} with spec "
                f"{a.sharding.spec}. "
                "Use `jax.reshard` to gather the matrices first, or wrap the call in `jax.sharding.auto_axes`."
            )
        for d, axes in enumerate(dims[:first]):
            if axes and batch[d] and axes != batch[d]:
                shown = ", ".join(str(tuple(entry(e) for e in dims_of(b))) for b in avals)
                raise ShardingTypeError(
                    f"{name} got incompatible shardings of batch dimensions: {shown}, for operands "
                    f"{', '.join(b.short() for b in avals)}. "
                    "Use `jax.reshard` to bring them to one sharding."
                )
            batch[d] = batch[d] or axes
    ins = tuple(spec_from([*batch, *((),) * core]) for core in core_in)
    return Plan(ins, tuple(spec_from([*batch, *((),) * core]) for core in core_out))


def _stack_batch(op: Op, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None], **params: Any) -> Any:
    outs = op(*(batch_to(x, axis, d, 0) for x, d in zip(args, dims)), **params)
    return (outs, [0] * len(outs)) if op.multiple_results else (outs, 0)


def check_matrix(name: str, x: ShapedArray, *, square: bool = False) -> None:
    """Raise unless the operand is a stack of (square) floating or complex matrices."""
    if x.ndim < 2:
        raise ValueError(f"{name}: the operand must have at least 2 dimensions, got {x.str_short()}")
    if square and x.shape[-1] != x.shape[-2]:
        raise ValueError(f"{name}: matrices must be square, got {x.str_short()}")
    if not dtypes.is_inexact(x.dtype):
        raise TypeError(
            f"{name} does not accept dtype {x.dtype}. Accepted dtypes are subtypes of floating, complexfloating."
        )


def same_type(x: ShapedArray) -> Out:
    return Out(x.shape, x.dtype)


# -- kernels -------------------------------------------------------------------------------------------------


def wide(x: Any) -> np.ndarray:
    """A block in a dtype that LAPACK has."""
    x = np.asarray(x)
    return x.astype(np.float32) if dtypes.is_float(x.dtype) and x.dtype.itemsize < 4 else x


def guarded(f: Callable[..., Any], *blocks: np.ndarray, core: Sequence[int]) -> tuple[np.ndarray, ...]:
    """`f` of stacks, as a tuple; NaN for the matrices of a stack where LAPACK fails (singular, not definite, not
    finite).
    """
    try:
        return _as_tuple(f(*blocks))
    except np.linalg.LinAlgError:
        pass
    batch = blocks[0].shape[: blocks[0].ndim - core[0]]
    outs: list[np.ndarray] | None = None
    failed = []
    for k in np.ndindex(*batch):
        try:
            one = _as_tuple(f(*(b[k] for b in blocks)))
        except np.linalg.LinAlgError:
            failed.append(k)
            continue
        if outs is None:
            outs = [np.full((*batch, *np.shape(o)), np.nan, np.asarray(o).dtype) for o in one]
        for out, o in zip(outs, one):
            out[k] = o
    if outs is None:  # all failed: what the results look like is seen from unit matrices
        model = _as_tuple(f(*(_harmless(b.shape[b.ndim - c :], b.dtype) for b, c in zip(blocks, core))))
        outs = [np.full((*batch, *np.shape(o)), np.nan, np.asarray(o).dtype) for o in model]
    return tuple(outs)


def _harmless(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    return np.eye(*shape, dtype=dtype) if len(shape) == 2 else np.ones(shape, dtype)


def _as_tuple(x: Any) -> tuple[np.ndarray, ...]:
    return tuple(x) if isinstance(x, tuple) else (x,)


# -- for derivatives ---------------------------------------------------------------------------------------


def product(a: Any, b: Any) -> Any:
    """`a @ b` for stacks of matrices of one batch shape."""
    x, y = aval_of(a), aval_of(b)
    batch = tuple(range(x.ndim - 2))
    numbers = (((x.ndim - 1,), (y.ndim - 2,)), (batch, batch))
    dtype = dtypes.promote_types(x.dtype, y.dtype)
    return dot_general(a, b, dimension_numbers=numbers, precision=None, preferred_element_type=dtype, out_sharding=None)


def swapped(x: Any) -> Any:
    """The transposes of matrices."""
    n = aval_of(x).ndim
    return transpose(x, permutation=(*range(n - 2), n - 1, n - 2))


def adjoint(x: Any) -> Any:
    """The conjugate transposes of matrices."""
    return conj(swapped(x)) if dtypes.is_complex(aval_of(x).dtype) else swapped(x)


def _index(aval: ShapedArray, dim: int) -> Any:
    return iota(dtype=np.dtype(np.int32), shape=aval.shape, dimension=aval.ndim + dim, sharding=sharding_of(aval))


def lower(x: Any, k: int = 0) -> Any:
    """The elements on and below the k-th diagonal, zero elsewhere."""
    aval = aval_of(x)
    column = _index(aval, -1)
    row = _index(aval, -2)
    shifted = add_any(row, full_of(aval_of(row), k)) if k else row
    return where(ge(shifted, column), x, literal(0, aval.dtype), aval)


def upper(x: Any, k: int = 0) -> Any:
    """The elements on and above the k-th diagonal, zero elsewhere."""
    return sub(x, lower(x, k - 1))


def is_diagonal(aval: ShapedArray) -> Any:
    return eq(_index(aval, -2), _index(aval, -1))


def diagonal(x: Any) -> Any:
    """The diagonals of square matrices, as a stack of vectors."""
    aval = aval_of(x)
    only = where(is_diagonal(aval), x, literal(0, aval.dtype), aval)
    return reduce_sum(only, axes=(aval.ndim - 2,), out_sharding=None)


def as_columns(s: Any) -> Any:
    """A stack of vectors as rows that multiply the columns of matrices: `(..., 1, n)`."""
    return expand_dims(s, (aval_of(s).ndim - 1,))


def as_rows(s: Any) -> Any:
    """A stack of vectors as columns that multiply the rows of matrices: `(..., n, 1)`."""
    return expand_dims(s, (aval_of(s).ndim,))


def identity_like(aval: ShapedArray) -> Any:
    """Unit matrices of a type."""
    one, zero = literal(1, aval.dtype), literal(0, aval.dtype)
    return where(is_diagonal(aval), spread(one, aval), spread(zero, aval), aval)


def spread(x: Any, aval: ShapedArray) -> Any:
    """A scalar as an array of a type."""
    return broadcast_in_dim(x, shape=aval.shape, broadcast_dimensions=(), sharding=sharding_of(aval))


def as_dtype(x: Any, dtype: Any) -> Any:
    return x if aval_of(x).dtype == dtype else convert_element_type(x, new_dtype=dtype, weak_type=False)


def scaled(x: Any, factor: float) -> Any:
    return mul(x, literal(factor, aval_of(x).dtype))
