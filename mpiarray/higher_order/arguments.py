"""A call's arguments as jit sees them: static ones apart, the others flattened, each with its path for messages."""

from __future__ import annotations

import functools
import inspect
import reprlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpiarray.core.trace import state
from mpiarray.core.value import Literal, Value
from mpiarray.runtime.array import ArrayImpl, from_host
from mpiarray.types import dtypes, tree
from mpiarray.types.aval import ShapeDtypeStruct


def as_tuple(x: Any) -> tuple[Any, ...]:
    return () if x is None else (x,) if isinstance(x, (int, str)) else tuple(x)


class StaticSplit:
    """Which arguments of a function are static, by position and by name, and which are donated."""

    def __init__(self, fun: Callable[..., Any], argnums: Any, argnames: Any, what: str):
        self.nums, self.names = set(as_tuple(argnums)), set(as_tuple(argnames))
        if not all(isinstance(n, int) for n in self.nums) or not all(isinstance(n, str) for n in self.names):
            raise TypeError(f"{what}: argnums must be ints and argnames strings, got {argnums!r} and {argnames!r}")
        try:
            parameters = list(inspect.signature(fun).parameters.values())
        except (ValueError, TypeError):
            parameters = []
        positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        self.nums = {n + len(positional) if n < 0 else n for n in self.nums}
        variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)
        if parameters and not variadic and any(n >= len(positional) for n in self.nums):
            raise ValueError(
                f"{what}: argnums {sorted(self.nums)} is out of range for {len(positional)} positional arguments of {fun}"
            )
        known = {p.name for p in parameters}
        if parameters and not any(p.kind is p.VAR_KEYWORD for p in parameters) and not self.names <= known:
            raise ValueError(f"{what}: argnames {sorted(self.names - known)} are not arguments of {fun}")
        for n in tuple(self.nums):
            if n < len(positional):
                self.names.add(positional[n])
        for k, name in enumerate(positional):
            if name in self.names:
                self.nums.add(k)

    def __bool__(self) -> bool:
        return bool(self.nums or self.names)


def split_static(
    args: tuple[Any, ...], kwargs: dict[str, Any], static: StaticSplit
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """(key of the static arguments, dynamic args, dynamic kwargs)."""
    if not static:
        return (), args, kwargs
    fixed = tuple((n, a) for n, a in enumerate(args) if n in static.nums) + tuple(
        sorted(((k, v) for k, v in kwargs.items() if k in static.names), key=lambda kv: kv[0])
    )
    for name, value in fixed:
        try:
            hash(value)
        except TypeError:
            raise ValueError(
                f"Non-hashable static arguments are not supported: static argument {name!r} is {value!r} of type {type(value)}. "
                "Pass a tuple instead of a list, or do not make it static."
            ) from None
    dynamic = tuple(a for n, a in enumerate(args) if n not in static.nums)
    return fixed, dynamic, {k: v for k, v in kwargs.items() if k not in static.names}


def join_static(
    fixed: tuple[Any, ...], dynamic: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """The call's arguments again, static ones in their places."""
    by_position = {k: v for k, v in fixed if isinstance(k, int)}
    rest = iter(dynamic)
    args = []
    for n in range(len(dynamic) + len(by_position)):
        args.append(by_position[n] if n in by_position else next(rest))
    return args, kwargs | {k: v for k, v in fixed if isinstance(k, str)}


def operand(x: Any, name: str, path: Callable[[], str]) -> Any:
    """A leaf as an operand: arrays and tracers as they are, host values as uncommitted arrays."""
    if isinstance(x, Literal) and state.trace is None:
        return from_host(x.val, x.aval.dtype, x.aval.weak_type)
    if isinstance(x, (Value, ShapeDtypeStruct)):
        return x
    if isinstance(x, (np.ndarray, np.generic)) or dtypes.is_python_scalar(x):
        try:
            return from_host(x)
        except TypeError:
            pass
    if hasattr(x, "__jax_array__"):
        return x.__jax_array__()
    raise TypeError(
        f"Error interpreting argument to {name} as an abstract array. The problematic value is {reprlib.repr(x)} of type {type(x)} and was passed to the "
        f"function at path {path()}. Only arrays, numpy arrays, numbers and pytrees of them can be passed; use `static_argnums` for the rest."
    )


def flatten_call(name: str, args: Any, kwargs: dict[str, Any]) -> tuple[list[Any], Any]:
    """The operands of a call and the structure of (args, kwargs)."""
    leaves, structure = tree.flatten((args, kwargs))
    for i, x in enumerate(leaves):
        if type(x) is not ArrayImpl:
            leaves[i] = operand(x, name, functools.partial(leaf_path, args, kwargs, i))
    return leaves, structure


def leaf_path(args: Any, kwargs: Any, index: int) -> str:
    paths = [tree.keystr(p) for p, _ in tree.leaves_with_path((args, kwargs))]
    path = paths[index]
    return path[len("[0]") :] and f"args{path[3:]}" if path.startswith("[0]") else f"kwargs{path[3:]}"
