"""Functions of scalars, or of small arrays, applied over arrays: vectorize, apply_along_axis, apply_over_axes.

They stand on `vmap`, which is in a layer above and says here what it is.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from mpiarray.core.value import Value, aval_of
from mpiarray.errors import InternalError
from mpiarray.numpy.host import as_array
from mpiarray.numpy.manipulation import canonical_axis, expand_dims, moveaxis, one, squeeze
from mpiarray.types import tree

__all__ = ["apply_along_axis", "apply_over_axes", "vectorize"]

_vmap: list[Callable[..., Any]] = []


def set_vmap(vmap: Callable[..., Any]) -> None:
    """Say what vmap is: `vmap(f, in_axes, out_axes)`.  Its module does so when it is imported."""
    _vmap[:] = [vmap]


def mapped(f: Callable[..., Any], in_axes: Any, out_axes: Any = 0) -> Callable[..., Any]:
    if not _vmap:
        raise InternalError("vmap was used before its module was imported")
    return _vmap[0](f, in_axes, out_axes)


# -- signatures ------------------------------------------------------------------------------------------------

Core = tuple[str, ...]
_NAME = r"\w+"
_DIMS = rf"\((?:{_NAME}(?:,{_NAME})*,?)?\)"
_LIST = rf"{_DIMS}(?:,{_DIMS})*"
_SIGNATURE = re.compile(rf"^{_LIST}->{_LIST}$")


def parse_signature(signature: str) -> tuple[list[Core], list[Core]]:
    """`"(m,n),(n)->(m)"` as the core dims of each argument and of each result.  Raises ValueError."""
    text = re.sub(r"\s+", "", signature)
    if not _SIGNATURE.match(text):
        raise ValueError(f"not a valid gufunc signature: {signature!r}; expected something like '(m,n),(n)->(m)'")
    sides = text.split("->")
    left, right = ([tuple(re.findall(_NAME, dims)) for dims in re.findall(_DIMS, side)] for side in sides)
    return left, right


def _core_sizes(args: Sequence[Any], cores: Sequence[Core], error: str) -> tuple[dict[str, int], list[tuple[int, ...]]]:
    """The size of each core dim, and each argument's other dims."""
    sizes: dict[str, int] = {}
    rest = []
    for x, core in zip(args, cores):
        shape = aval_of(x).shape
        if len(shape) < len(core):
            raise ValueError(
                f"input with shape {shape} does not have enough dimensions for all core dimensions "
                f"('{', '.join(core)}') {error}"
            )
        cut = len(shape) - len(core)
        for name, n in zip(core, shape[cut:]):
            if sizes.setdefault(name, n) != n:
                raise ValueError(f"inconsistent size for core dimension {name!r}: {n} vs {sizes[name]} {error}")
        rest.append(shape[:cut])
    return sizes, rest


def _check_results(results: Any, cores: Sequence[Core], sizes: dict[str, int], error: str) -> None:
    found = results if isinstance(results, (tuple, list)) else (results,)
    if len(found) != len(cores):
        raise ValueError(f"wrong number of results {error}: got {len(found)}, expected {len(cores)}")
    for x, core in zip(found, cores):
        shape = aval_of(x).shape
        if len(shape) != len(core):
            raise ValueError(f"output shape {shape} does not match core dimensions {core} {error}")
        for name, n in zip(core, shape):
            if sizes.setdefault(name, n) != n:
                raise ValueError(
                    f"inconsistent size for core dimension {name!r}: {n} vs {sizes[name]} on an output {error}"
                )


def vectorize(
    pyfunc: Callable[..., Any], *, excluded: Collection[int | str] = frozenset(), signature: str | None = None
) -> Callable[..., Any]:
    """`pyfunc`, which takes scalars (or arrays of the dims in `signature`), as a function of arrays, which broadcast.

    excluded: positions and keywords of arguments that are passed on as they are.
    """
    if any(not isinstance(e, (str, int)) for e in excluded):
        raise TypeError(
            f"jax.numpy.vectorize can only exclude integer or string arguments, but excluded={set(excluded)!r}"
        )
    if any(isinstance(e, int) and e < 0 for e in excluded):
        raise ValueError(f"excluded={set(excluded)!r} contains negative numbers")
    error = f"on vectorized function with excluded={set(excluded)!r} and signature={signature!r}"
    cores = parse_signature(signature) if signature is not None else None

    @functools.wraps(pyfunc)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        given = [k for k in range(len(args)) if k not in excluded]
        fixed_words = {k: v for k, v in kwargs.items() if k in excluded}
        words = [k for k in kwargs if k not in excluded]
        if words and cores is not None:
            raise ValueError(f"keyword arguments {words} must be excluded when a signature is given {error}")

        def core_function(*values: Any) -> Any:
            full = list(args)
            for k, v in zip(given, values):
                full[k] = v
            return pyfunc(*full, **fixed_words, **dict(zip(words, values[len(given) :])))

        arrays = [one("vectorize", args[k]) for k in given] + [one("vectorize", kwargs[k]) for k in words]
        return _over_arrays(core_function, arrays, cores, error)

    return wrapped


def _over_arrays(f: Callable[..., Any], arrays: list[Any], cores: Any, error: str) -> Any:
    inputs, outputs = cores if cores is not None else ([()] * len(arrays), None)
    if len(inputs) != len(arrays):
        raise TypeError(f"wrong number of positional arguments: expected {len(inputs)}, got {len(arrays)} {error}")
    sizes, rest = _core_sizes(arrays, inputs, error)
    shape = np.broadcast_shapes(*rest)

    def checked(*values: Any) -> Any:
        out = f(*values)
        if outputs is not None:
            _check_results(out, outputs, dict(sizes), error)
        return out

    squeezed = [squeeze(x, tuple(d for d, n in enumerate(r) if n == 1)) for x, r in zip(arrays, rest)]
    function: Callable[..., Any] = checked
    missing = []
    for back in range(len(shape)):
        present = [len(r) > back and r[-1 - back] != 1 for r in rest]
        if any(present):
            function = mapped(function, tuple(0 if p else None for p in present))
        else:
            missing.append(len(shape) - 1 - back)
    out = function(*squeezed)
    if missing:
        out = tree.map(lambda v: expand_dims(v, tuple(missing)), out)
    return tree.map(as_array, out)


# -- along axes ------------------------------------------------------------------------------------------------


def apply_along_axis(func1d: Callable[..., Any], axis: int, arr: Any, *args: Any, **kwargs: Any) -> Any:
    """`func1d(vector, *args, **kwargs)` of every vector along an axis, whose place its result takes."""
    x = one("apply_along_axis", arr)
    ndim = aval_of(x).ndim
    axis = canonical_axis(axis, ndim, "apply_along_axis")

    def f(vector: Any) -> Any:
        return func1d(vector, *args, **kwargs)

    function: Callable[..., Any] = f
    for _ in range(ndim - 1):
        function = mapped(function, 0)
    out = function(moveaxis(x, axis, -1))
    return tree.map(lambda v: _to_axis(v, ndim - 1, axis), out)


def _to_axis(v: Any, outer: int, axis: int) -> Any:
    """The dims that a function's result has go where its vector was."""
    own = aval_of(v).ndim - outer
    return moveaxis(v, tuple(range(outer, outer + own)), tuple(range(axis, axis + own))) if own else as_array(v)


def apply_over_axes(func: Callable[[Any, int], Any], a: Any, axes: Any) -> Any:
    """`func(a, axis)` for each axis in turn, the reduced dims kept with size 1."""
    x = one("apply_over_axes", a)
    several = isinstance(axes, (Sequence, np.ndarray)) or (isinstance(axes, Value) and axes.aval.ndim)
    for axis in axes if several else (axes,):
        axis = canonical_axis(axis, aval_of(x).ndim, "apply_over_axes")
        out = as_array(func(x, axis))
        if aval_of(out).ndim == aval_of(x).ndim - 1:
            out = expand_dims(out, axis)
        if aval_of(out).ndim != aval_of(x).ndim:
            raise ValueError("function is not returning an array of the correct shape")
        x = out
    return x
