"""Makes recorded_elementwise.json: what JAX's elementwise ops give for special and ordinary values of many dtypes.

Run by hand, with a Python that has JAX (the tests only read the table):
    JAX_ENABLE_X64=1 python tests/ops/record_elementwise.py
Arrays are stored as base64 of their compressed little-endian bytes.
"""

import base64
import json
import zlib
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
from jax import lax

FLOATS = ["float16", "bfloat16", "float32", "float64"]
COMPLEX = ["complex64", "complex128"]
SIGNED = ["int8", "int16", "int32", "int64"]
UNSIGNED = ["uint8", "uint32"]

UNARY = {
    "neg": FLOATS + COMPLEX + SIGNED + UNSIGNED,
    "sign": FLOATS + COMPLEX + SIGNED + UNSIGNED,
    "floor": FLOATS,
    "ceil": FLOATS,
    "is_finite": FLOATS,
    "exp": FLOATS + COMPLEX,
    "exp2": FLOATS,
    "log": FLOATS + COMPLEX,
    "expm1": FLOATS + COMPLEX,
    "log1p": FLOATS + COMPLEX,
    "tanh": FLOATS + COMPLEX,
    "logistic": FLOATS + COMPLEX,
    "sin": FLOATS + COMPLEX,
    "cos": FLOATS + COMPLEX,
    "tan": FLOATS + COMPLEX,
    "asin": FLOATS,
    "acos": FLOATS,
    "atan": FLOATS,
    "sinh": FLOATS + COMPLEX,
    "cosh": FLOATS + COMPLEX,
    "asinh": FLOATS,
    "acosh": FLOATS,
    "atanh": FLOATS,
    "lgamma": FLOATS,
    "digamma": FLOATS,
    "bessel_i0e": FLOATS,
    "bessel_i1e": FLOATS,
    "erf": FLOATS,
    "erfc": FLOATS,
    "erf_inv": FLOATS,
    "real": COMPLEX,
    "imag": COMPLEX,
    "conj": ["float32", *COMPLEX],
    "abs": FLOATS + COMPLEX + SIGNED,
    "sqrt": FLOATS + COMPLEX,
    "rsqrt": FLOATS + COMPLEX,
    "cbrt": FLOATS,
    "square": FLOATS + COMPLEX + SIGNED + UNSIGNED,
    "not": ["bool", *SIGNED, *UNSIGNED],
    "population_count": SIGNED + UNSIGNED,
    "clz": SIGNED + UNSIGNED,
}
ALL = FLOATS + SIGNED + UNSIGNED
BINARY = {
    "atan2": FLOATS,
    "complex": ["float32", "float64"],
    "pow": FLOATS + COMPLEX,
    "and": ["bool", *SIGNED, *UNSIGNED],
    "or": ["bool", *SIGNED, *UNSIGNED],
    "xor": ["bool", *SIGNED, *UNSIGNED],
    "add": ALL + COMPLEX,
    "sub": ALL + COMPLEX,
    "mul": ALL + COMPLEX,
    "div": ALL + COMPLEX,
    "rem": ALL,
    "max": ["bool", *ALL],
    "min": ["bool", *ALL],
    "shift_left": SIGNED + UNSIGNED,
    "shift_right_arithmetic": SIGNED + UNSIGNED,
    "shift_right_logical": SIGNED + UNSIGNED,
    "eq": ["bool", *ALL, *COMPLEX],
    "ne": ["bool", *ALL, *COMPLEX],
    "lt": ["bool", *ALL],
    "le": ["bool", *ALL],
    "gt": ["bool", *ALL],
    "ge": ["bool", *ALL],
    "nextafter": FLOATS,
}
NAMES = {"not": "bitwise_not", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor"}


def values(dtype):
    d = np.dtype(getattr(ml_dtypes, dtype, dtype))
    if dtype == "bool":
        return np.array([True, False, True, False])
    if d.kind in "iu":
        info = np.iinfo(d)
        listed = [0, 1, 2, 3, 5, 7, 31, 33, 64, 100, info.max, info.max - 1, info.min, info.min + 1]
        return np.array(listed + ([-1, -2, -3, -7, -100] if d.kind == "i" else []), d)
    listed = [
        0.0,
        -0.0,
        1,
        -1,
        0.5,
        -0.5,
        1.5,
        2.5,
        -2.5,
        3.25,
        -3.75,
        0.3,
        -0.7,
        7,
        10.1,
        -20,
        88,
        1e-3,
        1e-7,
        300,
        np.inf,
        -np.inf,
        np.nan,
    ]
    if d.kind == "c":
        parts = [0.0, 1, -1, 0.5, -2.5, 3.25, 0.3, -0.7, 7]
        return np.array([complex(a, b) for a in parts for b in parts[:6]], d)
    return np.array(listed, d)


def pack(x):
    x = np.asarray(x)
    return [str(x.dtype), list(x.shape), base64.b64encode(zlib.compress(np.ascontiguousarray(x).tobytes(), 9)).decode()]


def call(name, *args, **params):
    return getattr(lax, NAMES.get(name, name))(*args, **params)


def main():
    cases = []
    for name, dtypes in UNARY.items():
        for dtype in dtypes:
            cases.append([name, {}, [dtype], pack(call(name, values(dtype)))])
    for name, dtypes in BINARY.items():
        for dtype in dtypes:
            v = values(dtype)
            v = v if v.dtype.kind != "c" else v[::4]
            x, y = (np.ascontiguousarray(a) for a in np.broadcast_arrays(v[:, None], v[None, :]))
            cases.append([name, {}, [dtype, dtype], pack(call(name, x, y))])
    for dtype in FLOATS:
        v = values(dtype)
        for method in (0, 1):
            cases.append(
                ["round", {"rounding_method": method}, [dtype], pack(lax.round(v, lax.RoundingMethod(method)))]
            )
        for e, m in ((5, 10), (8, 7), (4, 3), (2, 1)):
            if e <= jax.numpy.finfo(dtype).nexp and m <= jax.numpy.finfo(dtype).nmant:
                out = lax.reduce_precision(v, e, m)
                cases.append(["reduce_precision", {"exponent_bits": e, "mantissa_bits": m}, [dtype], pack(out)])
    for dtype in FLOATS + SIGNED + UNSIGNED + ["complex64"]:
        for y in (0, 1, 2, 3, 5, -1, -2):
            if y >= 0 or dtype in FLOATS:
                cases.append(["integer_pow", {"y": y}, [dtype], pack(lax.integer_pow(values(dtype), y))])
    Path(__file__).with_name("recorded_elementwise.json").write_text(
        json.dumps(cases, separators=(",", ":")).replace('],["', '],\n["')
    )


if __name__ == "__main__":
    main()
