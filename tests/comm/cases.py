"""What the tests of communication share: the groups they run on, and blocks that every rank can compute for all ranks.

As in mpi4py's own tests, cases are written once in a mixin and run by a class for each kind of group.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from mpiarray import comm
from mpiarray.comm import Group

DTYPES = [
    np.dtype(name) for name in ("bool", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")
] + [np.dtype(kind) for kind in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.int4)]

SHAPES = [(), (1,), (5,), (0,), (0, 3), (3, 4), (2, 3, 5)]


def block(position: int, shape: tuple[int, ...], dtype: np.dtype, spread: int = 7) -> np.ndarray:
    """The block of the member at `position`: small whole numbers, so that every dtype holds their sums exactly."""
    size = int(np.prod(shape, dtype=int))
    numbers = (np.arange(size) * 3 + position * 5 + np.arange(size) // 4) % spread
    if dtype.kind == "c":
        return (numbers - 1j * ((numbers + position) % 3)).astype(dtype).reshape(shape)
    if dtype.kind == "b":
        return (numbers % 2 == 0).reshape(shape)
    return numbers.astype(dtype).reshape(shape)


def exact(ufunc: np.ufunc, blocks: list[np.ndarray]) -> np.ndarray:
    """The blocks combined in wide arithmetic and brought back to their dtype; bools are or-ed, and-ed."""
    dtype = blocks[0].dtype
    if dtype.kind == "b" or ufunc in (np.maximum, np.minimum):
        return ufunc.reduce(np.stack(blocks), 0).astype(dtype)
    wide = np.complex128 if dtype.kind == "c" else dtype if dtype.kind in "iu" else np.float64
    total = ufunc.reduce(np.stack(blocks).astype(wide), 0, dtype=wide)
    if str(dtype) == "int4":
        total = (total.astype(np.int64) + 8) % 16 - 8
    return total.astype(dtype)


def same(found: np.ndarray, wanted: np.ndarray) -> None:
    """Equal in dtype, shape and every bit, and in C order."""
    wanted = np.asarray(wanted)
    assert found.dtype == wanted.dtype, f"{found.dtype} is not {wanted.dtype}"
    assert found.shape == wanted.shape, f"{found.dtype}{found.shape} is not {wanted.shape}"
    assert found.flags.c_contiguous, f"{found.dtype}{found.shape} is not in C order"
    assert found.tobytes() == wanted.tobytes(), f"{found.dtype}{found.shape}:\n{found}\nis not\n{wanted}"


def strided(x: np.ndarray) -> np.ndarray:
    """The same values in memory that is neither C- nor F-contiguous (where the shape allows)."""
    wide = np.zeros(tuple(2 * n for n in x.shape), x.dtype)
    view = wide[tuple(slice(None, None, 2) for _ in x.shape)]
    view[...] = x
    return view


class OnWorld:
    """All ranks."""

    def group(self) -> Group:
        return comm.world_group()


class OnOneself:
    """This rank alone: no communication."""

    def group(self) -> Group:
        return comm.device_group((comm.rank(),))


class OnReversed:
    """All ranks, last to first: positions are not ranks."""

    def group(self) -> Group:
        return comm.device_group(tuple(reversed(range(comm.size()))))


class OnParity:
    """Even ranks and odd ranks, two groups at work at the same time."""

    def group(self) -> Group:
        return comm.device_group(tuple(range(comm.rank() % 2, comm.size(), 2)))


class OnMesh:
    """One axis of a mesh with two columns whose devices are not in rank order."""

    axes: tuple[str, ...] = ("x",)

    def group(self) -> Group:
        rows = comm.size() // 2
        if rows == 0:
            return comm.device_group((0,))
        ids = tuple(np.arange(2 * rows).reshape(rows, 2)[::-1].reshape(-1).tolist())
        if comm.rank() not in ids:
            return comm.device_group((comm.rank(),))  # the odd one out
        return comm.axis_group(ids, (("x", rows), ("y", 2)), self.axes)


class OnMeshBackwards(OnMesh):
    """Both axes of the mesh, the second one first."""

    axes = ("y", "x")
