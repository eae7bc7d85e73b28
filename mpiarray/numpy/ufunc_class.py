"""`jnp.ufunc`: elementwise functions with the methods reduce, accumulate, outer, at and reduceat; and `frompyfunc`.

Functions that have an op for a method use it; the others fold slices one after the other.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from mpiarray.core.value import aval_of
from mpiarray.numpy.editing import cut
from mpiarray.numpy.host import as_array
from mpiarray.numpy.indexing import At
from mpiarray.numpy.manipulation import broadcast_to, canonical_axis, concatenate, expand_dims, one, ravel, squeeze
from mpiarray.numpy.promotion import cast
from mpiarray.numpy.selection import where as choose_where
from mpiarray.numpy.vectorizing import vectorize
from mpiarray.types import dtypes

__all__ = ["frompyfunc", "ufunc"]


class ufunc:
    """An elementwise function of `nin` arguments and `nout` results.

    identity: the value that reductions of nothing have, None if there is none.
    """

    def __init__(
        self,
        func: Callable[..., Any],
        /,
        nin: int,
        nout: int,
        *,
        name: str | None = None,
        nargs: int | None = None,
        identity: Any = None,
        call: Callable[..., Any] | None = None,
        reduce: Callable[..., Any] | None = None,
        accumulate: Callable[..., Any] | None = None,
        at: Callable[..., Any] | None = None,
        reduceat: Callable[..., Any] | None = None,
    ):
        self.__name__ = self.__qualname__ = name or getattr(func, "__name__", "ufunc")
        self.__doc__ = getattr(func, "__doc__", None)
        self.__wrapped__ = func
        self.nin, self.nout, self.identity = operator.index(nin), operator.index(nout), identity
        self.nargs = operator.index(nin if nargs is None else nargs)
        self._call = vectorize(func) if call is None else call
        self._reduce, self._accumulate, self._at, self._reduceat = reduce, accumulate, at, reduceat

    def __repr__(self) -> str:
        return f"<jnp.ufunc '{self.__name__}'>"

    def __call__(self, *args: Any, out: None = None, where: None = None) -> Any:
        if out is not None:
            raise NotImplementedError(f"out argument of {self}")
        if where is not None:
            raise NotImplementedError(f"where argument of {self}")
        if len(args) != self.nargs:
            raise TypeError(
                f"{self.__name__}() takes {self.nargs} positional arguments, got {len(args)}: missing or too many"
            )
        return self._call(*args)

    def _binary(self, method: str) -> None:
        if self.nin != 2 or self.nout != 1:
            raise ValueError(
                f"jnp.ufunc.{method} only supported for functions with nin=2 and nout=1, got {self} with "
                f"{self.nin} and {self.nout}"
            )

    def reduce(
        self,
        a: Any,
        axis: Any = 0,
        dtype: Any = None,
        out: None = None,
        keepdims: bool = False,
        initial: Any = None,
        where: Any = None,
    ) -> Any:
        """The elements along `axis` (None: all) combined from the left."""
        self._binary("reduce")
        if out is not None:
            raise NotImplementedError(f"out argument of {self}.reduce()")
        x = one(f"{self.__name__}.reduce", a)
        if self._reduce is not None:
            return self._reduce(x, axis=axis, dtype=dtype, keepdims=keepdims, initial=initial, where=where)
        if isinstance(axis, tuple):
            raise NotImplementedError(
                f"{self}.reduce with a tuple of axes: reduce them one after the other, or all with axis=None"
            )
        ndim = aval_of(x).ndim
        if where is not None:
            if self.identity is None and initial is None:
                raise ValueError(
                    f"reduction operation '{self.__name__}' does not have an identity, so to use a where mask "
                    "one has to specify 'initial'."
                )
            x = choose_where(where, x, self.identity if initial is None else initial)
        if axis is None:
            x, kept, axis = ravel(x), tuple(range(ndim)), 0
        else:
            axis = canonical_axis(axis, ndim, f"{self.__name__}.reduce")
            kept = (axis,)
        if dtype is not None:
            x = cast(x, dtypes.requested(dtype, f"{self.__name__}.reduce"))
        total = self._fold(x, axis, initial)
        return expand_dims(total, kept) if keepdims else total

    def _fold(self, x: Any, axis: int, initial: Any) -> Any:
        aval = aval_of(x)
        parts = [squeeze(cut(x, axis, k, k + 1), axis) for k in range(aval.shape[axis])]
        if initial is None and not parts:
            if self.identity is None:
                raise ValueError(f"zero-size array to reduction operation {self.__name__} which has no identity")
            initial = self.identity
        if initial is not None:
            shape = (*aval.shape[:axis], *aval.shape[axis + 1 :])
            parts.insert(0, broadcast_to(cast(initial, aval.dtype), shape))
        total = parts[0]
        for p in parts[1:]:
            total = cast(self._call(total, p), aval.dtype)
        return as_array(total)

    def accumulate(self, a: Any, axis: int = 0, dtype: Any = None, out: None = None) -> Any:
        """The results of combining the first 1, 2, 3, ... elements along an axis."""
        self._binary("accumulate")
        if out is not None:
            raise NotImplementedError(f"out argument of {self}.accumulate()")
        x = one(f"{self.__name__}.accumulate", a)
        if axis is None or isinstance(axis, tuple):
            raise ValueError("accumulate does not allow multiple axes")
        axis = canonical_axis(axis, aval_of(x).ndim, f"{self.__name__}.accumulate")
        if dtype is not None:
            x = cast(x, dtypes.requested(dtype, f"{self.__name__}.accumulate"))
        if self._accumulate is not None:
            return self._accumulate(x, axis)
        parts = [cut(x, axis, k, k + 1) for k in range(aval_of(x).shape[axis])]
        for k in range(1, len(parts)):
            parts[k] = cast(self._call(parts[k - 1], parts[k]), aval_of(x).dtype)
        return concatenate(parts, axis=axis) if parts else x

    def outer(self, A: Any, B: Any, /) -> Any:
        """The function of all pairs of an element of `A` and one of `B`; shape `A.shape + B.shape`."""
        self._binary("outer")
        x, y = one(f"{self.__name__}.outer", A), one(f"{self.__name__}.outer", B)
        n, m = aval_of(x).ndim, aval_of(y).ndim
        return self._call(expand_dims(x, tuple(range(n, n + m))) if m and n else x, y)

    def at(self, a: Any, indices: Any, b: Any = None, /, *, inplace: bool = True) -> Any:
        """`a` with the function applied to the elements at `indices` (with `b` as second argument), as a new array."""
        if inplace:
            raise NotImplementedError(
                "Because JAX arrays are immutable, jnp.ufunc.at() cannot operate inplace like np.ufunc.at(). "
                "Instead, you can pass inplace=False "
                f"and capture the result: arr = jnp.{self.__name__}.at(arr, ind, val, inplace=False)"
            )
        x = one(f"{self.__name__}.at", a)
        if self.nin == 1:
            return At(x)[indices].apply(self._call)
        if b is None:
            raise ValueError(f"{self}.at() needs a second operand, as the function has two arguments")
        if self._at is not None:
            return self._at(At(x)[indices], b)
        return At(x)[indices].set(cast(self._call(At(x)[indices].get(), b), aval_of(x).dtype))

    def reduceat(self, a: Any, indices: Any, axis: int = 0, dtype: Any = None, out: None = None) -> Any:
        """For each index the reduction from it to the next one, or its element if the next is not above it.

        Indices must be concrete.
        """
        self._binary("reduceat")
        if out is not None:
            raise NotImplementedError(f"out argument of {self}.reduceat()")
        x = one(f"{self.__name__}.reduceat", a)
        if self._reduceat is not None:
            return self._reduceat(x, indices, axis, dtype)
        if axis is None or isinstance(axis, tuple):
            raise ValueError("reduceat requires a single integer axis.")
        axis = canonical_axis(axis, aval_of(x).ndim, f"{self.__name__}.reduceat")
        n = aval_of(x).shape[axis]
        places = [int(i) for i in np.asarray(indices).reshape(-1)]
        if any(not 0 <= i < n for i in places):
            raise IndexError(f"{self.__name__}.reduceat: indices must be from 0 to {n - 1}, got {places}")
        parts = []
        for i, following in zip(places, [*places[1:], n]):
            stop = following if following > i else i + 1
            parts.append(self.reduce(cut(x, axis, i, stop), axis=axis, dtype=dtype, keepdims=True))
        return concatenate(parts, axis=axis) if parts else cut(x, axis, 0, 0)


def frompyfunc(func: Callable[..., Any], /, nin: int, nout: int, *, identity: Any = None) -> ufunc:
    """A function of `nin` scalars as a ufunc, with `nout` results."""
    return ufunc(func, nin, nout, identity=identity)
