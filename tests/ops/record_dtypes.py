"""Makes recorded_dtypes.json: which dtypes each of JAX's ops takes, and the dtype of the result ("" where it refuses).

Run by hand, with a Python that has JAX (the tests only read the table):
    JAX_ENABLE_X64=1 python tests/ops/record_dtypes.py
"""

# ruff: noqa: SIM905

import json
from pathlib import Path

import jax
import numpy as np
from jax import lax

DTYPES = """
    bool int8 int16 int32 int64 uint8 uint32 float16 bfloat16 float32 float64 complex64 complex128 float8_e4m3fn int4
""".split()
UNARY = """
    neg sign floor ceil is_finite exp exp2 log expm1 log1p tanh logistic sin cos tan asin acos atan sinh cosh asinh
    acosh atanh lgamma digamma bessel_i0e bessel_i1e erf erfc erf_inv real imag abs sqrt rsqrt cbrt square not
    population_count clz round integer_pow reduce_precision cumsum cumprod cummax cumlogsumexp reduce_max reduce_prod
    reduce_and argmax sort top_k
""".split()
BINARY = """
    atan2 igamma igammac polygamma zeta complex pow and or xor add sub mul div rem max min shift_left
    shift_right_arithmetic shift_right_logical eq ne lt le gt ge nextafter
""".split()
NAMES = {"not": "bitwise_not", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor"}
CALLS = {
    "integer_pow": lambda x: lax.integer_pow(x, 3),
    "reduce_precision": lambda x: lax.reduce_precision(x, 3, 2),
    "reduce_max": lambda x: lax.reduce_max(x, axes=(0,)),
    "reduce_prod": lambda x: lax.reduce_prod(x, axes=(0,)),
    "reduce_and": lambda x: lax.reduce_and(x, axes=(0,)),
    "argmax": lambda x: lax.argmax(x, 0, np.int32),
    "top_k": lambda x: lax.top_k(x, 1)[0],
}


def result(function, *dtypes):
    try:
        return str(jax.eval_shape(function, *(jax.ShapeDtypeStruct((2,), d) for d in dtypes)).dtype)
    except (TypeError, ValueError):
        return ""


def main():
    table = {}
    for name in UNARY + BINARY:
        f = CALLS.get(name) or getattr(lax, NAMES.get(name, name))
        table[name] = {d: result(f, *[d] * (2 if name in BINARY else 1)) for d in DTYPES}
    rows = ",\n".join(f"{json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in table.items())
    Path(__file__).with_name("recorded_dtypes.json").write_text("{\n" + rows + "\n}\n")


if __name__ == "__main__":
    main()
