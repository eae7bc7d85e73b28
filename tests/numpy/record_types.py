"""Makes recorded_types.json: the result types of JAX's elementwise functions for operands of many types.

Run by hand, with a Python that has JAX (the tests only read the table):
    python tests/numpy/record_types.py
A result is "float32", "~float32" (weak), "!TypeError" (the built-in class of the error), or several joined by "+".
"""

import json
from pathlib import Path

OPERANDS = [
    "bool", "uint8", "int8", "uint32", "int32", "bfloat16", "float16", "float32", "complex64", "1", "0.5", "1j", "~float32", "float64",
]  # fmt: skip

UNARY = [
    "abs",
    "arccos",
    "arccosh",
    "arcsin",
    "arcsinh",
    "arctan",
    "arctanh",
    "angle",
    "bitwise_count",
    "bitwise_not",
    "cbrt",
    "ceil",
    "conj",
    "cos",
    "cosh",
    "deg2rad",
    "exp",
    "exp2",
    "expm1",
    "fabs",
    "floor",
    "frexp",
    "i0",
    "imag",
    "iscomplex",
    "isfinite",
    "isinf",
    "isnan",
    "isneginf",
    "isposinf",
    "isreal",
    "log",
    "log10",
    "log1p",
    "log2",
    "logical_not",
    "modf",
    "nan_to_num",
    "negative",
    "positive",
    "rad2deg",
    "real",
    "reciprocal",
    "rint",
    "round",
    "sign",
    "signbit",
    "sin",
    "sinc",
    "sinh",
    "spacing",
    "sqrt",
    "square",
    "tan",
    "tanh",
    "trunc",
    "zeros_like",
]

BINARY = [
    "add",
    "arctan2",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "copysign",
    "divide",
    "divmod",
    "equal",
    "float_power",
    "floor_divide",
    "fmax",
    "fmin",
    "fmod",
    "gcd",
    "greater",
    "heaviside",
    "hypot",
    "lcm",
    "ldexp",
    "left_shift",
    "less",
    "less_equal",
    "logaddexp",
    "logaddexp2",
    "logical_and",
    "maximum",
    "minimum",
    "multiply",
    "nextafter",
    "not_equal",
    "power",
    "remainder",
    "right_shift",
    "subtract",
]


def operand(jnp, np, name):
    """A value of a type: arrays have two elements, '~float32' is a weak 0-d array, 'float64' a numpy scalar."""
    if name in ("1", "0.5", "1j"):
        return {"1": 1, "0.5": 0.5, "1j": 1j}[name]
    if name == "~float32":
        return jnp.asarray(0.5)
    return np.float64(0.5) if name == "float64" else jnp.ones(2, name)


def code(out):
    if isinstance(out, tuple):
        return "+".join(code(o) for o in out)
    return ("~" if out.weak_type else "") + out.dtype.name


def result(f, *args):
    """The code of what `f(*args)` gives or raises."""
    try:
        return code(f(*args))
    except Exception as e:
        return "!" + next(c.__name__ for c in type(e).__mro__ if c.__module__ == "builtins")


def table(jnp, np, run):
    values = {name: operand(jnp, np, name) for name in OPERANDS}
    out = {name: " ".join(run(getattr(jnp, name), v) for v in values.values()) for name in UNARY}
    for name in BINARY:
        out[name] = [" ".join(run(getattr(jnp, name), a, b) for b in values.values()) for a in values.values()]
    return out


if __name__ == "__main__":
    import jax
    import jax.numpy as jnp
    import numpy as np

    def run(f, *args):
        arrays = [a for a in args if hasattr(a, "dtype")]
        return result(lambda: jax.eval_shape(lambda *xs: f(*_merge(args, xs)), *arrays)) if arrays else result(f, *args)

    def _merge(args, arrays):
        left = iter(arrays)
        return [next(left) if hasattr(a, "dtype") else a for a in args]

    Path(__file__).with_name("recorded_types.json").write_text(json.dumps(table(jnp, np, run), indent=0) + "\n")
