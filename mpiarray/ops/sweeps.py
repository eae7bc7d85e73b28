"""Groups whose result is written over an array of which they read shifted parts: stencils in place.

A loop `u = f(shifted parts of u)` needs two arrays if each value is written when it is computed.  Here the rows are taken in
bands from the first to the last.  What a band's last step reads stays in buffers, and its result is written when the next band is
computed: no later band reaches back further than to the band before it.  So a steady loop makes no new array, what it does
not write stays as it is, and a third of the memory's traffic is saved (a store into new memory reads it first).

Parts of the array that are computed out of this order are tiles whose halo is on its way, and those that reach far back (the
last row of a torus that reads the first).  What they read of the array is copied before anything is written; they come last.
Messages leave from copies (`ops.common.Parts.copied`): nothing here waits for them before it writes.

Apart from `ops.tiles`, whose order of tiles is free.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from mpiarray import memory
from mpiarray.core.jaxpr import Eqn, Jaxpr
from mpiarray.core.value import Literal
from mpiarray.ops.select import choose, select_n
from mpiarray.ops.tile_steps import writer_of
from mpiarray.ops.tiles import Scan, Shape, Tiled, Writer, cuts_of, lies_in, scan_box, within
from mpiarray.types import dtypes

_NARROW = 64  # a region is narrow where rows are at least so many times as long
_LATE = 8  # at most one element in so many may be computed out of order


class Shifts(NamedTuple):
    """What a group reads of the array that a result is written over.

    result  the number of the result
    reads   for the operands that are parts of the array, by their numbers: for each piece (of an operand that is not in pieces:
            for the one array) how far, along each dim, the element that is read lies beyond the one that is written; None
            for a piece that is no part of the array
    array   its shape
    moved   where the group's first element is written in it
    """

    result: int
    reads: Mapping[int, Sequence[tuple[int, ...] | None]]
    array: Shape
    moved: tuple[int, ...]


class Bands(NamedTuple):
    """Tiles in bands of rows: numbers of tiles, and those of tiles that come last."""

    tiles: Scan
    bands: list[list[int]]
    late: list[int]


def tiled(jaxpr: Jaxpr, shape: Shape, shifts: Shifts | None, **params: Any) -> Tiled:
    """The group prepared: `Swept` if that is possible."""
    if shifts is not None and not params.get("rows"):
        found = Swept(jaxpr, shape, shifts, **params)
        if found.bands is not None:
            return found
    return Tiled(jaxpr, shape, **params)


def overwriting(run: Any) -> Any:
    """A step that may be told to write over an array: `run(*blocks, over=array)`."""
    run.overwrites = True
    return run


class Swept(Tiled):
    """A group prepared to write over the array that it reads: `run(*blocks, over=array)`; `over` is None: into a new one.

    With targets, these are parts of the array, or of a new one.
    """

    overwrites = True

    def __init__(self, jaxpr: Jaxpr, shape: Shape, shifts: Shifts, **params: Any):
        self.shifts = shifts
        self.reads = {jaxpr.invars[k]: found for k, found in shifts.reads.items()}
        super().__init__(jaxpr, shape, delayed=jaxpr.outvars[shifts.result], **params)

    @cached_property
    def tail(self) -> list[Eqn]:
        """The steps that are delayed: the last one, and where it only chooses by a mask of rows between what is there and what the
        one before makes, this one too, which then writes where the mask is the same for all of a tile."""
        final, before = self.steps[-1], self.steps[-2:-1]
        if not before or final.op is not select_n or len(final.invars) != 3 or before[0].outvars[0] not in final.invars:
            return [final]
        mask, *cases = final.invars
        new = before[0].outvars[0]
        old = next((v for v in cases if v is not new), new)
        reads = [read for k in (old,) if not isinstance(k, Literal) for read in self.reads.get(k, ())]
        narrow = not isinstance(mask, Literal) and mask.aval.dtype == np.bool_ and not self.is_full(mask)
        alone = [v for e in self.steps for v in e.invars].count(new) == 1 and new not in self.jaxpr.outvars
        able = narrow and alone and reads and not any(read is None or any(read) for read in reads)
        return [before[0], final] if able and writer_of(before[0]) is not None else [final]

    def _last(self) -> list[Eqn]:
        return self.tail

    @cached_property
    def bands(self) -> Bands | None:
        """The order of the tiles; None where the result cannot be written over the array."""
        return self._bands() if self._may_wait() else None

    def _may_wait(self) -> bool:
        """Whether the steps that make the result read nothing that is gone when they are done late."""
        final, delayed = self.steps[-1], self.delayed
        if final.outvars[0] is not delayed or writer_of(final) is None or list(self.jaxpr.outvars).count(delayed) > 1:
            return False
        if any(v is delayed for e in self.steps for v in e.invars):
            return False
        made = {v for e in self.steps for v in e.outvars}
        inner = {e.outvars[0] for e in self.tail}
        for v in (v for e in self.tail for v in e.invars):
            if isinstance(v, Literal) or v in inner:
                continue
            if v in made and not isinstance(self.buffers.of.get(v), int) and v not in self.results:
                return False
            if any(read is not None and any(read) for read in self.reads.get(v, ())):
                return False
        return True

    def _bands(self) -> Bands | None:
        boxes = [*self.pieces.values(), self.targets or ()]
        ends = [sorted({0, n, *c}) for n, c in zip(self.shape, cuts_of(self.shape, boxes))]
        regions = [c for c in itertools.product(*map(itertools.pairwise, ends)) if self._is_written(c)]
        widths: dict[Any, int] = {}
        for rows, *others in regions:
            widths[rows] = widths.get(rows, 0) + math.prod(b - a for a, b in others)
        height = self.size // max((1, *widths.values()))
        if not height or not regions:
            return None
        late = {c for c in regions if self._is_late(c, height)}
        count = lambda found: sum(math.prod(b - a for a, b in c) for c in found)
        if _LATE * count(late) > count(regions) or not self._goes_forward(regions, late, widths, height):
            return None
        return self._in_order(regions, late, height)

    def _in_order(self, regions: Sequence[Any], late: set[Any], height: int) -> Bands:
        tiles, bands = Scan([], []), []
        for (first, end), group in itertools.groupby(regions, key=lambda c: c[0]):
            columns = [c[1:] for c in group if c not in late]
            for a in range(first, end, height) if columns else ():
                bands.append(list(range(len(tiles.indices), len(tiles.indices) + len(columns))))
                for column in columns:
                    corner = ((a, min(a + height, end)), *column)
                    tiles.indices.append(tuple(slice(*c) for c in corner))
                    tiles.shapes.append(tuple(d - c for c, d in corner))
        count = len(tiles.indices)
        for corner in regions:
            if corner in late:
                scan_box(tiles, [a for a, _ in corner], tuple(b - a for a, b in corner), self.size)
        return Bands(tiles, bands, list(range(count, len(tiles.indices))))

    def _is_written(self, corner: Any) -> bool:
        return self.targets is None or any(lies_in(corner, box) for box in self.targets)

    def _is_narrow(self, sizes: Shape) -> bool:
        return len(sizes) > 1 and _NARROW * sizes[-1] <= self.shape[-1]

    def _pieces_in(self, corner: Any) -> list[tuple[int, int, Any]]:
        """Of operands that have pieces, or are parts of the array: (operand, piece, how far off) for a region."""
        found = []
        index = tuple(slice(*c) for c in corner)
        for k, v in enumerate(self.jaxpr.invars):
            piece = within(index, self.pieces[v])[0] if v in self.pieces else 0
            found.append((k, piece, self.reads[v][piece] if v in self.reads else None))
        return found

    def _is_late(self, corner: Any, height: int) -> bool:
        """Whether a region waits for messages, or reaches back further than to the band before.

        Also some columns of a long region: in bands, each of their elements is a line of the cache that others push out.
        """
        sizes = tuple(b - a for a, b in corner)
        if sizes[0] > height and self._is_narrow(sizes):
            return True
        return any(
            piece in self.late.get(k, ()) or (read is not None and read[0] < -height)
            for k, piece, read in self._pieces_in(corner)
        )

    def _goes_forward(self, regions: Sequence[Any], late: set[Any], widths: Mapping[Any, int], height: int) -> bool:
        """Whether each band reads nothing of bands before the one before it."""
        reads = [read for c in regions if c not in late for *_, read in self._pieces_in(c) if read is not None]
        back = max((-read[0] for read in reads), default=0)
        inner = {c[0] for c in regions if c not in late}
        bands = [
            (a, min(a + height, end))
            for first, end in widths
            if (first, end) in inner
            for a in range(first, end, height)
        ]
        return all(third[0] - back >= first[1] for first, third in zip(bands, bands[2:]))

    @cached_property
    def _in_dims(self) -> Any:
        assert self.bands is not None, "asked before"
        return _Sweep(self, self.bands).function()

    def __call__(self, *blocks: Any, over: Any = None) -> Any:
        return self._in_dims(*blocks, over)

    def _may_be_flat(self) -> bool:
        return False


class _Sweep(Writer):
    """The text of such a runner."""

    more = ("over",)
    tiled: Swept

    def __init__(self, tiled: Swept, bands: Bands):
        super().__init__(tiled, tiled.shape)
        self.tiles, self.bands, self.late, self.single = bands.tiles, bands.bands, bands.late, False

    def function(self) -> Any:
        line, value, tiled = self.source.line, self.source.value, self.tiled
        self._operands()
        results = [self._allocate(v) for v in tiled.jaxpr.outvars]
        numbers = self._numbers()
        sides = max(map(len, self.bands), default=0)
        bands = [[(i, numbers[i], k % 2 * sides + n) for n, i in enumerate(b)] for k, b in enumerate(self.bands)]
        spare: list[Any] = []  # buffers of runs that are over; two runs of one program at a time have their own
        line(f"w = {value(spare)}.pop() if {value(spare)} else {value(self._workspaces)}({2 * sides})")
        names = dict(self.names)
        self._keep()
        line("before = ()")
        line(f"for band in {value(bands)}:")
        self.source.indent()
        line("now = []")
        line("for i, t, n in band:")
        self.source.indent()
        line("w_ = w[n][t]")
        operands = self._tile_but_last()
        line(f"now.append(({', '.join(dict.fromkeys(operands))}, {self.names[tiled.delayed]}))")
        self.source.indent(-1)
        self._write(operands, "before")
        line("before = now")
        self.source.indent(-1)
        self._write(operands, "before")
        for k in tiled.late:
            line(f"a{k}.wait()")
        self.names = names
        if self.late:
            line(f"for (i, t), found in zip({value([(i, numbers[i]) for i in self.late])}, kept):")
            self.source.indent()
            line(f"w_ = w[{2 * sides}][t]")
            self._tile_but_last(kept=True)
            for eqn in tiled.tail:
                self._step(eqn)
            self.source.indent(-1)
        line(f"{value(spare)}.append(w)")
        line(f"return [{', '.join(results)}]")
        return self.source.function()

    def _allocate(self, v: Any) -> str:
        if v is not self.tiled.delayed or self.tiled.targets is not None:
            return super()._allocate(v)
        name = f"o{len(self.names)}"
        new = self.source.value(memory.maker(v.aval.shape, dtypes.storage(v.aval.dtype)))
        self.source.line(f"{name} = {new}() if over is None else over")
        self.names[v] = self._slice(name, self.shape)
        return name

    def _workspaces(self, late: int) -> list[list[list[np.ndarray]]]:
        """New buffers for each tile of two bands, and for late tiles: for each shape of tiles the views of that shape.

        A tile lies in its buffer as it lies in the array, counted from the cache's lines: measured, tiles side by side take a
        tenth longer, since then a vector of an operand or of the result crosses a line.
        """
        places: list[list[int]] = [[] for _ in range(late + 1)]
        for k, band in enumerate(self.bands):
            for n, i in enumerate(band):
                places[k % 2 * (late // 2) + n].append(i)
        places[late] = self.late
        return [self._workspace_for(tiles) for tiles in places]

    def _workspace_for(self, tiles: Sequence[int]) -> list[list[np.ndarray]]:
        found: list[list[np.ndarray]] = [[] for _ in self.shapes]
        array, moved = self.tiled.shifts.array, self.tiled.shifts.moved
        most = max((math.prod(self.tiles.shapes[i]) for i in tiles), default=0)
        rows = max((self.tiles.shapes[i][0] for i in tiles), default=0)
        like = rows * math.prod(array[1:]) <= 2 * most
        buffers = [memory.empty((rows, *array[1:]) if like else (most,), d) for d in self.tiled.buffers.dtypes]
        for i in tiles:
            shape = self.tiles.shapes[i]
            columns = tuple(slice(s.start + m, s.stop + m) for s, m in zip(self.tiles.indices[i][1:], moved[1:]))
            views = found[self.shapes.index(shape)]
            if not views:
                views += [b[: shape[0], *columns] if like else b[: math.prod(shape)].reshape(shape) for b in buffers]
        return found

    def _shifted(self) -> list[tuple[Any, str]]:
        """The operands that late tiles may find written over, and their names in a tile."""
        return [
            (v, self.names[v]) for v, reads in self.tiled.reads.items() if any(r is not None and any(r) for r in reads)
        ]

    def _keep(self) -> None:
        """Copy what late tiles read of the array at other places than their own."""
        if not self.late:
            return
        shifted = self._shifted()
        flags = []
        for i in self.late:
            index = [(s.start, s.stop) for s in self.tiles.indices[i]]
            reads = {self.tiled.jaxpr.invars[k]: read for k, _, read in self.tiled._pieces_in(index)}
            flags.append((i, *(reads[v] is not None and any(reads[v] or ()) for v, _ in shifted)))
        line = self.source.line
        line("kept = []")
        line(f"for {', '.join(['i', *(f'f{n}' for n in range(len(shifted)))])}, in {self.source.value(flags)}:")
        self.source.indent()
        self._parts()
        line(f"kept.append([{', '.join(f'{name}.copy() if f{n} else {name}' for n, (_, name) in enumerate(shifted))}])")
        self.source.indent(-1)

    def _tile_but_last(self, kept: bool = False) -> list[str]:
        """The statements for one tile but for the delayed steps, the names of whose operands are given."""
        self._parts()
        if kept and (shifted := self._shifted()):
            self.source.line(f"{', '.join(name for _, name in shifted)}, = found")
        tail = self.tiled.tail
        for eqn in self.tiled.steps[: -len(tail)]:
            self._step(eqn)
        inner = {e.outvars[0] for e in tail}
        read = [v for e in tail for v in e.invars if not isinstance(v, Literal) and v not in inner]
        return [self.names[v] for v in read]

    def _write(self, operands: Sequence[str], tiles: str) -> None:
        """Do the delayed steps for tiles that are computed."""
        value, tail = self.source.value, self.tiled.tail
        names = {name: f"y{n}" for n, name in enumerate(dict.fromkeys(operands))}
        text = lambda v: value(v.val) if isinstance(v, Literal) else names[self.names[v]]
        ins = [text(v) for v in tail[0].invars]
        writer: Any = writer_of(tail[0])
        if len(tail) == 2:
            mask, no, yes = tail[1].invars
            new = yes if yes is tail[0].outvars[0] else no
            ins = [text(mask), text(no if new is yes else yes), *ins]
            writer = partial(_written_where, writer, new is yes)
        self.source.line(f"for {', '.join(names.values())}, out in {tiles}:")
        self.source.line(f"    {value(writer)}({', '.join(ins)}, out=out)")


def _written_where(
    writer: Any, wanted: bool, mask: np.ndarray, old: np.ndarray, *operands: Any, out: np.ndarray
) -> None:
    """Write what `writer` makes where the mask is as wanted, and else what is there (`old`, which is `out`)."""
    if mask.all() if wanted else not mask.any():
        writer(*operands, out=out)
    else:
        new = writer(*operands, out=np.empty_like(out))
        no, yes = (old, new) if wanted else (new, old)
        choose(mask, no, yes, out)
