"""`jax.profiler`: one trace file for all ranks: what is in it, that its events nest, and that without a trace nothing is left of it.

Tests marked `mpi` run on any number of ranks, the others in one process.
"""

from __future__ import annotations

import gzip
import json
import os
import time
from pathlib import Path

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray import comm, lax, profiler
from mpiarray.comm import stats, timeline
from mpiarray.compiler import observe
from mpiarray.runtime import eager


@pytest.fixture
def path(tmp_path) -> Path:
    """The same path on all ranks."""
    return Path(comm.agree(comm.world_group(), str(tmp_path))[0], "trace.json")


@pytest.fixture
def mesh():
    mesh = jax.make_mesh((jax.device_count(),), ("x",))
    with jax.set_mesh(mesh):
        yield mesh


def read(path: Path) -> list[dict]:
    """The events, on all ranks."""
    comm.barrier(comm.world_group())
    told = json.loads(path.read_text())
    assert set(told) == {"displayTimeUnit", "traceEvents"}
    for event in told["traceEvents"]:
        assert event["ph"] in "XM" and isinstance(event["name"], str) and isinstance(event["pid"], int)
        if event["ph"] == "X":
            assert event["dur"] >= 0 and isinstance(event["ts"], float) and isinstance(event["args"], dict)
    return [e for e in told["traceEvents"] if e["ph"] == "X"]


def check_nesting(events: list[dict]) -> None:
    """Events of one thread contain each other or do not meet."""
    for line in {(e["pid"], e["tid"]) for e in events}:
        # whole nanoseconds: files have microseconds with three digits
        own = [
            (round(e["ts"] * 1000), round((e["ts"] + e["dur"]) * 1000), e["name"])
            for e in events
            if (e["pid"], e["tid"]) == line
        ]
        open_ends: list[int] = []
        for start, end, name in sorted(own, key=lambda e: (e[0], -e[1])):
            while open_ends and open_ends[-1] <= start:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1], f"{name} leaves what it began in"
            open_ends.append(end)


def inside(events: list[dict], outer: dict) -> list[dict]:
    return [
        e for e in events if e is not outer and (e["pid"], e["tid"]) == (outer["pid"], outer["tid"])
        and outer["ts"] <= e["ts"] and e["ts"] + e["dur"] <= outer["ts"] + outer["dur"] + 1e-3
    ]  # fmt: skip


def of(events: list[dict], category: str, rank: int) -> list[dict]:
    return [e for e in events if e["cat"] == category and e["pid"] == rank]


# -- on ranks -------------------------------------------------------------------------------------------------------------


@pytest.mark.mpi
def test_a_program_on_all_ranks(path, mesh):
    n = jax.device_count()

    def summed(x):
        return lax.psum(jnp.sin(x) * 2, "x")

    f = jax.jit(jax.shard_map(summed, in_specs=jax.P("x"), out_specs=jax.P()))
    x = jax.device_put(np.arange(64.0 * n, dtype=np.float32), jax.P("x"))
    expected = np.asarray(f(x))
    with jax.profiler.trace(path):
        for _ in range(3):
            out = f(x)
    np.testing.assert_array_equal(np.asarray(out), expected)
    events = read(path)
    check_nesting(events)
    assert {e["pid"] for e in events} == set(range(n))
    for rank in range(n):
        programs = of(events, "program", rank)
        assert [e["name"] for e in programs] == ["summed"] * 3
        for program in programs:
            within = inside(events, program)
            steps = [e for e in within if e["cat"] == "step"]
            assert len(steps) == len(of(events, "step", rank)) / 3
            assert sum(e["dur"] for e in steps) <= program["dur"]
            computed = [e for e in steps if e["args"]["flops"]]
            assert computed and all(e["args"]["bytes"] >= 2 * 64 * 4 for e in computed)
            met = [e for e in within if e["cat"] == "collective"]
            assert [e["name"] for e in met] == (["all_reduce"] if n > 1 else [])
            for event in met:
                assert event["args"]["bytes"] == 64 * 4 and event["args"]["ranks"] == n
                assert any("psum" in step["name"] and event in inside(events, step) for step in steps)


@pytest.mark.mpi(min_size=2)
def test_waiting_is_told_apart_from_transfer(path, mesh):
    n, rank = jax.device_count(), jax.process_index()
    x = jax.device_put(np.ones(8 * n, np.float32), jax.P("x"))
    f = jax.jit(jax.shard_map(lambda b: lax.psum(b, "x"), in_specs=jax.P("x"), out_specs=jax.P()))
    late = n - 1
    with jax.profiler.trace(path):
        f(x)  # prepares
        for _ in range(3):
            comm.barrier(comm.world_group())
            if rank == late:
                time.sleep(0.1)
            f(x)
    events = read(path)
    check_nesting(events)
    for k in range(n):
        sums = [e for e in of(events, "collective", k) if e["name"] == "all_reduce"]
        assert len(sums) == 4
        for event in sums[1:]:
            wait, transfer = event["args"]["wait us"], event["args"]["transfer us"]
            assert wait + transfer == pytest.approx(event["dur"], abs=0.01)
            assert event["args"]["skew us"] >= 80e3
            assert (wait <= 50e3) if k == late else (wait >= 80e3)
            parts = {e["cat"]: e["dur"] for e in inside(events, event)}
            assert parts.get("wait", 0) == pytest.approx(wait, abs=0.01)
            assert parts.get("transfer", 0) == pytest.approx(transfer, abs=0.01)
    # one line of time: no rank has left a sum before the last one came
    for times in zip(*([e for e in of(events, "collective", k) if e["name"] == "all_reduce"][1:] for k in range(n))):
        came = max(e["ts"] for e in times)
        assert all(e["ts"] + e["dur"] >= came - 200 for e in times)


@pytest.mark.mpi
def test_eager_operations_and_bodies(path, mesh):
    n = jax.device_count()
    x = jax.device_put(np.arange(16.0 * n, dtype=np.float32), jax.P("x"))

    def body(b):
        for _ in range(2):
            c = lax.psum(b * 2, "x")
        return b + c

    mapped = jax.shard_map(body, in_specs=jax.P("x"), out_specs=jax.P("x"))
    with jax.profiler.trace(path):
        y = x + x
        mapped(x)
    np.testing.assert_array_equal(np.asarray(y), 2 * np.arange(16.0 * n))
    events = read(path)
    check_nesting(events)
    for rank in range(n):
        names = [e["name"] for e in of(events, "step", rank)]
        assert names[0] == "add" and names.count("mul") == 2
        assert sum("psum" in name for name in names) == 2
        assert len(of(events, "collective", rank)) == (2 if n > 1 else 0)


@pytest.mark.mpi
def test_ranks_that_keep_different_numbers_of_events(path, mesh):
    n, rank = jax.device_count(), jax.process_index()
    x = jax.device_put(np.ones(n, np.float32), jax.P("x"))
    with jax.profiler.trace(path, max_events=8):
        with jax.profiler.TraceAnnotation("more" if rank else "fewer"):
            pass
        for _ in range(5 * rank):
            with jax.profiler.TraceAnnotation("more"):
                pass
        for _ in range(10):
            x.sum()
    comm.barrier(comm.world_group())
    told = json.loads(path.read_text())["traceEvents"]
    heads = [e["args"] for e in told if e["name"] == "process_name"]
    assert [h["name"].split()[:2] for h in heads] == [["rank", str(k)] for k in range(n)]
    assert all(h["events dropped"] > 0 for h in heads)
    check_nesting(read(path))


@pytest.mark.mpi
def test_many_events_are_written_whole(path, mesh):
    with jax.profiler.trace(path):
        for k in range(8000):
            with jax.profiler.TraceAnnotation("piece", number=k, text="x" * 100):
                pass
    events = read(path)
    for rank in range(jax.device_count()):
        assert [e["args"]["number"] for e in of(events, "annotation", rank)] == list(range(8000))


@pytest.mark.mpi(min_size=2)
def test_a_file_that_cannot_be_written_is_told_on_all_ranks(path):
    path.mkdir(parents=True, exist_ok=True)
    comm.barrier(comm.world_group())
    with pytest.raises((OSError, RuntimeError), match="trace.json"):
        jax.profiler.start_trace(path)
    with pytest.raises(RuntimeError, match="No profile started"):
        jax.profiler.stop_trace()


@pytest.mark.mpi
def test_clocks_of_one_machine_agree():
    timeline.clock_difference(comm.world_group())
    moment, ahead = timeline.clock_difference(comm.world_group())
    assert moment > 0 and abs(ahead) < 5_000_000


# -- in one process -------------------------------------------------------------------------------------------------------


def test_without_a_trace_nothing_is_left_of_it(path, mesh):
    f = jax.jit(lambda x: jnp.sin(x) * 2)
    x = jnp.arange(4.0)
    f(x)
    x + x
    (ready,), cache = f._ready.values(), eager._cache
    run, entries, direct = ready.run, dict(cache), dict(f._direct)
    assert direct
    with jax.profiler.trace(path):
        f(x)
        x + x
        assert stats.active & stats.RECORD and observe.observing
        assert all(r.run is not run for r in f._ready.values()) and eager._cache is not cache
        g = jax.jit(lambda x: x * 3)
        g(x)
    assert list(f._ready.values()) == [ready] and ready.run is run
    assert f._direct == direct and eager._cache is cache and cache == entries
    assert stats.active & stats.RECORD == 0 and not observe.observing and timeline.active is None
    assert g._ready == {}  # programs that were prepared to be traced are gone
    np.testing.assert_array_equal(g(x), np.arange(4.0) * 3)

    def step(b):
        return b

    assert observe.step(step, None) is step and observe.program(step, "f") is step


def test_annotations(path, mesh):
    @profiler.annotate_function
    def load(x):
        return x + 1

    named = jax.profiler.annotate_function(load, name="outer", kind="test")
    assert load(1) == named(1) == 2
    with jax.profiler.trace(path):
        with jax.profiler.StepTraceAnnotation("train", step_num=7):
            assert named(1) == 2
        with jax.profiler.TraceAnnotation('with "quotes"\n', file=Path("a"), count=3):
            jnp.ones(3) + 1
    events = read(path)
    check_nesting(events)
    train, outer, quoted = (
        next(e for e in events if e["name"] == name) for name in ("train 7", "outer", 'with "quotes"\n')
    )
    assert train["args"] == {"step_num": 7} and outer["args"] == {"kind": "test"}
    assert quoted["args"] == {"file": "a", "count": 3}
    assert outer in inside(events, train) and any("load" in e["name"] for e in inside(events, outer))
    assert any(e["name"] == "add" for e in inside(events, quoted))


def test_loops_show_the_steps_of_their_bodies(path, mesh):
    f = jax.jit(lambda x: lax.fori_loop(0, 5, lambda _, y: jnp.cos(y), x))
    with jax.profiler.trace(path):
        f(jnp.arange(4.0))
    events = read(path)
    check_nesting(events)
    assert sum(e["name"] == "cos" for e in events if e["cat"] == "step") == 5


def test_folders_and_packed_files(tmp_path, mesh):
    with jax.profiler.trace(tmp_path / "log", create_perfetto_trace=True):
        jnp.ones(3) + 1
    told = json.loads(gzip.decompress((tmp_path / "log" / "perfetto_trace.json.gz").read_bytes()))
    assert any(e["name"] == "add" for e in told["traceEvents"])


def test_one_trace_at_a_time(path):
    with pytest.raises(RuntimeError, match="No profile started"):
        jax.profiler.stop_trace()
    jax.profiler.start_trace(path)
    try:
        with pytest.raises(RuntimeError, match="already been started"):
            jax.profiler.start_trace(path)
    finally:
        jax.profiler.stop_trace()
    assert read(path) == []
    with pytest.raises(ValueError, match="max_events must be at least 1, got 0"):
        jax.profiler.start_trace(path, max_events=0)


def test_an_exception_ends_the_trace(path, mesh):
    with pytest.raises(ZeroDivisionError), jax.profiler.trace(path):
        jnp.ones(3) + 1
        raise ZeroDivisionError
    assert not os.path.exists(path) and not observe.observing and timeline.active is None
    with jax.profiler.trace(path):
        jnp.ones(3) + 1
    assert any(e["name"] == "add" for e in read(path))
