"""The examples that calculate with blocks: whole programs, each as one MPI job with small sizes.

They compare themselves with numpy and end with an error when they differ. What is looked at here is that they do: that
they come to their end, what they say, and how near the results are. The others run in CI, and so does train_digits.py, to the end.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from mpiarray.tools import environment

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 60
pytestmark = pytest.mark.jobs

pytest.importorskip("sklearn", reason="examples need the packages of mpiarray[examples]")
pytest.importorskip("matplotlib", reason="examples need the packages of mpiarray[examples]")


def run(ranks: int, name: str, *arguments: str, output: Path) -> subprocess.CompletedProcess[str]:
    """Run an example as a user does (not as the suite, which checks every call), with limits on its time."""
    launcher = [sys.executable, "-m", "mpiarray", "run", "-n", str(ranks), "--stdout", "root", "--timeout", str(LIMIT)]
    return subprocess.run(
        [*launcher, str(ROOT / "examples" / name), *arguments, "--output", str(output)],
        env=environment.without_job(os.environ) | {"PYTHONPATH": str(ROOT), "MPIARRAY_CHECK": "0"},
        capture_output=True,
        text=True,
        timeout=LIMIT + 30,
        check=False,
    )


def numbers(text: str, pattern: str) -> list[float]:
    """The first group of each match, as a number."""
    return [float(found) for found in re.findall(pattern, text)]


@pytest.fixture(scope="module")
def train_digits() -> ModuleType:
    specification = importlib.util.spec_from_file_location("train_digits", ROOT / "examples" / "train_digits.py")
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules["train_digits"] = module  # where dataclasses look for it
    specification.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_train_digits_in_five_ways_as_on_one_rank(tmp_path: Path):
    options = ("--double", "--epochs", "1")
    four = run(4, "train_digits.py", *options, "--target", "0", output=tmp_path / "4")
    assert four.returncode == 0, four.stdout + four.stderr
    # the same network on one rank, which also fails as it should where the accuracy is not reached
    one = run(1, "train_digits.py", *options, "--parallel", "dp", "--target", "1.1", output=tmp_path / "1")
    assert one.returncode == 1, one.stdout + one.stderr
    assert "dp: the accuracy is" in one.stderr
    expected = np.loadtxt(tmp_path / "1" / "train_digits_dp.txt")
    assert len(expected) == 23
    assert expected[-5:].mean() < 0.8 * expected[:5].mean()
    for way in ("dp", "fsdp", "tp", "fsdp_tp", "pp"):
        losses = np.loadtxt(tmp_path / "4" / f"train_digits_{way}.txt")
        np.testing.assert_allclose(losses, expected, rtol=1e-11, err_msg=way)
    assert len(set(numbers(four.stdout, r"epoch +1: loss .* accuracy ([\d.]+)%"))) == 1
    assert (tmp_path / "4" / "train_digits.png").stat().st_size > 10_000


def test_train_digits_says_what_sizes_it_needs(train_digits: ModuleType):
    for way in train_digits.WAYS:
        assert [train_digits.trouble(way, ranks, 64) for ranks in (1, 2, 4, 8)] == [None] * 4
        assert "3 ranks must divide" in train_digits.trouble(way, 3, 64).replace(" with 2 microbatches each", "")
    assert "must divide --batch 60" in train_digits.trouble("fsdp", 8, 60)
    assert train_digits.trouble("tp", 8, 61) is None  # images are not split


@pytest.mark.slow
def test_ring_attention(tmp_path: Path):
    options = ("--length", "128", "--heads", "2", "--width", "8", "--repeats", "1")
    done = run(4, "ring_attention.py", *options, output=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    differences = numbers(done.stdout, r"(?:result|dq|dk|dv) (\d\.\de[+-]\d+)")
    assert len(differences) == 8 and max(differences) < 1e-5
    held = numbers(done.stdout, r"(?m)^ +128  (?:ring|gathered) +[\d.]+ +([\d.]+)$")
    assert len(held) == 2 and held[0] < held[1]  # a block of scores, not a row of blocks
    assert (tmp_path / "ring_attention.png").exists()


@pytest.mark.slow
def test_matmul_overlap(tmp_path: Path):
    done = run(4, "matmul_overlap.py", "--size", "64", "--repeats", "1", output=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    row = r"(?m)^(?:gather|scatter) +(?:plain|ring|two ways) +[\d.]+ +[\d.]+ +([\d.]+)"
    assert numbers(done.stdout, row) == [0.01] * 6  # three quarters of 16 kB, however they are sent
    assert "all products agree" in done.stdout
    assert (tmp_path / "matmul_overlap.png").exists()


@pytest.mark.slow
def test_cg_poisson(tmp_path: Path):
    done = run(4, "cg_poisson.py", "--size", "50", "--tolerance", "1e-9", output=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    residual, error = re.search(r"residual (\S+), error against sine transforms (\S+)", done.stdout).groups()
    assert float(residual) < 2e-9 and float(error) < 1e-8
    assert numbers(done.stdout, r"step +(\d+): ")[-1] < 300
    assert (tmp_path / "cg_poisson.png").exists()
