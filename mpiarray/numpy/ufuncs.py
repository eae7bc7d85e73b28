"""Elementwise functions of numpy."""

from __future__ import annotations

from typing import Any

from mpiarray.numpy.promotion import promote
from mpiarray.ops import arithmetic


def add(x: Any, y: Any, /) -> Any:
    """Sum, element by element."""
    return arithmetic.add(*promote("add", x, y))


def subtract(x: Any, y: Any, /) -> Any:
    """Difference, element by element."""
    return arithmetic.sub(*promote("subtract", x, y))


def multiply(x: Any, y: Any, /) -> Any:
    """Product, element by element."""
    return arithmetic.mul(*promote("multiply", x, y))


