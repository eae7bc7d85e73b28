"""Collectives on numpy blocks: what each rank hands in, what each gets back.

Every function is one collective operation over a `Group`: all its members must call it, in the same order, with blocks
of the same shape and dtype (where not said otherwise).  Any dtype travels: bools, integers, floats of 8, 16, 32 and 64
bits, complex numbers, random keys.  Blocks may have no elements and more than 2**31 of them.  Contiguous blocks go to
MPI as they are, others are packed once.  Results are new arrays in C order, or `out` where it is given (C-contiguous,
of the result's shape and dtype; only all_reduce allows `out is x`).  A group of one member communicates nothing.

One call is one collective for its caller, for `stats` and for `watch`.  Most are one MPI operation; large reductions are
faster as messages between neighbours (`ring`), exchanges of blocks that MPI does not take as they lie are messages too.

Bits: every member receives equal bits (NaNs may differ in their sign).  Gathers copy; large reductions are computed
once and then distributed.  For small ones MPI promises identical results of Allreduce on all members (MPI 4.0, section
6.9.6), each new group tries whether it keeps that promise, and if not (or with `config.deterministic`, whatever the size)
the reductions of `reductions` are used: they are computed once and then distributed, or by all members in rank order
from the same bytes.  MPIARRAY_CHECK=1 compares the bits of every result.

Ranks, roots and peers are positions in the group.  Wrong arguments raise InternalError: callers check types before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from mpiarray import memory
from mpiarray.comm import datatypes, ring, stats, watch, ways
from mpiarray.comm.groups import Group
from mpiarray.comm.pairwise import buffer_bytes, exchange_blocks, message_bytes
from mpiarray.comm.reductions import ordered_all_reduce, ordered_reduce_scatter, result_like
from mpiarray.config import config
from mpiarray.errors import InternalError

TAG_PERMUTE = 2
"""Of the messages of `permute`."""
PACK_BYTES = 2**20
"""Blocks up to this size are packed and unpacked whole where a dimension other than the first is concerned; larger ones
are exchanged in pieces, straight out of the block and into the result."""


def all_reduce(group: Group, x: np.ndarray, op: str = "sum", *, out: np.ndarray | None = None) -> np.ndarray:
    """The members' blocks combined elementwise by `op` ('sum' 'prod' 'max' 'min' 'and' 'or' 'xor'), on every member.

    Floats of 16 bits and fewer are added in float32 and rounded once; NaN wins in max and min; integers wrap around.
    """
    if stats.active or config.check:
        return watch.run("all_reduce", group, x, (op,), lambda: _all_reduce(group, x, op, out))
    return _all_reduce(group, x, op, out)


def all_reduce_many(
    group: Group, blocks: Sequence[np.ndarray], op: str = "sum", *, packed: np.ndarray | None = None
) -> list[np.ndarray]:
    """`all_reduce` of several blocks of one dtype in one MPI call; the results are parts of one new buffer.

    `packed`, of the blocks' dtype and summed size, saves making the buffer that is sent; blocks that are views of it
    are where they belong already (`places`).
    """
    if group.comm is None:
        return [np.array(x) for x in blocks]
    packed_blocks = pack_many(blocks, packed)
    return places(all_reduce(group, packed_blocks, op), [x.shape for x in blocks])


def pack_many(blocks: Sequence[np.ndarray], into: np.ndarray | None = None) -> np.ndarray:
    """The items of blocks of one dtype one after the other, in `into` or a new buffer; views of `into` are there already."""
    flat = memory.empty((sum(x.size for x in blocks),), blocks[0].dtype) if into is None else into
    owner = flat if flat.base is None else flat.base
    for x, place in zip(blocks, places(flat, [x.shape for x in blocks])):
        if x.base is not owner:
            place[...] = x
    return flat


def places(packed: np.ndarray, shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
    """The views of a flat buffer in which blocks of these shapes lie one after another."""
    found, start = [], 0
    for shape in shapes:
        end = start + math.prod(shape)
        found.append(packed[start:end].reshape(shape))
        start = end
    return found


def all_gather(
    group: Group, x: np.ndarray, dim: int = 0, tiled: bool = True, *, out: np.ndarray | None = None
) -> np.ndarray:
    """All blocks in group order: concatenated along `dim` if tiled, else stacked along a new dimension `dim`."""
    if stats.active or config.check:
        return watch.run("all_gather", group, x, (dim, tiled), lambda: _all_gather(group, x, dim, tiled, out))
    return _all_gather(group, x, dim, tiled, out)


def reduce_scatter(
    group: Group, x: np.ndarray, dim: int = 0, op: str = "sum", tiled: bool = True, *, out: np.ndarray | None = None
) -> np.ndarray:
    """This rank's part of the combined blocks: the k-th of n equal parts along `dim` if tiled, else index k of `dim`.

    The size of `dim` must be divisible by the size of the group (tiled) or equal to it.
    """
    if stats.active or config.check:
        return watch.run(
            "reduce_scatter", group, x, (dim, op, tiled), lambda: _reduce_scatter(group, x, dim, op, tiled, out)
        )
    return _reduce_scatter(group, x, dim, op, tiled, out)


def all_to_all(
    group: Group, x: np.ndarray, split: int, concat: int, tiled: bool = True, *, out: np.ndarray | None = None
) -> np.ndarray:
    """Part k of every block, cut along `split`, joined along `concat` in group order, on the member at position k.

    Untiled, `split` has the size of the group and disappears, and a dimension appears at `concat` (counted after that).
    """
    if stats.active or config.check:
        return watch.run(
            "all_to_all", group, x, (split, concat, tiled), lambda: _all_to_all(group, x, split, concat, tiled, out)
        )
    return _all_to_all(group, x, split, concat, tiled, out)


def permute(
    group: Group,
    x: np.ndarray,
    perm: Sequence[tuple[int, int]],
    shape_dtype: tuple[tuple[int, ...], np.dtype] | None = None,
    *,
    out: np.ndarray | None = None,
) -> np.ndarray:
    """The block of `source` on `target` for each (source, target) of `perm`; zeros where no source sends.

    Sources and targets must be unique; members without a partner call too.  `shape_dtype` gives the result's shape and
    dtype where they are not those of `x`.
    """
    perm = tuple(perm)
    if stats.active or config.check:
        return watch.run("permute", group, x, perm, lambda: _permute(group, x, perm, shape_dtype, out))
    return _permute(group, x, perm, shape_dtype, out)


def broadcast(
    group: Group,
    x: np.ndarray | None,
    root: int = 0,
    shape_dtype: tuple[tuple[int, ...], np.dtype] | None = None,
    *,
    out: np.ndarray | None = None,
) -> np.ndarray:
    """The block of the member at position `root`, on every member.

    Elsewhere `x` only tells shape and dtype, and may be None where `shape_dtype` or `out` does.
    """
    if stats.active or config.check:
        nbytes = x.nbytes if x is not None and group.rank == root else 0
        body = lambda: _broadcast(group, x, root, shape_dtype, out)
        return watch.run("broadcast", group, None, (root,), body, nbytes=nbytes)
    return _broadcast(group, x, root, shape_dtype, out)


def gather_to(group: Group, x: np.ndarray, root: int = 0) -> np.ndarray | None:
    """All blocks stacked along a new first dimension on the member at position `root`; None elsewhere."""
    if stats.active or config.check:
        return watch.run("gather", group, x, (root,), lambda: _gather_to(group, x, root))
    return _gather_to(group, x, root)


def all_gather_varied(
    group: Group, x: np.ndarray | None, shapes: Sequence[tuple[int, ...]], dtype: np.dtype
) -> list[np.ndarray]:
    """The block of each member, of shape `shapes[position]`, on every member: blocks of different shapes or none.

    `x` may be None where this rank's shape has no elements.  The results are views of one buffer.
    """
    if stats.active or config.check:
        body = lambda: _all_gather_varied(group, x, shapes, dtype)
        return watch.run("all_gather", group, None, (dtype, *shapes), body, nbytes=0 if x is None else x.nbytes)
    return _all_gather_varied(group, x, shapes, dtype)


def exchange(group: Group, sends: Sequence[tuple[int, np.ndarray]], recvs: Sequence[tuple[int, np.ndarray]]) -> None:
    """Send blocks to peers and receive blocks from peers, in place, whatever the strides of either side.

    sends: (position, block).  recvs: (position, block to fill).  The n-th block sent to a peer is the n-th that it
    receives from this rank: same shape, same item size.  Blocks for this rank itself are copied.  Strided blocks are
    packed piece by piece, with at most `config.exchange_bytes` of buffers; contiguous ones are not copied.  Members
    that neither send nor receive may stay away, unless MPIARRAY_CHECK is on.
    """
    if stats.active or config.check:
        watch.run(
            "exchange", group, None, (), lambda: exchange_blocks(group, sends, recvs),
            nbytes=sum(block.nbytes for peer, block in sends if peer != group.rank),
        )  # fmt: skip
    else:
        exchange_blocks(group, sends, recvs)


def _all_reduce(group: Group, x: np.ndarray, op: str, out: np.ndarray | None) -> np.ndarray:
    comm = group.comm
    dtype = x.dtype
    if out is None:
        result = memory.empty(x.shape, dtype)
    else:
        result = result_like(out, x.shape, dtype, "all_reduce")
    native = datatypes.native(op, dtype)
    if comm is None:
        if result is not x:
            np.copyto(result, x)
        return result
    if not x.flags.c_contiguous:
        x = x.copy(order="C")
    if ring.takes_whole(group, op, dtype, x.size):
        ring.all_reduce(group, x, op, result)
        return result
    if native is None or ((config.deterministic or group.ordered) and datatypes.depends_on_order(op, dtype)):
        ordered_all_reduce(group, x, op, result)
        return result
    datatype, reduction = native
    count = x.size
    if x is result:
        comm.Allreduce(datatypes.IN_PLACE, (result, count, datatype), reduction)
    else:
        comm.Allreduce((x, count, datatype), (result, count, datatype), reduction)
    return result


def _all_gather(group: Group, x: np.ndarray, dim: int, tiled: bool, out: np.ndarray | None) -> np.ndarray:
    n, shape = group.size, x.shape
    dim = position(dim, x.ndim + (not tiled), "all_gather")
    full = gathered_shape(shape, dim, n, tiled)
    result = memory.empty(full, x.dtype) if out is None else result_like(out, full, x.dtype, "all_gather")
    if group.comm is None:
        np.copyto(result, x.reshape(full))
        return result
    before = math.prod(shape[:dim])
    if before == 1:
        return _gather_direct(group, x, result)
    if x.nbytes > PACK_BYTES:
        size = shape[dim] if tiled else 0
        parts = [(peer, _part(result, dim, peer, size)) for peer in range(n)]
        exchange_blocks(group, [(peer, x) for peer in range(n)], parts)
        return result
    rows = _gather_direct(group, x, np.empty((n, before, x.size // max(before, 1)), x.dtype))
    return joined(rows, full, result)


def _gather_direct(group: Group, x: np.ndarray, result: np.ndarray) -> np.ndarray:
    """Allgather into a result whose memory is the blocks one after the other."""
    if not x.flags.c_contiguous:
        x = x.copy(order="C")
    group.comm.Allgather(datatypes.wire(x), datatypes.wire(result, group.size))
    return result


def _reduce_scatter(group: Group, x: np.ndarray, dim: int, op: str, tiled: bool, out: np.ndarray | None) -> np.ndarray:
    n, shape, dtype = group.size, x.shape, x.dtype
    dim = position(dim, x.ndim, "reduce_scatter")
    part = part_shape(shape, dim, n, tiled, "reduce_scatter")
    result = memory.empty(part, dtype) if out is None else result_like(out, part, dtype, "reduce_scatter")
    if group.comm is None:
        np.copyto(result, x.reshape(part))
        return result
    native = datatypes.native(op, dtype)
    around = ring.takes(group, op, dtype, x.size)
    if around or native is None or (config.deterministic and datatypes.depends_on_order(op, dtype)):
        reduce = ring.reduce_scatter if around else ordered_reduce_scatter
        if math.prod(shape[:dim]) == 1:
            reduce(group, np.ascontiguousarray(x).reshape(n, -1), op, result.reshape(-1))
        else:
            size = part[dim] if tiled else 0
            reduce(group, [_part(x, dim, k, size) for k in range(n)], op, result)
        return result
    packed = pack(x, dim, n)
    datatype, reduction = native
    count = result.size  # of one part, also for the block that is handed in
    group.comm.Reduce_scatter_block((packed, count, datatype), (result, count, datatype), reduction)
    return result


def _all_to_all(
    group: Group, x: np.ndarray, split: int, concat: int, tiled: bool, out: np.ndarray | None
) -> np.ndarray:
    n = group.size
    split = position(split, x.ndim, "all_to_all")
    concat = position(concat, x.ndim, "all_to_all")
    part, full = exchanged_shapes(x.shape, split, concat, n, tiled)
    result = memory.empty(full, x.dtype) if out is None else result_like(out, full, x.dtype, "all_to_all")
    if group.comm is None:
        np.copyto(result, x.reshape(full))
        return result
    before = math.prod(part[:concat])
    direct = before == 1 and math.prod(x.shape[:split]) == 1
    if x.nbytes > PACK_BYTES and not direct:
        _exchange_large(group, x, result, split, concat, part, tiled)
        return result
    _exchange_packed(group, x, result, split, (before, math.prod(part[concat:])))
    return result


def _exchange_packed(group: Group, x: np.ndarray, result: np.ndarray, split: int, rows_of: tuple[int, int]) -> None:
    """Pack the parts whole, one Alltoall, unpack; `rows_of`: items of a part before the joined dimension, and the others."""
    n = group.size
    packed = pack(x, split, n)
    if rows_of[0] == 1:
        group.comm.Alltoall(datatypes.wire(packed, n), datatypes.wire(result, n))
        return
    rows = np.empty((n, *rows_of), x.dtype)
    group.comm.Alltoall(datatypes.wire(packed, n), datatypes.wire(rows, n))
    joined(rows, result.shape, result)


def _exchange_large(
    group: Group, x: np.ndarray, result: np.ndarray, split: int, concat: int, part: tuple[int, ...], tiled: bool
) -> None:
    """An all_to_all of blocks that are packed on one side at least, in the way that was found to be the fastest."""
    n, dtype = group.size, x.dtype

    def pieces(times: int = 1) -> None:
        given, wanted = (part[split], part[concat]) if tiled else (0, 0)
        sends = [(peer, _part(x, split, peer, given)) for peer in range(n)]
        exchange_blocks(group, sends, [(peer, _part(result, concat, peer, wanted)) for peer in range(n)], times)

    def packed() -> None:
        _exchange_packed(group, x, result, split, (math.prod(part[:concat]), math.prod(part[concat:])))

    def typed() -> None:
        send = ways.parts(x.shape, dtype, split, n).message(np.ascontiguousarray(x))
        group.comm.Alltoallw(send, ways.parts(result.shape, dtype, concat, n).message(result))

    possible: dict[str, Callable[[], None]] = {"pieces": pieces}
    if x.nbytes > n * message_bytes():
        possible["long"] = partial(pieces, 2)
    if 2 * x.nbytes <= buffer_bytes():
        possible["packed"] = packed
    if max(x.shape) <= datatypes.MAX_COUNT:
        possible["typed"] = typed
    ways.run(group, "all_to_all", x.nbytes, possible)


def _permute(
    group: Group,
    x: np.ndarray,
    perm: tuple[tuple[int, int], ...],
    shape_dtype: tuple[tuple[int, ...], np.dtype] | None,
    out: np.ndarray | None,
) -> np.ndarray:
    shape, dtype = (x.shape, x.dtype) if shape_dtype is None else shape_dtype
    me = group.rank
    source, target = partners(perm, me)
    result = memory.empty(shape, dtype) if out is None else result_like(out, shape, dtype, "permute")
    if source < 0:
        result[...] = np.zeros((), dtype)
    if target == me:
        np.copyto(result, x)
    elif source >= 0 or target >= 0:
        if not x.flags.c_contiguous:
            x = x.copy(order="C")
        given = datatypes.wire(x) if target >= 0 else None
        wanted = datatypes.wire(result) if source >= 0 else None
        nobody = datatypes.PROC_NULL
        group.comm.Sendrecv(
            given, target if target >= 0 else nobody, TAG_PERMUTE,
            wanted, source if source >= 0 else nobody, TAG_PERMUTE,
        )  # fmt: skip
    return result


def _broadcast(
    group: Group,
    x: np.ndarray | None,
    root: int,
    shape_dtype: tuple[tuple[int, ...], np.dtype] | None,
    out: np.ndarray | None,
) -> np.ndarray:
    like = x if x is not None else out
    if like is None and shape_dtype is None:
        raise InternalError("broadcast: this rank knows neither shape nor dtype of the block")
    shape, dtype = shape_dtype if like is None else (like.shape, like.dtype)  # type: ignore[misc]
    result = np.empty(shape, dtype) if out is None else result_like(out, shape, dtype, "broadcast")
    if group.rank == root and x is not result:
        if x is None:
            raise InternalError("broadcast: the root has no block")
        np.copyto(result, x)
    if group.comm is not None:
        group.comm.Bcast(datatypes.wire(result), root)
    return result


def _gather_to(group: Group, x: np.ndarray, root: int) -> np.ndarray | None:
    if group.comm is None:
        return x.reshape(1, *x.shape).copy(order="C")
    if not x.flags.c_contiguous:
        x = x.copy(order="C")
    result = np.empty((group.size, *x.shape), x.dtype) if group.rank == root else None
    group.comm.Gather(datatypes.wire(x), None if result is None else datatypes.wire(result, group.size), root)
    return result


def _all_gather_varied(
    group: Group, x: np.ndarray | None, shapes: Sequence[tuple[int, ...]], dtype: np.dtype
) -> list[np.ndarray]:
    sizes = [math.prod(shape) for shape in shapes]
    ends = np.cumsum([0, *sizes]).tolist()
    whole = np.empty(ends[-1], dtype)
    parts = [whole[ends[n] : ends[n + 1]].reshape(shape) for n, shape in enumerate(shapes)]
    if x is None:
        x = np.empty(shapes[group.rank], dtype)
    if x.shape != tuple(shapes[group.rank]) or x.dtype != dtype:
        raise InternalError(f"all_gather_varied: block {x.dtype}{x.shape}, promised {dtype}{shapes[group.rank]}")
    if group.comm is None:
        np.copyto(parts[0], x)
        return parts
    if not x.flags.c_contiguous:
        x = x.copy(order="C")
    if ends[-1] > datatypes.MAX_COUNT:
        exchange_blocks(group, [(peer, x) for peer in range(group.size)], list(enumerate(parts)))
        return parts
    buffer, _, datatype = datatypes.wire(whole)
    group.comm.Allgatherv(datatypes.wire(x), (buffer, sizes, ends[:-1], datatype))
    return parts


def position(dim: int, ndim: int, where: str) -> int:
    """`dim`, counted from the front; InternalError where there is no such dimension."""
    if not -ndim <= dim < ndim:
        raise InternalError(f"{where}: dimension {dim} of a block with {ndim} dimensions")
    return dim % ndim


def partners(perm: Sequence[tuple[int, int]], me: int) -> tuple[int, int]:
    """(who sends to member `me`, whom it sends to) under (source, target) pairs; -1 where there is nobody."""
    source = target = -1
    for sender, receiver in perm:
        if sender == me:
            target = receiver
        if receiver == me:
            source = sender
    return source, target


def gathered_shape(shape: tuple[int, ...], dim: int, n: int, tiled: bool) -> tuple[int, ...]:
    """Shape of n blocks side by side along `dim` if tiled, else stacked in a new `dim`."""
    if tiled:
        return (*shape[:dim], shape[dim] * n, *shape[dim + 1 :])
    return (*shape[:dim], n, *shape[dim:])


def exchanged_shapes(
    shape: tuple[int, ...], split: int, concat: int, n: int, tiled: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of one of the n parts that `all_to_all` sends, and of its result."""
    part = part_shape(shape, split, n, tiled, "all_to_all")
    return part, gathered_shape(part, concat, n, tiled)


def part_shape(shape: tuple[int, ...], dim: int, n: int, tiled: bool, where: str) -> tuple[int, ...]:
    """Shape of one of n parts along `dim`: a slice of it if tiled, else one index."""
    if tiled:
        if shape[dim] % n:
            raise InternalError(f"{where}: size {shape[dim]} of dimension {dim} is not divisible by {n} members")
        return (*shape[:dim], shape[dim] // n, *shape[dim + 1 :])
    if shape[dim] != n:
        raise InternalError(f"{where}: size {shape[dim]} of dimension {dim} is not the number of members, {n}")
    return shape[:dim] + shape[dim + 1 :]


def joined(rows: np.ndarray, shape: tuple[int, ...], out: np.ndarray | None = None) -> np.ndarray:
    """What members sent, (member, items before a dimension, items of it and after), joined along that dimension."""
    n, before, after = rows.shape
    if before == 1 and out is None:
        return rows.reshape(shape)
    result = memory.empty(shape, rows.dtype) if out is None else out
    np.copyto(result.reshape(before, n, after), rows.transpose(1, 0, 2))
    return result


def _part(x: np.ndarray, dim: int, k: int, size: int) -> np.ndarray:
    """A view of part k of x along `dim`: `size` long, or index k of it for size 0 (untiled)."""
    before: Any = (slice(None),) * dim
    return x[(*before, slice(k * size, (k + 1) * size) if size else k)]


def pack(x: np.ndarray, dim: int, n: int) -> np.ndarray:
    """The n parts along `dim` one after the other in memory; x itself where they are so already."""
    shape = x.shape
    before = math.prod(shape[:dim])
    if x.flags.c_contiguous:
        if before == 1:
            return x
        return x.reshape(before, n, x.size // (before * n) if before else 0).transpose(1, 0, 2).copy(order="C")
    cut = x.reshape(*shape[:dim], n, shape[dim] // n, *shape[dim + 1 :])
    return np.moveaxis(cut, dim, 0).copy(order="C")
