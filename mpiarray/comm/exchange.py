"""Blocks sent from rank to rank, whatever their strides, with bounded buffers.

Both sides cut a block into pieces by the same rule (its shape and the message size alone), so a strided sender and a
contiguous receiver agree.  If everything fits into the buffers, all messages are posted at once.  Else the ranks go in
rounds: in round r each sends to the rank r places on and receives from the rank r places back, two pieces under way.
That cannot lock: of all pieces not yet done, the ones first in (round, piece) order are posted by both their ends.
Messages between two ranks match in order, so one tag is enough, and members with nothing to do need not take part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mpiarray.comm import datatypes
from mpiarray.comm.groups import Group
from mpiarray.config import config
from mpiarray.errors import InternalError

_TAG = 1
_LONGEST = 2**30
_UNDER_WAY = 4  # two pieces sent and two received

Blocks = Sequence[tuple[int, np.ndarray]]


def exchange_blocks(group: Group, sends: Blocks, recvs: Blocks) -> None:
    """See `collectives.exchange`."""
    _copy_own(group, sends, recvs)
    sends = [(peer, block) for peer, block in sends if peer != group.rank and block.size]
    recvs = [(peer, block) for peer, block in recvs if peer != group.rank and block.size]
    if not sends and not recvs:
        return
    if group.comm is None:
        raise InternalError("exchange: a group of one member has no peers")
    limit = max(1, min(config.exchange_bytes // _UNDER_WAY, _LONGEST))
    buffered = sum(block.nbytes for _, block in [*sends, *recvs] if not block.flags.c_contiguous)
    if buffered <= config.exchange_bytes:
        _all_at_once(group, sends, recvs, limit)
    else:
        _in_rounds(group, sends, recvs, limit)


def _copy_own(group: Group, sends: Blocks, recvs: Blocks) -> None:
    given = [block for peer, block in sends if peer == group.rank]
    wanted = [block for peer, block in recvs if peer == group.rank]
    if len(given) != len(wanted):
        raise InternalError(f"exchange: {len(given)} blocks sent to this rank itself, {len(wanted)} received from it")
    for source, target in zip(given, wanted, strict=True):
        np.copyto(target, source)


def _all_at_once(group: Group, sends: Blocks, recvs: Blocks, limit: int) -> None:
    incoming = [_Incoming(group, peer, piece) for peer, block in recvs for piece in pieces(block, limit)]
    outgoing = [_Outgoing(group, peer, piece) for peer, block in sends for piece in pieces(block, limit)]
    for message in incoming:
        message.finish()
    for message in outgoing:
        message.finish()


def _in_rounds(group: Group, sends: Blocks, recvs: Blocks, limit: int) -> None:
    for distance in range(1, group.size):
        target, source = (group.rank + distance) % group.size, (group.rank - distance) % group.size
        outgoing = (piece for peer, block in sends if peer == target for piece in pieces(block, limit))
        incoming = (piece for peer, block in recvs if peer == source for piece in pieces(block, limit))
        before: list[_Incoming | _Outgoing] = []
        while True:
            now: list[_Incoming | _Outgoing] = []
            if (wanted := next(incoming, None)) is not None:
                now.append(_Incoming(group, source, wanted))
            if (given := next(outgoing, None)) is not None:
                now.append(_Outgoing(group, target, given))
            for message in before:
                message.finish()
            if not now:
                break
            before = now


class _Outgoing:
    """One piece being sent; packed if it is strided."""

    __slots__ = ("buffer", "request")

    def __init__(self, group: Group, peer: int, piece: np.ndarray) -> None:
        self.buffer = piece if piece.flags.c_contiguous else piece.copy(order="C")
        self.request: Any = group.comm.Isend(datatypes.wire(self.buffer), peer, _TAG)

    def finish(self) -> None:
        self.request.Wait()


class _Incoming:
    """One piece being received; unpacked when it is there, if it is strided."""

    __slots__ = ("buffer", "piece", "request")

    def __init__(self, group: Group, peer: int, piece: np.ndarray) -> None:
        self.piece = piece
        self.buffer = piece if piece.flags.c_contiguous else np.empty(piece.shape, piece.dtype)
        self.request: Any = group.comm.Irecv(datatypes.wire(self.buffer), peer, _TAG)

    def finish(self) -> None:
        self.request.Wait()
        if self.buffer is not self.piece:
            np.copyto(self.piece, self.buffer)


def pieces(block: np.ndarray, limit: int) -> Iterator[np.ndarray]:
    """Views that make up `block`, each of at most `limit` bytes (or one item), cut along its leading dimensions."""
    if block.nbytes <= limit or block.ndim == 0:
        yield block
        return
    row = block.nbytes // len(block)
    if row > limit:
        for part in block:
            yield from pieces(part, limit)
        return
    step = limit // row
    for start in range(0, len(block), step):
        yield block[start : start + step]
