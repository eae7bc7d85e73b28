"""Makes recorded_sharded.json: JAX's result types of the expressions of sharded_expressions.py, for each sharding of `x`.

Run by hand, with a Python that has JAX (the tests only read the table):
    python tests/numpy/record_sharded.py
A result is a list of types, as JAX prints them, or the name of an error.
"""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from sharded_expressions import EXPRESSIONS, SPECS

jax.config.update("jax_num_cpu_devices", 8)
MESH = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)


def struct(shape, dtype, dims=()):
    entries = [None if not d else d[0] if len(d) == 1 else tuple(d) for d in dims]
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(MESH, PartitionSpec(*entries)))


def result(text, dims):
    def f(x, r, i, q):
        return eval(text, {"jnp": jnp, "jax": jax, "np": np, "P": PartitionSpec, "x": x, "r": r, "i": i, "q": q})

    try:
        out = jax.eval_shape(
            lambda *args: f(*args),
            struct((8, 4), "float32", dims),
            struct((8, 4), "float32"),
            struct((2,), "int32"),
            struct((8, 4), "int32"),
        )
    except Exception as e:
        return type(e).__name__
    outs = out if isinstance(out, (tuple, list)) else (out,)
    return [str(jax.typeof(o)) if not isinstance(o, jax.ShapeDtypeStruct) else shown(o) for o in outs]


def shown(o):
    entries = list(o.sharding.spec) + [None] * (len(o.shape) - len(o.sharding.spec))
    parts = []
    for n, e in zip(o.shape, entries):
        parts.append(str(n) if e is None else f"{n}@{e}" if isinstance(e, str) else f"{n}@({','.join(e)})")
    return f"{o.dtype}[{','.join(parts)}]"


if __name__ == "__main__":
    with jax.set_mesh(MESH):
        table = {text: [result(text, dims) for dims in SPECS] for text in EXPRESSIONS}
    Path(__file__).with_name("recorded_sharded.json").write_text(json.dumps(table, indent=0) + "\n")
    print(len(table), sum(isinstance(r, str) for rows in table.values() for r in rows))
