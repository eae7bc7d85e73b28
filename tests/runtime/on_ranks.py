"""Arrays on all ranks of the job, for tests under MPI."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

import mpiarray as jax
from mpiarray.types.mesh import AxisType

Explicit, Auto = AxisType.Explicit, AxisType.Auto


def ranks() -> int:
    return jax.process_count()


def line(kind: AxisType = Explicit) -> jax.Mesh:
    """All ranks along x."""
    return jax.make_mesh((ranks(),), ("x",), axis_types=(kind,))


def grid(kind: AxisType = Explicit) -> jax.Mesh:
    """All ranks over x and y, y of two where the number is even."""
    n = ranks()
    sizes = (n // 2, 2) if n % 2 == 0 else (n, 1)
    return jax.make_mesh(sizes, ("x", "y"), axis_types=(kind, kind))


def values(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    """Different small numbers."""
    return ((np.arange(int(np.prod(shape))) * 7) % 97).astype(dtype).reshape(shape)


def placed(x: Any, mesh: jax.Mesh, *spec: Any, **sets: Any) -> jax.Array:
    return jax.device_put(x, jax.NamedSharding(mesh, jax.P(*spec, **sets)))


def under(make: Callable[[], jax.Mesh]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Run a test with this context mesh."""

    def wrap(f: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(f)
        def run(*args: Any, **kwargs: Any) -> Any:
            with jax.set_mesh(make()):
                return f(*args, **kwargs)

        return run

    return wrap


def same(got: Any, want: Any) -> None:
    """Equal values, read on all ranks."""
    np.testing.assert_array_equal(np.asarray(got), want)


def close(got: Any, want: Any, rtol: float = 1e-5) -> None:
    np.testing.assert_allclose(np.asarray(got), want, rtol=rtol, atol=rtol)
