"""Element types: which there are, how they combine, and how blocks are converted between them.

Two things make this more than ``numpy.dtype``. First, numbers are 32 bits wide unless ``jax_enable_x64`` is set, so
every dtype that enters the package is *canonicalized*. Second, a Python scalar has no width of its own: its type is
*weak*, and gives way to the dtype of the array it meets. Both are decided here and nowhere else, so that `typeof`,
promotion, the ops and the conversion of host values cannot disagree.

A *pair* is ``(dtype, weak)``, the part of an array's type that promotion looks at.

Promotion is the join (least upper bound) in this order, where ``int``, ``float`` and ``complex`` are the weak types::

    bool < int < uint8 < uint16 < uint32 < uint64          int < int2, int4, uint2, uint4 (never mix)
           int < int8  < int16  < int32  < int64           uint8 < int16, uint16 < int32, uint32 < int64
    int64, uint64 < float < the 4- and 8-bit floats (never mix)
                    float < bfloat16, float16 < float32 < float64
                    float < complex < complex64 < complex128;  float32 < complex64, float64 < complex128

Keys of random number generators have the dtype `KeyDtype`; a block of them is a numpy array of uint64 (`storage`).
"""

from __future__ import annotations

import functools
import sys
import warnings
from typing import Any, ClassVar, TypeAlias

import ml_dtypes
import numpy as np

from mpiarray.config import config
from mpiarray.errors import TypePromotionError

# ---------------------------------------------------------------------------------------------------------------------
# The element types

int2 = ml_dtypes.int2
int4 = ml_dtypes.int4
uint2 = ml_dtypes.uint2
uint4 = ml_dtypes.uint4
float4_e2m1fn = ml_dtypes.float4_e2m1fn
float8_e3m4 = ml_dtypes.float8_e3m4
float8_e4m3 = ml_dtypes.float8_e4m3
float8_e4m3b11fnuz = ml_dtypes.float8_e4m3b11fnuz
float8_e4m3fn = ml_dtypes.float8_e4m3fn
float8_e4m3fnuz = ml_dtypes.float8_e4m3fnuz
float8_e5m2 = ml_dtypes.float8_e5m2
float8_e5m2fnuz = ml_dtypes.float8_e5m2fnuz
float8_e8m0fnu = ml_dtypes.float8_e8m0fnu
bfloat16 = ml_dtypes.bfloat16

#: The type of a cotangent of an integer: it has a shape, but no values.
float0 = np.dtype([("float0", np.void, 0)])


class extended(np.generic):
    """Abstract class of the dtypes that numpy does not have; only for `issubdtype`."""


class prng_key(extended):
    """Abstract class of the dtypes of random keys; only for `issubdtype`."""


class KeyDtype:
    """The dtype of random keys, e.g. ``key<fry>``. There is one object per implementation.

    One element is one key. A block of keys is a numpy array of `storage`: the little-endian bytes of each uint64 are
    the key's two uint32 words in order.
    """

    impl: str
    name: str
    storage: np.dtype[Any]
    itemsize: int
    kind: str
    type: type
    _interned: ClassVar[dict[str, KeyDtype]] = {}

    def __new__(cls, impl: str = "fry") -> KeyDtype:
        found = cls._interned.get(impl)
        if found is not None:
            return found
        self = super().__new__(cls)
        self.impl = impl
        self.name = f"key<{impl}>"
        self.storage = np.dtype(np.uint64)
        self.itemsize = 8
        self.kind = "V"
        self.type = prng_key
        return cls._interned.setdefault(impl, self)

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return KeyDtype, (self.impl,)


#: dtype of the keys that `random.key` makes
key_dtype = KeyDtype("fry")

DType: TypeAlias = "np.dtype[Any] | KeyDtype"
Pair: TypeAlias = "tuple[DType, bool]"


_BOOL = np.dtype(np.bool_)
_SIGNED = tuple(np.dtype(t) for t in (int2, int4, np.int8, np.int16, np.int32, np.int64))
_UNSIGNED = tuple(np.dtype(t) for t in (uint2, uint4, np.uint8, np.uint16, np.uint32, np.uint64))
_TINY_INTS = frozenset(np.dtype(t) for t in (int2, int4, uint2, uint4))
_TINY_FLOATS = tuple(
    np.dtype(t)
    for t in (
        float4_e2m1fn,
        float8_e3m4,
        float8_e4m3,
        float8_e4m3b11fnuz,
        float8_e4m3fn,
        float8_e4m3fnuz,
        float8_e5m2,
        float8_e5m2fnuz,
        float8_e8m0fnu,
    )
)
_BF16 = np.dtype(bfloat16)
_F16, _F32, _F64 = (np.dtype(t) for t in (np.float16, np.float32, np.float64))
_FLOATS = (*_TINY_FLOATS, _BF16, _F16, _F32, _F64)
_C64, _C128 = np.dtype(np.complex64), np.dtype(np.complex128)
_I32, _I64, _U32, _U64 = (np.dtype(t) for t in (np.int32, np.int64, np.uint32, np.uint64))

_CATEGORY: dict[Any, str] = {_BOOL: "b", _C64: "c", _C128: "c"}
_CATEGORY.update(dict.fromkeys(_SIGNED, "i"))
_CATEGORY.update(dict.fromkeys(_UNSIGNED, "u"))
_CATEGORY.update(dict.fromkeys(_FLOATS, "f"))

#: every numpy dtype that an array can have, narrow to wide within a kind
ALL_DTYPES: tuple[np.dtype[Any], ...] = (_BOOL, *_SIGNED, *_UNSIGNED, *_FLOATS, _C64, _C128)

_NARROW: dict[Any, np.dtype[Any]] = {_I64: _I32, _U64: _U32, _F64: _F32, _C128: _C64}
_PYTHON_WIDE: dict[type, np.dtype[Any]] = {bool: _BOOL, int: _I64, float: _F64, complex: _C128}
_PYTHON_NARROW: dict[type, np.dtype[Any]] = {bool: _BOOL, int: _I32, float: _F32, complex: _C64}


# ---------------------------------------------------------------------------------------------------------------------
# From what the user writes to a dtype

# Every spelling of an element type that numpy's own parser would not know by name.
_BY_NAME: dict[str, np.dtype[Any]] = {d.name: d for d in (*_TINY_INTS, *_TINY_FLOATS, _BF16)}


def _not_an_array_type(dtype: object, where: str | None) -> TypeError:
    place = f" in {where}" if where else ""
    return TypeError(f"only number, bool and key dtypes are supported, got dtype {dtype}{place}")


def as_dtype(spec: Any, *, where: str | None = None) -> DType:
    """The dtype that `spec` stands for, in its own width (not canonicalized), in native byte order.

    Args:
      spec: a dtype, its name, a scalar type (``numpy.float32``, ``jnp.bfloat16``), or a Python type. ``None`` is float.
      where: the public function that was called, for the error.

    Raises:
      TypeError: `spec` names no dtype, or one that arrays cannot have (strings, objects, dates).
    """
    if isinstance(spec, (np.dtype, KeyDtype)) and spec in _CATEGORY_OR_KEY:
        return spec if isinstance(spec, KeyDtype) or spec.isnative else spec.newbyteorder("=")
    if isinstance(spec, str) and spec in _BY_NAME:
        return _BY_NAME[spec]
    if spec is None:
        return _F64
    if isinstance(spec, type) and issubclass(spec, np.generic) and spec in _ABSTRACT:
        raise TypeError(f"{spec.__name__} is an abstract class, not a dtype{f' (in {where})' if where else ''}")
    try:
        dtype = np.dtype(spec)
    except TypeError as error:
        place = f"{where}: " if where else ""
        raise TypeError(f"{place}data type {spec!r} not understood") from error
    if not dtype.isnative:
        dtype = dtype.newbyteorder("=")
    if dtype not in _CATEGORY_OR_KEY:
        raise _not_an_array_type(dtype, where)
    return dtype


_CATEGORY_OR_KEY: frozenset[Any] = frozenset([*_CATEGORY, float0, key_dtype])
_ABSTRACT = frozenset(
    [
        np.generic,
        np.number,
        np.integer,
        np.signedinteger,
        np.unsignedinteger,
        np.inexact,
        np.floating,
        np.complexfloating,
        np.flexible,
        np.character,
        extended,
        prng_key,
    ]
)


def canonicalize(spec: Any, *, where: str | None = None) -> DType:
    """The dtype that `spec` becomes in an array: 64-bit types are narrowed unless ``jax_enable_x64`` is set.

    Raises:
      TypeError: as `as_dtype`.
    """
    dtype = as_dtype(spec, where=where)
    return dtype if config.jax_enable_x64 else _NARROW.get(dtype, dtype)


def requested(spec: Any, where: str) -> DType:
    """`canonicalize` for a dtype that the user asked for by name, with a warning if it is narrowed.

    The Python types (``float``, ``int``, ``complex``) and ``None`` ask for no particular width and do not warn.
    """
    dtype = as_dtype(spec, where=where)
    if config.jax_enable_x64 or dtype not in _NARROW:
        return dtype
    narrow = _NARROW[dtype]
    if spec is not None and not (isinstance(spec, type) and spec in _PYTHON_WIDE) and spec not in ("float", "int"):
        warnings.warn(
            f"Explicitly requested dtype {dtype.name} in {where} is not available, and will be truncated to dtype "
            f"{narrow.name}. To enable 64-bit dtypes, call config.update('jax_enable_x64', True) or set the "
            f"environment variable JAX_ENABLE_X64=1.",
            UserWarning,
            stacklevel=depth_of_user(),
        )
    return narrow


def depth_of_user() -> int:
    """The `stacklevel` that makes a warning of the caller point to the line outside of the package."""
    package = __name__.partition(".")[0]
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == package:
        frame, level = frame.f_back, level + 1
    return level


def is_python_scalar(value: object) -> bool:
    """Whether `value` is a Python number (numpy scalars are not, though ``numpy.float64`` derives from float)."""
    return type(value) in _PYTHON_WIDE or (
        isinstance(value, (bool, int, float, complex)) and not isinstance(value, np.generic)
    )


def default_dtype(python_type: type) -> np.dtype[Any]:
    """The dtype that bool, int, float or complex get when nothing else decides."""
    return (_PYTHON_WIDE if config.jax_enable_x64 else _PYTHON_NARROW)[python_type]


def dtype_of(value: Any) -> Pair:
    """The pair ``(dtype, weak)`` that a host value or an array has once it is an array.

    Args:
      value: a Python number, a numpy array or scalar, or anything with a ``dtype`` (and ``weak_type``) attribute.

    Raises:
      TypeError: `value` is no number or array of numbers.
    """
    found = _PYTHON_WIDE.get(type(value))
    if found is not None:
        return default_dtype(type(value)), found is not _BOOL
    if not isinstance(value, type):
        dtype = getattr(value, "dtype", None)
        if dtype is not None:
            return canonicalize(dtype), bool(getattr(value, "weak_type", False))
        for python_type in (bool, int, float, complex):
            if isinstance(value, python_type):
                return default_dtype(python_type), python_type is not bool
    raise TypeError(f"Cannot determine dtype of {value!r}: expected a number or an array of numbers")


def check_python_int(value: int, dtype: DType) -> None:
    """Raise OverflowError if the Python int `value` does not fit in `dtype`. Floats take any int."""
    if is_int(dtype):
        info = iinfo(dtype)
        if not int(info.min) <= value <= int(info.max):
            raise OverflowError(
                f"Python integer {value} out of bounds for {dtype.name} (Python int {value} too large to convert to "
                f"{dtype.name}: it holds {info.min} to {info.max})"
            )


def scalar_array(value: Any, dtype: DType) -> np.ndarray:
    """The Python number `value` as a 0-d block of `dtype`.

    Raises:
      OverflowError: an int that does not fit in the integer dtype.
      TypeError: a complex number for a real dtype.
    """
    if isinstance(value, complex) and not isinstance(value, np.generic) and not is_complex(dtype):
        raise TypeError(f"cannot convert the complex number {value} to {name(dtype)}")
    target = storage(dtype)
    if isinstance(value, int) and not isinstance(value, bool):
        check_python_int(value, dtype)
        if is_int(dtype):
            return np.array(value).astype(target) if dtype in _TINY_INTS else np.array(value, target)
    if isinstance(value, float) and is_int(dtype):
        return cast(np.array(value, _F64), dtype)
    with np.errstate(over="ignore"):
        return np.array(value, _C128 if isinstance(value, complex) else _F64).astype(target)


# ---------------------------------------------------------------------------------------------------------------------
# Categories and names


def is_bool(dtype: DType) -> bool:
    return dtype == _BOOL


def is_int(dtype: DType) -> bool:
    """Signed or unsigned integers; not bool."""
    return _CATEGORY.get(dtype) in ("i", "u")


def is_signed(dtype: DType) -> bool:
    return _CATEGORY.get(dtype) == "i"


def is_unsigned(dtype: DType) -> bool:
    return _CATEGORY.get(dtype) == "u"


def is_float(dtype: DType) -> bool:
    """Real floating point of any width; not float0."""
    return _CATEGORY.get(dtype) == "f"


def is_complex(dtype: DType) -> bool:
    return _CATEGORY.get(dtype) == "c"


def is_inexact(dtype: DType) -> bool:
    """Real or complex floating point: what has a derivative."""
    return _CATEGORY.get(dtype) in ("f", "c")


def is_number(dtype: DType) -> bool:
    """Everything that arithmetic takes: not bool, keys, float0."""
    return _CATEGORY.get(dtype) in ("i", "u", "f", "c")


def is_key(dtype: DType) -> bool:
    return isinstance(dtype, KeyDtype)


def storage(dtype: DType) -> np.dtype[Any]:
    """The numpy dtype of a block of elements of `dtype`."""
    return dtype.storage if isinstance(dtype, KeyDtype) else dtype


def name(dtype: DType) -> str:
    """The long name: ``float32``, ``key<fry>``, ``float0``."""
    return "float0" if dtype == float0 else dtype.name


@functools.cache
def short_name(dtype: DType) -> str:
    """The name in jaxprs and short types: ``f32``, ``bf16``, ``i8``, ``u32``, ``c64``, ``bool``, ``key<fry>``."""
    if isinstance(dtype, KeyDtype) or dtype == float0:
        return name(dtype)
    return dtype.name.replace("float", "f").replace("uint", "u").replace("int", "i").replace("complex", "c")


def real_dtype(dtype: DType) -> DType:
    """The dtype of the real part: float32 of complex64; itself for a real dtype."""
    return _F32 if dtype == _C64 else _F64 if dtype == _C128 else dtype


def complex_dtype(dtype: DType) -> np.dtype[Any]:
    """The complex dtype whose parts hold `dtype`: complex128 for 64-bit floats, else complex64."""
    return _C128 if dtype in (_F64, _C128) else _C64


def to_inexact(dtype: DType) -> DType:
    """`dtype` if it is floating point, else float64 for 64-bit integers and float32 for the others: the dtype of ``sin``,
    ``mean``, ``/`` of integers."""
    if is_inexact(dtype):
        return dtype
    return default_dtype(float) if dtype.itemsize == 8 else np.dtype(np.float32)


def scalar_type_of(value: Any) -> type:
    """The Python type (bool, int, float, complex) whose weak type has the kind of `value`, a number or an array.

    Raises:
      TypeError: `value` is neither, or its elements take no arithmetic.
    """
    dtype, _ = dtype_of(value)
    category = _CATEGORY.get(dtype)
    if category is None:
        raise TypeError(f"{name(dtype)} has no Python scalar type")
    return {"b": bool, "i": int, "u": int, "f": float, "c": complex}[category]


def tangent_dtype(dtype: DType) -> DType:
    """The dtype of tangents and cotangents of `dtype`: itself for floating point, else float0."""
    return dtype if is_inexact(dtype) else float0


def bit_width(spec: Any) -> int:
    """Bits of one element as counted by bitcasts: 4 for int4, although a block spends a byte on it."""
    dtype = as_dtype(spec)
    if is_int(dtype):
        return int(iinfo(dtype).bits)
    return int(finfo(dtype).bits) if is_float(dtype) else dtype.itemsize * 8


def finfo(spec: Any) -> Any:
    """Limits of a floating-point dtype: ``bits eps max min tiny smallest_subnormal nmant ...``.

    Raises:
      ValueError: not a floating-point dtype.
    """
    dtype = as_dtype(spec if isinstance(spec, type) else getattr(spec, "dtype", spec), where="finfo")
    if not is_inexact(dtype):
        raise ValueError(f"finfo: {name(dtype)} is not a floating-point dtype; use iinfo for integers")
    return _finfo(dtype)


@functools.cache
def _finfo(dtype: Any) -> Any:
    return ml_dtypes.finfo(real_dtype(dtype))


def iinfo(spec: Any) -> Any:
    """Limits of an integer dtype: ``bits min max``.

    Raises:
      ValueError: not an integer dtype.
    """
    dtype = as_dtype(spec if isinstance(spec, type) else getattr(spec, "dtype", spec), where="iinfo")
    if not is_int(dtype):
        raise ValueError(f"iinfo: {name(dtype)} is not an integer dtype; use finfo for floats")
    return _iinfo(dtype)


@functools.cache
def _iinfo(dtype: Any) -> Any:
    return ml_dtypes.iinfo(dtype)


_ABSTRACT_OF = {
    "b": (np.bool_, np.generic),
    "i": (np.signedinteger, np.integer, np.number, np.generic),
    "u": (np.unsignedinteger, np.integer, np.number, np.generic),
    "f": (np.floating, np.inexact, np.number, np.generic),
    "c": (np.complexfloating, np.inexact, np.number, np.generic),
}


def issubdtype(a: Any, b: Any) -> bool:
    """Whether dtype `a` is `b`, or belongs to the abstract class `b`.

    As ``numpy.issubdtype``, with bfloat16, the 8-bit floats and 2- and 4-bit integers in their kinds, and with keys
    under `prng_key` and `extended`. Nothing is canonicalized: float64 is not a subdtype of float32.
    """
    if isinstance(b, type) and b in _ABSTRACT:
        if isinstance(a, type) and issubclass(a, np.generic) and a in _ABSTRACT:
            return issubclass(a, b)
        dtype = as_dtype(a) if not isinstance(a, np.dtype) else a
        if isinstance(dtype, KeyDtype):
            return issubclass(prng_key, b)
        category = _CATEGORY.get(dtype)
        return b in _ABSTRACT_OF[category] if category is not None else bool(np.issubdtype(dtype, b))
    if isinstance(a, type) and a in _ABSTRACT:
        return False
    return as_dtype(a) == as_dtype(b)


# ---------------------------------------------------------------------------------------------------------------------
# Promotion

# A node of the order is a numpy dtype (strong) or one of the Python types int, float, complex (weak).
_Node: TypeAlias = Any


def _edges() -> dict[_Node, tuple[_Node, ...]]:
    """Each node's direct successors in the order that the module docstring draws."""
    i8, i16, i32, i64 = _SIGNED[2:]
    u8, u16, u32, u64 = _UNSIGNED[2:]
    up: dict[_Node, tuple[_Node, ...]] = {
        _BOOL: (int,),
        int: (*_TINY_INTS, i8, u8),
        i8: (i16,),
        i16: (i32,),
        i32: (i64,),
        i64: (float,),
        u8: (i16, u16),
        u16: (i32, u32),
        u32: (i64, u64),
        u64: (float,),
        float: (*_TINY_FLOATS, _BF16, _F16, complex),
        _BF16: (_F32,),
        _F16: (_F32,),
        _F32: (_F64, _C64),
        _F64: (_C128,),
        complex: (_C64,),
        _C64: (_C128,),
        _C128: (),
    }
    up.update(dict.fromkeys((*_TINY_INTS, *_TINY_FLOATS), ()))
    return up


def _upper_sets() -> dict[_Node, frozenset[_Node]]:
    edges = _edges()
    done: dict[_Node, frozenset[_Node]] = {}

    def above(node: _Node) -> frozenset[_Node]:
        if node not in done:
            done[node] = frozenset([node]).union(*(above(n) for n in edges[node]))
        return done[node]

    for node in edges:
        above(node)
    return done


_ABOVE = _upper_sets()


def _join(nodes: frozenset[_Node]) -> _Node:
    """The least node above all of `nodes`."""
    common = frozenset.intersection(*(_ABOVE[n] for n in nodes))
    for node in common:
        if common <= _ABOVE[node]:
            return node
    names = ", ".join(sorted(n.__name__ if isinstance(n, type) else n.name for n in nodes))
    raise TypePromotionError(
        f"the dtypes {names} have no common dtype to promote to implicitly. Convert one of them first, for example "
        f"with x.astype('float32')."
    )


def _node(dtype: DType, weak: bool) -> _Node:
    category = _CATEGORY.get(dtype)
    if category is None:
        raise TypePromotionError(f"{name(dtype)} cannot be promoted with other dtypes: it takes no arithmetic")
    if not weak or category == "b":
        return dtype
    return {"i": int, "u": int, "f": float, "c": complex}[category]


@functools.cache
def _promote(pairs: tuple[Pair, ...], x64: bool) -> Pair:
    dtypes = frozenset(dtype for dtype, _ in pairs)
    all_weak = all(weak for _, weak in pairs)
    if len(dtypes) == 1:
        # One dtype needs no join, so keys and other types that take no arithmetic may meet themselves here.
        dtype, weak = pairs[0][0], all_weak
    else:
        # Weak operands alone keep their (default) widths, so they are joined as what they are.
        node = _join(frozenset(_node(d, w and not all_weak) for d, w in pairs))
        weak = all_weak or isinstance(node, type)
        dtype = (_PYTHON_WIDE if x64 else _PYTHON_NARROW)[node] if isinstance(node, type) else node
    return (dtype if x64 else _NARROW.get(dtype, dtype)), weak and dtype != _BOOL


def promote_pairs(*pairs: Pair) -> Pair:
    """The pair of the result of an elementwise operation on operands of these pairs.

    Raises:
      TypePromotionError: there is no such dtype.
    """
    return _promote(pairs, config.jax_enable_x64)


def _pair(arg: Any) -> Pair:
    if type(arg) is tuple and len(arg) == 2 and type(arg[1]) is bool:
        return arg
    if isinstance(arg, (np.dtype, KeyDtype, str)):
        return canonicalize(arg), False
    if isinstance(arg, type):
        if arg in _PYTHON_WIDE:
            return default_dtype(arg), arg is not bool
        return canonicalize(arg), False
    return dtype_of(arg)


def result_pair(*args: Any) -> Pair:
    """`result_type` together with whether the result is weak."""
    if not args:
        raise ValueError("result_type: at least one array or dtype is required")
    return _promote(tuple([_pair(arg) for arg in args]), config.jax_enable_x64)


def result_type(*args: Any) -> DType:
    """The dtype that arrays, scalars and dtypes have in common, canonicalized.

    Args:
      args: arrays, Python and numpy scalars, dtypes and their names, Python types (weak, like their values), or pairs.

    Raises:
      TypePromotionError: there is none.
      TypeError: an argument has no dtype.
    """
    return result_pair(*args)[0]


def promote_types(a: Any, b: Any) -> DType:
    """The least dtype that two dtypes both turn into.

    Dtypes that are 64 bits wide stay so, whatever ``jax_enable_x64`` says, but without it uint32 and int32 meet in
    int32.
    """
    nodes = frozenset(t if t in (int, float, complex) else as_dtype(t, where="promote_types") for t in (a, b))
    if len(nodes) == 1 and not isinstance(next(iter(nodes)), type):
        return next(iter(nodes))
    node = _join(frozenset(n if isinstance(n, type) else _node(n, False) for n in nodes))
    if node == _I64 and _I64 not in nodes and not config.jax_enable_x64:
        return _I32
    return _PYTHON_WIDE[node] if isinstance(node, type) else node


# ---------------------------------------------------------------------------------------------------------------------
# Converting blocks


def cast(block: np.ndarray, dtype: DType) -> np.ndarray:
    """`block` with its elements converted to `dtype`; `block` itself if it has that dtype.

    Floats to integers: truncated towards zero, saturated at the limits, NaN becomes 0. Integers to integers: wrap
    around. To bool: whether unequal to zero (NaN is True). Complex to real: the imaginary part is dropped. Floats to
    narrower floats: to nearest, ties to even (float64 to bfloat16 by way of float32, as compilers for CPUs do).
    """
    source, target = block.dtype, storage(dtype)
    if source == target:
        return block
    if target == _BOOL:
        return np.asarray(block != np.zeros((), source))
    if source in (_C64, _C128) and not is_complex(target):
        return cast(block.real, target)
    if is_int(target) and is_float(source):
        return _float_to_int(block, target)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        if source in _TINY_INTS and target in _TINY_INTS:
            return block.astype(np.int8).astype(target)
        if source == _F64 and target in _TINY_FLOATS:
            block = _round_to_odd(block)
        return block.astype(target)


def _round_to_odd(block: np.ndarray) -> np.ndarray:
    """float64 to float32 such that a second, coarser rounding has the result of a single one.

    Where float32 is inexact its last bit is set on the value rounded towards zero, so that no tie can appear that was
    none (Boldo and Melquiond, 2008).
    """
    near = block.astype(_F32)
    inexact = (near != block) & np.isfinite(near)
    outward = inexact & (np.abs(near) > np.abs(block))
    bits = near.view(np.uint32) - outward
    return np.asarray(bits | inexact, np.uint32).view(_F32)


def _float_to_int(block: np.ndarray, target: np.dtype[Any]) -> np.ndarray:
    if block.dtype not in (_F32, _F64):
        block = block.astype(_F32)
    info = iinfo(target)
    low, high = int(info.min), int(info.max)
    wide = np.dtype(np.int8 if is_signed(target) else np.uint8) if target in _TINY_INTS else target
    # `high + 1` is a power of two and therefore exact in every float type, where `high` may not be.
    if block.size and low - 1 < block.min() and block.max() < high + 1:
        inside = block.astype(wide)
    else:
        with np.errstate(invalid="ignore"):
            inside = np.where((block > low - 1) & (block < high + 1), block, 0).astype(wide)
        inside[block >= high + 1] = high
        inside[block <= low] = low
    return inside.astype(target)
