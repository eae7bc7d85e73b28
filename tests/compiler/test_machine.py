"""The constants of the cost model: used, kept in a file, measured."""

from __future__ import annotations

import json

import pytest

from mpiarray import comm, config
from mpiarray.compiler.cost import Cost
from mpiarray.compiler.machine import Machine, default_path, load, machine, measured, save, use


@pytest.fixture(autouse=True)
def same_after():
    before = machine()
    yield
    use(before)


def test_seconds_add_up():
    constants = Machine(flops=2.0, memory=4.0, bandwidth=8.0, latency=0.5)
    assert constants.seconds(Cost(2.0, 4.0, 8.0, 3.0)) == 1 + 1 + 1 + 1.5


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), "fast", None])
def test_constants_are_positive_numbers(value):
    with pytest.raises(ValueError, match="Machine: latency must be a positive number"):
        Machine(latency=value)


def test_what_is_kept_is_loaded(tmp_path):
    path = tmp_path / "folder" / "machine.json"
    constants = Machine(1e9, 2e9, 3e9, 4e-6)
    assert save(constants, path) == path
    assert load(path) == machine() == constants
    assert load(tmp_path / "nothing.json") == machine() == Machine()
    assert [p.name for p in path.parent.iterdir()] == ["machine.json"]


@pytest.mark.parametrize("text", ["", "{}x", '{"flops": -1}', '{"speed": 1}', "[1, 2]"])
def test_a_broken_file_is_an_error_that_names_it(tmp_path, text):
    path = tmp_path / "machine.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"machine.load: .*machine\.json does not hold"):
        load(path)


def test_where_it_is_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_path() == tmp_path / "mpiarray" / "machine.json"
    before = config.machine_file
    try:
        config.update("machine_file", tmp_path / "other.json")
        assert default_path() == tmp_path / "other.json"
    finally:
        config.update("machine_file", before)


def test_measuring_gives_sensible_numbers():
    found = measured(0.08)
    assert 1e7 < found.flops < 1e14 and 1e7 < found.memory < 1e13
    if comm.size() == 1:
        assert (found.bandwidth, found.latency) == (Machine().bandwidth, Machine().latency)


@pytest.mark.mpi(min_size=2)
def test_all_ranks_have_the_same_constants(tmp_path):
    found = measured(0.1)
    assert len(set(comm.agree(comm.world_group(), found))) == 1
    path = tmp_path / "machine.json"
    if comm.rank() == 0:
        save(found, path)
    else:
        path.write_text(json.dumps({"flops": 1.0}))  # what another rank has is not asked
    assert len(set(comm.agree(comm.world_group(), load(path)))) == 1
    assert machine() == found
