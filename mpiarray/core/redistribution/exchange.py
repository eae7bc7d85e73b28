"""The general step: boxes from any device to any other, found by intersecting index boxes.

An `Exchange` is small: the shape and two placements. What one device sends and receives is computed for
that device only (`for_rank`), because the table of a whole 64x64 mesh has millions of rows. Sender and
receiver derive the same pieces in the same order from the same data, so nothing is agreed by messages.

Which replica sends: the receiver itself if it holds the box, else the holder with the smallest replica_id.

Unreduced values. Summand k of the source becomes summand k of the target; summands that the source
does not have are zeros. If the source is not unreduced but the target is, each intersection of a source
block and a target block is given to ONE summand: the one whose devices hold most copies of it already,
else block number modulo the number of summands, which spreads the traffic. A source with more summands than
the target must be reduced first: an Exchange adds nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar

import numpy as np

from mpiarray.core.redistribution.placement import Placement
from mpiarray.core.redistribution.steps import Step

Box = tuple[slice, ...]


@dataclass(frozen=True)
class Transfer:
    """One message: the other device's id, and the box within the own block (source or target block)."""

    peer: int
    box: Box


@dataclass(frozen=True)
class Round:
    """What one device does at one moment: send at most one message and receive at most one."""

    send: Transfer | None
    recv: Transfer | None


@dataclass(frozen=True)
class RankTable:
    """All that one device does in an Exchange.

    source_shape, target_shape: of its block before and after, None where it is not in that mesh.
    covered: False if parts of the target block receive nothing: start from zeros.
    copies: (box in the source block, box in the target block) of what it already holds.
    sends, recvs: in the order of the rounds.
    """

    source_shape: tuple[int, ...] | None
    target_shape: tuple[int, ...] | None
    covered: bool
    copies: tuple[tuple[Box, Box], ...]
    rounds: tuple[Round, ...]

    @property
    def sends(self) -> tuple[Transfer, ...]:
        return tuple(r.send for r in self.rounds if r.send is not None)

    @property
    def recvs(self) -> tuple[Transfer, ...]:
        return tuple(r.recv for r in self.rounds if r.recv is not None)


@dataclass(frozen=True)
class Exchange(Step):
    """Boxes between devices: from any placement to any other of no fewer summands.

    shape, itemsize: of the array. buffer: bytes of one message buffer; a message is at most half of it, so
    that a packed send and a packed receive fit together.

    Every member calls its rounds in order; in a round it sends and receives at the same time (Sendrecv, or
    non-blocking). All rounds of all members then meet: the rounds of a device are ordered by the distance
    (receiver - sender) in `members()`, then by piece.
    """

    hlo: ClassVar[str] = "all-to-all"
    shape: tuple[int, ...]
    itemsize: int
    source: Placement
    target: Placement
    buffer: int = 64 << 20

    def members(self) -> tuple[int, ...]:
        """Sorted ids of the devices that must take part."""
        return tuple(sorted({*self.source.ids, *self.target.ids}))

    @cached_property
    def place(self) -> dict[int, int]:
        """Device id -> its position in `members()`."""
        return {device: k for k, device in enumerate(self.members())}

    def for_rank(self, device: int) -> RankTable:
        """What the device with this id sends, receives and copies."""
        return _rank_table(self, device)

    def detail(self) -> str:
        return f"(boxes) {self.source} -> {self.target}"


@lru_cache(maxsize=256)
def _rank_table(exchange: Exchange, device: int) -> RankTable:
    """for_rank, kept: a plan is executed many times."""
    source, target, shape = exchange.source, exchange.target, exchange.shape
    place = exchange.place
    events: dict[tuple[int, int], list[Transfer | None]] = {}
    copies: list[tuple[Box, Box]] = []
    source_shape = target_shape = None
    covered = True
    if device in target.position:
        target_shape = target.block_shape(shape)
        filled = 0
        for holder, box in _incoming(exchange, device):
            inner = _within(box, target.box(device, shape))
            filled += _volume(box)
            if holder == device:
                copies.append((_within(box, source.box(device, shape)), inner))
                continue
            distance = (place[device] - place[holder]) % len(place)
            for k, piece in enumerate(_pieces(inner, exchange)):
                events.setdefault((distance, k), [None, None])[1] = Transfer(holder, piece)
        covered = filled == math.prod(target_shape)
    if device in source.position:
        source_shape = source.block_shape(shape)
        for receiver, box in _outgoing(exchange, device):
            inner = _within(box, source.box(device, shape))
            distance = (place[receiver] - place[device]) % len(place)
            for k, piece in enumerate(_pieces(inner, exchange)):
                events.setdefault((distance, k), [None, None])[0] = Transfer(receiver, piece)
    rounds = tuple(Round(*events[key]) for key in sorted(events))
    return RankTable(source_shape, target_shape, covered, tuple(copies), rounds)


def _incoming(exchange: Exchange, device: int) -> Iterator[tuple[int, Box]]:
    """(device that sends, global box) for each box that `device` needs; itself if it holds the box."""
    source, target, shape = exchange.source, exchange.target, exchange.shape
    at = target.position[device]
    summand = int(target.summand[at])
    needs = target.box(device, shape)
    for numbers, box in _meeting(source, shape, needs):
        taken = _source_summand(exchange, numbers, tuple(int(k) for k in target.numbers[:, at]), summand)
        if taken is None:
            continue
        yield _sender(source, source.shard(numbers, taken), device), box


def _outgoing(exchange: Exchange, device: int) -> Iterator[tuple[int, Box]]:
    """(device that receives, global box) for each box that `device` must send to another one."""
    source, target, shape = exchange.source, exchange.target, exchange.shape
    at = source.position[device]
    mine = tuple(int(k) for k in source.numbers[:, at])
    for numbers, box in _meeting(target, shape, source.box(device, shape)):
        for summand in range(target.partials):
            taken = _source_summand(exchange, mine, numbers, summand)
            if taken is None or source.shard(mine, taken) != source.shards[at]:
                continue
            for receiver in target.holders[target.shard(numbers, summand)]:
                peer = target.ids[receiver]
                if peer != device and _sender(source, int(source.shards[at]), peer) == device:
                    yield peer, box


def _sender(source: Placement, shard: int, receiver: int) -> int:
    """The nearest holder of a shard: the receiver itself, else the smallest replica_id."""
    own = source.position.get(receiver)
    if own is not None and source.shards[own] == shard:
        return receiver
    return source.ids[source.holders[shard, 0]]


def _source_summand(exchange: Exchange, block: tuple[int, ...], wanted: tuple[int, ...], summand: int) -> int | None:
    """The source's summand of `block` that goes into `summand` of the target's block `wanted`, or None."""
    source, target = exchange.source, exchange.target
    if source.partials > 1 or target.partials == 1:
        return summand if summand < source.partials else None
    return 0 if _home(source, target, block, wanted) == summand else None


def _home(source: Placement, target: Placement, block: tuple[int, ...], wanted: tuple[int, ...]) -> int:
    """Which summand of the target's block `wanted` takes in a whole source block."""
    shard = source.shard(block, 0)
    held = [0] * target.partials
    for at in source.holders[shard]:
        there = target.position.get(source.ids[at])
        if there is not None and tuple(target.numbers[:, there]) == wanted:
            held[target.summand[there]] += 1
    return held.index(max(held)) if any(held) else shard % target.partials


def _meeting(placement: Placement, shape: tuple[int, ...], box: Box) -> Iterator[tuple[tuple[int, ...], Box]]:
    """Block numbers, and the part inside `box`, of every block of `placement` that meets `box`."""
    if any(s.start == s.stop for s in box):
        return
    choices = []
    for s, size in zip(box, placement.block_shape(shape)):
        numbers = range(s.start // size, (s.stop - 1) // size + 1)
        choices.append([(k, slice(max(s.start, k * size), min(s.stop, (k + 1) * size))) for k in numbers])
    for choice in itertools.product(*choices):
        yield tuple(k for k, _ in choice), tuple(part for _, part in choice)


def _within(box: Box, block: Box) -> Box:
    """A global box in the coordinates of the block that holds it."""
    return tuple(slice(b.start - o.start, b.stop - o.start) for b, o in zip(box, block))


def _volume(box: Box) -> int:
    return math.prod(s.stop - s.start for s in box)


def _pieces(box: Box, exchange: Exchange) -> Iterator[Box]:
    """`box` in pieces of at most half a message buffer, split along the first dimensions."""
    limit = max(1, exchange.buffer // 2 // exchange.itemsize)
    if _volume(box) <= limit:
        yield box
        return
    dim = next(d for d, s in enumerate(box) if s.stop - s.start > 1)
    rest = _volume(box) // (box[dim].stop - box[dim].start)
    length = max(1, limit // rest)
    for start in range(box[dim].start, box[dim].stop, length):
        part = slice(start, min(start + length, box[dim].stop))
        yield from _pieces(box[:dim] + (part,) + box[dim + 1 :], exchange)


@dataclass(frozen=True)
class Traffic:
    """Largest numbers over all devices: bytes and messages received, bytes sent."""

    received: int
    sent: int
    messages: int


def exchange_traffic(exchange: Exchange) -> Traffic:
    """The traffic of an Exchange without building any device's table.

    Exact, but for a target with more summands than a source that has one: then `received` is exact for small
    meshes and a bound above for large ones, and `sent` and `messages` are bounds.
    """
    source, target, shape, itemsize = exchange.source, exchange.target, exchange.shape, exchange.itemsize
    if 0 in shape:
        return Traffic(0, 0, 0)
    if source.partials == 1 and target.partials > 1:
        return _assigned_traffic(exchange)
    volume = math.prod(target.block_shape(shape))
    at, overlap, meeting = _overlaps(source, target, shape)
    live = target.summand < source.partials
    same = (at >= 0) & (source.summand[at] == target.summand)
    own = np.where(same, overlap, 0)
    received = np.where(live, volume - own, 0)
    messages = np.where(live, meeting - (own > 0), 0)
    kept = np.zeros(math.prod(source.counts) * source.partials, np.int64)
    np.add.at(kept, source.shards[at[same]], own[same])
    sent = math.prod(source.block_shape(shape)) * target.replicas - kept
    return Traffic(int(received.max()) * itemsize, int(sent.max()) * itemsize, int(messages.max()))


def _overlaps(
    source: Placement, target: Placement, shape: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Per target position: its position in the source or -1, the volume that it holds already, the
    number of source blocks that its target block meets."""
    if source.ids == target.ids:
        at = np.arange(len(source.ids))
    else:
        at = np.array([source.position.get(device, -1) for device in target.ids])
    overlap = np.where(at >= 0, 1, 0)
    meeting = np.ones(len(at), np.int64)
    sizes = zip(source.block_shape(shape), target.block_shape(shape))
    for here, there, (s, t) in zip(source.numbers, target.numbers, sizes):
        low, high = there * t, there * t + t
        first = here[at] * s
        overlap = overlap * np.maximum(0, np.minimum(high, first + s) - np.maximum(low, first))
        meeting = meeting * ((high - 1) // s - low // s + 1)
    return at, overlap, meeting


def _assigned_traffic(exchange: Exchange) -> Traffic:
    target, itemsize = exchange.target, exchange.itemsize
    whole = math.prod(target.block_shape(exchange.shape))
    _, _, meeting = _overlaps(exchange.source, target, exchange.shape)
    block = math.prod(exchange.source.block_shape(exchange.shape))
    sent = block * target.replicas * itemsize
    if len(target.ids) > 64:
        return Traffic(whole * itemsize, sent, int(meeting.max()))
    received = messages = 0
    for device in target.ids:
        boxes = [_volume(box) for holder, box in _incoming(exchange, device) if holder != device]
        received, messages = max(received, sum(boxes)), max(messages, len(boxes))
    return Traffic(received * itemsize, sent if received else 0, messages)


def permutation(source: Placement, target: Placement) -> tuple[tuple[int, int], ...] | None:
    """Pairs for a `Permute` from `source` to `target`, or None if whole blocks do not suffice.

    Whole blocks suffice if both cut the array alike and each source block has at least as many copies
    as devices of `target` want. Devices that hold their block keep it; the others are matched in mesh order.
    """
    if source.counts != target.counts or source.partials != target.partials:
        return None
    if source.replicas < target.replicas:
        return None
    pairs: list[tuple[int, int]] = []
    for shard, wanted in enumerate(target.holders.tolist()):
        givers = [source.ids[at] for at in source.holders[shard]]
        takers = [target.ids[at] for at in wanted]
        keep = set(givers).intersection(takers)
        pairs += [(device, device) for device in keep]
        pairs += zip((a for a in givers if a not in keep), (b for b in takers if b not in keep))
    return tuple(sorted(pairs, key=lambda pair: pair[1]))
