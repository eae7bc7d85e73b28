"""Windows that move over arrays: sizes and paddings, the halos that ranks fetch, and the product of convolution.

`ops.conv` and `ops.pooling` share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from mpiarray.ops.boxes import Along, Blocks, move_boxes, moves_of, padded, slices_of

# -- sizes -----------------------------------------------------------------------------------------


def dilated(n: int, dilation: int) -> int:
    return 0 if n == 0 else (n - 1) * dilation + 1


def window_count(n: int, k: int, stride: int, pad: tuple[int, int], base: int, dilation: int) -> int:
    """How many windows of k places fit into n padded and dilated ones."""
    room = dilated(n, base) + sum(pad) - dilated(k, dilation)
    return room // stride + 1 if room >= 0 else 0


def same_pads(
    sizes: Sequence[int],
    windows: Sequence[int],
    strides: Sequence[int],
    how: str,
    base: Sequence[int],
    dilations: Sequence[int],
) -> tuple[tuple[int, int], ...]:
    """The padding that 'SAME', 'SAME_LOWER' or 'VALID' stands for.  Raises ValueError for other words."""
    how = how.upper()
    if how == "VALID":
        return ((0, 0),) * len(sizes)
    if how not in ("SAME", "SAME_LOWER"):
        raise ValueError(f"Unrecognized padding type: expected 'VALID', 'SAME' or 'SAME_LOWER', got {how!r}.")
    out = []
    for n, k, s, d, r in zip(sizes, windows, strides, base, dilations):
        n, k = dilated(n, d), dilated(k, r)
        missing = max(0, (-(-n // s) - 1) * s + k - n)
        small, large = missing // 2, missing - missing // 2
        out.append((small, large) if how == "SAME" else (large, small))
    return tuple(out)


# -- halos -----------------------------------------------------------------------------------------


def window_blocks(
    axes: tuple[str, ...],
    n: int,
    mine: int,
    parts: int,
    window: int,
    stride: int,
    pad: tuple[int, int],
    base: int,
    dilation: int,
) -> tuple[Blocks, Along]:
    """Of a dim of n that is cut into `parts` with `mine` windows each: what a rank's windows see, in padded places."""
    seen = dilated(window, dilation)
    size = (mine * parts - 1) * stride + seen
    return Blocks(axes, mine * stride, 0, (mine - 1) * stride + seen), padded(n, pad[0], base - 1, size)


def fetch(x: Any, fill: Any, source: Sequence[Blocks], target: Sequence[Blocks], runs: Sequence[Any]) -> Any:
    """Blocks that may overlap, filled where the operand has no element."""
    return move_boxes(fill, x, moves=moves_of(runs), sources=(tuple(source),), target=tuple(target), covered=False)


# -- blocks ----------------------------------------------------------------------------------------


def spread(x: np.ndarray, pads: Sequence[tuple[int, int]], dilations: Sequence[int], fill: Any) -> np.ndarray:
    """Dilate, then pad (or crop), each dim."""
    if all(p == (0, 0) for p in pads) and all(d == 1 for d in dilations):
        return x
    shape = [max(0, dilated(n, d) + sum(p)) for n, d, p in zip(x.shape, dilations, pads)]
    runs = [padded(n, p[0], d - 1, m) for n, p, d, m in zip(x.shape, pads, dilations, shape)]
    out = np.full_like(x, fill, shape=shape)  # in the memory order of x
    if all(r.size for r in runs):
        source, target = slices_of(runs)
        out[target] = x[source]
    return out


def windows_of(x: np.ndarray, sizes: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> np.ndarray:
    """A view of shape (number of windows per dim..., places of a window per dim...)."""
    counts = [window_count(n, k, s, (0, 0), 1, r) for n, k, s, r in zip(x.shape, sizes, strides, dilations)]
    steps = [b * s for b, s in zip(x.strides, strides)] + [b * r for b, r in zip(x.strides, dilations)]
    return as_strided(x, (*counts, *sizes), steps, writeable=False)
