"""Base class of the immutable, interned types.

An interned class keeps one instance per value. Equality and hash are then those of `object`: an identity
test and an address, done in C. That is why the classes here define neither `__eq__` nor `__hash__`.
Instances live as long as the process; a program uses few distinct types, and its caches hold them anyway.
"""

from __future__ import annotations

from typing import Any, NoReturn


class Interned:
    """Immutable object; copies are the object itself. Subclasses intern in `__new__` and define `__reduce__`."""

    __slots__ = ("__weakref__",)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is immutable: cannot set attribute {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is immutable: cannot delete attribute {name!r}")

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: dict) -> Any:
        return self


def fill(instance: Interned, **fields: object) -> None:
    """Set the slots of an instance under construction (the only way past `__setattr__`)."""
    for name, value in fields.items():
        object.__setattr__(instance, name, value)
