"""Makes recorded_rules.json: result types, or classes of errors, of JAX's ops for random operand types on a 2x2x2 mesh.

Run by hand, with a Python that has JAX (the tests only read the table):
    python tests/ops/record_rules.py
A type is [shape, dtype, spec, unreduced axes, reduced axes]; a spec has a list of axes per dim.
"""

import json
import random
from pathlib import Path

import jax
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

jax.config.update("jax_num_cpu_devices", 8)
AXES = ("x", "y", "z")
MESH = jax.make_mesh((2, 2, 2), AXES, axis_types=(AxisType.Explicit,) * 3)
RANDOM = random.Random(7)


def spec(ndim, sharded=0.5):
    free = list(AXES)
    RANDOM.shuffle(free)
    out = [[] for _ in range(ndim)]
    for d in range(ndim):
        while free and RANDOM.random() < sharded:
            out[d].append(free.pop())
            if RANDOM.random() < 0.8:
                break
    return out


def operand(shape, dtype="float32", dims=None, unreduced=(), reduced=()):
    dims = spec(len(shape)) if dims is None else dims
    dims = [[] if n == 1 else d for n, d in zip(shape, dims)]
    return [list(shape), dtype, dims, sorted(unreduced), sorted(reduced)]


def struct(t):
    shape, dtype, dims, unreduced, reduced = t
    entries = [None if not d else d[0] if len(d) == 1 else tuple(d) for d in dims]
    p = PartitionSpec(*entries, unreduced=set(unreduced), reduced=set(reduced))
    return jax.ShapeDtypeStruct(tuple(shape), dtype, sharding=NamedSharding(MESH, p))


def shown(out):
    p = out.sharding.spec
    dims = [
        [] if e is None else [e] if isinstance(e, str) else list(e)
        for e in (*p.partitions, *(None,) * (len(out.shape) - len(p.partitions)))
    ]
    return [list(out.shape), str(out.dtype), dims, sorted(p.unreduced), sorted(p.reduced)]


def record(name, function, ins, params):
    try:
        out = jax.eval_shape(function, *(struct(t) for t in ins))
        results = [shown(o) for o in (out if isinstance(out, (tuple, list)) else (out,))]
    except Exception as e:
        results = type(e).__name__
    return [name, params, ins, results]


def shape(ndim, ones=0.0):
    return tuple(1 if RANDOM.random() < ones else RANDOM.choice((8, 16)) for _ in range(ndim))


def partner(base, ones):
    return tuple(1 if RANDOM.random() < ones else n for n in base)


def elementwise():
    for _ in range(300):
        base = shape(RANDOM.randint(1, 3))
        name = RANDOM.choice(["add", "mul", "sub", "max", "div", "atan2", "pow"])
        first = operand(partner(base, 0.2))
        second = operand(partner(base, 0.2), dims=first[2] if RANDOM.random() < 0.3 else None)
        yield record(name, getattr(lax, name), [first, second], {})
    for _ in range(40):
        base = shape(2)
        name = RANDOM.choice(["clamp", "clamp", "lt", "nextafter"])
        first = operand(base)
        others = [operand(base if RANDOM.random() < 0.6 else ()) for _ in range(2)]
        ins = [others[0], first, others[1]] if name == "clamp" else [first, operand(base)]
        yield record(name, getattr(lax, name), ins, {})


def selection():
    for _ in range(120):
        base = shape(RANDOM.randint(1, 2))
        case = operand(base)
        same = RANDOM.random() < 0.6
        other = operand(base, dims=case[2] if same else None)
        which = operand(
            base if RANDOM.random() < 0.7 else (), "bool", dims=case[2] if RANDOM.random() < 0.6 and base else None
        )
        if not which[0]:
            which[2] = []
        yield record("select_n", lax.select_n, [which, case, other], {})


def sums():
    """Unreduced and reduced operands."""
    for _ in range(200):
        base = shape(2)
        dims = spec(2, 0.3)
        free = [a for a in AXES if a not in {b for d in dims for b in d}]
        kinds = []
        for _ in range(2):
            axes = [free[0]] if free and RANDOM.random() < 0.7 else []
            kind = RANDOM.choice(["unreduced", "reduced"])
            kinds.append({kind: axes})
        name = RANDOM.choice(["add", "mul", "add", "mul", "max", "unary"])
        first, second = (operand(base, dims=dims, **k) for k in kinds)
        if name == "unary":
            unary = RANDOM.choice(["sin", "exp", "is_finite", "stop"])
            if unary == "stop":
                yield record("stop_gradient", lax.stop_gradient, [operand(base, dims=dims, reduced=first[4])], {})
            else:
                yield record(unary, getattr(lax, unary), [first], {})
        else:
            yield record(name, getattr(lax, name), [first, second], {})


def reductions():
    for _ in range(300):
        ndim = RANDOM.randint(1, 3)
        name = RANDOM.choice(["reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or", "argmax", "argmin"])
        x = operand(shape(ndim), "bool" if name in ("reduce_and", "reduce_or") else "float32")
        if name.startswith("arg"):
            axes = (RANDOM.randrange(ndim),)
            function = lambda x, n=name, a=axes: getattr(lax, n)(x, a[0], np.int32)
            yield record(name, function, [x], {"axes": axes, "index_dtype": "int32"})
        else:
            axes = tuple(sorted(RANDOM.sample(range(ndim), RANDOM.randint(0, ndim))))
            yield record(name, lambda x, n=name, a=axes: getattr(lax, n)(x, axes=a), [x], {"axes": axes})


def along():
    for _ in range(300):
        ndim = RANDOM.randint(1, 3)
        dim = RANDOM.randrange(ndim)
        x = operand(shape(ndim))
        if RANDOM.random() < 0.6:
            x[2][dim] = []
        name = RANDOM.choice(["cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "sort", "sort", "top_k"])
        if name == "sort":
            ins = [x] if RANDOM.random() < 0.4 else [x, operand(x[0], dims=x[2] if RANDOM.random() < 0.7 else None)]
            function = lambda *xs, d=dim: lax.sort(xs, dimension=d, num_keys=1)
            yield record(name, function, ins, {"dimension": dim, "is_stable": True, "num_keys": 1})
        elif name == "top_k":
            yield record(name, lambda x, d=dim: tuple(lax.top_k(x, 4, axis=d)), [x], {"axis": dim, "k": 4})
        else:
            reverse = RANDOM.random() < 0.5
            function = lambda x, n=name, d=dim, r=reverse: getattr(lax, n)(x, axis=d, reverse=r)
            yield record(name, function, [x], {"axis": dim, "reverse": reverse})


def main():
    with jax.set_mesh(MESH):
        tables = {f.__name__: list(f()) for f in (elementwise, selection, sums, reductions, along)}
    rows = {k: "[\n" + ",\n".join(json.dumps(c, separators=(",", ":")) for c in v) + "\n]" for k, v in tables.items()}
    text = "{\n" + ",\n".join(f"{json.dumps(k)}: {v}" for k, v in rows.items()) + "\n}\n"
    Path(__file__).with_name("recorded_rules.json").write_text(text)


if __name__ == "__main__":
    main()
