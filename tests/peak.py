"""How much memory a call takes at most: what numpy and Python allocate while it runs, beyond what there was before."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def peak_of(call: Callable[[], T]) -> tuple[T, int]:
    """The call's result and its peak in bytes, the result included."""
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        result = call()
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return result, most - before
