"""Makes recorded_gradients.json: JAX's derivatives of numpy's functions, at ordinary points, ties and zeros.

Run by hand, with a Python that has JAX (the tests only read the table):
    python tests/numpy/record_gradients.py
"""

import json
from pathlib import Path

ONE = [
    "abs",
    "arccos",
    "arcsin",
    "arctan",
    "arctanh",
    "arcsinh",
    "cbrt",
    "ceil",
    "cos",
    "cosh",
    "deg2rad",
    "exp",
    "exp2",
    "expm1",
    "fabs",
    "floor",
    "i0",
    "log",
    "log10",
    "log1p",
    "log2",
    "negative",
    "rad2deg",
    "reciprocal",
    "sign",
    "sin",
    "sinc",
    "sinh",
    "sqrt",
    "square",
    "tan",
    "tanh",
    "nan_to_num",
    "round",
]
POINTS = [0.0, 0.5, -0.5, 1.0, -1.0, 2.0, -3.0, 1.5]
TWO = [
    "add",
    "subtract",
    "multiply",
    "divide",
    "power",
    "arctan2",
    "hypot",
    "logaddexp",
    "logaddexp2",
    "maximum",
    "minimum",
    "fmax",
    "fmin",
    "float_power",
    "remainder",
    "copysign",
    "heaviside",
    "fmod",
]
PAIRS = [(1.0, 2.0), (2.0, 2.0), (0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (-1.5, 2.0), (2.0, -1.5), (3.0, 0.5)]


def of_arrays(jnp):
    """Functions of a 2 by 3 matrix."""
    return {
        "clip": lambda x: jnp.clip(x, -1, 1).sum(),
        "where": lambda x: jnp.where(x > 0, x**2, jnp.sin(x)).sum(),
        "tril": lambda x: (jnp.tril(x) ** 2).sum(),
        "pad": lambda x: (jnp.pad(x, ((1, 2), (0, 1)), mode="edge") ** 2).sum(),
        "reflect": lambda x: (jnp.pad(x, ((0, 1), (2, 1)), mode="reflect") ** 2).sum(),
        "rep": lambda x: (jnp.repeat(x, 3, axis=1) ** 2).sum(),
        "roll": lambda x: (jnp.roll(x, 1) * x).sum(),
        "diag": lambda x: (jnp.diagonal(x, 1) ** 2).sum(),
        "tile": lambda x: (jnp.tile(x, (2, 2)) ** 3).sum(),
        "ins": lambda x: (jnp.insert(x, 1, 2.0 * x[0, 0], axis=1) ** 2).sum(),
        "dele": lambda x: (jnp.delete(x, 1, axis=1) ** 2).sum(),
        "split": lambda x: (jnp.split(x, 3, 1)[1] ** 2).sum(),
        "conc": lambda x: (jnp.concatenate([x, 2 * x], 1) ** 2).sum(),
        "pow3": lambda x: (x**3).sum(),
        "powm": lambda x: (x**-2).sum(),
        "fr": lambda x: jnp.linspace(x[0, 0], x[1, 2], 5).sum(),
        "norm": lambda x: jnp.hypot(x, x + 1).sum(),
        "frexp": lambda x: jnp.frexp(x)[0].sum(),
        "ldexp": lambda x: jnp.ldexp(x, 2).sum(),
        "modf": lambda x: jnp.modf(x)[0].sum(),
        "sel": lambda x: jnp.select([x > 1, x < -1], [x**2, x**3], x).sum(),
        "choose": lambda x: jnp.choose(jnp.array([0, 1, 0]), [x * 2, x * 3]).sum(),
        "meshg": lambda x: (jnp.meshgrid(x[0], x[1])[0] ** 2).sum(),
        "vander": lambda x: jnp.vander(x[0]).sum(),
        "diagb": lambda x: (jnp.diag(x[0]) ** 2).sum(),
        "F": lambda x: (jnp.reshape(x, (3, 2), order="F") * jnp.arange(6.0).reshape(3, 2)).sum(),
    }


def table(jax, jnp, np):
    out = {}
    for name in ONE:
        slope = jax.grad(getattr(jnp, name))
        out[name] = [float(slope(jnp.float32(p))) for p in POINTS]
    for name in TWO:
        slopes = jax.grad(getattr(jnp, name), argnums=(0, 1))
        out[name] = [[float(v) for v in slopes(jnp.float32(a), jnp.float32(b))] for a, b in PAIRS]
    x = jnp.arange(6.0).reshape(2, 3) - 2.5
    for name, f in of_arrays(jnp).items():
        out[f"array {name}"] = np.asarray(jax.grad(f)(x)).ravel().tolist()
    return out


if __name__ == "__main__":
    import jax
    import jax.numpy as jnp
    import numpy as np

    text = json.dumps(table(jax, jnp, np), indent=0)
    Path(__file__).with_name("recorded_gradients.json").write_text(text + "\n")
