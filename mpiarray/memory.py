"""Memory that is reused: what large arrays give back stays with the process, up to a limit.

A new 32 MB result costs about 8,000 page faults, more than most operations on it.  C libraries give large blocks back to
the operating system at once and ask for them again.  Where the C library is glibc, it is told to keep up to
`MPIARRAY_POOL_BYTES` instead (`mallopt(3)`: large blocks come from the heap, and the heap's end is trimmed only beyond
the limit).  So every array of the process gains, numpy's temporaries as well, and nothing about lifetimes changes:
memory is used again only after its last reference is gone, because it is `free` that gives it back.

The heap can only shrink at its end.  What lies free in the middle counts too: programs tell how much they allocate, and
after each half of the limit the free bytes are looked at, and returned to the system if there are too many.

With another C library (musl, macOS) nothing is changed and `stats()` says so.

Large blocks also begin at a cache line here (`empty`): what `malloc` gives lies 16 bytes off, and each vector load or
store that crosses a line costs two.  Larger ones begin at a page: a pass from one block to another that lies some
hundreds of bytes off, counted from the pages, takes a tenth longer (measured on Zen 4, stencils).
"""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from mpiarray.config import config

# mallopt's parameters, from malloc.h
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -3, -4
_DEFAULT_MMAPS, _DEFAULT_BYTES = 65536, 128 << 10
_GIB, _INT_MAX = 1 << 30, 2**31 - 1

__all__ = ["release", "stats"]

ALIGNMENT = 64  # bytes of a cache line
PAGE = 4096  # bytes; and, on many cores, how near two addresses may be, but for multiples of this, before a load waits for a store
PAGED_FROM = 1 << 20  # bytes of a block that begins at a page
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
    except (OSError, AttributeError, TypeError):
        return None
    return library


_library = _glibc()


class _State:
    """The setting that the C library was told, and how much has been allocated since the heap was last looked at."""

    setting: int | None = None
    limit = 0
    allocated = 0


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
    else:
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
            _library.malloc_trim(0)


def alignment(nbytes: int) -> int:
    """What the address of a large block is a multiple of."""
    return PAGE if nbytes >= PAGED_FROM else ALIGNMENT


def maker(shape: tuple[int, ...], dtype: Any) -> Callable[[], np.ndarray]:
    """What makes new arrays of one type, with any values in them; large ones begin at a cache line, or at a page."""
    dtype = np.dtype(dtype)
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < ALIGNED_FROM:
        return partial(np.empty, shape, dtype)

    empty = np.empty
    first: Any = ctypes.c_char.from_buffer  # of the ways to learn an address the fastest
    step = alignment(nbytes)
    if len(shape) == 1 and dtype.isbuiltin == 1 and dtype.kind in "iufc" and step % dtype.itemsize == 0:
        items, size = shape[0], dtype.itemsize
        longer = items + step // size

        def make() -> np.ndarray:
            raw = empty(longer, dtype)
            start = -ctypes.addressof(first(raw)) % step // size
            return raw[start : start + items]
    else:
        longer, byte, new = nbytes + step, np.dtype(np.uint8), np.ndarray

        def make() -> np.ndarray:
            raw = empty(longer, byte)
            return new(shape, dtype, raw, -ctypes.addressof(first(raw)) % step)

    return make


def empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """A new array with any values in it; a large one begins at a cache line."""
    return maker(shape, dtype)()


def copied(x: np.ndarray) -> np.ndarray:
    """A row-major copy."""
    out = empty(x.shape, x.dtype)
    out[...] = x
    return out


def stats() -> dict[str, Any]:
    """What this rank's process holds, in bytes: `in_use` by blocks that something refers to, `held` for reuse, the `limit` of these.

    `allocator` is "glibc", or None where memory is left to the C library as it is: then nothing is known, and `limit` is 0.
    """
    if _library is None:
        return {"allocator": None, "in_use": None, "held": None, "limit": 0}
    info = _library.mallinfo2()
    return {"allocator": "glibc", "in_use": info.uordblks + info.hblkhd, "held": info.fordblks, "limit": limit()}


def release() -> None:
    """Give all memory that nothing uses back to the system.  Each rank for itself."""
    if _library is not None:
        _library.malloc_trim(0)


apply()
