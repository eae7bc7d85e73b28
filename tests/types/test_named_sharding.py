"""Shardings: bindings, blocks, indices, equivalence. The oracle for indices is a loop over mesh coordinates."""

import copy
import itertools
import pickle

import numpy as np
import pytest

from mpiarray.errors import DuplicateSpecError, IndivisibleError
from mpiarray.types import mesh as meshes
from mpiarray.types.mesh import AbstractMesh, AxisType, Device, Mesh, make_mesh
from mpiarray.types.partition_spec import P
from mpiarray.types.sharding import (
    NamedSharding,
    Sharding,
    SingleDeviceSharding,
    block_number,
    check_rank,
    divisible_or_raise,
)

DEVICES = [Device(k) for k in range(8)]
MESH = make_mesh((4, 2), ("X", "Y"), devices=DEVICES)
MIXED = make_mesh((4, 2), ("X", "Y"), (AxisType.Explicit, AxisType.Auto), devices=DEVICES)
MANUAL = make_mesh((4, 2), ("X", "Y"), (AxisType.Explicit, AxisType.Manual), devices=DEVICES)
CUBE = make_mesh((2, 2, 2), ("a", "b", "c"), devices=DEVICES)


def all_specs(names, ndim):
    """Every spec of up to `ndim` entries over distinct axes."""
    entries = [None] + [t for k in range(1, len(names) + 1) for t in itertools.permutations(names, k)]
    for n in range(ndim + 1):
        for choice in itertools.product(entries, repeat=n):
            used = [axis for entry in choice for axis in entry or ()]
            if len(used) == len(set(used)):
                yield P(*choice)


def test_members():
    s = NamedSharding(MESH, P("X", None))
    assert s.mesh is MESH and s.spec is P("X", None) and s.memory_kind == "device"
    assert s.device_set == set(DEVICES) and s.num_devices == 8
    assert s is NamedSharding(MESH, P("X", None)) and s != NamedSharding(MESH, P("X"))
    assert s != NamedSharding(make_mesh((4, 2), ("X", "Z"), devices=DEVICES), P("X", None))
    assert s.update(spec=P("Y")) is NamedSharding(MESH, P("Y"))
    assert s.update(mesh=MIXED).mesh is MIXED and s.with_memory_kind("device") is s
    assert NamedSharding(MESH, P("X", None), memory_kind="pinned_host") is s
    assert isinstance(s, Sharding)


def test_texts():
    assert repr(NamedSharding(MESH, P("X", "Y"))) == (
        "NamedSharding(mesh=Mesh('X': 4, 'Y': 2, axis_types=(Explicit, Explicit)), spec=P('X', 'Y'), "
        "memory_kind=device)"
    )
    assert str(NamedSharding(MESH.abstract_mesh, P("X", "Y"))) == (
        "NamedSharding(mesh=AbstractMesh('X': 4, 'Y': 2, axis_types=(Explicit, Explicit), device_kind=cpu, "
        "num_cores=None, platform=cpu), spec=P('X', 'Y'))"
    )
    one = SingleDeviceSharding(Device(0))
    assert str(one) == "SingleDeviceSharding(device=CpuDevice(id=0), memory_kind=device)"


@pytest.mark.parametrize(
    ("mesh", "spec", "error", "phrase"),
    [
        (MESH, P("X", "X"), DuplicateSpecError, "at most one positional dimension.* has duplicate entries for `X`"),
        (MESH, P(("X", "X")), DuplicateSpecError, "duplicate entries for `X`"),
        (MESH, P(("X", "Y"), "Y"), DuplicateSpecError, "duplicate entries for `Y`"),
        (MESH, P(("Z", "X"), "X"), DuplicateSpecError, "duplicate entries for `X`"),
        (MESH, P("Z"), ValueError, r"Resource axis: Z of P\('Z',\) is not found in mesh: \('X', 'Y'\)"),
        (MESH, P((None, "X")), ValueError, "Resource axis: None"),
        (MESH, P(unreduced={"Z"}), ValueError, "Unreduced axes Z is not found"),
        (MESH, P(reduced={"Z"}), ValueError, "Reduced axes Z is not found"),
        (
            MIXED,
            P("X", unreduced={"Y"}),
            ValueError,
            "Unreduced .*can only refer to mesh axes that is of type `Explicit`",
        ),
        (MIXED, P("X", reduced={"Y"}), ValueError, "Reduced .*can only refer to mesh axes that is of type `Explicit`"),
        (MANUAL, P(unreduced={"Y"}), ValueError, "can only refer to mesh axes that is of type `Explicit`"),
        (MESH, P(P.UNCONSTRAINED), ValueError, "cannot contain `P.UNCONSTRAINED` when no mesh axis_types are `Auto`"),
        (MESH, ("X",), TypeError, "`spec` must be a PartitionSpec"),
        (MESH, None, TypeError, "`spec` must be a PartitionSpec"),
        ("mesh", P("X"), TypeError, "`mesh` must be a Mesh"),
        (meshes.EMPTY_MESH, P("X"), ValueError, r"not found in mesh: \(\)"),
    ],
)
def test_binding_errors(mesh, spec, error, phrase):
    with pytest.raises(error, match=phrase):
        NamedSharding(mesh, spec)
    assert not issubclass(DuplicateSpecError, ValueError)


def test_bindings_that_are_fine():
    assert NamedSharding(MIXED, P(P.UNCONSTRAINED, "X")).shard_shape((3, 8)) == (3, 2)
    assert NamedSharding(MIXED, P("Y", unreduced={"X"})).shard_shape((8,)) == (4,)
    assert NamedSharding(MANUAL, P("Y")).shard_shape((8,)) == (4,)
    with pytest.raises(ValueError, match="memory kinds: device, pinned_host"):
        NamedSharding(MESH, P(), memory_kind="fast")
    with pytest.raises(ValueError, match="memory kinds"):
        NamedSharding(MESH, P()).with_memory_kind("fast")


def test_shard_shape():
    for spec, want in [
        (P(), (16, 24)),
        (P("X"), (4, 24)),
        (P(None, "X"), (16, 6)),
        (P("Y", "X"), (8, 6)),
        (P(("X", "Y")), (2, 24)),
        (P(None, ("Y", "X")), (16, 3)),
    ]:
        assert NamedSharding(MESH, spec).shard_shape((16, 24)) == want
        assert NamedSharding(MESH.abstract_mesh, spec).shard_shape([16, 24]) == want
    assert NamedSharding(MESH, P("X")).shard_shape((0, 5)) == (0, 5)
    phrase = "implies that array axis 0 is partitioned 4 times, but the dimension size is 6"
    with pytest.raises(IndivisibleError, match=phrase):
        NamedSharding(MESH, P("X")).shard_shape((6,))
    with pytest.raises(ValueError, match="valid for values of rank at least 2, but was applied to a value of rank 1"):
        NamedSharding(MESH, P("X", None)).shard_shape((8,))
    assert issubclass(IndivisibleError, ValueError)


def test_rank_and_divisibility_checks():
    s = NamedSharding(MESH, P("X", "Y"))
    divisible_or_raise((8, 4), s)
    divisible_or_raise((3,), SingleDeviceSharding(Device(0)))
    phrase = "move: .*implies that array axis 1 is partitioned 2 times, but does not evenly divide the dimension size 5"
    with pytest.raises(ValueError, match=phrase):
        divisible_or_raise((8, 5), s, where="move: ")
    with pytest.raises(
        ValueError, match=r"rank at least 1, but was applied to .*rank 0.*scalars the spec should be P\(\)"
    ):
        check_rank(P(None), 0)
    check_rank(P(), 0)


@pytest.mark.parametrize("mesh", [MESH, CUBE, make_mesh((8, 1), ("X", "Y"), devices=DEVICES[::-1])], ids=str)
def test_indices_against_mixed_radix_numbers(mesh):
    shape = (8, 16)
    sizes = dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True))
    count = 0
    for spec in all_specs(mesh.axis_names, 2):
        s = NamedSharding(mesh, spec)
        got = s.devices_indices_map(shape)
        assert list(got) == list(mesh.devices.flat)
        for where in np.ndindex(mesh.axis_sizes):
            coords = dict(zip(mesh.axis_names, where, strict=True))
            want = []
            for d, size in enumerate(shape):
                names = spec.dims[d] if d < len(spec) else ()
                n = int(np.prod([sizes[a] for a in names], dtype=int))
                number = np.ravel_multi_index([coords[a] for a in names], [sizes[a] for a in names]) if names else 0
                step = size // n
                want.append(slice(number * step, (number + 1) * step) if n > 1 else slice(None))
            device = mesh.devices[where]
            assert got[device] == tuple(want), (spec, where)
            position = mesh.position(device.id)
            assert s.index_of(position, shape) == tuple(want) == s.indices(shape)[position]
        count += 1
    assert count > 10


def test_first_axis_of_a_tuple_is_the_most_significant():
    index = NamedSharding(MESH, P(("Y", "X"))).devices_indices_map((8,))
    assert [index[d][0].start for d in DEVICES] == [0, 4, 1, 5, 2, 6, 3, 7]
    assert block_number({"X": 4, "Y": 2}, {"X": 3, "Y": 1}, ("X", "Y")) == 7
    assert block_number({"X": 4, "Y": 2}, {"X": 1, "Y": 1}, ("Y", "X")) == 5
    assert block_number({"X": 4}, {"X": 1}, ()) == 0


@pytest.mark.parametrize("mesh", [MESH, CUBE], ids=str)
def test_blocks_put_together_are_the_array(mesh):
    """Every element is held by as many devices as there are replicas, numbered 0, 1, 2, ..."""
    shape = (8, 16)
    for spec in all_specs(mesh.axis_names, 2):
        s = NamedSharding(mesh, spec)
        copies = mesh.size // s.num_shards
        seen = np.zeros((copies, *shape), dtype=int)
        for position, index in enumerate(s.indices(shape)):
            assert seen[s.replica_id(position, shape)][index].shape == s.shard_shape(shape)
            seen[s.replica_id(position, shape)][index] += 1
        assert (seen == 1).all(), spec


def test_unreduced_axes_do_not_influence_the_indices():
    with_sum, without = NamedSharding(MESH, P("X", unreduced={"Y"})), NamedSharding(MESH, P("X"))
    assert with_sum.devices_indices_map((8, 2)) == without.devices_indices_map((8, 2))


def test_is_fully_replicated():
    long = make_mesh((8, 1), ("X", "Y"), devices=DEVICES)
    cases = {P(): True, P("Y"): True, P(reduced={"X"}): True, P(unreduced={"Y"}): False, P("X"): False}
    for spec, want in cases.items():
        assert NamedSharding(long, spec).is_fully_replicated is want, spec
    one = make_mesh((1,), ("X",), devices=DEVICES)
    assert NamedSharding(one, P("X")).is_fully_replicated
    assert NamedSharding(MESH.abstract_mesh, P(None)).is_fully_replicated


def test_addressable(monkeypatch):
    sub = make_mesh((2,), ("x",), devices=DEVICES[2:])
    s = NamedSharding(sub, P("x"))
    monkeypatch.setattr(meshes, "process_rank", lambda: 3)
    assert s.addressable_devices == {Device(3)} and not s.is_fully_addressable
    assert s.addressable_devices_indices_map((4,)) == {Device(3): (slice(2, 4),)}
    assert SingleDeviceSharding(Device(3)).is_fully_addressable
    assert not SingleDeviceSharding(Device(0)).is_fully_addressable
    assert NamedSharding(make_mesh((1,), ("x",), devices=DEVICES[3:]), P("x")).is_fully_addressable
    assert not NamedSharding(make_mesh((1,), ("x",), devices=DEVICES), P("x")).is_fully_addressable
    monkeypatch.setattr(meshes, "process_rank", lambda: 0)
    assert s.addressable_devices == set() and s.addressable_devices_indices_map((4,)) == {}
    assert SingleDeviceSharding(Device(3)).addressable_devices == set()


def test_abstract_meshes_have_no_devices():
    s = NamedSharding(MESH.abstract_mesh, P("X"))
    for read in (
        lambda: s.device_set,
        lambda: s.is_fully_addressable,
        lambda: s.addressable_devices,
        lambda: s.devices_indices_map((8,)),
    ):
        with pytest.raises(ValueError, match=r"not implemented for `jax\.sharding\.AbstractMesh`"):
            read()
    assert s.num_devices == 8 and s.memory_kind is None
    assert s.index_of(3, (8,)) == (slice(2, 4),)
    big = NamedSharding(AbstractMesh((64, 64), ("X", "Y")), P(("X", "Y")))
    assert big.shard_shape((8192,)) == (2,) and big.index_of(65, (8192,)) == (slice(130, 132),)


def test_single_device_sharding():
    s = SingleDeviceSharding(Device(2))
    assert s is SingleDeviceSharding(Device(2), memory_kind="device") and s != SingleDeviceSharding(Device(1))
    assert s.is_fully_replicated and s.num_devices == 1 and s.device_set == {Device(2)}
    assert s.shard_shape((4, 3)) == (4, 3)
    assert s.devices_indices_map((4, 3)) == {Device(2): (slice(None), slice(None))}
    with pytest.raises(TypeError, match="must be a device"):
        SingleDeviceSharding(3)


def test_equivalence():
    s = NamedSharding(MESH, P("X"))
    other_names = make_mesh((4, 2), ("u", "v"), devices=DEVICES)
    finer = CUBE
    assert s.is_equivalent_to(NamedSharding(MESH, P("X", None)), 2)
    assert not s.is_equivalent_to(NamedSharding(MESH, P(None, "X")), 2)
    assert s.is_equivalent_to(NamedSharding(other_names, P("u")), 2)
    assert s.is_equivalent_to(NamedSharding(finer, P(("a", "b"))), 1)
    assert not s.is_equivalent_to(NamedSharding(finer, P(("b", "a"))), 1)
    assert not s.is_equivalent_to(NamedSharding(MESH, P("Y")), 1)
    backwards = make_mesh((4, 2), ("X", "Y"), devices=DEVICES[::-1])
    assert not s.is_equivalent_to(NamedSharding(backwards, P("X")), 1)
    assert NamedSharding(MESH, P()).is_equivalent_to(NamedSharding(backwards, P()), 1)
    assert not s.is_equivalent_to(NamedSharding(make_mesh((4,), ("X",), devices=DEVICES), P("X")), 1)
    assert NamedSharding(MESH, P(("X", "Y"))).is_equivalent_to(NamedSharding(Mesh(DEVICES, "A"), P("A")), 1)
    with pytest.raises(TypeError, match="must be a Sharding"):
        s.is_equivalent_to(P("X"), 1)


def test_equivalence_of_sums():
    plain, summed = NamedSharding(MESH, P()), NamedSharding(MESH, P(unreduced={"Y"}))
    assert not plain.is_equivalent_to(summed, 1) and not summed.is_equivalent_to(plain, 1)
    assert not summed.is_equivalent_to(NamedSharding(MESH, P(unreduced={"X"})), 1)
    other_names = make_mesh((4, 2), ("u", "v"), devices=DEVICES)
    assert summed.is_equivalent_to(NamedSharding(other_names, P(unreduced={"v"})), 1)
    assert plain.is_equivalent_to(NamedSharding(MESH, P(reduced={"Y"})), 1)
    long = make_mesh((8, 1), ("X", "Y"), devices=DEVICES)
    assert NamedSharding(long, P(unreduced={"Y"})).is_equivalent_to(NamedSharding(long, P(None)), 1)


def test_equivalence_with_one_device():
    one = NamedSharding(make_mesh((1,), ("x",), devices=DEVICES[3:]), P("x"))
    assert one.is_equivalent_to(SingleDeviceSharding(Device(3)), 1)
    assert SingleDeviceSharding(Device(3)).is_equivalent_to(one, 2)
    assert not one.is_equivalent_to(SingleDeviceSharding(Device(0)), 1)


def test_immutable_copies_pickles():
    for s in (
        NamedSharding(MESH, P("X", unreduced={"Y"})),
        NamedSharding(MESH.abstract_mesh, P(("Y", "X"))),
        SingleDeviceSharding(Device(4)),
    ):
        assert pickle.loads(pickle.dumps(s)) is s and copy.copy(s) is s and copy.deepcopy(s) is s
        with pytest.raises(AttributeError, match="immutable"):
            s.memory_kind = "device"
