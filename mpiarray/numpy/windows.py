"""Window functions of `M` points, as numpy's, in the default float dtype."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from mpiarray.numpy.arithmetic import divide, multiply
from mpiarray.numpy.creation import array
from mpiarray.numpy.elementary import i0
from mpiarray.numpy.promotion import cast, operands
from mpiarray.types import dtypes

__all__ = ["bartlett", "blackman", "hamming", "hanning", "kaiser"]


def _points(name: str, M: Any) -> int:
    try:
        return operator.index(M)
    except TypeError:
        raise TypeError(f"jnp.{name}: M must be an integer that is not traced, got {M!r}") from None


def _window(name: str, values: Callable[[int], np.ndarray], doc: str) -> Callable[[int], Any]:
    def window(M: int) -> Any:
        return array(values(_points(name, M)).astype(dtypes.default_dtype(float)))

    window.__name__ = window.__qualname__ = name
    window.__doc__ = doc
    return window


bartlett = _window("bartlett", np.bartlett, "The triangle that is 0 at both ends.")
blackman = _window("blackman", np.blackman, "Blackman's window: three terms of cosines.")
hamming = _window("hamming", np.hamming, "Hamming's window: a raised cosine that is not 0 at its ends.")
hanning = _window("hanning", np.hanning, "Hann's window: a raised cosine that is 0 at its ends.")


def kaiser(M: int, beta: Any) -> Any:
    """Kaiser's window with the shape parameter `beta`, a scalar that may be traced."""
    count = _points("kaiser", M)
    dtype = dtypes.default_dtype(float)
    if count <= 1:
        return array(np.ones(max(count, 0), dtype))
    (b,) = (cast(x, dtype) for x in operands("kaiser", beta))
    alpha = 0.5 * (count - 1)
    inside = np.sqrt(1 - ((np.arange(count) - alpha) / alpha) ** 2).astype(dtype)
    return divide(i0(multiply(b, array(inside))), i0(b))
