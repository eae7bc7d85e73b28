"""Whether anybody else refers to a block: blocks of donated arrays are written over if nobody does.

The user may hold a numpy array that shows the memory of an array (`np.asarray(x)`, a shard's data), another array may have
the same block, a program may keep it as a constant.  All of these refer to the block, or to the array that owns its
memory, and Python counts references.  How many there are for a block that only a list refers to is found out by
counting those of one, not assumed.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from mpiarray import memory


def _references(blocks: list[Any], k: int) -> int:
    return sys.getrefcount(blocks[k])


def _references_to_base(blocks: list[Any], k: int) -> int:
    return sys.getrefcount(blocks[k].base)


_ONE = _references([np.empty(1)], 0)
_ONE_TO_BASE = _references_to_base([np.empty(2)[:1]], 0)


def is_alone(blocks: list[Any], k: int) -> bool:
    """Whether `blocks[k]` is a row-major array of which nobody but this list knows, and so its memory is free to be written."""
    if type(blocks[k]) is not np.ndarray:
        return False
    more = _references(blocks, k) - _ONE  # where a step keeps it for a later call, it may let go
    if more and not (more == 1 and memory.forget(blocks[k])):
        return False
    flags = blocks[k].flags
    if not flags.c_contiguous or not flags.writeable:
        return False
    if blocks[k].base is None:
        return flags.owndata
    base_is_plain = type(blocks[k].base) is np.ndarray and blocks[k].base.flags.owndata
    return base_is_plain and _references_to_base(blocks, k) == _ONE_TO_BASE


def take(blocks: list[Any], k: int) -> None:
    """Make `blocks[k]` one that may be written over: it stays if it is alone, else a copy is there."""
    if not is_alone(blocks, k):
        blocks[k] = memory.copied(np.asarray(blocks[k]))
