"""The names of dtypes: `jnp.float32` and its like are dtypes, and make arrays when they are called.

They equal numpy's scalar types of the same name and have the attribute `dtype`, so that numpy takes them for dtypes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mpiarray.core.value import Value
from mpiarray.numpy.creation import asarray
from mpiarray.types import dtypes


class ScalarType(type):
    """The class of the dtype names."""

    dtype: Any

    def __new__(mcs, name: str, dtype: Any) -> ScalarType:
        made = super().__new__(
            mcs, name, (), {"__doc__": f"The dtype {name}.  Called with a value, it makes an array of it."}
        )
        made.dtype = np.dtype(dtype)
        made.__module__ = "mpiarray.numpy"
        return made

    def __init__(cls, name: str, dtype: Any) -> None:
        super().__init__(name, (), {})

    def __hash__(cls) -> int:
        return hash(cls.dtype.type)

    def __eq__(cls, other: object) -> bool:
        return cls is other or bool(cls.dtype.type == other)

    def __ne__(cls, other: object) -> bool:
        return not cls == other

    def __call__(cls, x: Any = 0) -> Any:
        """`x` as an array of this dtype.  Raises OverflowError for Python integers that do not fit."""
        return asarray(x, dtype=cls.dtype)

    def __instancecheck__(cls, instance: Any) -> bool:
        if isinstance(instance, Value):
            return not instance.aval.ndim and instance.aval.dtype == cls.dtype
        return isinstance(instance, cls.dtype.type)

    def __repr__(cls) -> str:
        return f"<class 'mpiarray.numpy.{cls.__name__}'>"


bool_ = ScalarType("bool", np.bool_)
int2 = ScalarType("int2", dtypes.int2)
int4 = ScalarType("int4", dtypes.int4)
int8 = ScalarType("int8", np.int8)
int16 = ScalarType("int16", np.int16)
int32 = ScalarType("int32", np.int32)
int64 = ScalarType("int64", np.int64)
uint2 = ScalarType("uint2", dtypes.uint2)
uint4 = ScalarType("uint4", dtypes.uint4)
uint8 = ScalarType("uint8", np.uint8)
uint16 = ScalarType("uint16", np.uint16)
uint32 = ScalarType("uint32", np.uint32)
uint64 = ScalarType("uint64", np.uint64)
float4_e2m1fn = ScalarType("float4_e2m1fn", dtypes.float4_e2m1fn)
float8_e3m4 = ScalarType("float8_e3m4", dtypes.float8_e3m4)
float8_e4m3 = ScalarType("float8_e4m3", dtypes.float8_e4m3)
float8_e4m3b11fnuz = ScalarType("float8_e4m3b11fnuz", dtypes.float8_e4m3b11fnuz)
float8_e4m3fn = ScalarType("float8_e4m3fn", dtypes.float8_e4m3fn)
float8_e4m3fnuz = ScalarType("float8_e4m3fnuz", dtypes.float8_e4m3fnuz)
float8_e5m2 = ScalarType("float8_e5m2", dtypes.float8_e5m2)
float8_e5m2fnuz = ScalarType("float8_e5m2fnuz", dtypes.float8_e5m2fnuz)
float8_e8m0fnu = ScalarType("float8_e8m0fnu", dtypes.float8_e8m0fnu)
bfloat16 = ScalarType("bfloat16", dtypes.bfloat16)
float16 = ScalarType("float16", np.float16)
float32 = ScalarType("float32", np.float32)
float64 = ScalarType("float64", np.float64)
complex64 = ScalarType("complex64", np.complex64)
complex128 = ScalarType("complex128", np.complex128)

single, double, csingle, cdouble = float32, float64, complex64, complex128
int_, uint, float_, complex_ = int64, uint64, float64, complex128

__all__ = [
    "bfloat16", "bool_", "cdouble", "complex128", "complex64", "complex_", "csingle", "double", "float16", "float32",
    "float4_e2m1fn", "float64", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn",
    "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float_", "int16", "int2", "int32", "int4",
    "int64", "int8", "int_", "single", "uint", "uint16", "uint2", "uint32", "uint4", "uint64", "uint8",
]  # fmt: skip
