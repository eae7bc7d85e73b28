"""Known plans: which steps, how many bytes, what is printed, and what bad input gets."""

from __future__ import annotations

import time

import numpy as np
import pytest

from mpiarray.core.redistribution import (
    AllGather,
    AllReduce,
    AllToAll,
    Exchange,
    Mask,
    Permute,
    ReduceScatter,
    Relabel,
    Slice,
    Widen,
    placement,
    plan,
    simulate,
)
from mpiarray.errors import IndivisibleError
from mpiarray.types.mesh import AbstractMesh, AxisType, Device, Mesh
from mpiarray.types.partition_spec import UNCONSTRAINED, P
from mpiarray.types.sharding import NamedSharding, SingleDeviceSharding

EXPLICIT = AxisType.Explicit


def mesh(sizes, names, ids=None):
    ids = range(int(np.prod(sizes))) if ids is None else ids
    devices = np.array([Device(k) for k in ids], dtype=object).reshape(sizes)
    return Mesh(devices, names, (EXPLICIT,) * len(sizes))


XY = mesh((4, 2), ("x", "y"))
MB = 1 << 20

# spec before, spec after, steps, bytes that a rank receives for an (8, 8) array of 4-byte elements
KNOWN = [
    (P(), P("x", "y"), [Slice(0, ("x",)), Slice(1, ("y",))], 0),
    (P(), P(("y", "x")), [Slice(0, ("y", "x"))], 0),
    (P("x"), P(("x", "y")), [Slice(0, ("y",))], 0),
    (P("x"), P(), [AllGather(0, ("x",))], 3 * 64),
    (P(("x", "y")), P(), [AllGather(0, ("x", "y"))], 7 * 32),
    (P(("x", "y")), P("x"), [AllGather(0, ("y",))], 32),
    (P("x", "y"), P("x"), [AllGather(1, ("y",))], 32),
    (P("x", "y"), P(), [AllGather(1, ("y",)), AllGather(0, ("x",))], 32 + 3 * 64),
    (P("x", None), P(None, "x"), [AllToAll(("x",), 0, 1)], 48),
    (P(("x", "y"), None), P("x", "y"), [AllToAll(("y",), 0, 1)], 16),
    (P("x", "y"), P(("x", "y"), None), [AllToAll(("y",), 1, 0)], 16),
    (P(None, "y"), P("x", None), [Slice(0, ("x",)), AllGather(1, ("y",))], 32),
    (P("x", "y"), P("x", None, unreduced={"y"}), [Widen(1, ("y",))], 0),
    (P("y"), P(unreduced={"y"}), [Widen(0, ("y",))], 0),
    (P("x"), P("x", None, unreduced={"y"}), [Mask(("y",))], 0),
    (P(), P(None, None, unreduced={"x", "y"}), [Mask(("x", "y"))], 0),
    (P("x", unreduced={"y"}), P("x"), [AllReduce(("y",))], 64),
    (P("x", unreduced={"y"}), P("x", reduced={"y"}), [AllReduce(("y",))], 64),
    (P("x", unreduced={"y"}), P("x", "y"), [ReduceScatter(1, ("y",))], 32),
    (P("x", unreduced={"y"}), P(("x", "y")), [ReduceScatter(0, ("y",))], 32),
    (P(unreduced={"x", "y"}), P("x", "y"), [ReduceScatter(0, ("x",)), ReduceScatter(1, ("y",))], 192 + 32),
    (P(unreduced={"y"}), P("x"), [Slice(0, ("x",)), AllReduce(("y",))], 64),
    (P("x"), P("x", reduced={"y"}), [Relabel()], 0),
    (P("x", reduced={"y"}), P("x"), [Relabel()], 0),
    (P(None, None, reduced={"y"}), P("y"), [Slice(0, ("y",))], 0),
    (P("x"), P("x", None), [], 0),
    (P("x", unreduced={"y"}), P("x", None, unreduced={"y"}), [], 0),
]


@pytest.mark.parametrize("before, after, steps, moved", KNOWN, ids=[f"{c[0]} to {c[1]}" for c in KNOWN])
def test_known_steps(before, after, steps, moved):
    found = plan((8, 8), 4, (XY, before), (XY, after))
    assert list(found.steps) == steps
    assert found.bytes_moved == moved
    assert not found.reason


def test_reordering_the_axes_of_a_dim_permutes_whole_blocks():
    found = plan((8,), 4, (XY, P(("x", "y"))), (XY, P(("y", "x"))))
    # ('x','y'): device 2x+y has row 2x+y. ('y','x'): device 2x+y has row 4y+x.
    rows = [0, 4, 1, 5, 2, 6, 3, 7]
    assert found.steps == (Permute(tuple((row, device) for device, row in enumerate(rows))),)
    assert (found.bytes_moved, found.messages) == (4, 1)


def test_axes_of_equal_size_trade_places_by_permutation():
    grid = mesh((2, 2), ("x", "y"))
    found = plan((4, 4), 4, (grid, P("x", "y")), (grid, P("y", "x")))
    assert found.steps == (Permute(((0, 0), (2, 1), (1, 2), (3, 3))),)
    found = plan((4, 4), 4, (grid, P("x")), (grid, P("y")))
    assert [type(step) for step in found.steps] == [Permute]
    assert found.bytes_moved == 32


def test_gathering_the_first_axis_of_a_dim_is_not_a_plain_gather():
    found = plan((8, 8), 4, (XY, P(("x", "y"))), (XY, P("y")))
    assert not any(isinstance(step, AllGather) and step.axes == ("x",) for step in found.steps[:1])
    assert found.bytes_moved == 4 * 32  # device (2, 0) holds none of the rows that it needs


def test_slices_before_a_permutation_let_all_replicas_send():
    found = plan((24,), 8, (XY, P("x")), (XY, P("y")))
    assert [type(step) for step in found.steps] == [Slice, Permute, AllGather]
    direct = Exchange((24,), 8, placement((XY, P("x")), 1), placement((XY, P("y")), 1))
    assert found.bytes_moved == found.bytes_sent == 96
    sent = {device: len(direct.for_rank(device).sends) * 48 for device in range(8)}
    assert max(sent.values()) == 144  # boxes would leave it to the first replicas


def test_axes_of_size_one_move_nothing():
    grid = mesh((1, 4), ("o", "x"))
    for before, after in [(P("o", "x"), P(None, "x")), (P(("x", "o")), P("x")), (P(unreduced={"o"}), P("o"))]:
        found = plan((8, 8), 4, (grid, before), (grid, after))
        assert found.steps == (Relabel(),)
        assert found.bytes_moved == found.messages == 0


def test_meshes_of_other_shapes_and_names_meet_in_a_common_refinement():
    other = mesh((2, 4), ("a", "b"))
    found = plan((8, 8), 4, (XY, P(("x", "y"))), (other, P(("a", "b"))))
    assert found.steps == (Relabel(),)
    found = plan((8, 8), 4, (XY, P(("x", "y"))), (other, P("a")))
    assert found.steps == (AllGather(0, ("x.1", "y")),)
    assert found.states[0].axes == (("x.0", 2), ("x.1", 2), ("y", 2))
    assert found.bytes_moved == 3 * 32
    cube = mesh((2, 2, 2), ("a", "b", "c"))
    found = plan((8, 8), 4, (XY, P(None, "x")), (cube, P(("a", "b"))))
    assert found.steps == (AllToAll(("x.0", "x.1"), 1, 0),) or found.steps == (AllToAll(("x",), 1, 0),)


def test_replicated_to_sharded_slices_on_any_mesh_of_the_same_devices():
    two, three = mesh((3, 2), ("x", "y")), mesh((2, 3), ("a", "b"), [5, 4, 3, 2, 1, 0])
    found = plan((6, 6), 4, (two, P()), (three, P("b", "a")))
    assert found.steps == (Slice(0, ("b",)), Slice(1, ("a",)))
    found = plan((6, 6), 4, (three, P("b", "a")), (two, P()))
    assert [type(step) for step in found.steps] == [AllGather, AllGather]
    part = mesh((2,), ("p",), [4, 2])
    assert plan((6, 6), 4, (two, P()), (part, P("p"))).steps == (Slice(0, ("p",)),)
    assert plan((6, 6), 4, (two, P()), (part, P())).steps == (Relabel(),)


def test_other_devices_by_whole_blocks():
    near, far = mesh((2, 2), ("x", "y"), [0, 1, 2, 3]), mesh((2, 2), ("x", "y"), [7, 6, 5, 4])
    found = plan((4, 4), 4, (near, P("x", "y")), (far, P("x", "y")))
    assert found.steps == (Permute(((3, 4), (2, 5), (1, 6), (0, 7))),)
    assert found.bytes_moved == 16
    assert found.peak_bytes == 16  # no rank holds both blocks


def test_one_device_to_all_scatters_and_gathers():
    one = SingleDeviceSharding(Device(3))
    found = plan((8, 8), 4, one, NamedSharding(XY, P("x", "y")))
    assert [type(step) for step in found.steps] == [Exchange]
    assert (found.bytes_moved, found.bytes_sent) == (32, 7 * 32)
    found = plan((1024, 1024), 4, one, NamedSharding(XY, P()))
    assert [type(step) for step in found.steps] == [Exchange, AllGather]
    assert found.bytes_sent < 2 * 4 * MB  # and not seven times the array from device 3
    found = plan((8, 8), 4, NamedSharding(XY, P("x", "y")), one)
    assert [type(step) for step in found.steps] == [Exchange]
    assert found.bytes_moved == 7 * 32
    assert plan((8, 8), 4, one, one).steps == ()


def test_a_block_between_makes_sums_cheaper():
    found = plan((8, 8), 4, (XY, P("x", None, unreduced={"y"})), (XY, P(None, "x")))
    assert found.bytes_moved < 64 + 48  # all-reduce, then all-to-all
    found = plan((8, 8), 4, (XY, P("x")), (XY, P(None, None, unreduced={"y"})))
    assert found.bytes_moved == 3 * 32  # each half of the columns is gathered by one half of the devices
    found = plan((8, 8), 4, (XY, P("y")), (XY, P("x", None, unreduced={"y"})))
    assert found.bytes_moved == 0  # blocks whose sum is the value: every device already holds enough


def test_memory_stays_within_the_bound():
    big = (16384, 16384)  # 1 GB: an intermediate of 256 MB does not fit into a message buffer
    small, large = (plan(shape, 4, (XY, P("x", "y")), (XY, P())) for shape in ((1024, 1024), big))
    assert len(small.steps) == 2
    assert [type(step) for step in large.steps] == [Exchange]
    assert large.bytes_moved == 7 * 128 * MB
    assert large.bound_bytes == (128 + 1024 + 64) * MB
    assert large.peak_bytes <= large.bound_bytes
    found = plan(big, 4, (XY, P("x", None)), (XY, P(None, "x")))
    assert found.steps == (AllToAll(("x",), 0, 1),)
    assert found.peak_bytes == (256 + 256 + 64) * MB


def test_a_plan_over_the_bound_says_why():
    found = plan((16384, 16384), 4, (XY, P("x", None, unreduced={"y"})), (XY, P("y", "x")))
    assert found.peak_bytes > found.bound_bytes
    assert "the bound is 448 MB" in found.reason
    assert "held besides source and target" in found.reason
    assert "over the bound" in str(found)
    assert not plan((64, 64), 4, (XY, P("x", None, unreduced={"y"})), (XY, P("y", "x"))).reason


def test_abstract_meshes():
    abstract, eight = XY.abstract_mesh, AbstractMesh((8,), ("a",), (EXPLICIT,))
    assert plan((8, 8), 4, (abstract, P("x")), (abstract, P())).steps == (AllGather(0, ("x",)),)
    reverse = mesh((4, 2), ("x", "y"), range(7, -1, -1))
    found = plan((8, 8), 4, (reverse, P(("x", "y"))), (eight, P("a")))
    assert found.steps == (Relabel(),)  # the devices of the concrete mesh, in the same flat order
    assert found.target.ids == reverse.flat_ids
    with pytest.raises(ValueError, match="which devices are meant"):
        plan((8, 8), 4, (mesh((2,), ("a",)), P()), (eight, P()))


def test_bad_input():
    with pytest.raises(IndivisibleError, match="array axis 0 is partitioned 4 times, but the dimension size is 6"):
        plan((6, 8), 4, (XY, P()), (XY, P("x")))
    with pytest.raises(ValueError, match="rank at least 2, but was applied to a value of rank 1"):
        plan((8,), 4, (XY, P("x", None)), (XY, P()))
    with pytest.raises(ValueError, match="UNCONSTRAINED"):
        plan((8,), 4, (XY, P("x")), (XY, P(UNCONSTRAINED)))
    found = plan((8,), 4, (XY, P("x")), (XY, P()))
    with pytest.raises(ValueError, match="device 0 holds a block of shape"):
        simulate(found, {k: np.zeros(8) for k in range(8)})


def test_text():
    text = str(plan((4096, 4096), 4, (XY, P("x", "y")), (XY, P(None, ("x", "y")))))
    assert text.splitlines()[:3] == [
        "redistribute 4096x4096 (64 MB)",
        "  from P('x', 'y') on x=4, y=2",
        "  to   P(None, ('x', 'y')) on x=4, y=2",
    ]
    text = str(plan((8, 8), 4, (XY, P("x", None)), (XY, P(None, "x"))))
    assert (
        "  1. all-to-all dim 0 -> dim 1 over x: P('x', None) -> P(None, 'x'), block (2, 8) -> (8, 2), 48 B received"
        in text.splitlines()
    )
    assert "nothing to do" in str(plan((8,), 4, (XY, P()), (XY, P())))
    assert "devices 7, 6" in str(plan((8,), 4, (XY, P()), (mesh((2,), ("a",), [7, 6]), P("a"))))


def test_names_in_compiled_programs():
    names = [step.hlo for step in (AllGather(0, ()), AllToAll((), 0, 1), AllReduce(()), ReduceScatter(0, ()))]
    assert names == ["all-gather", "all-to-all", "all-reduce", "reduce-scatter"]
    assert [Permute(()).hlo, Slice(0, ()).hlo, Mask(()).hlo, Widen(0, ()).hlo] == ["collective-permute", "", "", ""]


def test_boxes_prefer_what_a_rank_holds_and_then_the_first_replica():
    grid = mesh((3, 2), ("x", "y"))
    step = Exchange((6,), 4, placement((grid, P("y")), 1), placement((grid, P("x")), 1))
    # halves of the rows on y; thirds wanted on x. Device 2 = (1, 0) holds rows 0-2 and needs 2-3.
    table = step.for_rank(2)
    assert table.copies == (((slice(2, 3),), (slice(0, 1),)),)
    assert [(t.peer, t.box) for t in table.recvs] == [(1, (slice(1, 2),))]  # row 3: devices 1, 3, 5; the first
    assert step.for_rank(3).recvs[0].peer == 0
    assert table.sends == ()
    assert {t.peer for t in step.for_rank(1).sends} == {2, 4}
    assert table.covered and table.target_shape == (2,)


def test_rounds_pair_sends_with_receives():
    step = Exchange((6, 6), 4, placement((mesh((3, 2), ("x", "y")), P("x", "y")), 2),
                    placement((mesh((2, 4), ("a", "b"), [9, 0, 3, 4, 5, 6, 7, 8]), P("a")), 2), 16)  # fmt: skip
    sent, received = {}, {}
    for device in step.members():
        for transfer in step.for_rank(device).sends:
            sent.setdefault((device, transfer.peer), []).append(transfer.box)
        for transfer in step.for_rank(device).recvs:
            received.setdefault((transfer.peer, device), []).append(transfer.box)
    assert sent.keys() == received.keys()

    def shapes(boxes):
        return [tuple(s.stop - s.start for s in box) for box in boxes]

    for pair, boxes in sent.items():
        assert shapes(boxes) == shapes(received[pair])
        assert all(np.prod(shape) * 4 <= 8 for shape in shapes(boxes))


def test_many_axes_and_many_devices_stay_cheap():
    names = tuple("abcdefgh")
    cases = [
        (AbstractMesh((2,) * 8, names), P("a", ("b", "c", "d"), ("e", "f")), P(("f", "e", "d"), "h", ("a", "b"))),
        (AbstractMesh((2,) * 8, names), P(("a", "b"), ("c", "d"), unreduced={"e", "f"}), P("g", ("f", "a"), "b")),
        (AbstractMesh((64, 64), ("a", "b")), P("a", "b"), P("b", "a")),
        (AbstractMesh((64, 64), ("a", "b")), P(("a", "b")), P(None, None, ("b", "a"))),
        (AbstractMesh((16, 16, 16), ("a", "b", "c")), P("a", "b", "c"), P("c", None, unreduced={"a"})),
        (AbstractMesh((4096,), ("a",)), P("a"), P(None, "a")),
    ]
    for grid, before, after in cases:
        start = time.perf_counter()
        found = plan((4096, 4096, 4096), 4, (grid, before), (grid, after))
        for step in found.steps:
            if isinstance(step, Exchange):
                assert step.for_rank(1).target_shape == step.target.block_shape(found.shape)
        assert time.perf_counter() - start < 2.0, str(found)  # 0.2 s here; slow test machines get ten times that
