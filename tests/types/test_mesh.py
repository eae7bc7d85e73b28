"""Devices, meshes and abstract meshes: construction, identity, texts, misuse. No arrays, no ranks."""

import copy
import pickle
from collections import OrderedDict

import numpy as np
import pytest

from mpiarray.types import mesh as meshes
from mpiarray.types.mesh import (
    EMPTY_ABSTRACT_MESH,
    EMPTY_MESH,
    AbstractDevice,
    AbstractMesh,
    AxisType,
    Device,
    Mesh,
    make_mesh,
)

DEVICES = [Device(k) for k in range(8)]
EXPLICIT, AUTO, MANUAL = AxisType.Explicit, AxisType.Auto, AxisType.Manual


def mesh42(types=None, names=("X", "Y")):
    return make_mesh((4, 2), names, types, devices=DEVICES)


def grid(*shape):
    out = np.empty(len(DEVICES), dtype=object)
    out[:] = DEVICES
    return out.reshape(shape)


def test_device():
    d = Device(3)
    assert d is Device(3) and d != Device(2) and len({Device(3), Device(3), Device(1)}) == 2
    assert (str(d), repr(d)) == ("cpu:3", "CpuDevice(id=3)")
    assert (d.id, d.process_index, d.platform, d.device_kind) == (3, 3, "cpu", "cpu")
    with pytest.raises(AttributeError, match="immutable"):
        d.id = 4
    assert Device(np.int64(3)) is d and type(Device(np.int64(77)).id) is int


def test_axis_type_texts():
    assert [t.name for t in AxisType] == ["Auto", "Explicit", "Manual"]
    assert [repr(t) for t in AxisType] == ["Auto", "Explicit", "Manual"]
    assert [str(t) for t in AxisType] == ["AxisType.Auto", "AxisType.Explicit", "AxisType.Manual"]


def test_mesh_attributes():
    m = mesh42()
    assert m.axis_names == ("X", "Y") and m.axis_sizes == (4, 2) and m.axis_types == (EXPLICIT, EXPLICIT)
    assert m.shape == OrderedDict([("X", 4), ("Y", 2)]) and list(m.shape) == ["X", "Y"]
    assert m.shape_tuple == (("X", 4), ("Y", 2)) and m.size == 8 and m.empty is False
    np.testing.assert_array_equal(m.device_ids, [[0, 1], [2, 3], [4, 5], [6, 7]])
    assert m.flat_ids == (0, 1, 2, 3, 4, 5, 6, 7) and m.devices.shape == (4, 2)
    assert m.devices[1, 0] is Device(2)
    assert m.is_multi_process and not make_mesh((1,), ("x",), devices=DEVICES).is_multi_process
    assert m.are_all_axes_explicit and not m.are_all_axes_auto and not m.are_all_axes_manual
    mixed = make_mesh((2, 2, 2), ("a", "b", "c"), (AUTO, MANUAL, EXPLICIT), devices=DEVICES)
    assert (mixed.explicit_axes, mixed.auto_axes, mixed.manual_axes) == (("c",), ("a",), ("b",))
    assert not mixed.are_all_axes_explicit
    with pytest.raises(ValueError, match="read-only"):
        m.devices[0, 0] = Device(1)


def test_default_axis_types():
    assert mesh42().axis_types == (EXPLICIT, EXPLICIT)
    assert Mesh(grid(4, 2), ("X", "Y")).axis_types == (AUTO, AUTO)
    assert AbstractMesh((4, 2), ("X", "Y")).axis_types == (AUTO, AUTO)


def test_ways_of_writing_a_mesh():
    assert make_mesh([2, 4], ["a", "b"], devices=DEVICES) is make_mesh((2, 4), ("a", "b"), devices=DEVICES)
    assert Mesh(DEVICES, "A") is Mesh(grid(8), ("A",), (AUTO,)) is Mesh(DEVICES, ["A"], AUTO)
    assert Mesh([[DEVICES[0], DEVICES[1]]], ("a", "b")).axis_sizes == (1, 2)
    assert AbstractMesh((8,), "A", EXPLICIT) is AbstractMesh([8], ["A"], [EXPLICIT])
    fewer = make_mesh((2, 2), ("x", "y"), devices=DEVICES)
    assert fewer.flat_ids == (0, 1, 2, 3)
    assert make_mesh((4,), ("x",), devices=DEVICES[4:]).flat_ids == (4, 5, 6, 7)


def test_equal_meshes_are_one_object():
    m = mesh42()
    assert m is mesh42() and m is Mesh(grid(4, 2), ("X", "Y"), (EXPLICIT, EXPLICIT))
    others = [
        make_mesh((2, 4), ("X", "Y"), devices=DEVICES),
        mesh42(names=("Y", "X")),
        mesh42((AUTO, AUTO)),
        make_mesh((2, 2), ("X", "Y"), devices=DEVICES),
        make_mesh((4, 2), ("X", "Y"), devices=DEVICES[::-1]),
    ]
    assert all(m != other for other in others) and len({m, mesh42(), *others}) == 6


def test_abstract_mesh_of_a_mesh_carries_the_device_kind():
    m = mesh42()
    by_hand = AbstractMesh((4, 2), ("X", "Y"), (EXPLICIT, EXPLICIT))
    assert m.abstract_mesh != by_hand and m.abstract_mesh.same_axes(by_hand) and by_hand.same_axes(m)
    assert m.abstract_mesh is make_mesh((4, 2), ("X", "Y"), devices=DEVICES[::-1]).abstract_mesh
    assert m.abstract_mesh.abstract_device is AbstractDevice("cpu")
    assert m.abstract_mesh.abstract_mesh is m.abstract_mesh
    assert not m.same_axes(mesh42((AUTO, EXPLICIT))) and not m.same_axes(mesh42(names=("X", "Z")))
    assert not by_hand.same_axes(AbstractMesh((2, 4), ("X", "Y"), (EXPLICIT, EXPLICIT)))


def test_texts():
    m = mesh42()
    assert str(m) == "Mesh('X': 4, 'Y': 2, axis_types=(Explicit, Explicit))"
    assert repr(m) == "Mesh(axis_sizes=(4, 2), axis_names=('X', 'Y'), axis_types=(Explicit, Explicit))"
    assert str(Mesh(DEVICES, "A", EXPLICIT)) == "Mesh('A': 8, axis_types=(Explicit,))"
    assert (
        str(m.abstract_mesh)
        == repr(m.abstract_mesh)
        == (
            "AbstractMesh('X': 4, 'Y': 2, axis_types=(Explicit, Explicit), device_kind=cpu, num_cores=None, "
            "platform=cpu)"
        )
    )
    assert str(AbstractMesh((8,), ("A",), (EXPLICIT,))) == "AbstractMesh('A': 8, axis_types=(Explicit,))"
    assert (str(EMPTY_MESH), repr(EMPTY_MESH)) == ("Mesh()", "Mesh(axis_sizes=(), axis_names=())")
    assert str(EMPTY_ABSTRACT_MESH) == repr(EMPTY_ABSTRACT_MESH) == "AbstractMesh((), axis_types=())"
    assert repr(AbstractDevice("cpu")) == "AbstractDevice(device_kind=cpu, num_cores=None, platform=cpu)"


def test_empty_meshes():
    for m in (EMPTY_MESH, EMPTY_ABSTRACT_MESH):
        assert m.empty and m.size == 0 and m.axis_names == () and m.shape == {}
        assert not m.are_all_axes_explicit and not m.are_all_axes_auto and not m.are_all_axes_manual
    assert EMPTY_MESH.abstract_mesh is EMPTY_ABSTRACT_MESH and EMPTY_MESH.flat_ids == ()
    assert EMPTY_MESH.local_devices == [] and Mesh(np.empty((), dtype=object), ()) is EMPTY_MESH


def test_updates():
    m = mesh42()
    assert m.update(axis_types=(AUTO, AUTO)) is mesh42((AUTO, AUTO))
    assert m.update(devices=grid(2, 4)).axis_sizes == (2, 4)
    assert m.update(axis_names=("a", "b")) is mesh42(names=("a", "b"))
    assert m.update_axis_types({"Y": AUTO}) is mesh42((EXPLICIT, AUTO))
    changed = m.abstract_mesh.update_axis_types({"X": MANUAL, "elsewhere": AUTO})
    assert changed.axis_types == (MANUAL, EXPLICIT) and changed.abstract_device is AbstractDevice("cpu")
    assert changed is mesh42((MANUAL, EXPLICIT)).abstract_mesh
    assert m.abstract_mesh.update(axis_sizes=(8,), axis_names=("A",), axis_types=AUTO).shape_tuple == (("A", 8),)
    with pytest.raises(TypeError, match=r"jax\.sharding\.AxisType"):
        m.abstract_mesh.update_axis_types({"X": "Auto"})


@pytest.mark.parametrize(
    ("make", "error", "phrase"),
    [
        (lambda: make_mesh((16,), ("x",), devices=DEVICES), ValueError, "Number of devices 8 must be >= the product"),
        (lambda: make_mesh((4, 2), ("x",), devices=DEVICES), ValueError, "as many axis_names as axis_sizes"),
        (lambda: make_mesh((4, 2), ("x", "x"), devices=DEVICES), ValueError, "mesh axis names must be unique"),
        (lambda: make_mesh((4, 0), ("x", "y"), devices=DEVICES), ValueError, "at least 1"),
        (lambda: Mesh(grid(4, 2), ("X",)), ValueError, "ndim of its first argument .* equal the length of its second"),
        (lambda: Mesh(grid(4, 2), ("X", "Y"), (AUTO,)), ValueError, "Number of axis names should match the number of"),
        (lambda: Mesh(grid(4, 2), ("X", "Y"), ("a", "b")), TypeError, "must be of type `jax.sharding.AxisType`"),
        (lambda: Mesh(grid(4, 2), ("X", None)), ValueError, "cannot be None"),
        (lambda: Mesh(grid(4, 2), ("X", "X")), ValueError, "mesh axis names must be unique"),
        (lambda: Mesh([1, 2], ("X",)), TypeError, "`devices` must hold devices"),
        (lambda: Mesh([DEVICES[0], DEVICES[0]], ("X",)), ValueError, "only once"),
        (lambda: AbstractMesh((4, 2), ("X",)), ValueError, "as many axis_names"),
        (lambda: AbstractMesh((4, 2), ("X", "Y"), EXPLICIT), ValueError, "Number of axis names should match"),
        (lambda: AbstractMesh((4, 2), ("X", "Y"), (EXPLICIT, 3)), TypeError, "jax.sharding.AxisType"),
        (lambda: AbstractMesh((4, 2), ("X", "X")), ValueError, "mesh axis names must be unique"),
    ],
)
def test_misuse(make, error, phrase):
    with pytest.raises(error, match=phrase):
        make()


@pytest.mark.parametrize("name", ["devices", "device_ids", "is_multi_process", "local_mesh", "local_devices"])
def test_abstract_mesh_has_no_devices(name):
    with pytest.raises(ValueError, match=f"AbstractMesh does not implement {name}"):
        getattr(AbstractMesh((2,), ("x",)), name)


def test_coords_and_positions():
    m = make_mesh((2, 2, 2), ("a", "b", "c"), devices=DEVICES[::-1])
    for position in range(8):
        assert m.coords(position) == np.unravel_index(position, (2, 2, 2))
        assert m.position(7 - position) == position
    assert m.position(8) is None
    assert m.ordered({"c", "a"}) == ("a", "c") and m.ordered(["z", "c", "q"]) == ("c", "q", "z")


def test_local_devices_follow_the_rank(monkeypatch):
    m = make_mesh((2, 2), ("x", "y"), devices=DEVICES[2:])
    monkeypatch.setattr(meshes, "process_rank", lambda: 4)
    assert m.local_devices == [Device(4)] and m.local_mesh.flat_ids == (4,)
    assert m.local_mesh.shape_tuple == (("x", 1), ("y", 1))
    monkeypatch.setattr(meshes, "process_rank", lambda: 0)
    assert m.local_devices == [] and m.local_mesh is EMPTY_MESH


def test_copies_and_pickles_are_the_same_object():
    for x in (
        mesh42(),
        mesh42().abstract_mesh,
        EMPTY_MESH,
        EMPTY_ABSTRACT_MESH,
        Device(5),
        AbstractDevice("cpu"),
        AUTO,
    ):
        assert pickle.loads(pickle.dumps(x)) is x and copy.copy(x) is x and copy.deepcopy(x) is x
    assert copy.deepcopy({"m": [mesh42()]})["m"][0] is mesh42()


def test_immutable():
    m = mesh42()
    for x in (m, m.abstract_mesh):
        with pytest.raises(AttributeError, match="immutable"):
            x.axis_names = ("a", "b")
        with pytest.raises(AttributeError, match="immutable"):
            del x.axis_names


def test_with_mesh_enters_the_context_of_auto_meshes(monkeypatch):
    log = []

    class Context:
        def __init__(self, mesh):
            self.mesh = mesh

        def __enter__(self):
            log.append(("enter", self.mesh))

        def __exit__(self, *exc):
            log.append(("exit", self.mesh, exc[0]))

    monkeypatch.setattr(meshes, "mesh_context", Context)
    m, n = mesh42((AUTO, AUTO)), Mesh(DEVICES, "A")
    with pytest.warns(DeprecationWarning, match="set_mesh"), m, n:
        pass
    with pytest.warns(DeprecationWarning), pytest.raises(KeyError), m:
        raise KeyError
    assert log == [
        ("enter", m),
        ("enter", n),
        ("exit", n, None),
        ("exit", m, None),
        ("enter", m),
        ("exit", m, KeyError),
    ]
    with pytest.raises(RuntimeError, match=r"jax\.set_mesh"), mesh42():
        pass
