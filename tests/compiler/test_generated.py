"""Programs made up at random, on meshes of Auto, Explicit and mixed axes: blocks give what numpy gives for the whole.

Values are small integers, so that sums are exact whatever their order; on Explicit axes an op that refuses its operands'
shardings is left out of the program, as its user would have to.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray import P, lax
from mpiarray.core.trace import abstract_mesh
from mpiarray.errors import DuplicateSpecError, IndivisibleError, ShardingTypeError
from mpiarray.transforms.stage import trace_to_jaxpr
from mpiarray.types.mesh import AbstractMesh, AxisType
from tests.ops.pretended_mesh import run, size_of, typed

KINDS = [(AxisType.Auto,) * 2, (AxisType.Explicit,) * 2, (AxisType.Explicit, AxisType.Auto)]
REFUSALS = (ShardingTypeError, DuplicateSpecError, IndivisibleError, NotImplementedError)


def spec_for(draw: Any, mesh: AbstractMesh, shape: tuple[int, ...], axes: tuple[str, ...]) -> P:
    """Any spec of these axes that divides the shape."""
    left = list(draw(st.permutations(axes)))
    dims: list[tuple[str, ...]] = []
    for n in shape:
        taken: tuple[str, ...] = ()
        while left and draw(st.booleans()) and n % (size_of(mesh, taken) * mesh.shape[left[-1]]) == 0:
            taken += (left.pop(),)
        dims.append(taken)
    return P.from_dims(tuple(dims))


def unary(draw: Any, mesh: AbstractMesh, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """An op of one array: as the package does it, and as numpy does."""
    ndim = len(shape)
    names = ["neg", "mod", "compare", "place", "unreduce"]
    names += (
        ["sum", "max", "transpose", "flip", "roll", "row", "slice", "pad", "cumsum", "sort", "argmax", "join"]
        if ndim
        else []
    )
    names += ["reshape", "broadcast"] if 0 < ndim < 3 else []
    axis = draw(st.integers(0, ndim - 1)) if ndim else 0
    match draw(st.sampled_from(names)):
        case "neg":
            return lambda x: -x, lambda x: -x
        case "mod":
            return lambda x: jnp.mod(x, 5.0), lambda x: np.mod(x, np.float32(5))
        case "compare":
            return lambda x: jnp.where(x > 1, x, 2.0), lambda x: np.where(x > 1, x, np.float32(2))
        case "place":
            return _place(draw, mesh, shape), lambda x: x
        case "unreduce":
            return _unreduce(draw, mesh, ndim), lambda x: x
        case "sum":
            return lambda x: jnp.mod(x.sum(axis), 7.0), lambda x: np.mod(x.sum(axis), np.float32(7))
        case "max":
            return lambda x: x.max(axis), lambda x: x.max(axis)
        case "transpose":
            order = tuple(draw(st.permutations(range(ndim))))
            return lambda x: x.transpose(order), lambda x: x.transpose(order)
        case "flip":
            return lambda x: jnp.flip(x, axis), lambda x: np.flip(x, axis)
        case "roll":
            k = draw(st.integers(-9, 9))
            return lambda x: jnp.roll(x, k, axis), lambda x: np.roll(x, k, axis)
        case "row":
            k = draw(st.integers(0, shape[axis] - 1))
            return lambda x: lax.index_in_dim(x, k, axis, keepdims=False), lambda x: x.take(k, axis)
        case "slice":
            n = shape[axis]
            a = draw(st.integers(0, n - 1))
            b = draw(st.integers(a + 1, n))
            return lambda x: lax.slice_in_dim(x, a, b, axis=axis), lambda x: x[(slice(None),) * axis + (slice(a, b),)]
        case "pad":
            widths = [(0, 0)] * ndim
            widths[axis] = (draw(st.integers(0, 4)), draw(st.sampled_from([0, 4, 8])))
            return lambda x: jnp.pad(x, widths), lambda x: np.pad(x, widths)
        case "cumsum":
            return lambda x: jnp.mod(jnp.cumsum(x, axis), 7.0), lambda x: np.mod(
                x.cumsum(axis, dtype=np.float32), np.float32(7)
            )
        case "sort":
            return lambda x: jnp.sort(x, axis), lambda x: np.sort(x, axis)
        case "argmax":
            return lambda x: x.argmax(axis).astype(np.float32), lambda x: x.argmax(axis).astype(np.float32)
        case "join":
            return lambda x: jnp.concatenate([x, -x], axis), lambda x: np.concatenate([x, -x], axis)
        case "reshape":
            n = shape[axis]
            inner = draw(st.sampled_from([k for k in (1, 2, 4, 8) if n % k == 0] or [1]))
            new = (*shape[:axis], n // inner, inner, *shape[axis + 1 :])
            return lambda x: x.reshape(new), lambda x: x.reshape(new)
        case _:
            return lambda x: jnp.broadcast_to(x, (4, *shape)), lambda x: np.broadcast_to(x, (4, *shape))


def _place(draw: Any, mesh: AbstractMesh, shape: tuple[int, ...]) -> Any:
    explicit, auto = tuple(mesh.explicit_axes), tuple(mesh.auto_axes)
    if auto and (not explicit or draw(st.booleans())):
        spec = spec_for(draw, mesh, shape, auto)
        return lambda x: lax.with_sharding_constraint(x, spec)
    spec = spec_for(draw, mesh, shape, explicit)
    return lambda x: jax.reshard(x, spec)


def _unreduce(draw: Any, mesh: AbstractMesh, ndim: int) -> Any:
    """There and back: what is unreduced in between goes through linear ops."""
    explicit = tuple(mesh.explicit_axes)
    if not explicit:
        return lambda x: x
    axes = set(draw(st.sets(st.sampled_from(explicit), min_size=1)))
    whole = P.from_dims(((),) * ndim)

    def f(x: Any) -> Any:
        parts = jax.reshard(x, whole.update(unreduced=axes))
        return jax.reshard(-parts, whole) * -1.0

    return f


def binary(draw: Any, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[Any, Any] | None:
    """An op of two arrays that fit together."""
    options = []
    try:
        np.broadcast_shapes(a, b)
        options += [
            (lambda x, y: x + y, lambda x, y: x + y),
            (lambda x, y: x - y, lambda x, y: x - y),
            (lambda x, y: jnp.maximum(x, y), np.maximum),
            (lambda x, y: jnp.where(x > y, x, y * 2), lambda x, y: np.where(x > y, x, y * 2)),
        ]
    except ValueError:
        pass
    if a and b and a[-1] == b[0] and len(a) + len(b) < 6:
        options.append(
            (
                lambda x, y: jnp.mod(jnp.tensordot(x, y, 1), 11.0),
                lambda x, y: np.mod(np.tensordot(x, y, 1), np.float32(11)),
            )
        )
    if a == b and a:
        options.append((lambda x, y: jnp.concatenate([x, y], 0), lambda x, y: np.concatenate([x, y], 0)))
    return draw(st.sampled_from(options)) if options else None


@settings(max_examples=80)
@given(st.data())
def test_programs(data: Any) -> None:
    draw = data.draw
    mesh = AbstractMesh((2, 4), ("x", "y"), draw(st.sampled_from(KINDS)))
    shapes = [draw(st.sampled_from([(8,), (8, 16), (16, 8), (4, 8), (8, 8), (2, 8, 4), ()])) for _ in range(2)]
    args = [
        ((np.arange(int(np.prod(s)) or 1) * (3 + k)) % 7 - 3).astype(np.float32).reshape(s)
        for k, s in enumerate(shapes)
    ]
    specs = [spec_for(draw, mesh, s, mesh.axis_names) for s in shapes]
    steps: list[tuple[Any, tuple[int, ...]]] = []
    held = list(args)

    def program(*xs: Any) -> list[Any]:
        env = list(xs)
        for f, operands in steps:
            env.append(f(*(env[i] for i in operands)))
        return results(env)

    def results(env: list[Any]) -> list[Any]:
        return [env[-1], env[len(env) // 2]]

    avals = [typed(x, mesh, s) for x, s in zip(args, specs)]
    for _ in range(draw(st.integers(1, 7))):
        i = draw(st.integers(0, len(held) - 1))
        j = draw(st.integers(0, len(held) - 1))
        both = binary(draw, held[i].shape, held[j].shape) if draw(st.booleans()) else None
        (f, g), operands = (both, (i, j)) if both is not None else (unary(draw, mesh, held[i].shape), (i,))
        steps.append((f, operands))
        try:
            with abstract_mesh(mesh):
                trace_to_jaxpr(program, avals)
        except REFUSALS:
            assert mesh.explicit_axes, "nothing may be refused on Auto axes"
            steps.pop()
            continue
        value = np.asarray(g(*(held[k] for k in operands)), np.float32)
        if value.size > 4096 or value.ndim > 3:
            steps.pop()
            continue
        held.append(value)
    got, _, _, _ = run(program, args, specs, mesh)
    for mine, want in zip(got, results(held), strict=True):
        np.testing.assert_array_equal(mine, want)
