"""Blocks sent from rank to rank, whatever their strides, with bounded buffers.

Both sides cut a block into pieces by the same rule (its shape and the message size alone), so a strided sender and a
contiguous receiver agree.  If few bytes need packing, all messages are posted at once.  Else the ranks go in rounds: in
round r each sends to the rank r places on and receives from the rank r places back, two pieces under way, packed into
buffers that stay in the cache.  That cannot lock: of all pieces not yet done, the ones first in (round, piece) order
are posted by both their ends.  Messages between two ranks match in order, so one tag is enough, and members with
nothing to do need not take part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from mpiarray.comm import datatypes
from mpiarray.comm.groups import Group
from mpiarray.config import config
from mpiarray.errors import InternalError

TAG = 1
"""Of the messages of exchanges, whoever sends them."""
_MESSAGE = 2**21
"""Bytes of one message where blocks are cut: long enough for full speed, short enough to pack in the cache."""
_UNDER_WAY = 4  # two pieces sent and two received

Blocks = Sequence[tuple[int, np.ndarray]]


def exchange_blocks(group: Group, sends: Blocks, recvs: Blocks, times: int = 1) -> None:
    """See `collectives.exchange`; blocks are cut into messages of `times` the usual size."""
    own = _own(group, sends, recvs)
    sends = [(peer, block) for peer, block in sends if peer != group.rank and block.size]
    recvs = [(peer, block) for peer, block in recvs if peer != group.rank and block.size]
    if not sends and not recvs:
        _copy(own)
        return
    if group.comm is None:
        raise InternalError("exchange: a group of one member has no peers")
    limit = message_bytes(times)
    buffered = sum(block.nbytes for _, block in [*sends, *recvs] if not block.flags.c_contiguous)
    if buffered <= limit * _UNDER_WAY:
        _all_at_once(group, sends, recvs, limit, own)
    else:
        _in_rounds(group, sends, recvs, limit, own)


def message_bytes(times: int = 1) -> int:
    """Bytes of a message where blocks are cut."""
    return max(1, min(config.exchange_bytes // _UNDER_WAY, _MESSAGE * times))


def buffer_bytes() -> int:
    """The most that an exchange takes for packing."""
    return message_bytes() * _UNDER_WAY


Copies = list[tuple[np.ndarray, np.ndarray]]  # (source, target), done while the first messages travel


def _own(group: Group, sends: Blocks, recvs: Blocks) -> Copies:
    given = [block for peer, block in sends if peer == group.rank]
    wanted = [block for peer, block in recvs if peer == group.rank]
    if len(given) != len(wanted):
        raise InternalError(f"exchange: {len(given)} blocks sent to this rank itself, {len(wanted)} received from it")
    return list(zip(given, wanted, strict=True))


def _copy(own: Copies) -> None:
    for source, target in own:
        np.copyto(target, source)


def _all_at_once(group: Group, sends: Blocks, recvs: Blocks, limit: int, own: Copies) -> None:
    incoming = [_receive(group, peer, piece) for peer, block in recvs for piece in pieces(block, limit)]
    outgoing = [_send(group, peer, piece) for peer, block in sends for piece in pieces(block, limit)]
    _copy(own)
    for message in (*incoming, *outgoing):
        message.finish()


def _in_rounds(group: Group, sends: Blocks, recvs: Blocks, limit: int, own: Copies) -> None:
    # one array, so that large pages are likely: the system copies between processes page by page
    room = list(np.empty((_UNDER_WAY, limit), np.uint8))
    for distance in range(1, group.size):
        target, source = (group.rank + distance) % group.size, (group.rank - distance) % group.size
        outgoing = (piece for peer, block in sends if peer == target for piece in pieces(block, limit))
        incoming = (piece for peer, block in recvs if peer == source for piece in pieces(block, limit))
        before: list[_Message] = []
        while True:
            now: list[_Message] = []
            if (wanted := next(incoming, None)) is not None:
                now.append(_receive(group, source, wanted, room[0]))
            if (given := next(outgoing, None)) is not None:
                now.append(_send(group, target, given, room[1]))
            _copy(own)
            own = []
            for message in before:
                message.finish()
            if not now:
                break
            before = now
            room = [*room[2:], *room[:2]]


class _Message(NamedTuple):
    """One piece under way; `packed` is unpacked into `piece` when it has arrived, where both are there."""

    request: Any
    packed: np.ndarray | None = None
    piece: np.ndarray | None = None

    def finish(self) -> None:
        self.request.Wait()
        if self.packed is not None and self.piece is not None:
            np.copyto(self.piece, self.packed)


def _send(group: Group, peer: int, piece: np.ndarray, room: np.ndarray | None = None) -> _Message:
    if not piece.flags.c_contiguous:
        packed = _buffer(piece, room)
        np.copyto(packed, piece)
        piece = packed
    return _Message(group.comm.Isend(datatypes.wire(piece), peer, TAG), piece)


def _receive(group: Group, peer: int, piece: np.ndarray, room: np.ndarray | None = None) -> _Message:
    if piece.flags.c_contiguous:
        return _Message(group.comm.Irecv(datatypes.wire(piece), peer, TAG), piece)
    packed = _buffer(piece, room)
    return _Message(group.comm.Irecv(datatypes.wire(packed), peer, TAG), packed, piece)


def _buffer(piece: np.ndarray, room: np.ndarray | None) -> np.ndarray:
    """A contiguous array like `piece`, in the memory of `room` if it is given and large enough."""
    if room is None or room.nbytes < piece.nbytes:
        return np.empty(piece.shape, piece.dtype)
    return room[: piece.nbytes].view(piece.dtype).reshape(piece.shape)


def pieces(block: np.ndarray, limit: int) -> Iterator[np.ndarray]:
    """Views that make up `block`, each of at most `limit` bytes (or one item), cut along its leading dimensions."""
    if block.nbytes <= limit or block.ndim == 0:
        yield block
        return
    row = block.nbytes // len(block)
    if row > limit:
        for k in range(len(block)):
            yield from pieces(block[k, ...], limit)
        return
    step = limit // row
    for start in range(0, len(block), step):
        yield block[start : start + step]
