"""Makes recorded_expressions.json.gz: what JAX makes of the expressions of expressions.py, at once and under jit.

Run by hand, with a Python that has JAX (the tests only read the table):
    python tests/numpy/record_expressions.py
A result is a list of [shape, dtype, weak type, bytes in base64] or the name of an error.  The second one is what jit
gives, or None where that is the same up to rounding.
"""

import base64
import gzip
import json
import warnings
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from expressions import GROUPS, operands

warnings.simplefilter("ignore")
VALUES = operands()
ARRAYS = {k: jnp.asarray(v) for k, v in VALUES.items()}


def evaluate(text, arrays):
    return eval(text, {"jnp": jnp, "jax": jax, **arrays})


def leaves(out):
    return [jnp.asarray(v) for v in (out if isinstance(out, (list, tuple)) else (out,))]


def shown(v):
    host = np.ascontiguousarray(v)
    return [list(v.shape), str(v.dtype), bool(v.weak_type), base64.b64encode(host.tobytes()).decode()]


def record(run):
    try:
        return [shown(v) for v in leaves(run())]
    except Exception as e:
        return type(e).__name__


def same(a, b):
    if isinstance(a, str) or isinstance(b, str) or len(a) != len(b):
        return a == b
    return all(x[:3] == y[:3] for x, y in zip(a, b))


def main():
    table = {}
    for group, expressions in GROUPS.items():
        rows = {}
        for text in dict.fromkeys(expressions()):
            eager = record(partial(evaluate, text, ARRAYS))
            traced = record(partial(jax.jit(partial(evaluate, text)), ARRAYS))
            rows[text] = [eager, None if same(eager, traced) else traced]
        table[group] = rows
        print(group, len(rows), sum(isinstance(r[0], str) for r in rows.values()), "errors")
    with gzip.GzipFile(Path(__file__).with_name("recorded_expressions.json.gz"), "wb", mtime=0) as f:
        f.write(json.dumps(table, separators=(",", ":")).encode())


if __name__ == "__main__":
    main()
