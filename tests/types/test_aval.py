"""ShapedArray, ManualAxisType and ShapeDtypeStruct: identity, texts, what types show, misuse."""

import copy
import gc
import pickle

import ml_dtypes
import numpy as np
import pytest

from mpiarray.types import aval as avals
from mpiarray.types import dtypes
from mpiarray.types.aval import NOT_MANUAL, ManualAxisType, ShapedArray, ShapeDtypeStruct, local_shape
from mpiarray.types.layout import Format, Layout
from mpiarray.types.mesh import EMPTY_ABSTRACT_MESH, AxisType, Device, make_mesh
from mpiarray.types.partition_spec import P
from mpiarray.types.sharding import NamedSharding, SingleDeviceSharding

DEVICES = [Device(k) for k in range(8)]
E, A, M = AxisType.Explicit, AxisType.Auto, AxisType.Manual
F32 = np.dtype(np.float32)


def mesh(types=(E, E)):
    return make_mesh((4, 2), ("X", "Y"), types, devices=DEVICES)


def typed(shape, spec, types=(E, E), **kwargs):
    return ShapedArray(shape, F32, sharding=NamedSharding(mesh(types).abstract_mesh, spec), **kwargs)


@pytest.mark.parametrize(
    ("aval", "text"),
    [
        (ShapedArray((8, 4), F32), "float32[8,4]"),
        (ShapedArray((), np.int32), "int32[]"),
        (ShapedArray((), np.float32, True), "~float32[]"),
        (typed((8, 4), P("X", "Y")), "float32[8@X,4@Y]"),
        (typed((8, 4), P(("X", "Y"))), "float32[8@(X,Y),4]"),
        (typed((8, 4), P(("Y", "X"))), "float32[8@(Y,X),4]"),
        (typed((8, 4), P("X", unreduced={"Y"})), "float32[8@X,4]{U:Y}"),
        (typed((8, 4), P("X", reduced={"Y"})), "float32[8@X,4]{R:Y}"),
        (typed((8,), P(unreduced={"Y", "X"})), "float32[8]{U:(X,Y)}"),
        (typed((8,), P(unreduced={"Y"}, reduced={"X"})), "float32[8]{U:Y, R:X}"),
        (typed((2, 2), P(), (M, M), manual=ManualAxisType({"Y", "X"})), "float32[2,2]{V:(X,Y)}"),
        (typed((8, 2), P(), (M, M), manual=ManualAxisType({"Y"}, (), {"X"})), "float32[8,2]{V:Y, R:X}"),
        (typed((2, 2), P(), (M, M), manual=ManualAxisType({"Y"}, {"X"})), "float32[2,2]{V:Y, U:X}"),
        (typed((2, 4), P(None, "Y"), (M, E), manual=ManualAxisType({"X"})), "float32[2,4@Y]{V:X}"),
        (typed((2,), P(unreduced={"Y"}), (M, E), manual=ManualAxisType((), {"X"})), "float32[2]{U:(X,Y)}"),
        (typed((8, 4), P("X", "Y"), (E, A)), "float32[8@X,4]"),
        (typed((8, 4), P(("X", "Y")), (E, A)), "float32[8@X,4]"),
        (typed((8, 4), P(P.UNCONSTRAINED, "X"), (E, A)), "float32[8,4@X]"),
        (typed((8, 4), P("X", "Y"), (A, A)), "float32[8,4]"),
        (ShapedArray((2,), dtypes.KeyDtype("fry")), "key<fry>[2]"),
        (ShapedArray((3,), dtypes.float0), "float0[3]"),
        (ShapedArray((3,), ml_dtypes.bfloat16), "bfloat16[3]"),
        (ShapedArray((3,), np.bool_), "bool[3]"),
    ],
)
def test_texts(aval, text):
    assert str(aval) == text
    bare = text.removeprefix("~")
    assert aval.str_short() == bare
    assert repr(aval) == f"ShapedArray({bare}{', weak_type=True' if text[0] == '~' else ''})"


def test_short_texts():
    assert typed((8, 4), P("X", "Y")).short() == "f32[8@X,4@Y]" == typed((8, 4), P("X", "Y")).str_short(True)
    assert typed((8, 4), P("X", "Y")).str_short(short_dtypes=True) == "f32[8@X,4@Y]"
    assert ShapedArray((), np.float32, True).short() == "f32[]"
    names = [
        (np.int32, "i32"),
        (np.uint8, "u8"),
        (np.complex64, "c64"),
        (ml_dtypes.bfloat16, "bf16"),
        (np.bool_, "bool"),
    ]
    for dtype, name in names:
        assert ShapedArray((1,), dtype).short() == f"{name}[1]"


def test_size_1_axes_show():
    m = make_mesh((8, 1), ("X", "Y"), devices=DEVICES)
    assert str(ShapedArray((8, 4), F32, sharding=NamedSharding(m.abstract_mesh, P("X", "Y")))) == "float32[8@X,4@Y]"


def test_fields():
    t = typed((8, 4), P("X", unreduced={"Y"}))
    assert t.shape == (8, 4) and t.dtype == F32 and t.weak_type is False
    assert t.ndim == 2 and t.size == 32 and t.nbytes == 128 and t.itemsize == 4
    assert t.sharding is NamedSharding(mesh().abstract_mesh, P("X", None, unreduced={"Y"}))
    assert t.dims == (("X",), ()) == t.sharding.spec.dims and t.mesh is mesh().abstract_mesh
    assert t.unreduced == {"Y"} and t.reduced == frozenset()
    assert t.manual is t.manual_axis_type is t.mat is NOT_MANUAL and t.vma == frozenset()
    assert local_shape(t) == (2, 4)
    inside = typed((2, 4), P(None, "Y"), (M, E), manual=ManualAxisType({"X"}))
    assert inside.vma == {"X"} and inside.mat.varying == {"X"} and local_shape(inside) == (2, 2)
    scalar = ShapedArray((), np.float64)
    assert scalar.size == 1 and scalar.ndim == 0 and scalar.dtype == np.float64 and local_shape(scalar) == ()
    assert scalar.sharding is NamedSharding(EMPTY_ABSTRACT_MESH, P()) and scalar.mesh is EMPTY_ABSTRACT_MESH
    assert ShapedArray((3, 2), F32).sharding.spec is P(None, None)
    assert ShapedArray((5,), dtypes.KeyDtype("fry")).nbytes == 40


def test_equal_types_are_one_object():
    t = typed((8, 4), P("X"))
    same = [
        typed((8, 4), P("X", None)),
        typed([8, 4], P("X")),
        typed((np.int64(8), 4), P("X")),
        ShapedArray((8, 4), "float32", sharding=NamedSharding(mesh().abstract_mesh, P("X"))),
        ShapedArray((8, 4), np.float32, False, NamedSharding(mesh().abstract_mesh, P("X", None)), NOT_MANUAL),
        ShapedArray((8, 4), F32, np.bool_(False), NamedSharding(mesh().abstract_mesh, P("X", None))),
        t.update(),
    ]
    assert all(other is t for other in same) and type(t.shape[0]) is int and t.weak_type is False
    different = [
        t,
        t.update(weak_type=True),
        t.update(dtype=np.int32),
        t.update(shape=(8, 8)),
        typed((8, 4), P("Y")),
        typed((8, 4), P("X", unreduced={"Y"})),
        typed((8, 4), P("X"), (E, M), manual=ManualAxisType({"Y"})),
        typed((8, 4), P("X"), (E, M)),
        ShapedArray((8, 4), F32),
    ]
    assert len(set(different)) == len(different)
    by_value = {t: "found"}
    assert by_value[typed((8, 4), P("X", None))] == "found"


def test_types_first_seen_in_another_way_of_writing():
    """A table entry made from numpy ints and a list must not leak them into the type."""
    t = ShapedArray([np.int32(123), np.int64(77)], "int32", 1)
    assert t is ShapedArray((123, 77), np.int32, True)
    assert all(type(n) is int for n in t.shape) and t.weak_type is True and isinstance(t.dtype, np.dtype)


def test_types_stay_the_same_object_after_a_collection():
    where = id(ShapedArray((17, 19), np.int16))
    gc.collect()
    assert id(ShapedArray((17, 19), np.int16)) == where


def test_update():
    t = typed((8, 4), P("X"))
    assert t.update(shape=(4, 6)) is typed((4, 6), P("X"))
    assert t.update(weak_type=True).strip_weak_type() is t and t.strip_weak_type() is t
    assert t.update(sharding=NamedSharding(mesh().abstract_mesh, P("Y"))) is typed((8, 4), P("Y"))
    assert typed((8, 4), P()).update(shape=(3,)) is typed((3,), P())
    v = ManualAxisType({"X"})
    assert t.update(manual=v) is t.update(manual_axis_type=v) and t.update(manual=v).mat is v
    assert t.update(manual=v).update(manual=NOT_MANUAL) is t
    with pytest.raises(ValueError, match="partitioned 4 times, but does not evenly divide the dimension size 3"):
        t.update(shape=(3, 4))
    with pytest.raises(ValueError, match="needs a sharding"):
        t.update(shape=(8,))


@pytest.mark.parametrize(
    ("make", "error", "phrase"),
    [
        (lambda: typed((6,), P("X")), ValueError, "array axis 0 is partitioned 4 times, but does not evenly divide"),
        (lambda: typed((8,), P("X", "Y")), ValueError, "valid for values of rank at least 2, .* a value of rank 1"),
        (lambda: typed((), P("X")), ValueError, r"For scalars the spec should be P\(\)"),
        (lambda: ShapedArray((8,), F32, sharding=NamedSharding(mesh(), P())), ValueError, "must be an AbstractMesh"),
        (lambda: ShapedArray((8,), F32, sharding=P("X")), TypeError, "must be a NamedSharding"),
        (lambda: ShapedArray((1.5,), F32), TypeError, "Shapes must be 1D sequences of concrete values"),
        (lambda: ShapedArray(4, F32), TypeError, "Shapes must be 1D sequences"),
        (lambda: ShapedArray((-1,), F32), ValueError, "at least 0"),
        (lambda: ShapedArray((1,), None), TypeError, "dtype must be specified"),
        (lambda: ShapedArray((1,), "nonsense"), TypeError, "nonsense"),
        (lambda: ShapedArray((1,), F32, manual={"X"}), TypeError, "must be a ManualAxisType"),
        (lambda: ManualAxisType({"X"}, {"X"}), ValueError, "one of varying"),
        (lambda: ManualAxisType((), {"X"}, {"X"}), ValueError, "one of varying"),
    ],
)
def test_misuse(make, error, phrase):
    with pytest.raises(error, match=phrase):
        make()


def test_the_checks_of_a_sharding_look_at_visible_axes_only():
    """An Auto axis does not show, so it does not have to divide."""
    assert typed((4, 3), P("X", "Y"), (E, A)).dims == (("X",), ())


def test_manual_axis_type():
    v = ManualAxisType(["a", "b"])
    assert v is ManualAxisType(frozenset("ba")) and v.update(reduced={"c"}) is ManualAxisType("ab", (), "c")
    assert bool(v) and not bool(NOT_MANUAL) and ManualAxisType() is NOT_MANUAL
    assert repr(NOT_MANUAL) == "ManualAxisType(varying=frozenset(), unreduced=frozenset(), reduced=frozenset())"


def test_immutable_copies_pickles():
    t = typed((2, 4), P(None, "Y"), (M, E), manual=ManualAxisType({"X"}), weak_type=True)
    for x in (t, t.manual, ShapedArray((3,), dtypes.KeyDtype("fry"))):
        assert pickle.loads(pickle.dumps(x)) is x and copy.copy(x) is x and copy.deepcopy(x) is x
    with pytest.raises(AttributeError, match="immutable"):
        t.shape = (1,)


def struct_text(sharding):
    return f"ShapeDtypeStruct(shape=(4,), dtype=float32, sharding={sharding})"


def test_shape_dtype_struct():
    s = ShapeDtypeStruct((4,), np.float32)
    assert repr(s) == "ShapeDtypeStruct(shape=(4,), dtype=float32)"
    assert s.shape == (4,) and s.dtype == F32 and s.sharding is None and s.weak_type is False
    assert len(s) == 4 and s.ndim == 1 and s.size == 4
    assert ShapeDtypeStruct([4, 2], "int32").size == 8 and ShapeDtypeStruct([4, 2], "int32").shape == (4, 2)
    assert repr(ShapeDtypeStruct((), np.float64)) == "ShapeDtypeStruct(shape=(), dtype=float64)"
    assert repr(s.update(weak_type=True)) == "ShapeDtypeStruct(shape=(4,), dtype=float32, weak_type=True)"
    assert repr(ShapeDtypeStruct((4,), dtypes.KeyDtype("fry"))) == "ShapeDtypeStruct(shape=(4,), dtype=key<fry>)"
    x = NamedSharding(mesh(), P("X"))
    assert repr(ShapeDtypeStruct((4,), np.float32, sharding=x)) == struct_text(x)
    with pytest.raises(TypeError, match="unsized"):
        len(ShapeDtypeStruct((), np.float32))
    with pytest.raises(AttributeError, match="immutable"):
        s.shape = (3,)


def test_shape_dtype_struct_equality():
    x = NamedSharding(mesh(), P("X"))
    s = ShapeDtypeStruct((4,), np.float32, sharding=x)
    assert s == ShapeDtypeStruct((4,), "float32", sharding=x) and hash(s) == hash(
        ShapeDtypeStruct((4,), F32, sharding=x)
    )
    others = [s.update(shape=(8,)), s.update(dtype=np.int32), s.update(weak_type=True), s.update(sharding=None)]
    assert all(s != other for other in others) and len({s, *others}) == 5
    assert s != (4,) and pickle.loads(pickle.dumps(s)) == s and copy.deepcopy(s) == s
    inside = ShapeDtypeStruct((4,), np.float32, manual_axis_type=ManualAxisType({"X"}))
    assert inside != ShapeDtypeStruct((4,), np.float32) and pickle.loads(pickle.dumps(inside)) == inside


def test_shape_dtype_struct_with_a_format():
    x = SingleDeviceSharding(Device(0))
    s = ShapeDtypeStruct((4, 2), np.float32, sharding=Format(Layout((1, 0)), x))
    assert s.sharding is x and s.format == Format(Layout((1, 0)), x)
    assert s.update(shape=(2, 2)).format == s.format and s != ShapeDtypeStruct((4, 2), np.float32, sharding=x)
    assert pickle.loads(pickle.dumps(s)) == s


def test_shape_dtype_struct_binds_a_bare_spec_at_once(monkeypatch):
    with pytest.raises(TypeError, match="context mesh cannot be empty"):
        ShapeDtypeStruct((4,), np.float32, sharding=P("X"))
    monkeypatch.setattr(avals, "resolve_spec", lambda spec: NamedSharding(mesh(), spec))
    s = ShapeDtypeStruct((4,), np.float32, sharding=P("X"))
    monkeypatch.undo()
    assert s.sharding is NamedSharding(mesh(), P("X")) and repr(s) == struct_text(s.sharding)


@pytest.mark.parametrize(
    ("make", "error", "phrase"),
    [
        (lambda: ShapeDtypeStruct((4,), None), ValueError, "dtype must be specified"),
        (lambda: ShapeDtypeStruct(4, F32), TypeError, "Shapes must be 1D sequences"),
        (lambda: ShapeDtypeStruct((4,), F32, sharding="X"), ValueError, "sharding should be an instance of"),
        (
            lambda: ShapeDtypeStruct((4,), F32, sharding=NamedSharding(mesh(), P("X", "Y"))),
            ValueError,
            "only valid for values of rank at least 2, but was applied to a value of rank 1",
        ),
    ],
)
def test_shape_dtype_struct_misuse(make, error, phrase):
    with pytest.raises(error, match=phrase):
        make()
