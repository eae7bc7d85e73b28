"""The oracle of training tests: layers of tanh by hand, in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def by_hand(weights: Sequence[Any], x: np.ndarray) -> tuple[float, list[np.ndarray]]:
    """The loss mean(y**2) of tanh layers, and its gradients by the weights (arrays, or what becomes them)."""
    ws = [np.asarray(w, np.float64) for w in weights]
    ys = [x.astype(np.float64)]
    for w in ws:
        ys.append(np.tanh(ys[-1] @ w))
    back, grads = 2 * ys[-1] / ys[-1].size, []
    for w, below, above in zip(ws[::-1], ys[-2::-1], ys[:0:-1]):
        back = back * (1 - above**2)
        grads.append(below.T @ back)
        back = back @ w.T
    return float((ys[-1] ** 2).mean()), grads[::-1]
