"""The exponential of square matrices, and its derivative in a direction as an op of its own.

Scaling and squaring with Pade approximants: Al-Mohy and Higham, "A new scaling and squaring algorithm for the matrix
exponential", 2009.  The derivative L(A, E) is the upper right block of exp([[A, E], [0, A]]) (Mathias, 1996).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mpiarray.core.op import Linear, Op, Out, Zero
from mpiarray.core.value import aval_of, literal
from mpiarray.ops.linear import add_tangents, instantiate, tangent_aval
from mpiarray.ops.matrices import check_matrix, matrix_op, same_type, swapped, wide
from mpiarray.ops.shape import concatenate
from mpiarray.ops.slicing import pad, slice_
from mpiarray.types import dtypes
from mpiarray.types.aval import ShapedArray

_PADE = {
    3: (120.0, 60.0, 12.0, 1.0),
    5: (30240.0, 15120.0, 3360.0, 420.0, 30.0, 1.0),
    7: (17297280.0, 8648640.0, 1995840.0, 277200.0, 25200.0, 1512.0, 56.0, 1.0),
    13: (
        64764752532480000.0,
        32382376266240000.0,
        7771770303897600.0,
        1187353796428800.0,
        129060195264000.0,
        10559470521600.0,
        670442572800.0,
        33522128640.0,
        1323241920.0,
        40840800.0,
        960960.0,
        16380.0,
        182.0,
        1.0,
    ),
}
# largest 1-norm for which an approximant is exact to rounding, and the order to scale for
_LIMITS = {4: ((3, 4.258730016922831e-01), (5, 1.880152677804762e00), (7, 3.925724783138660e00)), 8: (
    (3, 1.495585217958292e-02), (5, 2.539398330063230e-01), (7, 9.504178996162932e-01), (13, 5.371920351148152e00),
)}  # fmt: skip


def exponential(a: np.ndarray, max_squarings: int) -> np.ndarray:
    """Of a stack of matrices, in the precision of its dtype; NaN where more squarings would be needed."""
    limits = _LIMITS[np.finfo(a.dtype).dtype.itemsize]
    n = a.shape[-1]
    flat = a.reshape(a.size // (n * n) if n else 0, n, n)
    out = np.empty_like(flat)
    for k, one in enumerate(flat):
        norm = float(np.abs(one).sum(axis=0).max(initial=0.0))
        order = next((m for m, limit in limits if norm <= limit), limits[-1][0])
        squarings = 0
        if norm > limits[-1][1] and np.isfinite(norm):
            squarings = int(np.ceil(np.log2(norm / limits[-1][1])))
        if squarings > max_squarings or not np.isfinite(norm):
            out[k] = np.nan
            continue
        result = _approximant(one / np.asarray(2.0**squarings, one.real.dtype), _PADE[order])
        for _ in range(squarings):
            result = result @ result
        out[k] = result
    return out.reshape(a.shape)


def _approximant(a: np.ndarray, b: Sequence[float]) -> np.ndarray:
    """q(a)^-1 p(a), with odd and even powers apart."""
    one = np.eye(a.shape[-1], dtype=a.dtype)
    square = a @ a
    # Horner's rule in the square, the odd ones multiplied by a at the end
    even, odd = one * b[-2], one * b[-1]
    for k in range(len(b) - 3, 0, -2):
        odd = odd @ square + one * b[k]
        even = even @ square + one * b[k - 1]
    odd = a @ odd
    return np.linalg.solve(even - odd, even + odd)


def _type(x: ShapedArray, *, max_squarings: int) -> Out:
    check_matrix("expm", x, square=True)
    return same_type(x)


def _jvp(op: Op, primals: Sequence[Any], tangents: Sequence[Any], *, max_squarings: int) -> tuple[Any, Any]:
    out = op(*primals, max_squarings=max_squarings)
    if isinstance(tangents[0], Zero):
        return out, Zero(tangent_aval(out.aval))
    return out, expm_frechet(primals[0], instantiate(tangents[0]), max_squarings=max_squarings)


expm = matrix_op(
    "expm", (2,), (2,), type_rule=_type, jvp=_jvp,
    impl=lambda x, *, max_squarings: dtypes.cast(exponential(wide(x), max_squarings), x.dtype),
)  # fmt: skip


def _frechet_type(a: ShapedArray, e: ShapedArray, *, max_squarings: int) -> Out:
    check_matrix("expm_frechet", a, square=True)
    if a.shape != e.shape or a.dtype != e.dtype:
        raise TypeError(f"expm_frechet: operands must have one type, got {a.str_short()} and {e.str_short()}")
    return same_type(a)


def _frechet_impl(a: Any, e: Any, *, max_squarings: int) -> np.ndarray:
    dtype = a.dtype
    a, e = wide(a), wide(e)
    n = a.shape[-1]
    # the direction is scaled, so that it does not ask for squarings of its own
    size = np.abs(e).max(axis=(-2, -1), keepdims=True, initial=0)
    size = np.where((size == 0) | ~np.isfinite(size), 1, size)
    whole = np.zeros((*a.shape[:-2], 2 * n, 2 * n), a.dtype)
    whole[..., :n, :n] = whole[..., n:, n:] = a
    whole[..., :n, n:] = e / size
    return dtypes.cast((exponential(whole, max_squarings)[..., :n, n:] * size).astype(a.dtype, copy=False), dtype)


def _frechet_jvp(op: Op, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    """In the direction it is linear; in the matrix its derivative is a block of a larger one, of which `da` is the direction, since
    second derivatives are symmetric and only the direction can be transposed."""
    (a, e), (da, de) = primals, tangents
    out = op(a, e, **params)
    terms = [] if isinstance(de, Zero) else [op(a, de, **params)]
    if not isinstance(da, Zero):
        terms.append(_corner(op(_blocks(a, e), _blocks(instantiate(da), None), **params)))
    return out, add_tangents(terms, out.aval)


def _blocks(a: Any, corner: Any) -> Any:
    """[[a, corner], [0, a]]; no corner is zero."""
    aval = aval_of(a)
    n, last = aval.shape[-1], aval.ndim - 1
    none = ((0, 0, 0),) * (aval.ndim - 1)
    zero = literal(0, aval.dtype)
    top = pad(a, zero, padding_config=(*none, (0, n, 0))) if corner is None else concatenate(a, corner, dimension=last)
    return concatenate(top, pad(a, zero, padding_config=(*none, (n, 0, 0))), dimension=last - 1)


def _corner(x: Any) -> Any:
    shape = aval_of(x).shape
    n = shape[-1] // 2
    return slice_(
        x, start_indices=(*(0,) * (len(shape) - 1), n), limit_indices=(*shape[:-2], n, 2 * n), strides=None
    )  # fmt: skip


def _frechet_transpose(op: Op, ct: Any, a: Any, e: Any, **params: Any) -> list[Any]:
    assert isinstance(e, Linear) and not isinstance(a, Linear), "it is linear in the direction only"
    return [None, op(swapped(a), ct, **params)]


expm_frechet: Op = matrix_op(
    "expm_frechet",
    (2, 2),
    (2,),
    type_rule=_frechet_type,
    impl=_frechet_impl,
    jvp=_frechet_jvp,
    transpose=_frechet_transpose,
)
