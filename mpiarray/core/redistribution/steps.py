"""The steps of a redistribution and what each does, exactly.

All steps but three are written in mesh axes. `d: t` below says that dimension d of the array is partitioned over the
tuple of axes t, first axis most significant.
`number(axes)` is a device's mixed-radix coordinate over `axes`, first axis most significant; the
*group* of a step is the set of devices that differ only in their coordinates over its axes, ordered
by `number(axes)`, and `n` is the group's size. Only the END of a dimension's axis tuple can be
taken away (the blocks of a group are then neighbours in the array), and new axes go to the end.

    Slice(d, axes)          d: t, axes unused              ->  d: t + axes
        piece number(axes) of n of the block along d; local
    AllGather(d, axes)      d: t + axes                    ->  d: t
        the group's blocks joined along d in group order
    AllToAll(axes, f, g)    f: s + axes, g: r              ->  f: s, g: r + axes
        piece k of n along g goes to member k of the group; what arrives is joined along f in group order
    AllReduce(axes)         unreduced over axes            ->  not unreduced over them
        the sum of the group's blocks
    ReduceScatter(d, axes)  d: t, unreduced over axes      ->  d: t + axes, not unreduced over them
        piece number(axes) of n along d of that sum
    Mask(axes)              axes unused                    ->  unreduced over axes
        the block where the coordinates over axes are all 0, zeros elsewhere; local
    Widen(d, axes)          d: t + axes                    ->  d: t, unreduced over axes
        zeros, n times as long along d, with the own block at piece number(axes); local
    Permute(pairs)          any                            ->  any with blocks of the same shape
        for each pair (a, b) device b has the block of a; devices that are no b hold nothing after it
    Exchange(...)           any                            ->  any with no fewer summands
        boxes between devices, see exchange.py
    Relabel()               any                            ->  the same data under another type
        nothing moves; devices outside the target's mesh drop their block

*Unused* axes are in no dimension and not unreduced: all devices of the group hold the same block.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from mpiarray.core.redistribution.placement import Dims

State = tuple[Dims, frozenset[str]]


@dataclass(frozen=True)
class Step:
    """Base of all steps. `hlo` is the name that readers of compiled programs know, '' for local work."""

    hlo: ClassVar[str] = ""

    def detail(self) -> str:
        """Axes and dimensions for a printed plan."""
        return ""

    def __str__(self) -> str:
        return f"{self.hlo or type(self).__name__.lower()} {self.detail()}".rstrip()


@dataclass(frozen=True)
class AxisStep(Step):
    """A step within the groups of some mesh axes."""

    def after(self, state: State) -> State:
        """The (dims, unreduced) that this step makes of `state`."""
        raise NotImplementedError

    def received(self, block: int, n: int) -> int:
        """Bytes that each device receives, for a block of `block` bytes in groups of n, by the usual algorithm."""
        return 0

    def messages(self, n: int) -> int:
        """Messages that each device receives, by the usual algorithm."""
        return 0


@dataclass(frozen=True)
class Slice(AxisStep):
    """Keep piece number(axes) of the block along `dim`: replicated -> sharded, local."""

    dim: int
    axes: tuple[str, ...]

    def after(self, state: State) -> State:
        return _set(state[0], self.dim, state[0][self.dim] + self.axes), state[1]

    def detail(self) -> str:
        return f"dim {self.dim} over {_names(self.axes)}"


@dataclass(frozen=True)
class AllGather(AxisStep):
    """Join the group's blocks along `dim`: the last axes of a dimension become replicated."""

    hlo: ClassVar[str] = "all-gather"
    dim: int
    axes: tuple[str, ...]

    def after(self, state: State) -> State:
        return _set(state[0], self.dim, _cut(state[0][self.dim], self.axes)), state[1]

    def received(self, block: int, n: int) -> int:
        return block * (n - 1)

    def messages(self, n: int) -> int:
        return _rounds(n)

    def detail(self) -> str:
        return f"dim {self.dim} over {_names(self.axes)}"


@dataclass(frozen=True)
class AllToAll(AxisStep):
    """Move the last axes of `from_dim` to the end of `to_dim`."""

    hlo: ClassVar[str] = "all-to-all"
    axes: tuple[str, ...]
    from_dim: int
    to_dim: int

    def after(self, state: State) -> State:
        dims = _set(state[0], self.from_dim, _cut(state[0][self.from_dim], self.axes))
        return _set(dims, self.to_dim, dims[self.to_dim] + self.axes), state[1]

    def received(self, block: int, n: int) -> int:
        return block // n * (n - 1)

    def messages(self, n: int) -> int:
        return n - 1

    def detail(self) -> str:
        return f"dim {self.from_dim} -> dim {self.to_dim} over {_names(self.axes)}"


@dataclass(frozen=True)
class AllReduce(AxisStep):
    """Add the group's blocks: the value is no longer unreduced over `axes`."""

    hlo: ClassVar[str] = "all-reduce"
    axes: tuple[str, ...]

    def after(self, state: State) -> State:
        return state[0], state[1] - set(self.axes)

    def received(self, block: int, n: int) -> int:
        return -(-2 * block * (n - 1) // n)

    def messages(self, n: int) -> int:
        return 2 * _rounds(n)

    def detail(self) -> str:
        return f"over {_names(self.axes)}"


@dataclass(frozen=True)
class ReduceScatter(AxisStep):
    """Add the group's blocks and keep piece number(axes) of the sum along `dim`."""

    hlo: ClassVar[str] = "reduce-scatter"
    dim: int
    axes: tuple[str, ...]

    def after(self, state: State) -> State:
        return _set(state[0], self.dim, state[0][self.dim] + self.axes), state[1] - set(self.axes)

    def received(self, block: int, n: int) -> int:
        return block // n * (n - 1)

    def messages(self, n: int) -> int:
        return _rounds(n)

    def detail(self) -> str:
        return f"dim {self.dim} over {_names(self.axes)}"


@dataclass(frozen=True)
class Mask(AxisStep):
    """Keep the block where the coordinates over `axes` are all 0, zeros elsewhere: replicated -> unreduced, local."""

    axes: tuple[str, ...]

    def after(self, state: State) -> State:
        return state[0], state[1].union(self.axes)

    def detail(self) -> str:
        return f"over {_names(self.axes)}"


@dataclass(frozen=True)
class Widen(AxisStep):
    """Put the own block at its place in a zero block of the wider shape: sharded -> unreduced, local."""

    dim: int
    axes: tuple[str, ...]

    def after(self, state: State) -> State:
        return _set(state[0], self.dim, _cut(state[0][self.dim], self.axes)), state[1].union(self.axes)

    def detail(self) -> str:
        return f"dim {self.dim} over {_names(self.axes)}"


@dataclass(frozen=True)
class Permute(Step):
    """Every device sends its whole block to at most one other.

    pairs: (from, to) device ids, sorted by `to`; a pair (a, a) keeps a block where it is. A device that
    is no `to` of a pair holds nothing afterwards (it is not in the mesh that the value now lives on).
    """

    hlo: ClassVar[str] = "collective-permute"
    pairs: tuple[tuple[int, int], ...]

    @cached_property
    def sender(self) -> dict[int, int]:
        """Device -> whose block it gets."""
        return {b: a for a, b in self.pairs}

    @cached_property
    def receiver(self) -> dict[int, int]:
        """Device -> who gets its block."""
        return dict(self.pairs)

    def members(self) -> tuple[int, ...]:
        """Sorted ids of the devices that must take part."""
        return tuple(sorted({device for pair in self.pairs for device in pair}))

    def detail(self) -> str:
        moves = [f"{a}->{b}" for a, b in self.pairs if a != b]
        return " ".join(moves[:8]) + (f" ... ({len(moves)} moves)" if len(moves) > 8 else "")


@dataclass(frozen=True)
class Relabel(Step):
    """No data moves; only the type changes: `reduced`, axes of size 1, other names for the same placement."""

    def detail(self) -> str:
        return "(same data)"


def _set(dims: Dims, dim: int, axes: tuple[str, ...]) -> Dims:
    return dims[:dim] + (axes,) + dims[dim + 1 :]


def _cut(axes: tuple[str, ...], end: tuple[str, ...]) -> tuple[str, ...]:
    if not end or axes[-len(end) :] != end:
        raise ValueError(f"axes {_names(end)} are not the last of {_names(axes)}: their blocks are no neighbours")
    return axes[: -len(end)]


def _rounds(n: int) -> int:
    return (n - 1).bit_length()


def _names(axes: tuple[str, ...]) -> str:
    return "(" + ",".join(axes) + ")" if len(axes) != 1 else axes[0]
