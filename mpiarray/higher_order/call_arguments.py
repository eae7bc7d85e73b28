"""Arguments of functions with rules of their own (`custom_jvp`, `custom_vjp`): by position, differentiable and not."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from mpiarray.core.value import Literal, Value
from mpiarray.higher_order.arguments import operand


def by_position(fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """The call's arguments in the order of the function's parameters, defaults filled in.

    Raises TypeError when a parameter can only be given by keyword.
    """
    try:
        signature = inspect.signature(fun)
    except (ValueError, TypeError):
        if kwargs:
            raise TypeError(
                f"keyword arguments of {fun!r} cannot be resolved to positions: it has no signature"
            ) from None
        return args
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    if bound.kwargs:
        raise TypeError(
            f"The following keyword arguments could not be resolved to positions: {', '.join(bound.kwargs)}, in a "
            f"call of {fun!r}: functions with "
            "custom derivative rules take positional arguments"
        )
    return tuple(bound.args)


class Fixed:
    """The arguments that a rule does not differentiate by: (position, value) pairs; equal when the values are the
    same objects.
    """

    def __init__(self, items: Sequence[tuple[int, Any]]):
        self.items = tuple(items)
        self._key = tuple((n, id(v)) for n, v in self.items)

    @property
    def values(self) -> tuple[Any, ...]:
        return tuple(v for _, v in self.items)

    def join(self, dynamic: Sequence[Any]) -> list[Any]:
        """All arguments in their places."""
        fixed, rest = dict(self.items), iter(dynamic)
        return [fixed[n] if n in fixed else next(rest) for n in range(len(fixed) + len(dynamic))]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fixed) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


def split_fixed(args: tuple[Any, ...], argnums: Sequence[int]) -> tuple[Fixed, tuple[Any, ...]]:
    """(the arguments at `argnums`, the others)."""
    nums = {n % len(args) for n in argnums} if args else set()
    return Fixed([(n, a) for n, a in enumerate(args) if n in nums]), tuple(
        a for n, a in enumerate(args) if n not in nums
    )


def as_operand(x: Any, name: str) -> Any:
    return x if isinstance(x, Value) and not isinstance(x, Literal) else operand(x, name, lambda: "args")
