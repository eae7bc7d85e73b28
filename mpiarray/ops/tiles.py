"""`fusion`: elementwise equations on blocks of one shape, and reductions that end them, run tile by tile in cache.

An array operation at a time reads and writes each temporary in memory.  Here every equation of the group runs on one
tile (as many elements as keep its temporaries in cache) before the next tile is begun; its
temporaries are buffers that are used again for each tile, and only results of the group are written to memory.

Operands of the group's shape are sliced; scalars, and operands that are broadcast to the shape, meet the tiles by
numpy's broadcasting.  If all that is sliced is contiguous and nothing is broadcast along some dims only, the tiles are
taken from the flat arrays.  Equations keep their order and their rounding: a result is the same as without fusion,
except for sums that meet several tiles (of 32-bit floats: added in 64 bits).

A group may have rows: all of its last dims (`rows` of them), of which each tile has whole ones.  A reduction over a row is
then done when its tile is, and what is made of its result, broadcast along the row again too, is in the same group
(a softmax, a layer norm).  Such results have, in the tiles, size 1 in the dims of the row, whatever their types say.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from mpiarray import memory
from mpiarray.core.jaxpr import Eqn, Jaxpr
from mpiarray.core.op import OPS, Out, Undefined, define
from mpiarray.core.plan import Plan, replicated
from mpiarray.core.source import Source
from mpiarray.core.value import Literal
from mpiarray.errors import InternalError
from mpiarray.ops import compiled_chains
from mpiarray.ops.linear import broadcast_in_dim, reduce_sum, reshape, squeeze
from mpiarray.ops.moments import collector, moments
from mpiarray.ops.reductions import reduce_and, reduce_max, reduce_min, reduce_or, reduce_prod, reduce_xor
from mpiarray.ops.tile_steps import (
    Buffers,
    comparisons_first,
    kernel_of,
    reducer_of,
    row_reducer_of,
    ufunc_of,
    with_factors,
    writer_of,
)
from mpiarray.types import dtypes

Shape = tuple[int, ...]
Box = tuple[slice, ...]  # slices with a start and a stop

#: how a reduction's tiles are put together
COMBINE: dict[str, Any] = {
    reduce_sum.name: np.add,
    reduce_prod.name: np.multiply,
    reduce_max.name: np.maximum,
    reduce_min.name: np.minimum,
    reduce_and.name: np.bitwise_and,
    reduce_or.name: np.bitwise_or,
    reduce_xor.name: np.bitwise_xor,
}


def _cache_bytes() -> int:
    """The second-level cache of a core, or half a megabyte where the system does not say."""
    try:
        found = os.sysconf("SC_LEVEL2_CACHE_SIZE")
    except (ValueError, OSError):
        found = 0
    return found if found > 0 else 512 << 10


CACHE_BYTES = _cache_bytes()
# a tile's arrays take twice the cache: measured, larger tiles win until then, since each call has a price too
_FEWEST = 2048  # elements of a tile: below it the calls cost more than the work
_MOST = 131072
_NARROW, _LONG = 16, 64  # columns, at most, and elements, at least, of tiles that are copied


def _shared_bytes() -> int:
    """A core's part of the last-level cache; 0 where the system does not say."""
    try:
        found = os.sysconf("SC_LEVEL3_CACHE_SIZE")
    except (ValueError, OSError):
        found = 0
    return max(0, found) // (os.cpu_count() or 1)


# tiles of rows have many small operations each, one number a row, which cost as much for few rows as for many
_ROWS_BYTES = 6 * CACHE_BYTES
# chains read and write less of the cache for the same work
_CHAINS_BYTES = 8 * CACHE_BYTES
# arrays that all fit into half of it are not cut: measured, one call reads them as fast as the calls of many tiles do
_UNCUT_BYTES = _shared_bytes() // 2
_BOUNDS = 16384  # elements from which numpy's maximum of an array and a number is better one of two arrays


class Scan(NamedTuple):
    """Which parts of the arrays a tile is, for one shape that is sliced: one index and the tile's shape per tile."""

    indices: list[tuple[slice, ...]]
    shapes: list[Shape]


def scan(shape: Shape, size: int, cuts: Sequence[Sequence[int]] = (), only: Sequence[Box] | None = None) -> Scan:
    """Tiles of at most about `size` elements: whole trailing dims, a part of one dim, single steps along those before it.

    `cuts`: for each dim the places that no tile may reach across; `only`: boxes out of which there are no tiles.
    """
    out = Scan([], [])
    ends = (
        [sorted({0, n, *c}) for n, c in itertools.zip_longest(shape, cuts, fillvalue=())]
        if cuts
        else [[0, n] for n in shape]
    )
    for corner in itertools.product(*(itertools.pairwise(e) if len(e) > 1 else [(0, 0)] for e in ends)):
        if only is not None and not any(lies_in(corner, box) for box in only):
            continue
        scan_box(out, [a for a, _ in corner], tuple(b - a for a, b in corner), size)
    return out


def lies_in(ends: Iterable[tuple[int, int]], box: Box) -> bool:
    return all(s.start <= a and b <= s.stop for (a, b), s in zip(ends, box))


def scan_box(out: Scan, corner: Sequence[int], shape: Shape, size: int) -> None:
    inner, cut = 1, len(shape) - 1
    while cut > 0 and inner * shape[cut] <= size:
        inner *= shape[cut]
        cut -= 1
    step = max(1, min(shape[cut], size // max(1, inner)))
    starts = [range(a, a + n) for a, n in zip(corner, shape[:cut])]
    whole = tuple(slice(a, a + n) for a, n in zip(corner[cut + 1 :], shape[cut + 1 :]))
    first, last = corner[cut], corner[cut] + shape[cut]
    for outer in itertools.product(*starts):
        head = tuple(slice(k, k + 1) for k in outer)
        for a in range(first, last, step):
            b = min(a + step, last)
            out.indices.append((*head, slice(a, b), *whole))
            out.shapes.append((*(1 for _ in outer), b - a, *shape[cut + 1 :]))


def cuts_of(shape: Shape, pieces: Iterable[Sequence[Box]]) -> list[set[int]]:
    """For each dim where boxes begin or end within it."""
    found: list[set[int]] = [set() for _ in shape]
    for boxes in pieces:
        for box in boxes:
            for d, s in enumerate(box):
                found[d] |= {s.start, s.stop} - {0, shape[d]}
    return found


def within(index: Box, boxes: Sequence[Box]) -> tuple[int, Box]:
    """The number of the box that a tile lies in, and its place there."""
    for k, box in enumerate(boxes):
        if all(b.start <= s.start and s.stop <= b.stop for s, b in zip(index, box)):
            return k, tuple(slice(s.start - b.start, s.stop - b.start) for s, b in zip(index, box))
    raise InternalError(f"fusion: the tile {index} lies in none of the pieces {list(boxes)}")


def _index_of(index: tuple[slice, ...], shape: Shape) -> tuple[Any, ...]:
    """A tile's place in an operand of that shape, whose dims are the group's or 1."""
    return tuple(slice(None) if n == 1 else s for s, n in zip(index, shape)) + (Ellipsis,)


class Accumulator(NamedTuple):
    """A reduction over tiles: which dims are summed, of what dtype the running result is, how parts join."""

    axes: tuple[int, ...]
    dtype: Any
    combine: Any
    start: Any


def accumulator(eqn: Eqn) -> Accumulator:
    """How the tiles of a reduction join; sums of 32-bit floats run in 64 bits."""
    dtype = dtypes.storage(eqn.outvars[0].aval.dtype)
    wide = dtype
    if eqn.op is reduce_sum and dtype.kind in "fc":
        wide = np.dtype(np.float64 if dtype.kind == "f" else np.complex128)
    empty = np.zeros((0,), dtype)
    params = {k: v for k, v in eqn.params.items() if k != "axes"}
    start = np.asarray(eqn.op.kernel(dtype)(empty, axes=(0,), **params)).astype(wide)
    return Accumulator(eqn.params["axes"], wide, COMBINE[eqn.op.name], start)


def joins_over_tiles(eqn: Eqn) -> bool:
    """Whether a reduction may end a group: what is accumulated tile by tile must be as exact as numpy's reduction."""
    if eqn.op is moments:
        return True
    dtype = dtypes.storage(eqn.outvars[0].aval.dtype)
    return eqn.op.name in COMBINE and dtype.kind in "biufc" and (dtype.kind not in "fc" or dtype.itemsize > 2)


def needs_whole(eqn: Eqn) -> bool:
    """Whether the tiles of a group must not be cut along some dims: rows, or the columns of moments."""
    inner = eqn.params["jaxpr"].eqns
    return bool(eqn.params.get("rows")) or any(
        e.op is moments and len(e.params["axes"]) < e.invars[0].aval.ndim for e in inner
    )


# -- the runner -------------------------------------------------------------------------------------------------------


class Tiled:
    """A group prepared for blocks of one shape: `run(*blocks)` gives its results.

    pieces   the operands, by number, that come as lists of pieces, and the boxes that these fill
    targets  the boxes of the one result that arrays fill which are given as a list, after the blocks
    sources  for each operand what it is a part of: shifted parts of one array are in the cache together
    dead     the operands, by number, whose row-major blocks nobody needs afterwards: results may be written there
    lent     those that may hold what is in between, but no results
    rows     how many of the last dims each tile has whole (0: none need to be)
    late     for operands in pieces that are an `comm.halves.Arriving` the numbers of the pieces that may still be on their way:
             tiles of these come last, after a wait
    delayed  the result that is not written when its tile is computed (`ops.sweeps`)
    """

    def __init__(
        self,
        jaxpr: Jaxpr,
        shape: Shape,
        pieces: Mapping[int, Sequence[Box]] | None = None,
        targets: Sequence[Box] | None = None,
        sources: Sequence[Any] | None = None,
        dead: Collection[int] = (),
        lent: Collection[int] = (),
        rows: int = 0,
        late: Mapping[int, Collection[int]] | None = None,
        delayed: Any = None,
    ):
        self.jaxpr = jaxpr
        self.shape = shape
        self.rows = rows
        self.sources = jaxpr.invars if sources is None else sources
        self.targets = targets
        self.pieces = {jaxpr.invars[k]: boxes for k, boxes in (pieces or {}).items()}
        self.late = late or {}
        self.delayed = delayed
        made = {v for e in jaxpr.eqns for v in e.outvars}
        self.views = {e.outvars[0]: e for e in jaxpr.eqns if e.op is broadcast_in_dim and e.invars[0] not in made}
        self.steps = comparisons_first([e for e in jaxpr.eqns if e.outvars[0] not in self.views])
        self.by_row = {e.outvars[0] for e in self.steps if rows and self._is_by_row(e)}
        self.steps = with_factors(self.steps, jaxpr.outvars, self.is_full, self._summed())
        self.steps.sort(key=lambda e: e.outvars[0] is delayed)
        self.reduced = {v for e in self.steps if e.op in REDUCTIONS for v in e.invars}
        ends = [e for e in self.steps if e.outvars[0] not in self.by_row]
        self.sums = {e.outvars[0]: accumulator(e) for e in ends if e.op.name in COMBINE}
        self.moments = {e.outvars[0]: e for e in ends if e.op is moments}
        self.results = [v for v in jaxpr.outvars if v not in self.sums and v not in self.moments]
        kept = {*self.results, *self.sums, *self.moments, *self.views, *self.by_row}
        whole = [v for v in self.results if v not in self.by_row and v is not delayed]

        def settle() -> None:
            self.buffers = Buffers(self.steps, whole, kept, self._writable(dead), self._writable(lent))
            self.over = self.buffers.over
            self.size = self._tile_size()

        settle()
        if compiled_chains.wanted(shape):
            size = self.size
            self.steps = self._with_chains()
            settle()
            if self.reduced:  # the same parts are added up, so that results do not depend on who has a compiler
                self.size = size
        self._flat = Writer(self, (math.prod(shape),)).function() if self._may_be_flat() else None
        self._sliced = [k for k, v in enumerate(jaxpr.invars) if v.aval.shape == shape]

    def _is_by_row(self, eqn: Eqn) -> bool:
        """Whether a value has one element for each row: a row's reduction, what is made of such, also broadcast along rows."""
        n = len(self.shape)
        if eqn.op.name in COMBINE and set(eqn.params["axes"]) == set(range(n - self.rows, n)):
            return True
        return self.renames(eqn) or (eqn.op.elementwise and eqn.outvars[0].aval.shape != self.shape)

    def renames(self, eqn: Eqn) -> bool:
        """Whether a row's result only changes its shape: dims of size 1 come or go, or it is broadcast along the row."""
        small = eqn.op.name in COMBINE and eqn.invars[0].aval.shape != self.shape
        return small or eqn.op in (broadcast_in_dim, reshape, squeeze)

    def _with_chains(self) -> list[Eqn]:
        last, kept = set(self._last()), {v for v in self.jaxpr.outvars if not isinstance(v, Literal)}

        def able(eqn: Eqn) -> bool:
            (out,) = eqn.outvars
            full = any(not isinstance(v, Literal) and self.is_full(v) for v in eqn.invars)
            return full and eqn not in last and self.is_full(out)

        return compiled_chains.with_chains(self.steps, able, kept)

    def _last(self) -> Sequence[Eqn]:
        """Steps that stay as they are."""
        return ()

    def _summed(self) -> list[tuple[int, ...]]:
        """Dims over which products are added up without being made: all of them, or those of the rows."""
        dims = tuple(range(len(self.shape)))
        return [dims, dims[-self.rows :]] if self.rows else [dims]

    def _writable(self, numbers: Collection[int]) -> list[Any]:
        """Of operands that may be written over those that each tile reads at its own place, by functions of elements."""
        fixed = {
            *self.pieces,
            *self.jaxpr.outvars,
            *(e.invars[0] for e in self.views.values()),
            *(v for e in self.steps if writer_of(e) is None for v in e.invars),
        }
        found = [self.jaxpr.invars[k] for k in numbers]
        return [v for v in found if self.targets is None and v not in fixed and v.aval.shape == self.shape]

    def _tile_size(self) -> int:
        """Elements of a tile: all of them where everything fits into the caches anyway, without buffers as long as the arrays."""
        each = max(1, self._bytes_per_element())
        elements = math.prod(self.shape)
        joined = self.sums or self.moments or self.buffers.dtypes
        alone = len(self.steps) == 1 and self.steps[0].op is compiled_chains.chain and self.delayed is None
        if not joined and (each * elements <= _UNCUT_BYTES or (alone and not self._is_stencil())):
            return max(1, elements)
        row = math.prod(self.shape[len(self.shape) - self.rows :]) if self.rows else 1
        row = max([row, *(math.prod(self.shape[len(e.params["axes"]) :]) for e in self.moments.values())])
        most = min(_MOST, (_ROWS_BYTES if self.rows else 2 * CACHE_BYTES) // each)
        large = self._is_stencil() and elements >= 32 * most
        if not large and any(e.op is compiled_chains.chain for e in self.steps):
            most = min(2 * _MOST, _CHAINS_BYTES // each)
        return max(_FEWEST, 2 * most if large else most, row)

    def _is_stencil(self) -> bool:
        """Whether shifted parts of one array meet: measured, tiles may be larger then, of which rows are in the first-level cache."""
        whole = [s for v, s in zip(self.jaxpr.invars, self.sources) if v.aval.shape == self.shape]
        return len(whole) > len(set(whole)) + 1

    def _bytes_per_element(self) -> int:
        arrays = {s: v for v, s in zip(self.jaxpr.invars, self.sources) if v.aval.shape == self.shape}
        new = [r for r in self.results if r not in self.over and r not in self.by_row and r is not self.delayed]
        scratch = [dtypes.storage(e.invars[0].aval.dtype).itemsize for e in self.moments.values()]
        return sum((*self.buffers.itemsizes, *scratch)) + sum(
            dtypes.storage(v.aval.dtype).itemsize for v in (*arrays.values(), *new)
        )

    def _may_be_flat(self) -> bool:
        """Nothing is broadcast along some dims only, and sums are over all dims."""
        used = {v for e in self.steps for v in e.invars if not isinstance(v, Literal)}
        shapes = [self.expanded(v) for v in (*self.jaxpr.invars, *self.views) if v in used]
        return (
            len(self.shape) > 0
            and not self.rows
            and not self.pieces
            and self.targets is None
            and all(s == self.shape or math.prod(s) == 1 for s in shapes)
            and all(len(a.axes) == len(self.shape) for a in self.sums.values())
            and all(len(e.params["axes"]) == len(self.shape) for e in self.moments.values())
        )

    def expanded(self, v: Any) -> Shape:
        """The shape in which an operand, or an operand's broadcast, meets the tiles: dims of the group or 1."""
        eqn = self.views.get(v)
        shape = v.aval.shape
        if eqn is None:  # of lower rank than the group are only scalars, and arrays without the dims of the rows
            return (*shape, *(1,) * (len(self.shape) - len(shape)))
        inner = [1] * len(self.shape)
        for n, d in zip(eqn.invars[0].aval.shape, eqn.params["broadcast_dimensions"]):
            inner[d] = n
        return tuple(inner)

    def is_full(self, v: Any) -> bool:
        """Whether a tile of a value has all its elements, and not 1 along dims that are broadcast."""
        if v in self.by_row:
            return False
        return v.aval.shape == self.shape and (v not in self.views or self.expanded(v) == self.shape)

    @property
    def run(self) -> Callable[..., Any]:
        """What to call: this, or the function that it calls whatever the blocks are."""
        return self if self._flat is not None else self._in_dims

    def __call__(self, *blocks: Any) -> Any:
        if self._flat is not None and all(blocks[k].flags.c_contiguous for k in self._sliced):
            return self._flat(*blocks)
        return self._in_dims(*blocks)

    @cached_property
    def _in_dims(self) -> Callable[..., Any]:
        """For blocks that are not flat: most groups that may be flat never need it."""
        return Writer(self, self.shape).function()


class Writer:
    """The text of a runner for tiles of arrays of `shape` (the group's, or its flat one)."""

    more: Sequence[str] = ()  # parameters after the operands

    def __init__(self, tiled: Tiled, shape: Shape):
        self.tiled = tiled
        self.shape = shape
        self.flat = shape != tiled.shape
        boxes = [*tiled.pieces.values(), tiled.targets or ()]
        cuts = [sorted(c) for c in cuts_of(shape, boxes)] if any(boxes) else ()
        self.tiles = scan(shape, tiled.size, cuts, tiled.targets)
        self.single = len(self.tiles.indices) == 1 and not any(boxes)  # then nothing is sliced, and sums are not joined
        self._t = "0" if self.single else "t"
        given = [*([] if tiled.targets is None else ["into"]), *self.more]
        self.source = Source("fusion", [*(f"a{k}" for k in range(len(tiled.jaxpr.invars))), *given])
        self.names: dict[Any, str] = {v: f"a{k}" for k, v in enumerate(tiled.jaxpr.invars)}
        self.sliced: list[tuple[str, str]] = []  # what the loop slices: name in the tile, indices
        self.in_pieces: list[tuple[str, str, str]] = []  # and with the number of the piece

    def function(self) -> Callable[..., Any]:
        line, value, tiled = self.source.line, self.source.value, self.tiled
        self._operands()
        results = [self._allocate(v) for v in tiled.jaxpr.outvars]
        numbers = self._numbers()
        narrow = {i for i, s in enumerate(self.tiles.shapes) if self._is_narrow(s)}
        if tiled.buffers.dtypes:
            line(f"w = {value(self._workspace)}()")
        names = dict(self.names)
        late = self._late_tiles()
        for waits, copied in itertools.product((False, True), (False, True)):
            tiles = [(i, t) for i, t in enumerate(numbers) if (i in late) == waits and (i in narrow) == copied]
            if waits and not copied:
                for k in tiled.late:
                    line(f"a{k}.wait()")
            if tiles and self.single:
                self._tile(copied)
            elif tiles:
                self.names = dict(names)
                line(f"for i, t in {value(tiles)}:")
                self.source.indent()
                self._tile(copied)
                self.source.indent(-1)
        line(f"return [{', '.join(results)}]")
        return self.source.function()

    def _tile(self, copied: bool) -> None:
        """The statements for one tile; `copied`: from and to memory in which its elements are side by side."""
        line, value, tiled = self.source.line, self.source.value, self.tiled
        if tiled.buffers.dtypes:
            line(f"w_ = w[{self._t}]")
        self._parts()
        parts = {f"{name}_" for name, *_ in (*self.sliced, *self.in_pieces)} if copied else set()
        operands = [self.names[v] for v in (*tiled.jaxpr.invars, *tiled.views) if tiled.is_full(v) and v in self.names]
        results = dict.fromkeys(self.names[v] for v in tiled.results) if copied else {}
        for name in dict.fromkeys(name for name in operands if name in parts):
            line(f"{name} = {value(np.ascontiguousarray)}({name})")
        for name in results:
            line(f"{name}out, {name} = {name}, {value(np.empty)}({name}.shape, {name}.dtype)")
        for eqn in tiled.steps:
            self._step(eqn)
        for name in results:
            line(f"{name}out[...] = {name}")

    def _parts(self) -> None:
        """The parts of arrays that a tile is."""
        for name, indices in self.sliced:
            self.source.line(f"{name}_ = {name}[{indices}[i]]")
        for name, numbers, indices in self.in_pieces:
            self.source.line(f"{name}_ = {name}[{numbers}[i]][{indices}[i]]")

    def _late_tiles(self) -> set[int]:
        """Tiles that read what may still be on its way."""
        found = set()
        for k, numbers in self.tiled.late.items():
            boxes = self.tiled.pieces[self.tiled.jaxpr.invars[k]]
            found |= {i for i, index in enumerate(self.tiles.indices) if within(index, boxes)[0] in numbers}
        return found

    def _is_narrow(self, tile: Shape) -> bool:
        """Whether a tile is some columns of its arrays: its elements are not side by side, and reading them costs more than a copy."""
        return len(tile) > 1 and tile[-1] <= min(_NARROW, self.shape[-1] - 1) and math.prod(tile) >= _LONG

    def _numbers(self) -> list[int]:
        """For each tile the number of its shape."""
        self.shapes = list(dict.fromkeys(self.tiles.shapes))
        number = {s: k for k, s in enumerate(self.shapes)}
        return [number[s] for s in self.tiles.shapes]

    def _workspace(self) -> list[list[np.ndarray]]:
        """New buffers: for each shape of tiles, the views of that shape."""
        size = max(map(math.prod, self.shapes), default=0)
        whole = [memory.empty((size,), d) for d in self.tiled.buffers.dtypes]
        return [[b[: math.prod(s)].reshape(s) for b in whole] for s in self.shapes]

    def _slice(self, name: str, shape: Shape) -> str:
        """The name of a tile's part of an array whose dims are the group's or 1."""
        if self.single or (all(n == 1 for n in shape) and any(n != 1 for n in self.shape)):
            return name
        indices: list[Any] = [_index_of(i, shape) for i in self.tiles.indices]
        if shape == self.shape:
            indices = [i[0] for i in self.tiles.indices] if len(shape) == 1 else self.tiles.indices
        self.sliced.append((name, self.source.value(indices)))
        return f"{name}_"

    def _operands(self) -> None:
        """Views of the operands in the group's dims."""
        used = {v for e in self.tiled.steps for v in e.invars if not isinstance(v, Literal)}
        given = dict(self.names)
        for k, v in enumerate([v for v in (*self.tiled.jaxpr.invars, *self.tiled.views) if v in used]):
            eqn = self.tiled.views.get(v)
            origin = v if eqn is None else eqn.invars[0]
            shape = self.tiled.expanded(v)
            if self.flat:
                shape = self.shape if shape == self.tiled.shape else (1,)
            name = f"x{k}"
            text = self.source.value(origin.val) if isinstance(origin, Literal) else given[origin]
            if v in self.tiled.pieces:
                self._in_parts(v, text, self.tiled.pieces[v])
                continue
            if not origin.aval.ndim or origin.aval.shape == shape:  # scalars stay scalars
                self.source.line(f"{name} = {text}")
            else:
                self.source.line(f"{name} = {self.source.value(np.reshape)}({text}, {self.source.value(shape)})")
            scalar = not origin.aval.ndim
            self.names[v] = name if scalar else self._slice(name, shape)

    def _in_parts(self, v: Any, name: str, boxes: Sequence[Box]) -> None:
        """A value that is a list of arrays: each tile is a part of one of them."""
        places = [within(i, boxes) for i in self.tiles.indices]
        numbers, indices = (self.source.value([p[k] for p in places]) for k in (0, 1))
        self.in_pieces.append((name, numbers, indices))
        self.names[v] = f"{name}_"

    def _allocate(self, v: Any) -> str:
        """The array of a result; in the loop its part is known by the variable's name."""
        line, value = self.source.line, self.source.value
        name = f"o{len(self.names)}"
        if self.tiled.targets is not None:
            self._in_parts(v, "into", self.tiled.targets)
            return "into"
        if v in self.tiled.moments:
            self.names[v] = name
            most = max(map(math.prod, self.tiles.shapes), default=0)
            (x,), axes = self.tiled.moments[v].invars, self.tiled.moments[v].params["axes"]
            line(f"{name} = {value(partial(collector, dtypes.storage(x.aval.dtype), most, x.aval.ndim, axes))}()")
            return f"{name}.result()"
        acc = self.tiled.sums.get(v)
        if acc is not None and self.single:
            self.names[v] = name
            return name
        dtype = dtypes.storage(v.aval.dtype) if acc is None else acc.dtype
        if v in self.tiled.over:
            line(f"{name} = a{self.tiled.jaxpr.invars.index(self.tiled.over[v])}")
        else:
            line(f"{name} = {value(memory.maker(v.aval.shape, dtype))}()")
        if v in self.tiled.by_row:
            shape = (*self.shape[: len(self.shape) - self.tiled.rows], *(1,) * self.tiled.rows)
            line(f"{name}v = {name}.reshape({value(shape)})")
            self.names[v] = self._slice(f"{name}v", shape)
            return name
        if acc is None:
            flat = f"{name}v"
            line(f"{flat} = {name}.reshape({value(self.shape)})" if self.flat else f"{flat} = {name}")
            self.names[v] = self._slice(flat, self.shape)
            return name
        line(f"{name}[...] = {value(acc.start)}")
        axes = range(len(self.shape)) if self.flat else acc.axes
        places = [(*(s for d, s in enumerate(i) if d not in axes), Ellipsis) for i in self.tiles.indices]
        self.sliced.append((name, value(places)))
        self.names[v] = f"{name}_"
        final = dtypes.storage(v.aval.dtype)
        return name if final == dtype else f"{name}.astype({value(final)})"

    def _step(self, eqn: Eqn) -> None:
        line, value, tiled = self.source.line, self.source.value, self.tiled
        (out,) = eqn.outvars
        ins = ", ".join(value(v.val) if isinstance(v, Literal) else self.names[v] for v in eqn.invars)
        if out in tiled.moments:
            line(f"{self.names[out]}.add({ins})")
            return
        if out in tiled.by_row:
            self._row_step(eqn, ins)
            return
        acc = tiled.sums.get(out)
        if acc is not None:
            run = reducer_of(eqn, axes=tuple(range(len(self.shape)))) if self.flat else reducer_of(eqn)
            into = self.names[out]
            part = f"{value(run)}({ins})"
            line(f"{into} = {part}" if self.single else f"{value(acc.combine)}({into}, {part}, out={into})")
            return
        writer = writer_of(eqn)
        ins = self._with_bounds(eqn) or ins
        if out in tiled.buffers.in_result:
            self.names[out] = self.names[tiled.buffers.in_result[out]]
            line(f"{value(writer)}({ins}, out={self.names[out]})")
        elif out in tiled.buffers.of:
            self.names[out] = f"v{len(self.names)}"
            place = tiled.buffers.of[out]
            text = f"w_[{place}]" if isinstance(place, int) else self.names[place]
            line(f"{self.names[out]} = {value(writer)}({ins}, out={text})")
        elif out in tiled.results and writer is not None:
            line(f"{value(writer)}({ins}, out={self.names[out]})")
        elif out in tiled.results:
            line(f"{self.names[out]}[...] = {value(kernel_of(eqn))}({ins})")
        else:
            self.names[out] = f"v{len(self.names)}"
            made = f"{value(kernel_of(eqn))}({ins})"
            if out in tiled.reduced:  # in one order of memory, whatever that of the operands is
                made = f"{value(np.ascontiguousarray)}({made})"
            if not any(not isinstance(v, Literal) and tiled.is_full(v) for v in eqn.invars):
                made = f"{value(np.broadcast_to)}({made}, {value(self.shapes)}[{self._t}])"  # for a reduction, which counts elements
            line(f"{self.names[out]} = {made}")

    def _row_step(self, eqn: Eqn, ins: str) -> None:
        """A value with one element for each row: its dims after the leading ones are 1 in the tile."""
        (out,) = eqn.outvars
        renames = self.tiled.renames(eqn)
        reduces = eqn.op.name in COMBINE and not renames
        rows = self.tiled.rows
        shapes = [(*s[: len(s) - rows], *(1,) * rows) for s in self.shapes]
        if not renames and not reduces:
            ins = self._with_numbers(eqn, shapes)
        made = ins if renames else f"{self.source.value((row_reducer_of if reduces else kernel_of)(eqn))}({ins})"
        if reduces:
            made = f"{made}.reshape({self.source.value(shapes)}[{self._t}])"
        if out in self.tiled.results:
            self.source.line(f"{self.names[out]}[...] = {made}")
        elif renames:
            self.names[out] = made
        else:
            self.names[out] = f"v{len(self.names)}"
            self.source.line(f"{self.names[out]} = {made}")

    def _with_numbers(self, eqn: Eqn, shapes: Sequence[Shape]) -> str:
        """The operands of a function of rows' values, with an array in place of each number: numpy looks at a number for longer
        than it takes to calculate with some hundred."""
        names = []
        for v in eqn.invars:
            if not isinstance(v, Literal):
                names.append(self.names[v])
                continue
            dtype = dtypes.storage(v.aval.dtype)
            if v.aval.ndim or ufunc_of(eqn) is None or max(map(math.prod, shapes), default=0) > _FEWEST:
                names.append(self.source.value(v.val))
                continue
            whole = _filled(_FEWEST, dtype, np.asarray(v.val, dtype).tobytes())
            arrays = [whole[: math.prod(s)].reshape(s) for s in shapes]
            names.append(f"{self.source.value(arrays)}[{self._t}]")
        return ", ".join(names)

    def _with_bounds(self, eqn: Eqn) -> str | None:
        """The operands of a maximum or minimum of a tile and a number, with an array of that number in its place."""
        numbers = [k for k, v in enumerate(eqn.invars) if isinstance(v, Literal) and not v.aval.ndim]
        large = _BOUNDS <= max(map(math.prod, self.shapes), default=0) <= _MOST
        if ufunc_of(eqn) not in (np.maximum, np.minimum) or len(numbers) != 1 or not large:
            return None
        number: Any = eqn.invars[numbers[0]]
        dtype = dtypes.storage(number.aval.dtype)
        if not self.tiled.is_full(eqn.invars[1 - numbers[0]]) or dtype.kind != "f":
            return None
        value, row = self.source.value, len(self.shape) > 1 and self.shape[-1] >= 256
        whole = _filled(self.shape[-1] if row else _MOST, dtype, np.asarray(number.val, dtype).tobytes())
        arrays = [whole[: s[-1]] if row else whole[: math.prod(s)].reshape(s) for s in self.shapes]
        same = self.single or (row and len({s[-1] for s in self.shapes}) == 1)
        text = value(arrays[0]) if same else f"{value(arrays)}[t]"
        names = [text if k in numbers else self.names[v] for k, v in enumerate(eqn.invars)]
        return ", ".join(names)


@lru_cache(maxsize=16)
def _filled(count: int, dtype: Any, number: bytes) -> np.ndarray:
    found = np.full(count, np.frombuffer(number, dtype)[0], dtype)
    found.flags.writeable = False
    return found


def _build(ctx: Any, *, jaxpr: Jaxpr, shape: Shape, rows: int = 0) -> Callable[..., Any]:
    return Tiled(jaxpr, shape, rows=rows)


_NEVER = Undefined("groups are made after differentiation and batching, of blocks")

fusion = define(
    "fusion",
    type_rule=lambda *xs, jaxpr, shape, rows=0: [
        Out(v.aval.shape, v.aval.dtype, v.aval.weak_type) for v in jaxpr.outvars
    ],
    plan=lambda avals, *, jaxpr, shape, rows=0: Plan(
        tuple(replicated(a.ndim) for a in avals), tuple(replicated(v.aval.ndim) for v in jaxpr.outvars)
    ),
    build=_build,
    jvp=_NEVER,
    transpose=_NEVER,
    batch=_NEVER,
    multiple_results=True,
)

REDUCTIONS = frozenset((moments, *(OPS[name] for name in COMBINE)))
