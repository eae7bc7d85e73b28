"""Which MPI datatype carries a numpy dtype, and which reductions MPI does itself.

Moving data needs only a type of the right width, so every dtype travels as an unsigned integer of its item size.
Reducing needs MPI to know the arithmetic.  Where it does not (16-bit and 8-bit floats, NaN-propagating max and min,
products of complex numbers, 4-bit integers) `native` answers None, and `reductions` or `ring` do it with numpy.

The tables are filled when MPI starts, because mpi4py's module must not be imported before.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np

from mpiarray.errors import InternalError

MAX_COUNT = 2**31 - 1
"""Largest count that every MPI takes; longer messages are described by one derived type, longer reductions cut into pieces."""

IN_PLACE: Any = None
"""MPI.IN_PLACE, once MPI has started."""

PROC_NULL: int = -1
"""MPI.PROC_NULL, once MPI has started."""

_UNIT = 2**20

_by_width: dict[int, Any] = {}
_carriers: dict[np.dtype, tuple[Any, np.dtype | None]] = {}
_accumulators: dict[np.dtype, np.dtype] = {}
_large: dict[int, Any] = {}
_mpi: ModuleType | None = None

OPS = ("sum", "prod", "max", "min", "and", "or", "xor")
"""The reductions; for bools 'sum' and 'max' mean or, 'prod' and 'min' mean and."""

_native: dict[str, dict[np.dtype, tuple[Any, Any]]] = {name: {} for name in OPS}

UFUNCS: dict[str, np.ufunc] = {
    "sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip
"""The same reductions in numpy: NaN wins in max and min, integers wrap around."""


def load(mpi: ModuleType) -> None:
    """Fill the tables from mpi4py's module; called once, when MPI starts."""
    global _mpi, IN_PLACE, PROC_NULL
    _mpi, IN_PLACE, PROC_NULL = mpi, mpi.IN_PLACE, mpi.PROC_NULL
    _by_width.update({1: mpi.UINT8_T, 2: mpi.UINT16_T, 4: mpi.UINT32_T, 8: mpi.UINT64_T, 16: mpi.C_DOUBLE_COMPLEX})
    arithmetic = {"sum": mpi.SUM, "prod": mpi.PROD}
    order = {"max": mpi.MAX, "min": mpi.MIN}
    bits = {"and": mpi.BAND, "or": mpi.BOR, "xor": mpi.BXOR}
    for width in (1, 2, 4, 8):
        signed, unsigned = np.dtype(f"i{width}"), np.dtype(f"u{width}")
        signed_type = {1: mpi.INT8_T, 2: mpi.INT16_T, 4: mpi.INT32_T, 8: mpi.INT64_T}[width]
        # Sums and products of signed integers are done unsigned: the bits are the same, and wrapping is defined in C.
        for name, op in (arithmetic | bits).items():
            _native[name][signed] = _native[name][unsigned] = (_by_width[width], op)
        for name, op in order.items():
            _native[name][signed] = (signed_type, op)
            _native[name][unsigned] = (_by_width[width], op)
    for name, op in {"sum": mpi.BOR, "max": mpi.BOR, "or": mpi.BOR, "prod": mpi.BAND, "min": mpi.BAND,
                     "and": mpi.BAND, "xor": mpi.BXOR}.items():  # fmt: skip
        _native[name][np.dtype(bool)] = (mpi.UINT8_T, op)
    floats = {"f4": mpi.FLOAT, "f8": mpi.DOUBLE}
    for code, kind in floats.items():
        for name, op in arithmetic.items():
            _native[name][np.dtype(code)] = (kind, op)
    # A compiler may fuse one half of a complex product, which then depends on the order of the factors: sums only.
    _native["sum"][np.dtype("c8")] = (mpi.C_FLOAT_COMPLEX, mpi.SUM)
    _native["sum"][np.dtype("c16")] = (mpi.C_DOUBLE_COMPLEX, mpi.SUM)


def native(op: str, dtype: np.dtype) -> tuple[Any, Any] | None:
    """(MPI datatype, MPI op) where MPI reduces `dtype` correctly by itself, else None.  InternalError: unknown `op`."""
    table = _native.get(op)
    if table is None:
        raise InternalError(f"no reduction {op!r}; there are {', '.join(OPS)}")
    return table.get(dtype)


def double() -> Any:
    """The MPI datatype of float64."""
    assert _mpi is not None, "datatypes.double before MPI was started"
    return _mpi.DOUBLE


def largest() -> Any:
    """MPI's max, of numbers that are no NaNs."""
    assert _mpi is not None, "datatypes.largest before MPI was started"
    return _mpi.MAX


def finalized() -> bool:
    """Whether MPI has ended: datatypes are gone then."""
    ended = None if _mpi is None else _mpi.Is_finalized  # None as well where the interpreter is ending
    return ended is None or ended()


def depends_on_order(op: str, dtype: np.dtype) -> bool:
    """Whether rounding makes the result depend on the order in which blocks are combined."""
    return op in ("sum", "prod") and dtype.kind not in "biu"


def accumulator(dtype: np.dtype) -> np.dtype:
    """The dtype in which numpy reduces values of `dtype`: float32 for floats of 16 bits and fewer, else `dtype`."""
    known = _accumulators.get(dtype)
    if known is None:
        small = dtype.itemsize <= 2 and _is_float(dtype)
        known = _accumulators[dtype] = np.dtype(np.float32) if small else dtype
    return known


def _is_float(dtype: np.dtype) -> bool:
    if dtype.kind == "f":
        return True
    try:
        ml_dtypes.finfo(dtype)
    except ValueError:
        return False
    return True


def wire(block: np.ndarray, parts: int = 1) -> tuple[np.ndarray, int, Any]:
    """(buffer, count, MPI datatype) that carries a contiguous block without copying it, in `parts` equal messages.

    The count is that of one part, as Allgather and Alltoall want it.  Blocks that have more items than an MPI count can
    say are described by a derived type; it stays committed for the life of the process (there are few such sizes).
    """
    datatype, view = carrier(block.dtype)
    if view is not None:
        block = block.view(view)
    count = block.size // parts
    if block.size > MAX_COUNT:
        return block, 1, large(block.nbytes // parts)
    return block, count, datatype


def carrier(dtype: np.dtype) -> tuple[Any, np.dtype | None]:
    """(MPI datatype of one item, dtype to view a block as before MPI gets it, None if it needs no other)."""
    kind = _carriers.get(dtype)
    if kind is None:
        kind = _carriers[dtype] = _carrier(dtype)
    return kind


def _carrier(dtype: np.dtype) -> tuple[Any, np.dtype | None]:
    """The datatype of the item size, and the dtype to view a block as if numpy does not export its own as a buffer."""
    datatype = _by_width.get(dtype.itemsize)
    if datatype is None or dtype.hasobject:
        raise InternalError(f"comm: numpy blocks of dtype {dtype} cannot be sent")
    if dtype.kind in "biufc" and dtype.isbuiltin == 1:
        return datatype, None
    return datatype, np.dtype(f"u{dtype.itemsize}") if dtype.itemsize <= 8 else np.dtype(np.complex128)


def large(nbytes: int) -> Any:
    """A committed MPI datatype of `nbytes` contiguous bytes, for messages longer than an MPI count can say."""
    known = _large.get(nbytes)
    if known is None:
        assert _mpi is not None, "datatypes.large before MPI was started"
        whole, rest = divmod(nbytes, _UNIT)
        unit = _mpi.BYTE.Create_contiguous(_UNIT)
        known = _mpi.Datatype.Create_struct([whole, rest], [0, whole * _UNIT], [unit, _mpi.BYTE]).Commit()
        unit.Free()
        _large[nbytes] = known
    return known
