"""Records convolutions and window reductions of lax from JAX: `python record_windows.py > recorded_windows.json`.

Each row: the function, its arguments (arrays as [shape, seed]), and the result as nested lists.
"""

import itertools
import json
import sys

import jax.numpy as jnp
import numpy as np
from jax import lax


def array(shape, seed):
    return jnp.asarray(np.random.RandomState(seed).randint(-3, 4, shape).astype(np.float32))


rows = []


def record(name, arrays, **kwargs):
    over = {"reduce_window_max": (-np.inf, lax.max), "reduce_window_sum": (0.0, lax.add)}.get(name)
    function = getattr(lax, name) if over is None else lambda x, **k: lax.reduce_window(x, *over, **k)
    rows.append([name, arrays, kwargs, np.asarray(function(*(array(*a) for a in arrays), **kwargs)).tolist()])


for padding, stride in itertools.product(("SAME", "VALID", "SAME_LOWER", [[2, -1]]), (1, 2)):
    record(
        "conv_general_dilated",
        [[[2, 2, 7], 0], [[3, 2, 4], 1]],
        window_strides=[stride],
        padding=padding,
        rhs_dilation=[2],
    )
    if padding != "SAME_LOWER":
        for k, flip in ((2, False), (3, True)):
            x = [[1, 5, 2], 2]
            w = [[k, 3, 2] if flip else [k, 2, 3], 3]
            record("conv_transpose", [x, w], strides=[stride], padding=padding, transpose_kernel=flip)
record("conv", [[[1, 2, 5, 4], 4], [[3, 2, 2, 3], 5]], window_strides=[2, 1], padding="SAME")
numbers = ["NHWC", "HWIO", "NHWC"]
x, w = [[1, 5, 4, 4], 6], [[2, 2, 2, 6], 7]
groups = {"dimension_numbers": numbers, "feature_group_count": 2}
record("conv_general_dilated", [x, w], window_strides=[1, 2], padding="SAME", **groups)
record(
    "conv_general_dilated", [[[4, 2, 5], 8], [[6, 2, 3], 9]], window_strides=[1], padding="VALID", batch_group_count=2
)
for name in ("reduce_window_max", "reduce_window_sum"):
    window = {"window_dimensions": [1, 3], "window_strides": [1, 2]}
    record(name, [[[3, 8], 10]], padding="SAME", **window)
    record(name, [[[3, 8], 10]], padding="VALID", window_dilation=[1, 2], **window)
    record(name, [[[3, 8], 10]], padding=[[0, 0], [1, 2]], base_dilation=[1, 2], **window)

sys.stdout.write("[\n" + ",\n".join(json.dumps(r) for r in rows) + "\n]\n")
