"""Questions about dtypes: result_type, promote_types, finfo, iinfo, issubdtype, isdtype, can_cast."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpiarray.core.value import Value
from mpiarray.numpy.creation import array
from mpiarray.types import dtypes
from mpiarray.types.dtypes import finfo, iinfo, issubdtype, promote_types

__all__ = ["can_cast", "dtype", "finfo", "iinfo", "isdtype", "issubdtype", "load", "promote_types", "result_type"]

dtype = np.dtype

_KINDS = {
    "bool": np.bool_,
    "signed integer": np.signedinteger,
    "unsigned integer": np.unsignedinteger,
    "integral": np.integer,
    "real floating": np.floating,
    "complex floating": np.complexfloating,
    "numeric": np.number,
}


def result_type(*args: Any) -> Any:
    """The dtype that arrays, scalars and dtypes have in common."""
    return dtypes.result_type(*((a.aval.dtype, a.aval.weak_type) if isinstance(a, Value) else a for a in args))


def isdtype(dtype: Any, kind: Any) -> bool:
    """Whether a dtype is of a kind: a dtype, a name as "integral", "real floating", "numeric", or a tuple of them."""
    own = dtypes.as_dtype(dtype, where="isdtype")
    for k in kind if isinstance(kind, tuple) else (kind,):
        if isinstance(k, str) and k in _KINDS:
            if (k == "bool" and dtypes.is_bool(own)) or (k != "bool" and issubdtype(own, _KINDS[k])):
                return True
        elif own == dtypes.as_dtype(k, where="isdtype"):
            return True
    return False


def can_cast(from_: Any, to: Any, casting: str = "safe") -> bool:
    """Whether values of one dtype can become another by a rule of casting, as `numpy.can_cast`."""
    if isinstance(from_, Value):
        from_ = from_.aval.dtype
    return bool(np.can_cast(from_, to, casting))  # type: ignore[arg-type]


def load(file: Any, *args: Any, **kwargs: Any) -> Any:
    """The array in an .npy file, which every rank reads; several arrays of an .npz file as numpy gives them."""
    out = np.load(file, *args, **kwargs)
    return array(out) if isinstance(out, np.ndarray) else out
