"""Memory that is reused: what large arrays give back stays with the process, up to a limit.

A new 32 MB result costs about 8,000 page faults, more than most operations on it.  C libraries give large blocks back to
the operating system at once and ask for them again.  Where the C library is glibc, it is told to keep up to
`MPIARRAY_POOL_BYTES` instead (`mallopt(3)`: large blocks come from the heap, and the heap's end is trimmed only beyond
the limit).  So every array of the process gains, numpy's temporaries as well, and nothing about lifetimes changes:
memory is used again only after its last reference is gone, because it is `free` that gives it back.

The heap can only shrink at its end.  What lies free in the middle counts too: programs tell how much they allocate, and
after each half of the limit the free bytes are looked at, and returned to the system if there are too many.

With another C library (musl, macOS) nothing is changed and `stats()` says so.

What `malloc` and numpy's objects cost is still 2 us for a block, of the 40 that a message of 1 MB takes.  So steps that give such
results keep the last two, at most `_KEPT_BYTES` in all, and give one again when nobody refers to it (`recycled`).

Large blocks also begin at a cache line here (`empty`): what `malloc` gives lies 16 bytes off, and each vector load or
store that crosses a line costs two.  Larger ones begin at a page: a pass from one block to another that lies some
hundreds of bytes off, counted from the pages, takes a tenth longer (measured on Zen 4, stencils).

And they lie in large pages where the system has them (Linux, transparent huge pages).  MPI libraries copy messages straight out
of the other process's memory, page by page: a message of 1 MB took 45 us instead of 87 when it was sent from large pages
(Open MPI 5, two ranks).  numpy asks for large pages for arrays from 4 MB on; here the heap is asked for as it grows.
numpy's own NUMPY_MADVISE_HUGEPAGE=0 turns off both.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from mpiarray.config import config

# mallopt's parameters, from malloc.h
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -2, -3, -4
_DEFAULT_MMAPS, _DEFAULT_BYTES = 65536, 128 << 10
_GIB, _INT_MAX = 1 << 30, 2**31 - 1

_MADV_HUGEPAGE, _MADV_COLLAPSE = 14, 25  # madvise's, from mman.h: at the first touch; now (Linux 6.1)
_LARGE = 2 << 20  # bytes of a large page, where small ones have 4 KB
_PAD = 8 << 20  # bytes that the heap grows by beyond what is asked for: a large page needs all of its 2 MB to be there
_COLLAPSED = 64 << 20  # bytes of what others touched that are put into large pages at a time, at most: it takes time
_SPAN = 1 << 40  # bytes; what lies this far above the heap is none of it (arenas of threads, mapped blocks)

__all__ = ["release", "stats"]

ALIGNMENT = 64  # bytes of a cache line
PAGE = 4096  # bytes; and, on many cores, how near two addresses may be, but for multiples of this, before a load waits for a store
PAGED_FROM = 1 << 20  # bytes of a block that begins at a page
_KEPT_BYTES = 8 << 20  # of results that steps keep for later calls, all together
ALIGNED_FROM = 64 << 10  # bytes of a block: small ones stay in cache, and making a view costs a microsecond


class _Info(ctypes.Structure):
    """struct mallinfo2 (glibc 2.33): bytes in heap blocks (arena), in mapped ones (hblkhd), used and free (uordblks, fordblks)."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


def _glibc() -> Any:
    """The C library where it has what is needed here, else None."""
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version, library.malloc_trim, library.mallopt  # noqa: B018 - AttributeError elsewhere
        library.mallinfo2.restype = _Info
        library.sbrk.restype, library.sbrk.argtypes = ctypes.c_void_p, [ctypes.c_ssize_t]
        library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
        library.free.argtypes = [ctypes.c_void_p]
        library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    except (OSError, AttributeError, TypeError):
        return None
    return library


_library = _glibc()


class _State:
    """The setting that the C library was told, and how much has been allocated since the heap was last looked at.

    The heap up to `top` has been asked to be in large pages; addresses from `ceiling` on are not the heap's.
    """

    setting: int | None = None
    limit = 0
    allocated = 0
    top = ceiling = 0


def default_limit() -> int:
    """A quarter of the machine's memory for all its cores together, at most 1 GiB for a rank, at least 64 MiB."""
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 64 << 20
    return min(_GIB, max(64 << 20, memory // (4 * (os.cpu_count() or 1))))


def limit() -> int:
    """Bytes that may stay with the process although nothing uses them; 0: memory is given back at once."""
    return default_limit() if config.pool_bytes is None else config.pool_bytes


def apply() -> None:
    """Tell the C library.  Called when the package is imported, and when the setting has changed."""
    _State.setting, _State.limit = config.pool_bytes, limit()
    if _library is None:
        return
    if _State.limit:
        # blocks that are larger than the limit are mapped one by one, as ever; versions before 2.35 refuse thresholds
        # over 32 MiB, and then no block is mapped
        if not _library.mallopt(_M_MMAP_THRESHOLD, min(_State.limit, _INT_MAX)):
            _library.mallopt(_M_MMAP_MAX, 0)
        _library.mallopt(_M_TRIM_THRESHOLD, min(_State.limit // 2, _INT_MAX))
        if os.environ.get("NUMPY_MADVISE_HUGEPAGE") != "0":
            _ask_for_large_pages()
    else:
        _State.ceiling = 0
        _forget_all()
        _library.mallopt(_M_TOP_PAD, _DEFAULT_BYTES)
        _library.mallopt(_M_MMAP_THRESHOLD, _DEFAULT_BYTES)
        _library.mallopt(_M_TRIM_THRESHOLD, _DEFAULT_BYTES)
        _library.mallopt(_M_MMAP_MAX, _DEFAULT_MMAPS)
        _library.malloc_trim(0)


def tally(nbytes: int) -> None:
    """A program has allocated so many bytes: after each half of the limit the free part of the heap is looked at."""
    if config.pool_bytes != _State.setting:
        apply()
    _State.allocated += nbytes
    if _State.allocated > _State.limit // 2:
        _State.allocated = 0
        if _library is not None and _State.limit and _library.mallinfo2().fordblks > _State.limit // 2:
            release()


def _ask_for_large_pages() -> None:
    """For the heap as it is, in which blocks were freed that will be used again, and for what it grows by from now on."""
    old = _library.sbrk(0) or 0
    start, _State.ceiling = old - _library.mallinfo2().arena, old + _SPAN
    _grown(start, old, _pad())


def _pad() -> int:
    return min(_PAD, _State.limit // 8)


def _grown(start: int, end: int, more: int = 0) -> None:
    """A block lies where the heap has not been asked to be in large pages: ask for all that is new, before it is touched."""
    if end > (_library.sbrk(0) or 0):
        return
    _lengthen(more)
    stop = _library.sbrk(0) or 0
    # from where the heap was asked last, since a large page that is asked for in part cannot be put together; others have grown
    # the heap in between, and touched what they freed since
    first = (_State.top or start) // PAGE * PAGE
    _library.madvise(first, stop // PAGE * PAGE - first, _MADV_HUGEPAGE)  # where it fails, pages are small, as ever
    _State.top = stop
    _collapse(max(first, end - _COLLAPSED) - _LARGE, stop)


def _lengthen(more: int) -> None:
    """Let the heap grow by `more` bytes and up to a large page: one that lay on both sides of its end would stay small.

    By what malloc does for a block that does not fit: it asks for the block, M_TOP_PAD and its smallest block, without
    what is free at the end, in whole pages.
    """
    old, free = _library.sbrk(0) or 0, _library.mallinfo2().keepcost
    target = -(-(old + more + 2 * PAGE) // _LARGE) * _LARGE
    chunk = (free + PAGE + 8 + 15) // 16 * 16
    _library.mallopt(_M_TOP_PAD, target - old + free - chunk - 32)
    _library.free(_library.malloc(free + PAGE))
    _library.mallopt(_M_TOP_PAD, _pad())


def _collapse(start: int, end: int) -> None:
    """Put what was touched between two addresses into large pages now, as far as these fit in.

    One by one: for several the system stops at the first one that nobody touched.
    """
    for page in range(-(-start // _LARGE) * _LARGE, end // _LARGE * _LARGE, _LARGE):
        _library.madvise(page, _LARGE, _MADV_COLLAPSE)


def alignment(nbytes: int) -> int:
    """What the address of a large block is a multiple of."""
    return PAGE if nbytes >= PAGED_FROM else ALIGNMENT


def maker(shape: tuple[int, ...], dtype: Any) -> Callable[[], np.ndarray]:
    """What makes new arrays of one type, with any values in them; large ones begin at a cache line, or at a page."""
    dtype = np.dtype(dtype)
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < ALIGNED_FROM:
        return partial(np.empty, shape, dtype)

    empty, new, state = np.empty, np.ndarray, _State
    first: Any = ctypes.c_char.from_buffer  # of the ways to learn an address the fastest
    address_of = ctypes.addressof
    step = alignment(nbytes)
    if len(shape) == 1 and dtype.isbuiltin == 1 and dtype.kind in "iufc" and step % dtype.itemsize == 0:
        items, size = shape[0], dtype.itemsize
        longer = items + step // size

        def make() -> np.ndarray:
            raw = empty(longer, dtype)
            address = address_of(first(raw))
            if state.top < address + nbytes < state.ceiling:
                _grown(address, address + nbytes)
            start = -address % step // size
            return raw[start : start + items]
    else:
        longer, byte = nbytes + step, np.dtype(np.uint8)

        def make() -> np.ndarray:
            raw = empty(longer, byte)
            address = address_of(first(raw))
            if state.top < address + nbytes < state.ceiling:
                _grown(address, address + nbytes)
            return new(shape, dtype, raw, -address % step)

    return make


class Recycler:
    """Makes the results that one step gives again and again (`recycled`).

    The block of the call before the last is given again where nobody else refers to it, nor to the memory that it shows, which
    views of it refer to.
    """

    __slots__ = ("before", "make", "made", "now")

    def __init__(self, make: Callable[[], np.ndarray]):
        self.make, self.made = make, 0
        self.now: Any = None
        self.before: Any = None

    def take(self) -> np.ndarray:
        # the block of the latest call is in cache more likely; what a thread looks at here, no other thread finds alone
        block = self.now
        if block is not None and _references(block) == _ONE and _references_to_base(block) == _ONE_TO_BASE:
            return block
        block, self.before = self.before, block
        self.now = block
        if block is not None and _references(block) == _ONE and _references_to_base(block) == _ONE_TO_BASE:
            return block
        return self._new()

    def _new(self) -> np.ndarray:
        forget(self.now)
        self.now = block = self.make()
        self.made = made = self.made + 1
        seldom = made & (made - 1) == 0 or (made - 1) & (made - 2) == 0  # 2^k and the one after it
        if not seldom or not _State.limit:
            self.now = None
            return block
        _kept[id(block)] = self, block.nbytes
        while sum(nbytes for _, nbytes in _kept.values()) > _KEPT_BYTES:
            _let_go(next(iter(_kept)))
        return block

    def forget(self, number: int) -> bool:
        """Whether the block with this id was kept; from now on it is not."""
        if id(self.now) == number:
            self.now = None
        elif id(self.before) == number:
            self.before = None
        else:
            return False
        return True


_kept: dict[int, tuple[Recycler, int]] = {}  # who keeps a block, and its bytes, by the block's id, the oldest first


def forget(block: Any) -> bool:
    """Keep a block no more for later; False: nobody keeps it."""
    return _let_go(id(block))


def _let_go(number: int) -> bool:
    recycler, _ = _kept.pop(number, (None, 0))
    return recycler is not None and recycler.forget(number)


def _forget_all() -> None:
    for number in list(_kept):
        _let_go(number)


def _references(block: np.ndarray) -> int:
    return sys.getrefcount(block)


def _references_to_base(block: Any) -> int:
    return sys.getrefcount(block.base)


def _counted() -> tuple[int, int]:
    """How many references there are for a block that nobody else knows: found out by counting those of one, as `take` does."""
    recycler = Recycler(lambda: np.empty(2)[:1])
    recycler.now = recycler.make()
    block = recycler.now
    return _references(block), _references_to_base(block)


_ONE, _ONE_TO_BASE = _counted()


def _is_trusted() -> bool:
    """Whether this Python counts so that a block that somebody holds, or a view of it, is never given to another."""
    recycler = Recycler(lambda: np.empty(2)[:1])
    recycler.now = block = recycler.make()
    apart = recycler.take() is not block
    recycler.now = recycler.make()
    view = recycler.now[:0]
    return apart and recycler.take().base is not view.base


_TRUSTED = _is_trusted()


def recycled(shape: tuple[int, ...], dtype: Any) -> Callable[[], np.ndarray]:
    """As `maker`, for the results of a step that is done again and again.

    A new block takes 2 us, after a message of 1 MB, which takes 40.  All blocks that are kept for this are `_KEPT_BYTES` together
    at most; a step whose results are always held looks ever more rarely.
    """
    make = maker(shape, dtype)
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    return Recycler(make).take if _TRUSTED and ALIGNED_FROM <= nbytes <= _KEPT_BYTES // 4 else make


def empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """A new array with any values in it; a large one begins at a cache line."""
    return maker(shape, dtype)()


def copied(x: np.ndarray) -> np.ndarray:
    """A row-major copy."""
    out = empty(x.shape, x.dtype)
    out[...] = x
    return out


def stats() -> dict[str, Any]:
    """What this rank's process holds, in bytes: `in_use` by blocks that something refers to, `held` for reuse, or set aside and never
    touched, the `limit` of these.  Results that steps keep (8 MB at most) are in use.

    `allocator` is "glibc", or None where memory is left to the C library as it is: then nothing is known, and `limit` is 0.
    """
    if _library is None:
        return {"allocator": None, "in_use": None, "held": None, "limit": 0}
    info = _library.mallinfo2()
    return {"allocator": "glibc", "in_use": info.uordblks + info.hblkhd, "held": info.fordblks, "limit": limit()}


def release() -> None:
    """Give all memory that nothing uses back to the system.  Each rank for itself."""
    _forget_all()
    if _library is not None:
        _library.malloc_trim(0)
        _State.top = min(_State.top, _library.sbrk(0) or 0)


apply()
