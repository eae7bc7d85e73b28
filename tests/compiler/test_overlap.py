"""Collectives in two halves: which are cut, where the halves stand, and that nothing else changes."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest

import mpiarray as jax
from mpiarray import P, lax
from mpiarray.compiler.passes.overlap import overlap
from mpiarray.config import config
from mpiarray.core.check import check_jaxpr
from mpiarray.core.jaxpr import Jaxpr

MESH = jax.sharding.AbstractMesh((8,), ("x",), (jax.sharding.AxisType.Explicit,))
RING = [(k, (k + 1) % 8) for k in range(8)]
BIG = (256, 1024)  # a rank's block of the operand below: 128 KB


@pytest.fixture(autouse=True)
def on() -> Iterator[None]:
    with config.override("overlap", True):
        yield


def compiled(body, *shapes):
    args = [jax.ShapeDtypeStruct(s, np.dtype("float32"), sharding=jax.NamedSharding(MESH, P("x"))) for s in shapes]
    with jax.sharding.use_abstract_mesh(MESH):
        mapped = jax.shard_map(body, mesh=MESH, in_specs=P("x"), out_specs=P("x"))
        return jax.jit(mapped).lower(*args).compile()


def words(body, *shapes) -> list[str]:
    """The operations of a compiled body, in order."""
    text = compiled(body, *shapes).as_text()
    return [m.group(1) for line in text.splitlines() if (m := re.search(r"= .*? ([a-z-]+)\(", line))]


def works(x):
    """Work that takes some milliseconds: two products of 1024 x 1024."""
    return x.T @ x, (x + 1).T @ x


def ring(x):
    moved = lax.ppermute(x, "x", RING)
    a, b = works(x)
    return moved @ (a + b)


def test_work_stands_between_the_halves():
    found = words(ring, (8 * 256, 1024))
    start, done = found.index("collective-permute-start"), found.index("collective-permute-done")
    assert found[start + 1 : done].count("dot") == 2
    assert found[done + 1 :].count("dot") == 1
    assert "collective-permute" not in found


def test_starts_come_early_and_waits_late_whatever_the_order_written():
    def body(x):
        a, b = works(x)
        moved = lax.ppermute(x, "x", RING)
        return (a + b).sum() + moved

    found = words(body, (8 * 256, 1024))
    assert found.index("collective-permute-start") < found.index("dot")
    assert found.index("collective-permute-done") > len(found) - 1 - found[::-1].index("dot")


def test_without_work_beside_it_a_collective_stays_whole():
    def body(x):
        return lax.ppermute(x, "x", RING).T @ x

    found = words(body, (8 * 256, 1024))
    assert "collective-permute" in found
    assert not any(w.endswith("-start") for w in found)


def test_small_messages_stay_whole():
    def body(x, y):
        a, b = works(y)
        return lax.psum(x, "x") + a.sum() + b.sum()

    assert "all-reduce" in words(body, (8,), (8 * 256, 1024))
    assert not any(w.endswith("-start") for w in words(body, (8,), (8 * 256, 1024)))


def test_off_is_off():
    with config.override("overlap", False):
        found = words(ring, (8 * 256, 1024))
    assert "collective-permute" in found
    assert not any(w.endswith(("-start", "-done")) for w in found)


@pytest.mark.parametrize(
    "name, collective",
    [
        ("all-reduce", lambda x: lax.psum(x, "x")),
        ("all-reduce", lambda x: lax.pmax(x, "x")),
        ("all-gather", lambda x: lax.all_gather(x, "x", tiled=True)),
        ("reduce-scatter", lambda x: lax.psum_scatter(x, "x", tiled=True)),
        ("all-to-all", lambda x: lax.all_to_all(x, "x", 0, 0, tiled=True)),
        ("collective-permute", lambda x: lax.ppermute(x, "x", RING)),
    ],
)
def test_each_kind_has_halves_and_costs_what_it_did(name, collective):
    def body(x):
        moved = collective(x)
        a, b = works(x)
        return moved.sum() + a + b

    cut = compiled(body, (8 * 256, 1024))
    assert f"{name}-start(" in cut.as_text()
    assert f"{name}-done(" in cut.as_text()
    with config.override("overlap", False):
        whole = compiled(body, (8 * 256, 1024))
    for key, value in whole.cost_analysis().items():
        if key.startswith("communication") or key == "flops":
            assert cut.cost_analysis()[key] == value, key


def test_sums_travel_together_but_not_in_one_message_too_large_to_overlap():
    def body(*xs):
        a, b = works(xs[0])
        return [lax.psum(x, "x") + a.sum() + b.sum() for x in xs]

    found = words(body, *[(8 * 256, 1024)] * 12)  # 12 blocks of 1 MB
    assert found.count("all-reduce-start") == 3


def test_halves_in_loops():
    def body(x):
        def step(carry, _):
            moved = lax.ppermute(carry, "x", RING)
            a, b = works(x)
            return moved + (a + b).sum(), None

        return lax.scan(step, x, None, length=3)[0]

    text = compiled(body, (8 * 256, 1024)).as_text()
    assert text.count("collective-permute-start(") == 1
    inner = text[text.index("collective-permute-start(") : text.index("collective-permute-done(")]
    assert inner.count(" dot(") == 2


def test_the_pass_keeps_programs_whole():
    """Every variable is made before it is used, every token is used once, results are those asked for."""

    def body(x, y):
        first = lax.ppermute(x, "x", RING)
        a, b = works(y)
        second = lax.psum(a + b, "x")
        c, d = works(first)
        return second @ (c + d), lax.all_gather(first, "x")

    with config.override("overlap", False):
        lowered = None
        args = [
            jax.ShapeDtypeStruct((8 * 256, 1024), np.dtype("float32"), sharding=jax.NamedSharding(MESH, P("x")))
        ] * 2
        with jax.sharding.use_abstract_mesh(MESH):
            mapped = jax.shard_map(body, mesh=MESH, in_specs=P("x"), out_specs=P("x"))
            lowered = jax.jit(mapped).lower(*args)
    local: Jaxpr = lowered.compile()._program.local.jaxpr
    cut = overlap(local)
    check_jaxpr(cut, after="overlap", types=False)
    assert cut.outvars == local.outvars
    starts = [e for e in cut.eqns if e.op.name.endswith("_start")]
    assert starts
    for start in starts:
        (token,) = start.outvars
        users = [e for e in cut.eqns if token in e.invars]
        assert [e.op.name for e in users] == [start.op.name.replace("_start", "_done")]
        assert users[0].invars == (token, *start.invars)
    whole = [e.op.name for e in cut.eqns if not e.op.name.endswith("_done")]
    assert sorted(n.removesuffix("_start") for n in whole) == sorted(e.op.name for e in local.eqns)
    assert overlap(local).eqns is not local.eqns
