"""The values that control flow reads while it runs."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpiarray.core.value import Literal
from mpiarray.higher_order.manual_trace import ManualTracer


def concrete(x: Any) -> Any:
    """A scalar in evaluation as a numpy scalar: this instance's own."""
    if isinstance(x, ManualTracer):
        return np.asarray(x.block)
    return x.val if isinstance(x, Literal) else np.asarray(x)
