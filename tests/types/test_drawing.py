"""Drawings of shardings against texts recorded from JAX 0.10.2 (drawings.json, one drawing a line)."""

import json
from pathlib import Path

import pytest

from mpiarray.types.drawing import cells, draw_sharding
from mpiarray.types.mesh import Device, make_mesh
from mpiarray.types.partition_spec import P
from mpiarray.types.sharding import NamedSharding, SingleDeviceSharding

RECORDED = json.loads((Path(__file__).parent / "drawings.json").read_text())


def sharding(sizes, names, spec, ids=range(16), **sums):
    return NamedSharding(make_mesh(sizes, names, devices=[Device(k) for k in ids]), P(*spec, **sums))


def case_name(case):
    return f"{case['ids'][0]}-{tuple(case['sizes'])}-{tuple(case['shape'])}-{case['spec']}"


@pytest.mark.parametrize("case", RECORDED, ids=case_name)
def test_recorded_drawings(case):
    s = sharding(case["sizes"], case["names"], case["spec"], case["ids"])
    assert draw_sharding(case["shape"], s).split("\n") == [*case["lines"], ""]


def test_there_are_enough_recorded_drawings():
    assert len(RECORDED) >= 50 and len({tuple(case["lines"]) for case in RECORDED}) == len(RECORDED)


def test_one_device():
    assert draw_sharding((4, 4), SingleDeviceSharding(Device(3))).count("CPU 3") == 1


def test_unreduced_axes_share_a_cell():
    text = draw_sharding((8,), sharding((4, 2), ("X", "Y"), ("X",), unreduced={"Y"}))
    assert "│CPU 0,1│CPU 2,3│CPU 4,5│CPU 6,7│" in text


def test_empty_arrays_have_a_drawing():
    text = draw_sharding((0, 4), sharding((4, 2), ("X", "Y"), ("X", "Y")))
    assert "CPU 0,2,4,6" in text and "CPU 1,3,5,7" in text
    assert draw_sharding((0,), sharding((8,), ("X",), ("X",))).count("CPU") == 1


@pytest.mark.parametrize("n", [2, 4, 8, 16])
def test_wide_arrays_keep_their_texts(n):
    """Cells of a table wider than 80 columns lose padding, never text."""
    text = draw_sharding((8, 1600), sharding((n,), ("X",), (None, "X")))
    lines = text.split("\n")[:-1]
    assert len({len(line) for line in lines}) == 1 and len(lines) == 11
    names = [cell.strip() for line in lines if "CPU" in line for cell in line.strip("│").split("│")]
    assert names == [f"CPU {k}" for k in range(n)]
    assert len(lines[0]) == 80 or n == 16


def test_cells():
    rows = cells((8, 4), sharding((4, 2), ("X", "Y"), ("Y", "X")))
    assert [[cell.text for cell in row] for row in rows] == [
        ["CPU 0", "CPU 2", "CPU 4", "CPU 6"],
        ["CPU 1", "CPU 3", "CPU 5", "CPU 7"],
    ]
    assert {(cell.width, cell.height) for row in rows for cell in row} == {(7, 4)}


@pytest.mark.parametrize("shape", [(), (2, 2, 2)])
def test_other_ranks_are_refused(shape):
    with pytest.raises(ValueError, match="only works for shapes with 1 and 2 dimensions"):
        draw_sharding(shape, sharding((2,), ("X",), ()))


def test_abstract_meshes_show_positions():
    mesh = make_mesh((4, 2), ("x", "y"), devices=[Device(k) for k in range(8)])
    concrete = NamedSharding(mesh, P("y", "x"))
    abstract = NamedSharding(mesh.abstract_mesh, P("y", "x"))
    assert draw_sharding((8, 8), abstract) == draw_sharding((8, 8), concrete)
