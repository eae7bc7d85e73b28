"""Covariances and correlations."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpiarray.core.value import Value, aval_of
from mpiarray.numpy.arithmetic import absolute, divide, multiply, sqrt, subtract
from mpiarray.numpy.choices import clip
from mpiarray.numpy.complex_numbers import conjugate, imag, real
from mpiarray.numpy.creation import asarray
from mpiarray.numpy.manipulation import concatenate, expand_dims, one, squeeze
from mpiarray.numpy.matrices import diag
from mpiarray.numpy.products import matmul
from mpiarray.numpy.promotion import operands, promote_inexact
from mpiarray.numpy.reductions import average, sum
from mpiarray.ops import complex_parts
from mpiarray.ops.linear import transpose
from mpiarray.types import dtypes

__all__ = ["corrcoef", "cov"]


def _rows(name: str, m: Any, y: Any, rowvar: bool) -> Any:
    """Variables as rows, observations as columns."""
    arrays = operands(name, m) if y is None else operands(name, m, y)
    arrays = tuple(promote_inexact(*arrays))
    for what, x in zip("my", arrays):
        if aval_of(x).ndim > 2:
            raise ValueError(f"{what} has more than 2 dimensions: got {aval_of(x).str_short()} in {name}")
    out = []
    for k, x in enumerate(arrays):
        x = one(name, x)
        x = expand_dims(x, tuple(range(2 - aval_of(x).ndim))) if aval_of(x).ndim < 2 else x
        if not rowvar and aval_of(x).shape[0] != 1 and (k or aval_of(arrays[0]).ndim == 2):
            x = transpose(x, permutation=(1, 0))
        out.append(x)
    return out[0] if y is None else concatenate(out)


def _weights(name: str, given: Any, count: int, integers: bool) -> Any:
    (w,) = operands("cov", given)
    aval = aval_of(w)
    if aval.ndim > 1:
        raise RuntimeError(f"cannot handle multidimensional {name}: got {aval.str_short()}")
    if aval.shape != (count,):
        raise RuntimeError(f"incompatible numbers of samples and {name}: {count} and {aval.str_short()}")
    if integers and not dtypes.is_int(aval.dtype):
        raise TypeError(f"{name} must be integer., got {aval.str_short()}")
    return absolute(w)


def cov(
    m: Any,
    y: Any = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: Any = None,
    fweights: Any = None,
    aweights: Any = None,
) -> Any:
    """The covariance matrix of variables, the rows of `m` (and `y`); columns are observations (`rowvar=False`: turned).

    bias, ddof: what the number of observations is lessened by before it divides: `ddof`, else 0 with `bias`, else 1.
    fweights: how often each observation counts (integers); aweights: how much.
    """
    if ddof is not None and not isinstance(ddof, (int, float, Value, np.ndarray, np.generic)):
        raise ValueError(f"ddof must be integer, got {ddof!r} in cov")
    x = _rows("cov", m, y, rowvar)
    rows, count = aval_of(x).shape
    if not rows:
        return asarray(np.zeros((0, 0)))
    ddof = (0 if bias else 1) if ddof is None else ddof
    w = None if fweights is None else _weights("fweights", fweights, count, True)
    if aweights is not None:
        other = _weights("aweights", aweights, count, False)
        w = other if w is None else multiply(w, other)
    mean, total = average(x, axis=1, weights=w, returned=True)
    total = real(total[0]) if dtypes.is_complex(aval_of(total).dtype) else total[0]
    if w is None:
        factor = subtract(count, ddof)
    elif not isinstance(ddof, Value) and ddof == 0:
        factor = total
    elif aweights is None:
        factor = subtract(total, ddof)
    else:
        factor = subtract(total, divide(multiply(ddof, sum(multiply(w, absolute(aweights)))), total))
    x = subtract(x, expand_dims(mean, 1))
    turned = transpose(x if w is None else multiply(x, w), permutation=(1, 0))
    return squeeze(divide(matmul(x, conjugate(turned)), factor))


def corrcoef(x: Any, y: Any = None, rowvar: bool = True) -> Any:
    """The correlation matrix of variables, the rows of `x` (and `y`): covariances divided by the deviations of both."""
    c = cov(x, y, rowvar)
    if not aval_of(c).ndim:
        return divide(c, c)
    deviation = sqrt(real(diag(c)))
    c = divide(divide(c, expand_dims(deviation, 1)), deviation)
    if dtypes.is_complex(aval_of(c).dtype):
        return complex_parts.complex_(clip(real(c), -1, 1), clip(imag(c), -1, 1))
    return clip(c, -1, 1)
