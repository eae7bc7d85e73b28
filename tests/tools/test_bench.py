"""`python -m mpiarray bench`: it runs on two ranks, every row has its figures, its data are sound, and wrong results are seen."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mpiarray import comm
from mpiarray.tools import environment
from mpiarray.tools.bench import hand_arrays, hand_grids, hand_networks, timing
from mpiarray.tools.bench.command import duration
from mpiarray.tools.bench.machine import machine
from mpiarray.tools.bench.processes import START
from mpiarray.tools.bench.programs import SIZES, Given, programs
from tests.failures.jobs import ROOT

pytestmark = pytest.mark.jobs


def bench(ranks: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    own = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-m", "mpiarray", "run", "-n", str(ranks), "-m", "mpiarray", "bench", *arguments]
    return subprocess.run(
        command, env=environment.without_job(own) | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        timeout=150, check=False,
    )  # fmt: skip


@pytest.mark.limit(160)
def test_whole_table_on_two_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "rows.json"
    kept = tmp_path / "machine.json"
    monkeypatch.setenv("MPIARRAY_MACHINE_FILE", str(kept))
    done = bench(2, "--size", "small", "--seconds", "0.001", "--json", str(file), "--keep")
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(file.read_text())
    assert told["job"]["ranks"] == 2 and told["size"] == "small"
    assert all(told["machine"][name] > 0 for name in ("latency", "network", "memory", "flops"))
    names = [row["name"] for row in told["rows"]]
    assert names == [*(p.name for p in programs(2, SIZES["small"])), START]
    for row in told["rows"]:
        assert row["trouble"] == "", row
        assert 0 < row["ours_best"] <= row["ours"] and 0 < row["hand_best"] <= row["hand"], row
        assert row["ratio"] == pytest.approx(row["ours"] / row["hand"])
        assert any(line.startswith(row["name"]) for line in done.stdout.splitlines()), row["name"]
    assert "this machine: messages" in done.stdout
    assert f"kept for automatic sharding, in {kept}" in done.stdout
    assert set(json.loads(kept.read_text())) == {"flops", "memory", "bandwidth", "latency"}


@pytest.mark.limit(60)
def test_rows_are_chosen_by_pattern():
    done = bench(1, "--size", "small", "--seconds", "0.01", "--rows", "poly|argmax")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split(",")[0] for line in done.stdout.splitlines()[3:]]
    assert rows == ["polynomial of 7 cheap ops", "argmax"]


@pytest.mark.parametrize(
    ("arguments", "words"), [(["--rows", "("], "--rows ("), (["--seconds", "0"], "more than 0"), (["--size", "big"], "big")]
)  # fmt: skip
def test_wrong_options(arguments, words):
    done = subprocess.run(
        [sys.executable, "-m", "mpiarray", "bench", *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr


@pytest.mark.limit(60)
@pytest.mark.skipif(importlib.util.find_spec("jax") is not None, reason="this Python has JAX")
@pytest.mark.parametrize(
    ("python", "words"), [(sys.executable, "No module named 'jax'"), ("no/such/python", "no/such/python")]
)
def test_jax_that_is_not_there(python, words):
    done = bench(1, "--size", "small", "--rows", "poly", "--jax", python)
    assert done.returncode == 2 and f"--jax {python}: " in done.stdout and words in done.stdout


@pytest.mark.limit(60)
def test_jax_in_one_process_and_over_processes(tmp_path: Path):
    """A pretended JAX, which says how it was started: over processes the slowest counts, and a refusal of one is one of all."""
    name, refused = "polynomial of 7 cheap ops, 16384, jitted", "argmax, 16384, jitted"
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\n"
        'tuned=${MALLOC_TRIM_THRESHOLD_:+5}; process=${7:-3}; last=$([ "$7" = 1 ] && echo null || echo 2.0)\n'
        f'[ $2 = 2 ] && echo "{{\\"{name}\\": $process.${{tuned:-0}}, \\"{refused}\\": $last}}"\n'
    )
    python.chmod(0o755)
    file = tmp_path / "rows.json"
    arguments = ("--size", "small", "--seconds", "0.001", "--rows", "poly|argmax")
    done = bench(2, *arguments, "--jax", str(python), "--json", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    told = {row["name"]: row["jax"] for row in json.loads(file.read_text())["rows"]}
    assert told[name] == {"plain": 3.0, "tuned": 3.5, "processes": 1.0, "processes_tuned": 1.5}
    assert told[refused] == {"plain": 2.0, "tuned": 2.0, "processes": None, "processes_tuned": None}
    (row,) = (line for line in done.stdout.splitlines() if line.startswith(name))
    assert row.split()[-8:] == ["3.00", "s", "3.50", "s", "1.00", "s", "1.50", "s"]
    assert "JAX x 2" in done.stdout


def test_names_are_different():
    names = [p.name for p in programs(2, SIZES["full"])]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("n", [1, 2, 3, 8])
@pytest.mark.parametrize("size", SIZES)
def test_every_shape_divides(n, size):
    def check(given):
        if isinstance(given, Given):
            assert all(axis is None or length % n == 0 for length, axis in zip(given.shape, given.spec))
        else:
            for part in given:
                check(part)

    for program in programs(n, SIZES[size]):
        check(program.inputs)


def test_parts_of_given_data_are_parts_of_the_whole():
    given = Given((6, 8), ("x", None), seed=3)
    everything = given.block((slice(None), slice(None)))
    assert everything.shape == (6, 8) and everything.dtype == np.float32
    assert len(np.unique(everything)) == everything.size and np.abs(everything).max() <= 2
    assert everything.min() < -1 and everything.max() > 1
    np.testing.assert_array_equal(given.block((slice(2, 4), slice(None))), everything[2:4])
    assert not np.array_equal(Given((6, 8), seed=4).block((slice(None), slice(None))), everything)


@pytest.mark.parametrize(
    ("seconds", "text"), [(1.234e-6, "1.23 us"), (45.6e-6, "45.6 us"), (0.0123, "12.3 ms"), (0.5, "500 ms"), (2, "2.00 s"), (None, "-")]
)  # fmt: skip
def test_durations(seconds, text):
    assert duration(seconds) == text


# -- on ranks: the hand-written sides against numpy on global data --------------------------------------------------------


def part(x, ranks, dim=0):
    return np.ascontiguousarray(np.split(x, ranks.size, dim)[ranks.rank])


@pytest.fixture
def ranks():
    return comm.world()


@pytest.mark.mpi
def test_different_results_are_seen_by_all_ranks(ranks):
    good = np.arange(4.0)
    bad = good + (ranks.rank == ranks.size - 1)
    timing.same([good], [good], "equal")
    with pytest.raises(timing.Different, match=f"on rank {ranks.size - 1}, result 0 is off by 1 "):
        timing.same([bad], [good], "unequal")
    with pytest.raises(timing.Different, match="float32"):
        timing.same([good.astype(np.float32)], [good], "dtypes")
    with pytest.raises(timing.Different):
        timing.same([np.array([np.nan])], [np.array([1.0])], "nan")


@pytest.mark.mpi
def test_every_rank_knows_the_same_machine(ranks):
    found = machine(small=True)
    assert comm.agree(comm.world_group(), found) == [found] * ranks.size
    assert found.memory > 0 and found.flops > 0 and found.page >= 0
    assert (found.latency > 0 and found.network > 0) == (ranks.size > 1)
    assert ("messages" in found.text()) == (ranks.size > 1)


@pytest.mark.mpi
@pytest.mark.parametrize("periodic", [False, True])
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_jacobi_by_hand(ranks, periodic, steps):
    n = 8 * ranks.size
    u = np.random.default_rng(0).standard_normal((n, n)).astype(np.float32)
    expected = u.astype(np.float64)
    for _ in range(steps):
        mean = sum(np.roll(expected, shift, dim) for shift in (1, -1) for dim in (0, 1)) / 4
        inner = np.zeros((n, n), bool)
        inner[1:-1, 1:-1] = True
        expected = np.where(inner | periodic, mean, expected)
    run = hand_grids.jacobi(part(u, ranks), steps, periodic)
    for _ in range(2):  # buffers are kept: the second call must give the same
        np.testing.assert_allclose(run()[0], part(expected, ranks), rtol=1e-5, atol=1e-6)


@pytest.mark.mpi
def test_transforms_and_transposes_by_hand(ranks):
    n = 4 * ranks.size
    x = np.random.default_rng(1).standard_normal((n, n, 2)).astype(np.float32).view(np.complex64)[..., 0]
    np.testing.assert_allclose(hand_grids.fft2(part(x, ranks))()[0], part(np.fft.fft2(x), ranks), rtol=1e-4, atol=1e-4)
    found = hand_arrays.rows_to_columns(part(x.real.copy(), ranks), ranks.size)()[0]
    np.testing.assert_array_equal(found, part(x.real, ranks, 1))


@pytest.mark.mpi
def test_reductions_by_hand(ranks):
    x = (np.random.default_rng(2).standard_normal(640 * ranks.size) + 3).astype(np.float32)
    mean, variance = hand_arrays.statistics(part(x, ranks))()
    np.testing.assert_allclose([mean, variance], [x.mean(), x.var()], rtol=1e-5)
    assert int(hand_arrays.argmax(part(x, ranks))()[0]) == x.argmax()
    a, b = np.random.default_rng(3).standard_normal((2, 8 * ranks.size, 8 * ranks.size)).astype(np.float32)
    np.testing.assert_allclose(
        hand_arrays.summed_product(part(a, ranks, 1), part(b, ranks))()[0], a @ b, rtol=1e-3, atol=1e-3
    )


@pytest.mark.mpi
@pytest.mark.parametrize("kind", ["dp", "fsdp", "tp"])
def test_training_steps_by_hand(ranks, kind):
    """Against central differences of the loss in float64."""
    n = ranks.size
    widths, batch, rng = [3 * n, 2 * n, 4 * n, 2 * n, n], 4 * n, np.random.default_rng(4)
    layers = [
        (rng.standard_normal((a, b)) / a**0.5, rng.standard_normal(b) * 0.1) for a, b in itertools.pairwise(widths)
    ]
    x, y = rng.standard_normal((batch, widths[0])), rng.standard_normal((batch, widths[-1]))

    def loss(layers):
        z = x
        for k, (w, b) in enumerate(layers):
            z = z @ w + b
            z = np.maximum(z, 0) if k < len(layers) - 1 else z
        return ((z - y) ** 2).sum(1).mean()

    def own(v, dim):
        v = v.astype(np.float32)
        return v if dim is None else part(v, ranks, dim)

    dims = [{"dp": (None, None), "fsdp": (0, 0), "tp": (0, None) if k % 2 else (1, 0)}[kind] for k in range(4)]
    params = [(own(w, i), own(b, j)) for (w, b), (i, j) in zip(layers, dims)]
    examples = tuple(own(v, None if kind == "tp" else 0) for v in (x, y))
    value, *new = hand_networks.step_of(kind, params, examples)()
    assert float(value) == pytest.approx(loss(layers), rel=1e-4)
    for k, (layer, ways) in enumerate(zip(layers, dims)):
        for of, (v, dim) in enumerate(zip(layer, ways)):
            slope = np.zeros_like(v)
            for place in np.ndindex(v.shape):
                values = []
                for sign in (1, -1):
                    changed = [tuple(p.copy() for p in other) for other in layers]
                    changed[k][of][place] += sign * 1e-6
                    values.append(loss(changed))
                slope[place] = (values[0] - values[1]) / 2e-6
            old = own(v, dim)
            step = (np.asarray(new[2 * k + of], np.float64) - old) / -1e-3
            np.testing.assert_allclose(step, own(slope, dim), atol=2e-3, rtol=2e-3)
