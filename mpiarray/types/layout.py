"""`Layout` and `Format`: the order of an array's blocks in memory, next to their placement on devices.

A layout belongs to the array object, not to its type: types, rules and compiled programs do not depend on it
unless a program is told to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpiarray.types.interned import Interned, fill
from mpiarray.types.sharding import Sharding

__all__ = ["AUTO", "Format", "Layout"]


class _Auto:
    """The layout that the compiler may choose. One instance."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "AUTO"

    def __reduce__(self) -> str:
        return "AUTO"


AUTO = _Auto()


class Layout(Interned):
    """Order of the dimensions of a block in memory.

    Args:
      major_to_minor: permutation of the dimensions, the one with the largest stride first; `(0, 1)` is C order.
      tiling: None or `()`, which mean the same; nothing else is supported.
      sub_byte_element_size_in_bits: 0.

    Raises:
      ValueError: `major_to_minor` is not a permutation of `range(len(major_to_minor))`.
      NotImplementedError: another tiling or element size.
    """

    __slots__ = ("major_to_minor", "sub_byte_element_size_in_bits", "tiling")
    AUTO = AUTO

    major_to_minor: tuple[int, ...]
    tiling: tuple | None
    sub_byte_element_size_in_bits: int

    def __init__(
        self, major_to_minor: Sequence[int], tiling: tuple | None = None, sub_byte_element_size_in_bits: int = 0
    ):
        order = tuple(int(d) for d in major_to_minor)
        if sorted(order) != list(range(len(order))):
            raise ValueError(f"Layout: major_to_minor must be a permutation of {tuple(range(len(order)))}. Got {order}")
        if tiling is not None and tuple(tiling) != ():
            raise NotImplementedError(f"Layout: tiled layouts are not supported; blocks are strided. Got {tiling=}")
        if sub_byte_element_size_in_bits:
            raise NotImplementedError(
                f"Layout: packed elements are not supported. Got {sub_byte_element_size_in_bits=}"
            )
        fill(
            self,
            major_to_minor=order,
            tiling=None if tiling is None else (),
            sub_byte_element_size_in_bits=0,
        )

    def update(self, **parts: Any) -> Layout:
        """A layout with the named parts replaced."""
        return Layout(**{name: getattr(self, name) for name in self.__slots__} | parts)

    # Not identity: layouts that differ in how "no tiling" is written are equal but print differently.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and self.major_to_minor == other.major_to_minor

    def __hash__(self) -> int:
        return hash((Layout, self.major_to_minor))

    def __reduce__(self) -> tuple:
        return Layout, (self.major_to_minor, self.tiling, self.sub_byte_element_size_in_bits)

    def __repr__(self) -> str:
        return (
            f"Layout(major_to_minor={self.major_to_minor}, tiling={self.tiling}, "
            f"sub_byte_element_size_in_bits={self.sub_byte_element_size_in_bits})"
        )


class Format(Interned):
    """A layout and a sharding, either of which may be left open.

    Args:
      layout: Layout, `Layout.AUTO` or None.
      sharding: Sharding or None (a bare PartitionSpec is not accepted: it names no mesh).

    Raises:
      TypeError: a part has another type.
      ValueError: a concrete layout without a sharding.
    """

    __slots__ = ("layout", "sharding")
    layout: Layout | _Auto | None
    sharding: Sharding | None

    def __init__(self, layout: Layout | _Auto | None = None, sharding: Sharding | None = None):
        if layout is not None and layout is not AUTO and not isinstance(layout, Layout):
            raise TypeError(
                f"Invalid value received for the layout argument. Expected values are `None`, `Layout.AUTO` or an "
                f"instance of `Layout`. Got {layout} of type {type(layout)}"
            )
        if sharding is not None and not isinstance(sharding, Sharding):
            raise TypeError(
                f"Invalid value received for the sharding argument. Expected values are `None` or an instance of "
                f"`jax.sharding.Sharding`. Got {sharding} of type {type(sharding)}"
            )
        if isinstance(layout, Layout) and sharding is None:
            raise ValueError(
                f"Sharding has to be concrete when layout is of type {type(layout)}. Please pass a NamedSharding or a "
                f"SingleDeviceSharding to the sharding argument. Got sharding None"
            )
        fill(self, layout=layout, sharding=sharding)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Format) and self.layout == other.layout and self.sharding == other.sharding

    def __hash__(self) -> int:
        return hash((self.layout, self.sharding))

    def __reduce__(self) -> tuple:
        return Format, (self.layout, self.sharding)

    def __repr__(self) -> str:
        return f"Format(layout={self.layout}, sharding={self.sharding})"
