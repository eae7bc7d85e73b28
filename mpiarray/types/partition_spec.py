"""`PartitionSpec` (`P`): which mesh axes partition which dimension of an array.

A spec is bound to no mesh: whether its axes exist, and occur once, is checked by `sharding.check_spec`.
`partitions` is what the user wrote (normalised); `dims` is the form that the package computes with, one
tuple of axis names per dimension.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from mpiarray.types.interned import Interned, fill

__all__ = ["P", "PartitionSpec", "UNCONSTRAINED"]

Names = tuple[Any, ...]

_NO_AXES: frozenset = frozenset()


class _Unconstrained:
    """A dimension whose partition the compiler may choose. One instance."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "UNCONSTRAINED"

    def __reduce__(self) -> str:
        return "UNCONSTRAINED"


UNCONSTRAINED = _Unconstrained()


class PartitionSpec(Interned):
    """Partition of an array's dimensions over mesh axes, one entry per dimension.

    Args:
      *partitions: per dimension `None`, an axis name, a tuple of names (first name most significant), or
        `P.UNCONSTRAINED`. Dimensions beyond the last entry are not partitioned.
      unreduced: axes over which the array's value is the *sum* of the blocks.
      reduced: axes over which the array is replicated and its cotangent will be unreduced.

    Raises:
      TypeError: `unreduced` or `reduced` is not a set.
      ValueError: the sets contain None, overlap each other or overlap `partitions`.
    """

    __slots__ = ("dims", "partitions", "reduced", "unreduced")
    __match_args__ = ("partitions",)

    UNCONSTRAINED = UNCONSTRAINED

    partitions: tuple
    unreduced: frozenset
    reduced: frozenset
    dims: tuple

    def __new__(
        cls,
        *partitions: Any,
        unreduced: Iterable = _NO_AXES,
        reduced: Iterable = _NO_AXES,
    ) -> PartitionSpec:
        try:
            return _table[partitions, unreduced, reduced]
        except (KeyError, TypeError):  # new, or written with lists or sets
            return _make(partitions, unreduced, reduced)

    def __init_subclass__(cls, **kwargs: object) -> None:
        raise TypeError("PartitionSpec cannot be subclassed")

    @staticmethod
    def from_dims(dims: Iterable, unreduced: Iterable = _NO_AXES, reduced: Iterable = _NO_AXES) -> PartitionSpec:
        """The spec with the given `dims`: per dimension a tuple of axis names (`()` for none)."""
        return PartitionSpec(*dims, unreduced=frozenset(unreduced), reduced=frozenset(reduced))

    @property
    def axes(self) -> Names:
        """Names of the axes that partition a dimension, in order of appearance."""
        return tuple(name for dim in self.dims if dim is not UNCONSTRAINED for name in dim)

    def padded(self, ndim: int) -> PartitionSpec:
        """This spec with `None` for the missing trailing dimensions; a longer spec is returned as it is."""
        missing = ndim - len(self.partitions)
        return self if missing <= 0 else self.update(partitions=self.partitions + (None,) * missing)

    def update(
        self,
        partitions: Iterable | None = None,
        unreduced: Iterable | None = None,
        reduced: Iterable | None = None,
    ) -> PartitionSpec:
        """A spec with the named parts replaced. `partitions` may be a spec; only its partitions are taken."""
        if partitions is None:
            partitions = self.partitions
        elif isinstance(partitions, PartitionSpec):
            partitions = partitions.partitions
        return PartitionSpec(
            *partitions,
            unreduced=self.unreduced if unreduced is None else unreduced,
            reduced=self.reduced if reduced is None else reduced,
        )

    def to_ct_spec(self) -> PartitionSpec:
        """The spec of a cotangent of a value with this spec: `unreduced` and `reduced` change places."""
        return self.update(unreduced=self.reduced, reduced=self.unreduced)

    def index(self, value: Any) -> int:
        """Position of the first dimension whose entry is `value`; ValueError when there is none."""
        return self.partitions.index(_normal_partition(value))

    def count(self, value: Any) -> int:
        """Number of dimensions whose entry is `value`."""
        return self.partitions.count(_normal_partition(value))

    def __len__(self) -> int:
        return len(self.partitions)

    def __getitem__(self, i: Any) -> Any:
        self._check_plain("pspec[...]", "spec.partitions[...]")
        return self.partitions[i]

    def __iter__(self) -> Iterator:
        self._check_plain("*pspec", "*spec.partitions")
        return iter(self.partitions)

    def _check_plain(self, what: str, instead: str) -> None:
        if self.unreduced or self.reduced:
            raise ValueError(
                f"using {what} is dangerous when PartitionSpec has non-empty unreduced/reduced set, which it would "
                f"lose: {self}. Use {instead}"
            )

    def __add__(self, other: Any) -> PartitionSpec:
        if isinstance(other, PartitionSpec):
            return PartitionSpec(
                *self.partitions,
                *other.partitions,
                unreduced=self.unreduced | other.unreduced,
                reduced=self.reduced | other.reduced,
            )
        if not isinstance(other, tuple):
            return NotImplemented
        self._check_addable(other)
        return PartitionSpec(*self.partitions, *other)

    def __radd__(self, other: Any) -> PartitionSpec:
        if not isinstance(other, tuple):
            return NotImplemented
        self._check_addable(other)
        return PartitionSpec(*other, *self.partitions)

    def _check_addable(self, other: tuple) -> None:
        if self.unreduced or self.reduced:
            raise TypeError(
                f"cannot add the tuple {other} to {self}, which has unreduced or reduced axes: "
                f"write the tuple as a PartitionSpec"
            )

    def __reduce__(self) -> tuple:
        return _make, (self.partitions, self.unreduced, self.reduced)

    def __repr__(self) -> str:
        parts = [repr(p) for p in self.partitions]
        if self.unreduced:
            parts.append(f"unreduced={_set_text(self.unreduced)}")
        if self.reduced:
            parts.append(f"reduced={_set_text(self.reduced)}")
        if len(parts) == 1 and self.partitions:
            return f"P({parts[0]},)"
        return f"P({', '.join(parts)})"


P = PartitionSpec

# (partitions, unreduced, reduced) -> spec. Ways of writing that are hashable, such as P(('x',)), are keys too.
_table: dict[tuple, PartitionSpec] = {}


def _make(partitions: tuple, unreduced: Any, reduced: Any) -> PartitionSpec:
    normal = tuple(_normal_partition(p) for p in partitions)
    unreduced = _axis_set(unreduced, "unreduced")
    reduced = _axis_set(reduced, "reduced")
    spec = _table.get((normal, unreduced, reduced))
    if spec is None:
        _check_overlaps(normal, unreduced, reduced)
        spec = object.__new__(PartitionSpec)
        dims = tuple(_dim(p) for p in normal)
        fill(spec, partitions=normal, unreduced=unreduced, reduced=reduced, dims=dims)
        spec = _table.setdefault((normal, unreduced, reduced), spec)
    with contextlib.suppress(TypeError):  # lists are not hashable; they take this path every time
        _table[partitions, unreduced, reduced] = spec
    return spec


def _normal_partition(partition: Any) -> Any:
    """None, a bare name, a tuple of two or more names, or UNCONSTRAINED."""
    if isinstance(partition, (tuple, list)):
        if not partition:
            return None
        return partition[0] if len(partition) == 1 else tuple(partition)
    return partition


def _dim(partition: Any) -> Any:
    if partition is None:
        return ()
    if partition is UNCONSTRAINED or isinstance(partition, tuple):
        return partition
    return (partition,)


def _axis_set(axes: Any, what: str) -> frozenset:
    if not isinstance(axes, (set, frozenset)):
        raise TypeError(f"{what} argument of PartitionSpec should of type `frozenset` or `set`. Got {axes!r}")
    if None in axes:
        raise ValueError(f"{what} cannot contain None: all its elements must be names of mesh axes. Got {axes!r}")
    return frozenset(axes)


def _check_overlaps(partitions: tuple, unreduced: frozenset, reduced: frozenset) -> None:
    both = unreduced & reduced
    if both:
        raise ValueError(
            f"`unreduced` and `reduced` arguments of PartitionSpec cannot overlap: both contain {_set_text(both)}"
        )
    if not unreduced and not reduced:
        return
    used = {name for p in partitions if p is not UNCONSTRAINED for name in _dim(p)}
    for what, axes in (("unreduced", unreduced), ("reduced", reduced)):
        if axes & used:
            raise ValueError(
                f"partitions cannot overlap with {what} axes passed to PartitionSpec: {_set_text(axes & used)} is in "
                f"both. Got partitions {partitions} and {what}={_set_text(axes)}"
            )


def _set_text(axes: frozenset) -> str:
    """Like Python's text of a set, but sorted, so that all ranks print the same."""
    return "{" + ", ".join(repr(name) for name in sorted(axes, key=str)) + "}"
