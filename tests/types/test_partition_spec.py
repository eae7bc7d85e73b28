"""PartitionSpec: normal forms, texts, the sequence protocol and the errors of construction."""

import copy
import pickle

import pytest

from mpiarray.types.partition_spec import UNCONSTRAINED, P, PartitionSpec

U = P.UNCONSTRAINED


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (P(), "P()"),
        (P(None), "P(None,)"),
        (P("X"), "P('X',)"),
        (P("X", None), "P('X', None)"),
        (P(None, "X"), "P(None, 'X')"),
        (P(("X", "Y")), "P(('X', 'Y'),)"),
        (P(("X", "Y"), None), "P(('X', 'Y'), None)"),
        (P("X", None, unreduced={"Y"}), "P('X', None, unreduced={'Y'})"),
        (P("X", unreduced={"Y"}), "P('X', unreduced={'Y'})"),
        (P(None, unreduced={"X"}), "P(None, unreduced={'X'})"),
        (P(unreduced={"X"}, reduced={"Y"}), "P(unreduced={'X'}, reduced={'Y'})"),
        (P(reduced={"Y"}), "P(reduced={'Y'})"),
        (P("X", "Y", reduced={"Z"}), "P('X', 'Y', reduced={'Z'})"),
        (P(U, "X"), "P(UNCONSTRAINED, 'X')"),
        (P(unreduced={"c", "a", "b"}), "P(unreduced={'a', 'b', 'c'})"),
        (P((None, "X")), "P((None, 'X'),)"),
        (P(3), "P(3,)"),
    ],
)
def test_texts(spec, text):
    assert repr(spec) == str(spec) == text


@pytest.mark.parametrize(
    ("written", "partitions", "dims"),
    [
        (P(), (), ()),
        (P(("X",)), ("X",), (("X",),)),
        (P(["X"]), ("X",), (("X",),)),
        (P(()), (None,), ((),)),
        (P([]), (None,), ((),)),
        (P(["X", "Y"], "Z", None), (("X", "Y"), "Z", None), (("X", "Y"), ("Z",), ())),
        (P(U, "X"), (U, "X"), (U, ("X",))),
        (P((None, "X")), ((None, "X"),), ((None, "X"),)),
    ],
)
def test_normal_form(written, partitions, dims):
    assert written.partitions == partitions and written.dims == dims
    assert P.from_dims(dims) is written


def test_equal_specs_are_one_object():
    assert P is PartitionSpec and P.UNCONSTRAINED is UNCONSTRAINED
    assert P("X") is P(("X",)) is P(["X"]) and P("X", unreduced={"Y"}) is P("X", unreduced=frozenset("Y"))
    different = [
        P(),
        P(None),
        P("X"),
        P("X", None),
        P("Y"),
        P("X", "Y"),
        P("Y", "X"),
        P(("X", "Y")),
        P(("Y", "X")),
        P("X", unreduced={"Y"}),
        P("X", reduced={"Y"}),
    ]
    assert len(set(different)) == len(different) and len({hash(p) for p in different}) == len(different)
    assert (P("X") == ("X",)) is False and P("X") != ("X",)


def test_sequence():
    p = P("x", None, ("y", "z"))
    assert len(p) == 3 and (p[0], p[1], p[2], p[-1]) == ("x", None, ("y", "z"), ("y", "z"))
    assert list(p) == ["x", None, ("y", "z")] and p[0:2] == ("x", None)
    assert "x" in p and "y" not in p and None in p
    assert p.index(None) == 1 and p.index(["y", "z"]) == 2 and p.count("x") == 1 and p.count("q") == 0
    with pytest.raises(ValueError, match="not in tuple"):
        p.index("q")
    with pytest.raises(IndexError):
        p[5]
    assert p.axes == ("x", "y", "z") and P(U, "a").axes == ("a",)


def test_reading_a_spec_with_sum_axes_as_a_sequence_is_refused():
    u = P("x", unreduced={"y"})
    for read in (lambda: list(u), lambda: u[0], lambda: "x" in u, lambda: (*u,)):
        with pytest.raises(ValueError, match="dangerous when PartitionSpec has non-empty unreduced/reduced"):
            read()
    with pytest.raises(ValueError, match="dangerous"):
        P(reduced={"y"})[:]
    assert len(u) == 1 and u.count("x") == 1 and u.index("x") == 0 and u.partitions == ("x",)


def test_sum_of_specs():
    p = P("x", None)
    assert p + ("a",) is P("x", None, "a") and ("a",) + p is P("a", "x", None)
    assert p + P("b", unreduced={"q"}) is P("x", None, "b", unreduced={"q"})
    u = P("x", unreduced={"y"})
    assert u + P(reduced={"z"}) is P("x", unreduced={"y"}, reduced={"z"})
    assert u + P(unreduced={"z"}) is P("x", unreduced={"y", "z"})
    with pytest.raises(TypeError, match="unreduced"):
        u + ("z",)
    with pytest.raises(TypeError, match="unreduced"):
        ("z",) + u
    with pytest.raises(ValueError, match="cannot overlap"):
        u + P(reduced={"y"})
    with pytest.raises(TypeError):
        p + ["a"]


def test_update_pad_and_cotangent():
    u = P("x", unreduced={"y"}, reduced={"z"})
    assert u.update(partitions=(None,)) is P(None, unreduced={"y"}, reduced={"z"})
    assert u.update(partitions=P("q")) is P("q", unreduced={"y"}, reduced={"z"})
    assert u.update(unreduced=frozenset()) is P("x", reduced={"z"}) and u.update() is u
    assert u.to_ct_spec() is P("x", unreduced={"z"}, reduced={"y"}) and u.to_ct_spec().to_ct_spec() is u
    assert P("x").padded(3) is P("x", None, None) and P().padded(0) is P() and P("x", None).padded(1) is P("x", None)
    assert u.padded(2) is P("x", None, unreduced={"y"}, reduced={"z"})


@pytest.mark.parametrize(
    ("make", "error", "phrase"),
    [
        (lambda: P("x", unreduced="y"), TypeError, "unreduced .*should of type `frozenset` or `set`"),
        (lambda: P(reduced=["x"]), TypeError, "reduced .*should of type `frozenset` or `set`"),
        (lambda: P("x", unreduced={None}), ValueError, "unreduced cannot contain None"),
        (lambda: P("x", reduced={None, "y"}), ValueError, "reduced cannot contain None"),
        (lambda: P(unreduced={"x"}, reduced={"x"}), ValueError, "cannot overlap"),
        (lambda: P("x", unreduced={"x"}), ValueError, "partitions cannot overlap with unreduced axes"),
        (lambda: P("x", reduced={"x"}), ValueError, "partitions cannot overlap with reduced axes"),
        (lambda: P(("y", "x"), unreduced={"x"}), ValueError, "partitions cannot overlap with unreduced axes"),
        (lambda: P({"a"}), TypeError, "unhashable"),
        (lambda: type("Q", (P,), {}), TypeError, "cannot be subclassed"),
    ],
)
def test_misuse(make, error, phrase):
    with pytest.raises(error, match=phrase):
        make()
    with pytest.raises(error, match=phrase):  # a refused spec leaves nothing behind
        make()


def test_the_same_axis_twice_is_found_only_when_bound_to_a_mesh():
    assert P("x", "x").dims == (("x",), ("x",))


def test_immutable_copies_pickles():
    p = P("x", (("y", "z")), U, unreduced={"w"})
    with pytest.raises(AttributeError, match="immutable"):
        p.partitions = ()
    for x in (p, P(), U):
        assert pickle.loads(pickle.dumps(x)) is x and copy.copy(x) is x and copy.deepcopy(x) is x
