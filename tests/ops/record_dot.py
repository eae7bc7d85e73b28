"""Records result types of dot_general, matmul and einsum from JAX.

    python record_dot.py > recorded_dot.json

Run with a Python that has JAX 0.10. Each row: the kind, its parameters, the operands as [shape, spec], the out_sharding
as [spec, unreduced] or null, and the result as [shape, spec, unreduced], or the name of the error's class and a key
phrase of its message.
"""

import json
import os
import random
import sys
from functools import partial

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import jax.numpy as jnp
from jax import lax

P = jax.P
AXES = ("x", "y", "z")
mesh = jax.make_mesh((2, 2, 2), AXES, (jax.sharding.AxisType.Explicit,) * 3)
rng = random.Random(11)
PHRASES = (
    "to have the consistent sharding",
    "to have consistent sharding",
    "it is ambiguous how the output should be sharded",
    "produces an illegally sharded result",
    "contracting dims should be sharded identically",
    "unreduced axes should be equal to the contracting specs",
    "Incompatible types for matmul arguments",
)
EINSUMS = (
    "ij,jk->ik", "ij,kj->ik", "ij,jk->ki", "bij,bjk->bik", "bij,jk->bik", "bqhd,bkhd->bhqk", "ij,ij->i", "ij,ij->",
    "i,j->ij", "ij->ji",
    "ij->j", "ij,jk,kl->il", "abc,cd->abd", "ii->i",
)  # fmt: skip


def spec_of(shape, chance=0.4, left=AXES):
    left = list(left)
    rng.shuffle(left)
    out = []
    for n in shape:
        axes = []
        while left and rng.random() < chance and n % (2 ** (len(axes) + 1)) == 0:
            axes.append(left.pop())
        out.append(axes)
    return out


def as_spec(dims, unreduced=()):
    return P(*(tuple(a) if a else None for a in dims), unreduced=set(unreduced))


def struct(shape, dims):
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=jax.NamedSharding(mesh, as_spec(dims)))


def dims_of(spec, ndim):
    spec = tuple(spec) + (None,) * (ndim - len(spec))
    return [list(s if isinstance(s, tuple) else (s,)) if s is not None else [] for s in spec]


def record(kind, params, operands, out, f):
    with jax.set_mesh(mesh):
        sharding = None if out is None else as_spec(*out)
        try:
            r = jax.eval_shape(lambda *a: f(*a, out_sharding=sharding), *(struct(*o) for o in operands))
            spec = r.sharding.spec
            result = [list(r.shape), dims_of(spec.partitions, len(r.shape)), sorted(spec.unreduced)]
        except Exception as e:
            result = {"error": type(e).__name__, "phrase": next((p for p in PHRASES if p in str(e)), None)}
    return [kind, params, operands, out, result]


def numbers_of():
    """Random dimension numbers and shapes that fit them."""
    kinds = ["batch"] * rng.choice((0, 0, 1, 2)) + ["sum"] * rng.choice((0, 1, 1, 2))
    sizes = [rng.choice((2, 4, 8)) for _ in kinds]
    sides = []
    for _ in range(2):
        dims = [(k, n, i) for i, (k, n) in enumerate(zip(kinds, sizes))] + [
            ("free", rng.choice((2, 4, 8)), None)
        ] * rng.choice((0, 1, 1, 2))
        rng.shuffle(dims)
        sides.append(dims)
    at = [
        [[d.index((k, n, i)) for d in sides] for i, (k, n) in enumerate(zip(kinds, sizes)) if k == kind]
        for kind in ("sum", "batch")
    ]
    numbers = [[[p[s] for p in pairs] for s in range(2)] for pairs in at]
    shapes = [[n for _, n, _ in side] for side in sides]
    return numbers, shapes


def likely(numbers, shapes, specs):
    """Give the second operand the entries of the first one in shared dims, mostly."""
    for left, right in (numbers[0], numbers[1]):
        for a, b in zip(left, right):
            if rng.random() < 0.6:
                taken = {x for d, axes in enumerate(specs[1]) if d != b for x in axes}
                specs[1][b] = [x for x in specs[0][a] if x not in taken]
    return specs


def out_shape(numbers, shapes):
    free = [
        [n for d, n in enumerate(s) if d not in numbers[0][k] and d not in numbers[1][k]] for k, s in enumerate(shapes)
    ]
    return [shapes[0][d] for d in numbers[1][0]] + free[0] + free[1]


def product(numbers, a, b, out_sharding):
    return lax.dot_general(a, b, numbers, out_sharding=out_sharding)


def rows():
    frozen = lambda v: tuple(frozen(x) for x in v) if isinstance(v, list) else v
    for _ in range(700):
        numbers, shapes = numbers_of()
        specs = likely(numbers, shapes, [spec_of(s) for s in shapes])
        dot = partial(product, frozen(numbers))
        operands = [list(o) for o in zip(shapes, specs)]
        yield record("dot_general", numbers, operands, None, dot)
        if rng.random() < 0.5:
            unreduced = (
                sorted({x for d in numbers[0][0] for x in specs[0][d]}) if rng.random() < 0.7 else [rng.choice(AXES)]
            )
            left = [a for a in AXES if a not in unreduced]
            unreduced = unreduced if rng.random() < 0.5 else []
            yield record(
                "dot_general", numbers, operands, [spec_of(out_shape(numbers, shapes), 0.4, left), unreduced], dot
            )
    for _ in range(250):
        m, k, n = (rng.choice((2, 4, 8)) for _ in range(3))
        batch = [rng.choice((2, 4, 8)) for _ in range(rng.choice((0, 1, 2)))]
        shapes = [
            batch[rng.choice((0, 0, 1)) :] + [m, k],
            [b if rng.random() < 0.8 else 1 for b in batch[rng.choice((0, 0, 1)) :]] + [k, n],
        ]
        specs = [spec_of(s, 0.3) for s in shapes]
        if len(shapes[0]) == len(shapes[1]) and rng.random() < 0.6:
            specs[1] = [
                list(a) if s == t and d < len(shapes[0]) - 2 else []
                for d, (a, s, t) in enumerate(zip(specs[0], *shapes))
            ]
        yield record("matmul", None, [list(o) for o in zip(shapes, specs)], None, jnp.matmul)
    for _ in range(300):
        text = rng.choice(EINSUMS)
        sizes = {}
        shapes = [[sizes.setdefault(c, rng.choice((2, 4, 8))) for c in term] for term in text.split("->")[0].split(",")]
        specs = [spec_of(s, 0.3) for s in shapes]
        yield record(
            "einsum",
            text,
            [list(o) for o in zip(shapes, specs)],
            None,
            partial(jnp.einsum, text),
        )


json.dump(list(rows()), sys.stdout, separators=(",", ":"))
