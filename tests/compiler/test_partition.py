"""From global programs to blocks and collectives, on a mesh of threads: values, and how much is sent."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray import P, lax
from mpiarray.core.trace import abstract_mesh
from mpiarray.errors import DuplicateSpecError
from mpiarray.ops import placement as ops
from mpiarray.types.mesh import AbstractMesh, AxisType
from mpiarray.types.sharding import NamedSharding
from tests.ops.pretended_mesh import lowered, mesh_of, run

MESH = mesh_of(("x", 2), ("y", 4))
ENTRIES: list[Any] = [None, "x", "y", ("x", "y"), ("y", "x")]


def pairs() -> list[P]:
    found = []
    for a, b in itertools.product(ENTRIES, ENTRIES):
        flat = [n for e in (a, b) for n in (e if isinstance(e, tuple) else (e,)) if n]
        if len(flat) == len(set(flat)):
            found.append(P(a, b))
    return found


SPECS = pairs()
DATA = np.arange(8 * 16, dtype=np.float32).reshape(8, 16)


def calls(world: Any, size: int = 8) -> dict[str, float]:
    """Collectives for each device."""
    return {k: v / size for k, v in world.calls.items()}


@pytest.mark.parametrize("source", SPECS, ids=str)
def test_every_reshard(source):
    for target in SPECS:
        f = lambda v, t=target: [jax.reshard(v, t)]
        (got,), (aval,), (spec,), world = run(f, [DATA], [source], MESH)
        np.testing.assert_array_equal(got, DATA)
        assert aval.sharding.spec == spec == target
        if source == target:
            assert not world.calls


@pytest.mark.parametrize(
    ("source", "target", "want"),
    [
        (P(), P("x", "y"), {}),
        (P("x"), P("x", "y"), {}),
        (P("x", "y"), P(), {"all_gather": 2}),
        (P("x", "y"), P("x"), {"all_gather": 1}),
        (P(("x", "y")), P(), {"all_gather": 1}),
        (P("x"), P(None, "x"), {"all_to_all": 1}),
        (P("x", "y"), P(("x", "y")), {"all_to_all": 1}),
        (P(unreduced={"x"}), P(), {"all_reduce": 1}),
        (P(unreduced={"x", "y"}), P(), {"all_reduce": 1}),
        (P(unreduced={"x"}), P("x"), {"reduce_scatter": 1}),
        (P(unreduced={"x"}), P(None, "x"), {"reduce_scatter": 1}),
        (P("y", unreduced={"x"}), P("y", "x"), {"reduce_scatter": 1}),
        (P(), P(unreduced={"x"}), {}),
        (P("x"), P(unreduced={"x"}), {}),
        (P("x", "y"), P("x", None, unreduced={"y"}), {}),
        (P(unreduced={"x"}), P(reduced={"x"}), {"all_reduce": 1}),
        (P(), P(reduced={"x"}), {}),
        (P(reduced={"x"}), P(), {}),
        (P(reduced={"x"}), P("x"), {}),
    ],
    ids=str,
)
def test_steps_of_reshards(source, target, want):
    """An unreduced value here: one whole block on the first device of its group, zeros elsewhere."""
    whole = source if not source.unreduced else source.update(unreduced=frozenset())
    target = target.padded(2)

    def f(v):
        first = v if whole == source else -jax.reshard(-v, source.padded(2))
        return [jax.reshard(jax.reshard(first, target), readable)]

    readable = target.update(unreduced=frozenset(), reduced=frozenset())
    (got,), _, _, world = run(f, [DATA], [whole], MESH)
    np.testing.assert_array_equal(got, DATA)
    if target == readable:
        assert calls(world) == want


def test_there_and_back_again_is_nothing():
    f = lambda v: [jax.reshard(jax.reshard(v, P(None, None, unreduced={"x"})), P(None, None))]
    (got,), _, _, world = run(f, [DATA], [P()], MESH)
    np.testing.assert_array_equal(got, DATA)
    assert not world.calls


def test_unreduced_values_add_up():
    for kept, axes in ((P("x"), {"y"}), (P(None, "y"), {"x"}), (P(), {"x", "y"}), (P(), {"y"})):
        spec = P(*kept, unreduced=axes).padded(2)
        f = lambda v, s=spec, k=kept: [jax.reshard(jax.reshard(v, s) + jax.reshard(v, s), k.padded(2))]
        for source in (P("x", "y"), P(), P("y", "x"), P(("x", "y"))):
            (got,), _, _, _ = run(f, [DATA], [source], MESH)
            np.testing.assert_array_equal(got, 2 * DATA)


REDUCTIONS = [
    (lambda v: v.sum(0), P("x", "y"), DATA.sum(0), {"all_reduce": 1}, 4 * 4),
    (lambda v: v.sum(1), P("x", "y"), DATA.sum(1), {"all_reduce": 1}, 4 * 4),
    (lambda v: v.sum(), P("x", "y"), DATA.sum(), {"all_reduce": 1}, 4),
    (lambda v: v.sum(1), P("x", None), DATA.sum(1), {}, 0),
    (lambda v: v.max(0), P("x", "y"), DATA.max(0), {"all_reduce": 1}, 4 * 4),
    (lambda v: jnp.any(v > 100, axis=0), P("x", "y"), (DATA > 100).any(0), {"all_reduce": 1}, 4),
    (lambda v: jax.reshard(v.sum(0), P(("y", "x"))), P("x", "y"), DATA.sum(0), {"reduce_scatter": 1}, 4 * 4),
    (lambda v: jax.reshard(v.sum(0), P("x")), P("x", None), DATA.sum(0), {"reduce_scatter": 1}, 16 * 4),
    (lambda v: v.argmax(0), P("x", None), DATA.argmax(0), None, 0),
    (lambda v: v * 2 + 1, P("x", "y"), DATA * 2 + 1, {}, 0),
    (lambda v: v.T, P("x", "y"), DATA.T, {}, 0),
]


@pytest.mark.parametrize(("f", "spec", "want", "sent", "nbytes"), REDUCTIONS, ids=range(len(REDUCTIONS)))
def test_what_a_reduction_sends(f, spec, want, sent, nbytes):
    (got,), _, _, world = run(lambda v: [f(v)], [DATA], [spec], MESH)
    np.testing.assert_array_equal(got, want)
    if sent is not None:
        assert calls(world) == sent
        assert sum(world.bytes.values()) == 8 * nbytes


DOTS = [
    (P("x", None), P(None, "y"), P("x", "y"), {}),
    (P(None, "x"), P("x", None), P(None, None), {"all_reduce": 1}),
    (P(None, "x"), P("x", None), P("x", None), {"reduce_scatter": 1}),
    (P("y", "x"), P("x", None), P("y", None), {"all_reduce": 1}),
    (P("y", "x"), P("x", None), P("y", "x"), {"reduce_scatter": 1}),
    (P(None, ("x", "y")), P(("x", "y"), None), P(None, None), {"all_reduce": 1}),
    (P(None, "x"), P("x", None), P(None, None, unreduced={"x"}), {}),
]


@pytest.mark.parametrize(("left", "right", "out", "sent"), DOTS, ids=str)
def test_what_a_dot_sends(left, right, out, sent):
    other = np.arange(16 * 8, dtype=np.float32).reshape(16, 8) % 7
    readable = out.update(unreduced=frozenset())

    def f(a, b):
        c = jnp.einsum("ij,jk->ik", a, b, out_sharding=out)
        return [c if readable == out else jax.reshard(c, readable)]

    (got,), _, _, world = run(f, [DATA, other], [left, right], MESH)
    np.testing.assert_array_equal(got, DATA @ other)
    if readable == out:
        assert calls(world) == sent


def test_a_value_is_moved_once_for_two_readers():
    def f(v):
        whole = jax.reshard(v, P(None, None))
        return [whole + 1, whole * 2]

    _, _, _, world = run(f, [DATA], [P("x")], MESH)
    assert calls(world) == {"all_gather": 1}


def test_a_sum_for_two_readers_is_made_once():
    def f(v):
        s = v.sum(0)
        return [s + 1, jax.reshard(s, P("x"))]

    (a, b), _, _, world = run(f, [DATA], [P("x", None)], MESH)
    np.testing.assert_array_equal(a, DATA.sum(0) + 1)
    np.testing.assert_array_equal(b, DATA.sum(0))
    assert calls(world) == {"all_reduce": 1}


def test_equal_programs_on_all_devices():
    """One program for all: its text does not depend on the device."""
    first = lowered(lambda v: [v.sum(0)], [DATA], [P("x", "y")], MESH)
    again = lowered(lambda v: [v.sum(0)], [DATA], [P("x", "y")], MESH)
    assert str(first.local) == str(again.local)


def test_local_types():
    program = lowered(lambda v: [v.sum(0), v.T], [DATA], [P("x", "y")], MESH)
    assert [a.short() for a in program.local.in_avals] == ["f32[4,4]"]
    assert [a.short() for a in program.local.out_avals] == ["f32[4]", "f32[4,4]"]
    assert program.out_specs == (P("y"), P("y", "x"))


def test_another_mesh_of_the_same_devices():
    other = AbstractMesh((4, 2), ("a", "b"), (AxisType.Explicit,) * 2)

    def f(v):
        with abstract_mesh(other):
            w = ops.reshard(v, dst_sharding=NamedSharding(other, P("a", "b")))
            w = w * 2
        return [ops.reshard(w, dst_sharding=NamedSharding(MESH, P("y", "x")))]

    (got,), (aval,), _, _ = run(f, [DATA], [P("x", "y")], MESH)
    np.testing.assert_array_equal(got, 2 * DATA)
    assert aval.short() == "f32[8@y,16@x]"


def test_literals_and_scalars():
    def f(v, s):
        return [v * s + 1.5, s + 1, 2.5 * s]

    outs, _, _, world = run(f, [DATA, np.float32(3)], [P("x", "y"), P()], MESH)
    for got, want in zip(outs, (DATA * 3 + 1.5, 4.0, 7.5), strict=True):
        np.testing.assert_array_equal(got, want)
    assert not world.calls


def test_sizes_that_do_not_divide_are_refused_from_types():
    with pytest.raises(ValueError, match=r"does not evenly divide the dimension size 6|but the dimension size is 6"):
        lowered(lambda v: [jax.reshard(v, P("y"))], [np.zeros(6, np.float32)], [P(None)], MESH)
    with pytest.raises(DuplicateSpecError):
        lowered(lambda v: [jax.reshard(v, P("x", "x"))], [DATA], [P(None, None)], MESH)


def test_steps_of_each_dim_of_a_cube():
    cube = np.arange(8 * 4 * 8, dtype=np.int32).reshape(8, 4, 8)
    for source, target in itertools.product([P("x", "y", None), P(None, "x", "y"), P("y", None, "x")], repeat=2):
        (got,), _, _, _ = run(lambda v, t=target: [jax.reshard(v, t)], [cube], [source], MESH)
        np.testing.assert_array_equal(got, cube)


def test_dtypes_go_through_reshards():
    for dtype in ("bool", "int8", "uint16", "float16", "float64", "complex64"):
        data = (DATA % 2).astype(dtype)
        (got,), _, _, world = run(lambda v: [jax.reshard(v, P(None, "x"))], [data], [P("x")], MESH)
        np.testing.assert_array_equal(got, data)
        assert Counter(world.bytes) == {"all_to_all": data.nbytes * 4}


def test_sums_of_integers_are_exact_over_axes():
    data = (np.arange(64, dtype=np.int32) * 12345677).reshape(8, 8)
    (got,), _, _, _ = run(lambda v: [lax.reduce_sum(v, (0, 1))], [data], [P("x", "y")], MESH)
    assert got == data.sum(dtype=np.int32)
