"""Records result types of slicing, joining and window ops from JAX.

    python record_shape_rules.py > recorded_shape_rules.json

Run with a Python that has JAX 0.10. Each row: the op, its parameters, the operands as [shape, spec], and the result
as [shape, spec] or the name of the error's class and a key phrase of its message.
"""

import json
import os
import random
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import jax.numpy as jnp
from jax import lax

P = jax.P
mesh = jax.make_mesh((2, 2, 2), ("x", "y", "z"), (jax.sharding.AxisType.Explicit,) * 3)
rng = random.Random(7)
SIZES = (4, 8, 6, 16)
PHRASES = (
    "is not divisible by mesh axes",
    "should have the same sharding",
    "out_sharding",
    "must be equal to update sharding",
)


def shape_of(ndim=None, sizes=SIZES):
    return [rng.choice(sizes) for _ in range(ndim or rng.randint(1, 3))]


def spec_of(shape):
    left = ["x", "y", "z"]
    rng.shuffle(left)
    out = []
    for n in shape:
        axes = []
        while left and rng.random() < 0.5 and n % (2 ** (len(axes) + 1)) == 0:
            axes.append(left.pop())
        out.append(axes)
    return out


def struct(shape, spec, dtype=jnp.float32):
    sharding = jax.NamedSharding(mesh, P(*(tuple(a) or None for a in spec)))
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def dims(out):
    spec = tuple(out.sharding.spec) + (None,) * (len(out.shape) - len(out.sharding.spec))
    return [list(s if isinstance(s, tuple) else (s,)) if s is not None else [] for s in spec]


def record(op, params, operands, f, **dtypes):
    """operands: [[shape, spec], ...]; f takes one array each."""
    with jax.set_mesh(mesh):
        args = [struct(s, p, dtypes.get(f"d{k}", jnp.float32)) for k, (s, p) in enumerate(operands)]
        try:
            outs = jax.eval_shape(f, *args)
            outs = outs if isinstance(outs, (list, tuple)) else [outs]
            result = [[list(o.shape), dims(o)] for o in outs]
        except Exception as e:
            phrase = next((p for p in PHRASES if p in str(e)), None)
            result = {"error": type(e).__name__, "phrase": phrase}
    return [op, params, operands, result]


def one(kind):
    shape = shape_of()
    spec = spec_of(shape)
    ndim = len(shape)
    if kind == "slice":
        starts = [rng.choice((0, 0, rng.randint(0, n))) for n in shape]
        limits = [rng.choice((n, rng.randint(s, n))) for s, n in zip(starts, shape)]
        strides = [rng.choice((1, 1, 2)) for _ in shape]
        params = {"start_indices": starts, "limit_indices": limits, "strides": strides}
        return record(kind, params, [[shape, spec]], lambda a: lax.slice(a, starts, limits, strides))
    if kind == "pad":
        config = [
            rng.choice(([0, 0, 0], [rng.randint(-2, 4), rng.randint(-1, 4), rng.choice((0, 0, 1))])) for _ in shape
        ]
        return record(
            kind,
            {"padding_config": config},
            [[shape, spec]],
            lambda a: lax.pad(a, jnp.float32(0), [tuple(c) for c in config]),
        )
    if kind == "rev":
        d = [k for k in range(ndim) if rng.random() < 0.5]
        return record(kind, {"dimensions": d}, [[shape, spec]], lambda a: lax.rev(a, d))
    if kind == "concatenate":
        d = rng.randrange(ndim)
        others = [[*shape[:d], rng.choice(SIZES), *shape[d + 1 :]] for _ in range(rng.randint(0, 2))]
        operands = [[shape, spec], *([s, spec if rng.random() < 0.7 else spec_of(s)] for s in others)]
        if any(n % 2 ** len(a) for s, p in operands for n, a in zip(s, p)):
            return None
        return record(kind, {"dimension": d}, operands, lambda *a: lax.concatenate(a, d))
    if kind == "split":
        d = rng.randrange(ndim)
        cut = rng.randint(0, shape[d])
        sizes = [cut, shape[d] - cut] if rng.random() < 0.7 else [shape[d] // 2] * 2
        return record(kind, {"sizes": sizes, "axis": d}, [[shape, spec]], lambda a: lax.split(a, sizes, d))
    if kind == "dynamic_slice":
        sizes = [rng.choice((n, rng.randint(0, n))) for n in shape]
        return record(kind, {"slice_sizes": sizes}, [[shape, spec]], lambda a: lax.dynamic_slice(a, [1] * ndim, sizes))
    if kind == "dynamic_update_slice":
        update = [rng.choice((n, rng.choice([m for m in SIZES if m <= n]))) for n in shape]
        operands = [[shape, spec], [update, spec if rng.random() < 0.7 else spec_of(update)]]
        if any(n % 2 ** len(a) for s, p in operands for n, a in zip(s, p)):
            return None
        return record(kind, {}, operands, lambda a, u: lax.dynamic_update_slice(a, u, [1] * ndim))
    return one_with_indices_or_windows(kind, shape, spec)


def one_with_indices_or_windows(kind, shape, spec):
    ndim = len(shape)
    if kind == "gather":
        d = rng.randrange(ndim)
        index = shape_of(rng.randint(1, 2))
        ispec = spec_of(index) if rng.random() < 0.3 else [[] for _ in index]
        operands = [[shape, spec], [index, ispec]]
        f = lambda a, i: jnp.moveaxis(jnp.take(a, i, axis=d, mode="clip"), range(d, d + len(index)), range(len(index)))
        return record(kind, {"dims": [d], "batch_dims": 0}, operands, f, d1=jnp.int32)
    if kind == "gather_along":
        # the last dim is indexed, all others are batch dims
        index = [*shape[:-1], rng.choice(SIZES)]
        ispec = (
            [*spec[:-1], []] if rng.random() < 0.5 else [[] for _ in index] if rng.random() < 0.5 else spec_of(index)
        )
        operands = [[shape, spec], [index, ispec]]
        f = lambda a, i: jnp.take_along_axis(a, i, axis=-1, mode="clip")
        return record("gather", {"dims": [ndim - 1], "batch_dims": ndim - 1}, operands, f, d1=jnp.int32)
    if kind == "scatter":
        index = shape_of(1)
        ispec = spec_of(index) if rng.random() < 0.3 else [[]]
        operands = [[shape, spec], [index, ispec]]
        f = lambda a, i: a.at[i].add(1.0)
        return record(kind, {"dims": [0], "batch_dims": 0}, operands, f, d1=jnp.int32)
    if kind == "reduce_window_max":
        window = [rng.choice((1, 1, 2, 3)) for _ in shape]
        strides = [rng.choice((1, 1, 2)) for _ in shape]
        pads = [[rng.randint(0, 1), rng.randint(0, 1)] for _ in shape]
        params = {"window_dimensions": window, "window_strides": strides, "padding": pads}
        f = lambda a: lax.reduce_window(a, -jnp.inf, lax.max, window, strides, pads)
        return record(kind, params, [[shape, spec]], f)
    if kind == "conv":
        image, kernel = (
            [rng.choice((4, 8)), rng.choice((2, 4)), rng.choice(SIZES)],
            [rng.choice((2, 4)), 0, rng.choice((1, 3))],
        )
        kernel[1] = image[1]
        operands = [[image, spec_of(image)], [kernel, spec_of(kernel) if rng.random() < 0.3 else [[], [], []]]]
        if any(n % 2 ** len(a) for s, p in operands for n, a in zip(s, p)):
            return None
        stride, pad = rng.choice((1, 2)), rng.choice(([0, 0], [1, 1]))
        f = lambda a, w: lax.conv_general_dilated(a, w, (stride,), [pad])
        return record(kind, {"window_strides": [stride], "padding": [pad]}, operands, f)
    raise ValueError(kind)


KINDS = {
    "slice": 60, "pad": 60, "rev": 15, "concatenate": 60, "split": 40, "dynamic_slice": 40, "dynamic_update_slice": 40,
    "gather": 50, "gather_along": 40, "scatter": 40, "reduce_window_max": 40, "conv": 40,
}  # fmt: skip

rows = []
for kind, count in KINDS.items():
    mine = []
    while len(mine) < count:
        row = one(kind)
        if row is not None and row not in mine:
            mine.append(row)
    rows += mine
sys.stdout.write("[\n" + ",\n".join(json.dumps(r) for r in rows) + "\n]\n")
