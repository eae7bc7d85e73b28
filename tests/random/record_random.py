"""Makes recorded_random.json: what JAX draws for the table of random_table.py with key 33.

Run by hand, with a Python that has JAX: `python tests/random/record_random.py`.
"""

import json
import warnings
from pathlib import Path

import jax
import numpy as np
from random_table import CLOSE, EXACT

warnings.simplefilter("ignore")


def plain(x):
    x = np.asarray(x)
    if x.dtype.kind == "c":
        values = x.view(np.float32).ravel().tolist()
    else:
        values = x.astype(np.float64).ravel().tolist()
    return {"dtype": x.dtype.name, "shape": list(x.shape), "values": values[:60], "sum": float(sum(values))}


def main():
    table = {name: plain(draw(jax.random, jax.random.key(33))) for name, draw in {**EXACT, **CLOSE}.items()}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in table.items())
    (Path(__file__).parent / "recorded_random.json").write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    main()
