"""Layout and Format."""

import copy
import pickle

import pytest

from mpiarray.types.layout import Format, Layout
from mpiarray.types.mesh import Device
from mpiarray.types.partition_spec import P
from mpiarray.types.sharding import SingleDeviceSharding

HERE = SingleDeviceSharding(Device(0))


def test_layout():
    a = Layout((1, 0))
    assert repr(a) == "Layout(major_to_minor=(1, 0), tiling=None, sub_byte_element_size_in_bits=0)"
    assert a == Layout([1, 0], tiling=()) and hash(a) == hash(Layout((1, 0), ())) and a != Layout((0, 1))
    assert repr(Layout((0,), ())) == "Layout(major_to_minor=(0,), tiling=(), sub_byte_element_size_in_bits=0)"
    assert Layout(()).major_to_minor == () and a != (1, 0)
    assert a.update(major_to_minor=(2, 0, 1)) == Layout((2, 0, 1))
    assert repr(Layout.AUTO) == "AUTO" and Layout.AUTO is Layout.AUTO


@pytest.mark.parametrize("order", [(1, 1), (1, 2), (0, 2), (-1, 0)])
def test_layout_is_a_permutation(order):
    with pytest.raises(ValueError, match="permutation"):
        Layout(order)


def test_layouts_that_do_not_exist_here():
    with pytest.raises(NotImplementedError, match="tiled"):
        Layout((0, 1), ((8,),))
    with pytest.raises(NotImplementedError, match="packed"):
        Layout((0, 1), None, 4)


def test_format():
    assert repr(Format()) == "Format(layout=None, sharding=None)"
    assert repr(Format(Layout((0, 1)), HERE)) == f"Format(layout={Layout((0, 1))}, sharding={HERE})"
    assert repr(Format(Layout.AUTO)) == "Format(layout=AUTO, sharding=None)"
    a = Format(Layout((0, 1)), HERE)
    assert a == Format(Layout((0, 1), ()), HERE) and hash(a) == hash(Format(Layout((0, 1), ()), HERE))
    assert len({a, Format(Layout((1, 0)), HERE), Format(None, HERE), Format(Layout.AUTO, HERE), Format()}) == 5
    assert a != Format(Layout((0, 1)), SingleDeviceSharding(Device(1))) and a != "format"


@pytest.mark.parametrize(
    ("args", "error", "phrase"),
    [
        (("a",), TypeError, "Invalid value received for the layout argument"),
        ((HERE,), TypeError, "Invalid value received for the layout argument"),
        ((None, P("x")), TypeError, "Invalid value received for the sharding argument"),
        ((Layout.AUTO, Layout.AUTO), TypeError, "Invalid value received for the sharding argument"),
        ((None, Device(0)), TypeError, "Invalid value received for the sharding argument"),
        ((Layout((0, 1)),), ValueError, "Sharding has to be concrete when layout is of type"),
    ],
)
def test_format_misuse(args, error, phrase):
    with pytest.raises(error, match=phrase):
        Format(*args)


def test_immutable_copies_pickles():
    for x in (Layout((1, 0)), Layout((1, 0), ()), Format(Layout((1, 0)), HERE), Format(Layout.AUTO), Format()):
        again = pickle.loads(pickle.dumps(x))
        assert again == x and repr(again) == repr(x) and copy.copy(x) == x and copy.deepcopy(x) == x
    assert pickle.loads(pickle.dumps(Layout.AUTO)) is Layout.AUTO
    with pytest.raises(AttributeError, match="immutable"):
        Layout((0,)).major_to_minor = (0,)
    with pytest.raises(AttributeError, match="immutable"):
        Format().layout = None
