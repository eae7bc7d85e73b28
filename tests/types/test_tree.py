"""Pytrees against hand-written expectations, and laws on generated trees."""

import collections
import copy
import dataclasses
import functools
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpiarray import tree_util
from mpiarray.types import tree
from mpiarray.types.aval import ShapedArray
from mpiarray.types.mesh import AbstractMesh
from mpiarray.types.partition_spec import PartitionSpec as P
from mpiarray.types.sharding import NamedSharding
from mpiarray.types.tree import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey
from mpiarray.types.treedef import builder, opener

Point = collections.namedtuple("Point", "x y")


class Pair:
    def __init__(self, a, b, tag=None):
        self.a, self.b, self.tag = a, b, tag

    def __eq__(self, other):
        return type(other) is Pair and (self.a, self.b, self.tag) == (other.a, other.b, other.tag)

    __hash__ = None


tree.register_pytree_node(Pair, lambda p: ((p.a, p.b), p.tag), lambda tag, kids: Pair(*kids, tag))


@tree.register_dataclass
@dataclasses.dataclass
class Layer:
    w: object
    b: object
    scale: object = tree.static(default=1)


@tree.register_static
class Setting:
    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return type(other) is Setting and self.value == other.value

    def __hash__(self):
        return hash(self.value)


@tree.register_pytree_with_keys_class
class Named:
    def __init__(self, left, right):
        self.left, self.right = left, right

    def tree_flatten_with_keys(self):
        return ((GetAttrKey("left"), self.left), (GetAttrKey("right"), self.right)), "aux"

    @classmethod
    def tree_unflatten(cls, aux, children):
        assert aux == "aux"
        return cls(*children)


CASES = [
    # tree, leaves, text of the structure, paths
    (5, [5], "*", [""]),
    (None, [], "None", []),
    ((), [], "()", []),
    ([], [], "[]", []),
    ({}, [], "{}", []),
    ((1,), [1], "(*,)", ["[0]"]),
    ([1, (2, None)], [1, 2], "[*, (*, None)]", ["[0]", "[1][0]"]),
    ({"b": 1, "a": [2, (3, None)]}, [2, 3, 1], "{'a': [*, (*, None)], 'b': *}", ["['a'][0]", "['a'][1][0]", "['b']"]),
    ({2: "x", 1: "y"}, ["y", "x"], "{1: *, 2: *}", ["[1]", "[2]"]),
    (Point(1, [2]), [1, 2], "CustomNode(namedtuple[Point], [*, [*]])", [".x", ".y[0]"]),
    (
        collections.OrderedDict([("b", 1), ("a", 2)]),
        [1, 2],
        "CustomNode(OrderedDict[('b', 'a')], [*, *])",
        ["['b']", "['a']"],
    ),
    (
        collections.defaultdict(int, {"b": 1, "a": 2}),
        [2, 1],
        "CustomNode(defaultdict[(<class 'int'>, ('a', 'b'))], [*, *])",
        ["['a']", "['b']"],
    ),
    (Layer(1, 2, 3), [1, 2], "CustomNode(Layer[(3,)], [*, *])", [".w", ".b"]),
    (Pair(1, 2, "t"), [1, 2], "CustomNode(Pair[t], [*, *])", ["[<flat index 0>]", "[<flat index 1>]"]),
    (
        tree.Partial(max, 1, key=2),
        [1, 2],
        "CustomNode(Partial[<built-in function max>], [(*,), {'key': *}])",
        ["[<flat index 0>][0]", "[<flat index 1>]['key']"],
    ),
    (["ab", {1, 2}, range(3)], ["ab", {1, 2}, range(3)], "[*, *, *]", ["[0]", "[1]", "[2]"]),
]


@pytest.mark.parametrize(("value", "leaves", "text", "paths"), CASES, ids=[c[2] for c in CASES])
def test_containers(value, leaves, text, paths):
    got, treedef = tree.flatten(value)
    assert got == leaves == tree.leaves(value)
    assert repr(treedef) == f"PyTreeDef({text})"
    assert treedef.num_leaves == len(leaves)
    again = tree.unflatten(treedef, leaves)
    assert type(again) is type(value)
    if not isinstance(value, (tree.Partial, Layer)):
        assert again == value
    assert tree.leaves(again) == leaves and tree.structure(again) == treedef
    pairs, with_paths = tree.flatten_with_path(value)
    assert [leaf for _, leaf in pairs] == leaves and with_paths == treedef
    assert [tree.keystr(path) for path, _ in pairs] == paths
    assert [tree.keystr(path) for path in tree.paths(treedef)] == paths
    assert tree.leaves_with_path(value) == pairs


def test_order_and_factory_of_dicts_survive():
    ordered = tree.map(lambda v: v + 1, collections.OrderedDict([("b", 1), ("a", 2)]))
    assert list(ordered.items()) == [("b", 2), ("a", 3)]
    default = tree.map(lambda v: v + 1, collections.defaultdict(list, {"b": 1}))
    assert default == {"b": 2} and default["new"] == []


def test_types_of_arrays_and_places_are_leaves():
    mesh = AbstractMesh((2,), ("x",))
    values = [P("x", None), mesh, NamedSharding(mesh, P("x")), ShapedArray((2,), np.dtype("float32"))]
    assert tree.leaves(values) == values
    assert tree.map(lambda v: v, {"spec": P(("x",), None)}) == {"spec": P(("x",), None)}


def test_subclasses_of_containers_are_leaves():
    class MyList(list):
        pass

    class MyDict(dict):
        pass

    values = [MyList([1, 2]), MyDict(a=1)]
    assert tree.leaves(values) == values
    assert all(a is b for a, b in zip(tree.leaves(values), values, strict=True))


# --- equality and caching of structures ------------------------------------------------------------------------------


def test_structures_compare_by_value():
    assert tree.structure([1, {"a": 2}]) == tree.structure([3, {"a": 4}])
    assert hash(tree.structure([1, {"a": 2}])) == hash(tree.structure([5, {"a": 6}]))
    different = [1, (1,), [1], [1, 1], {"a": 1}, {"b": 1}, None, [], (), Point(1, 1), (1, 1), Pair(1, 1), Pair(1, 1, 0)]
    structures = [tree.structure(v) for v in different]
    assert len(set(structures)) == len(different)
    assert len({repr(s) for s in structures}) == len(different)


def test_aux_data_that_is_equal_but_not_the_same_is_not_mixed_up():
    for scale in (1, 1.0, True, 1 + 0j, np.float32(1), 0.0, -0.0, (1,), (1.0,), ("a", 1), ("a", True), Setting(1)):
        again = tree.map(lambda v: v, Layer(1, 2, scale))
        assert type(again.scale) is type(scale) and repr(again.scale) == repr(scale)
    for key in (1, 1.0, True):
        (again,) = tree.map(lambda v: v, {key: 5})
        assert type(again) is type(key)
    assert tree.structure(Layer(1, 2, 1)) == tree.structure(Layer(1, 2, 1.0))
    assert hash(tree.structure(Layer(1, 2, 1))) == hash(tree.structure(Layer(1, 2, 1.0)))
    first, second = Setting((1,)), Setting((1.0,))
    assert tree.map(lambda v: v, [second])[0] is second and tree.map(lambda v: v, [first])[0] is first


def test_aux_data_that_is_not_hashable():
    one, two = tree.structure(Pair(1, 2, ["tag"])), tree.structure(Pair(1, 2, ["tag"]))
    assert one == two and hash(one) == hash(two)
    assert one != tree.structure(Pair(1, 2, ["other"]))
    assert tree.map(lambda v: v + 1, Pair(1, 2, ["tag"])) == Pair(2, 3, ["tag"])


def test_structures_of_a_changing_function_are_told_apart():
    partials = [tree.Partial(lambda x, i=i: x + i, 1) for i in range(20)]
    assert len({tree.structure(p) for p in partials}) == 20
    assert [tree.map(lambda v: v * 10, p)() for p in partials] == [10 + i for i in range(20)]


def test_structures_can_be_pickled_and_copied():
    for value in ([1, {"a": (2, None)}], Point(1, 2), Layer(1, 2, "s"), 5, Pair(1, (2,), "t")):
        treedef = tree.structure(value)
        assert pickle.loads(pickle.dumps(treedef)) == treedef
        assert copy.deepcopy(treedef) == treedef
        assert hash(pickle.loads(pickle.dumps(treedef))) == hash(treedef)


def test_a_type_may_be_registered_after_it_was_met():
    class Late:
        def __init__(self, v):
            self.v = v

    late = Late(1)
    assert tree.leaves([late]) == [late]
    tree.register_pytree_node(Late, lambda n: ((n.v,), None), lambda aux, kids: Late(*kids))
    assert tree.leaves([late]) == [1]
    assert tree.map(lambda v: v + 1, late).v == 2


# --- PyTreeDef -------------------------------------------------------------------------------------------------------


def test_methods_of_structures():
    treedef = tree.structure({"a": [1, 2], "b": None})
    assert treedef.num_nodes == 5
    assert treedef.node_data() == (dict, ["a", "b"])
    assert treedef.children() == [tree.structure([1, 2]), tree.structure(None)]
    assert treedef.unflatten(iter([3, 4])) == {"a": [3, 4], "b": None}
    assert treedef.flatten_up_to({"a": [(1, 2), None], "b": None}) == [(1, 2), None]
    assert tree.structure(1).node_data() is None and tree.structure(1).children() == []
    assert tree.structure([1, 2]).compose(tree.structure((1,))) == tree.structure([(1,), (2,)])
    assert tree.treedef_tuple([tree.structure(1), tree.structure([1])]) == tree.structure((1, [2]))
    assert tree.treedef_is_leaf(tree.structure(5)) and not tree.treedef_is_leaf(tree.structure(()))
    assert tree.treedef_children(treedef) == treedef.children()


def test_wrong_number_of_leaves():
    treedef = tree.structure([1, 2])
    with pytest.raises(ValueError, match="Too few leaves for PyTreeDef; expected 2, got 1"):
        tree.unflatten(treedef, [1])
    with pytest.raises(ValueError, match="Too many leaves for PyTreeDef; expected 2, got 3"):
        tree.unflatten(treedef, iter([1, 2, 3]))
    with pytest.raises(ValueError, match="expected 1, got 0"):
        tree.unflatten(tree.structure(5), [])


def test_keys_that_have_no_order():
    with pytest.raises(ValueError, match="must be comparable"):
        tree.flatten({1: 2, "a": 3})


def test_one_level():
    children, aux = tree.flatten_one_level({"b": [1], "a": 2})
    assert list(children) == [2, [1]] and aux == ("a", "b")
    assert tree.flatten_one_level_with_keys((7,))[0] == [(SequenceKey(0), 7)]
    with pytest.raises(ValueError, match="can't tree-flatten"):
        tree.flatten_one_level(1)
    assert tree.all_leaves([1, "a"]) and not tree.all_leaves([1, None]) and not tree.all_leaves([[1]])
    assert tree.all_leaves([None], is_leaf=lambda v: v is None)
    assert tree.is_tree_node(list) and not tree.is_tree_node(int)


# --- mapping ---------------------------------------------------------------------------------------------------------


def test_map():
    assert tree.map(lambda v: v * 2, {"x": 1, "y": [2, None]}) == {"x": 2, "y": [4, None]}
    assert tree.map(lambda *v: v, {"x": 1}, {"x": 2}, {"x": 3}) == {"x": (1, 2, 3)}
    assert tree.map(lambda a, b: (a, b), {"x": 1, "y": 2}, {"x": {"deep": 5}, "y": None}) == {
        "x": (1, {"deep": 5}),
        "y": (2, None),
    }
    assert tree.map(lambda v: v, None) is None
    assert tree.map(lambda p: p[0] + p[1], [(1, 2), (3, 4)], is_leaf=lambda v: isinstance(v, tuple)) == [3, 7]
    assert tree.map(lambda v: "none" if v is None else v, [1, None], is_leaf=lambda v: v is None) == [1, "none"]
    assert tree.map(lambda v, w: v + w, Point(1, 2), Point(10, 20)) == Point(11, 22)
    assert tree.map(lambda v: v, 3, is_leaf=lambda v: True) == 3


@pytest.mark.parametrize(
    ("first", "second", "kind", "path", "words"),
    [
        ([1, 2], [1, 2, 3], "different lengths of list", "tree", ["length 2", "length 3"]),
        ({"a": 1}, {"b": 1}, "different pytree metadata", "tree", ["['a']", "['b']"]),
        ({"a": 1}, [1], "different types", "tree", ["dict", "list"]),
        ({"a": [1, 2]}, {"a": (1, 2)}, "different types", "tree['a']", ["list of length 2", "tuple of length 2"]),
        ({"a": None}, {"a": 1}, "different types", "tree['a']", ["None", "a leaf of type int"]),
        ((1, [2, [3]]), (1, [2, 3]), "different types", "tree[1][1]", ["list of length 1", "a leaf of type int"]),
        (Layer(1, 2, 3), Layer(1, 2, 4), "different pytree metadata", "tree", ["(3,)", "(4,)"]),
        (Point([1], 2), Point([1, 2], 2), "different lengths of list", "tree.x", ["length 1", "length 2"]),
        (Point(1, 2), (1, 2), "different types", "tree", ["Point with 2 children", "tuple of length 2"]),
        ({"a": 1}, collections.OrderedDict(a=1), "different types", "tree", ["dict", "OrderedDict"]),
    ],
)
def test_trees_that_differ(first, second, kind, path, words):
    with pytest.raises(ValueError, match="pytree structure error") as caught:
        tree.map(lambda a, b: a, first, second)
    lines = str(caught.value).splitlines()
    assert kind in lines[0]
    assert lines[1].endswith(path)
    for word in words:
        assert word in lines[2]


def test_different_numbers_of_children():
    class Bag:
        def __init__(self, *items):
            self.items = items

    tree.register_pytree_node(Bag, lambda b: (b.items, None), lambda aux, kids: Bag(*kids))
    with pytest.raises(ValueError, match=r"different numbers of pytree children(.|\n)*2 children(.|\n)*3 children"):
        tree.map(lambda a, b: a, Bag(1, 2), Bag(1, 2, 3))


def test_reduce_and_all():
    value = {"a": [1, 2], "b": 3}
    assert tree.reduce(lambda a, b: a + b, value) == 6
    assert tree.reduce(lambda a, b: a * b, value, 10) == 60
    assert tree.reduce(lambda a, b: f"({a}{b})", [1, 2, 3]) == "((12)3)"
    assert tree.reduce(lambda a, b: a + b, [], 5) == 5
    assert tree.reduce(lambda a, b: a + b, [(1, 2), (3,)], is_leaf=lambda v: isinstance(v, tuple)) == (1, 2, 3)
    with pytest.raises(TypeError, match="empty"):
        tree.reduce(lambda a, b: a, [])
    assert tree.reduce_associative(lambda a, b: f"({a}{b})", list("abcde")) == "(((ab)(cd))e)"
    assert tree.reduce_associative(lambda a, b: a + b, {"x": 1}) == 1
    assert tree.reduce_associative(max, [], identity=0) == 0
    with pytest.raises(ValueError, match="no leaves"):
        tree.reduce_associative(max, [])
    assert tree.all([True, {"a": 1}]) is True and tree.all([True, {"a": 0}]) is False and tree.all([]) is True


def test_transpose():
    outer, inner = tree.structure([0, 0]), tree.structure({"a": 0, "b": 0})
    value = [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
    assert tree.transpose(outer, inner, value) == {"a": [1, 3], "b": [2, 4]}
    assert tree.transpose(outer, None, value) == {"a": [1, 3], "b": [2, 4]}
    with pytest.raises(TypeError, match="need"):
        tree.transpose(outer, inner, value[:1])
    with pytest.raises(ValueError, match="no leaves"):
        tree.transpose(tree.structure([]), None, [])


# --- prefixes --------------------------------------------------------------------------------------------------------


def test_prefix_leaves_are_repeated():
    full = {"w": [1, (2, 3)], "b": None, "c": 4}
    assert tree.flatten_prefix("p", full, what="in_specs") == ["p"] * 4
    assert tree.flatten_prefix({"w": "p", "b": "q", "c": "r"}, full, what="in_specs") == ["r", "p", "p", "p"]
    assert tree.flatten_prefix({"w": ["p", ("q", "s")], "b": None, "c": "r"}, full, what="in_specs") == list("rpqs")
    assert tree.flatten_prefix((P("x"), P()), ([1, 2], 3), what="in_specs") == [P("x"), P("x"), P()]
    none = lambda v: v is None
    assert tree.flatten_prefix((None, 0), ([1, 2], 3), what="in_axes", is_leaf=none) == [None, None, 0]
    assert tree.prefix_leaves([7, 8], tree.structure([(1, 2), 3]), what="out_specs") == [7, 7, 8]
    assert tree.flatten_prefix(1, [None, 2], what="p", full_is_leaf=none) == [1, 1]
    assert tree.broadcast({"a": 1, "b": 2}, {"a": [5, 6], "b": 7}) == {"a": [1, 1], "b": 2}


@pytest.mark.parametrize(
    ("prefix", "full", "words"),
    [
        ((1, 2), (1, 2, 3), ["in_specs\n", "tuple of length 2", "tuple of length 3"]),
        (({"a": 0},), ({"a": [1], "b": 2},), ["in_specs[0]\n", "['a']", "['b']"]),
        (([0, 0],), ((1, 2),), ["in_specs[0]\n", "a list of length 2", "a tuple of length 2"]),
        ({"k": [1]}, {"k": 5}, ["in_specs['k']\n", "a list of length 1", "a leaf"]),
        ({"k": None}, {"k": 5}, ["in_specs['k']\n", "None", "a leaf"]),
        (Point((1,), 2), Point((1, 2), 2), ["in_specs.x\n", "length 1", "length 2"]),
    ],
)
def test_prefixes_that_do_not_fit(prefix, full, words):
    with pytest.raises(ValueError, match="pytree structure error") as caught:
        tree.flatten_prefix(prefix, full, what="in_specs")
    for word in words:
        assert word in str(caught.value)


# --- paths -----------------------------------------------------------------------------------------------------------


def test_keys_of_paths():
    pairs = tree.leaves_with_path({"a": [1, Point(2, Pair(3, 4))], "n": Named(5, 6)})
    assert [path for path, _ in pairs] == [
        (DictKey("a"), SequenceKey(0)),
        (DictKey("a"), SequenceKey(1), GetAttrKey("x")),
        (DictKey("a"), SequenceKey(1), GetAttrKey("y"), FlattenedIndexKey(0)),
        (DictKey("a"), SequenceKey(1), GetAttrKey("y"), FlattenedIndexKey(1)),
        (DictKey("n"), GetAttrKey("left")),
        (DictKey("n"), GetAttrKey("right")),
    ]
    assert [repr(k) for k in pairs[2][0]] == [
        "DictKey(key='a')",
        "SequenceKey(idx=1)",
        "GetAttrKey(name='y')",
        "FlattenedIndexKey(key=0)",
    ]
    assert tree.keystr(pairs[2][0]) == "['a'][1].y[<flat index 0>]"
    assert tree.keystr(pairs[2][0], simple=True, separator="/") == "a/1/y/0"
    assert tree.keystr(("odd", DictKey(3)), simple=True, separator=".") == "odd.3"
    assert tree.keystr(()) == ""


def test_map_with_path():
    named = tree.map_with_path(lambda path, v, w: f"{tree.keystr(path)}={v + w}", {"a": [1, 2]}, {"a": [10, 20]})
    assert named == {"a": ["['a'][0]=11", "['a'][1]=22"]}
    is_leaf = lambda path, v: len(path) == 1
    assert tree.leaves_with_path([(1, 2), 3], is_leaf, is_leaf_takes_path=True) == [
        ((SequenceKey(0),), (1, 2)),
        ((SequenceKey(1),), 3),
    ]


# --- registration ----------------------------------------------------------------------------------------------------


def test_dataclasses():
    layer = tree.map(lambda v: v * 2, Layer(1, [2], scale=7))
    assert (layer.w, layer.b, layer.scale) == (2, [4], 7)

    @functools.partial(tree.register_dataclass, data_fields=["b"], meta_fields=["a"])
    @dataclasses.dataclass(frozen=True)
    class Swapped:
        a: int
        b: int

    assert tree.leaves(Swapped(1, 2)) == [2]
    assert tree.map(lambda v: v + 1, Swapped(1, 2)) == Swapped(1, 3)
    assert tree.structure(Swapped(1, 2)) != tree.structure(Swapped(2, 2))


def test_dataclasses_with_wrong_fields():
    @dataclasses.dataclass
    class Two:
        a: int
        b: int
        c: int = dataclasses.field(init=False, default=0)

    for fields, message in (
        ({"data_fields": ["a"], "meta_fields": []}, "Missing fields: .'b'"),
        ({"data_fields": ["a", "x"], "meta_fields": ["b"]}, "Unexpected fields: .'x'"),
        ({"data_fields": ["a", "b"], "meta_fields": ["c"]}, "Unexpected fields: .'c'"),
    ):
        with pytest.raises(ValueError, match=message):
            tree.register_dataclass(Two, **fields)
    with pytest.raises(TypeError, match="must both be specified"):
        tree.register_dataclass(Two, data_fields=["a", "b"])
    with pytest.raises(TypeError, match="not a dataclass"):
        tree.register_dataclass(int)
    assert tree.leaves(tree.register_dataclass(Two)(1, 2)) == [1, 2]


def test_registering_twice():
    for taken in (Pair, list, dict, type(None)):
        with pytest.raises(ValueError, match="Duplicate custom PyTreeDef type registration"):
            tree.register_pytree_node(taken, lambda v: ((), None), lambda aux, kids: None)
    with pytest.raises(TypeError, match="only classes"):
        tree.register_pytree_node("Pair", lambda v: ((), None), lambda aux, kids: None)


def test_registered_class_methods():
    @tree.register_pytree_node_class
    class Box:
        def __init__(self, inside):
            self.inside = inside

        def tree_flatten(self):
            return iter([self.inside]), None

        @classmethod
        def tree_unflatten(cls, aux, children):
            return cls(*children)

    assert tree.leaves([Box((1, 2)), 3]) == [1, 2, 3]
    assert tree.map(lambda v: v + 1, Box(1)).inside == 2
    assert tree.map(lambda a, b: a + b, Box(1), Box(2)).inside == 3
    assert tree.leaves(Named(1, 2)) == [1, 2]
    assert tree.map(lambda v: -v, Named(1, 2)).right == -2


def test_static_nodes():
    assert tree.leaves([Setting(3), 1]) == [1]
    assert tree.structure(Setting(3)) == tree.structure(Setting(3)) != tree.structure(Setting(4))


def test_partial():
    f = tree.Partial(lambda a, b, c=0: (a, b, c), 1, c=3)
    assert f(2) == (1, 2, 3) and tree.leaves(f) == [1, 3]
    doubled = tree.map(lambda v: v * 2, f)
    assert doubled(2) == (2, 2, 6) and isinstance(doubled, tree.Partial)
    nested = tree.Partial(functools.partial(f, 5), c=7)
    assert tree.leaves(nested) == [7] and nested() == (1, 5, 7)
    inner = functools.partial(max, 1)
    assert tree.structure(tree.Partial(inner, 2)) == tree.structure(tree.Partial(inner, 3))
    assert tree.structure(tree.Partial(inner, 2)) != tree.structure(tree.Partial(functools.partial(min, 1), 2))
    assert tree.leaves(functools.partial(max, 1)) != [1]


# --- laws ------------------------------------------------------------------------------------------------------------

TREES = st.recursive(
    st.one_of(st.integers(), st.none(), st.text(max_size=2)),
    lambda kids: st.one_of(
        st.lists(kids, max_size=3),
        st.lists(kids, max_size=3).map(tuple),
        st.dictionaries(st.text("abc", max_size=2), kids, max_size=3),
        st.dictionaries(st.integers(0, 3), kids, max_size=2).map(lambda d: collections.OrderedDict(d)),
        st.tuples(kids, kids).map(lambda p: Point(*p)),
        st.tuples(kids, kids).map(lambda p: Pair(*p, "t")),
    ),
    max_leaves=12,
)


@given(TREES)
def test_flatten_and_unflatten_are_inverse(value):
    leaves, treedef = tree.flatten(value)
    assert tree.unflatten(treedef, leaves) == value
    assert tree.flatten(value) == (leaves, treedef)
    assert len(leaves) == treedef.num_leaves == len(tree.paths(treedef))
    assert tree.flatten(value, is_leaf=lambda v: False) == (leaves, treedef)
    assert tree.flatten(value, is_leaf=lambda v: True) == ([value], tree.structure(0))
    assert tree.flatten_with_path(value) == (list(zip(tree.paths(treedef), leaves)), treedef)
    assert treedef.flatten_up_to(value) == leaves
    assert tree.flatten_prefix(value, value, what="p") == leaves
    assert tree.map(lambda a, b: (a, b), value, value) == tree.unflatten(treedef, [(v, v) for v in leaves])


@given(TREES, TREES)
def test_structures_are_equal_when_their_texts_are(a, b):
    one, two = tree.structure(a), tree.structure(b)
    assert (one == two) == (repr(one) == repr(two))
    assert one != two or hash(one) == hash(two)
    assert (one.compose(two)).num_leaves == one.num_leaves * two.num_leaves
    assert tree.structure(tree.map(lambda _: b, a)) == one.compose(two)


def test_long_names():
    assert tree_util.tree_map is tree.map and tree_util.tree_leaves is tree.leaves
    assert set(tree_util.__all__) == {n for n in vars(tree_util) if not n.startswith("_")} - {"annotations"}


def test_written_out_structures_are_built_alike():
    Pair = collections.namedtuple("Pair", "a b")
    deep = 0
    for _ in range(300):
        deep = [deep]
    trees = [
        0, (), [], {}, None, (1,), [1, (2, None)], {"b": 1, "a": (2, [3])}, Pair(1, {"x": [2]}),
        collections.OrderedDict([("z", 1), ("a", 2)]), deep, list(range(600)), {(1, 2): 3, (0, 1): [4]},
    ]  # fmt: skip
    for t in trees:
        values, structure = tree.flatten(t)
        fresh = [object() for _ in values]
        built = builder(structure)(fresh)
        assert repr(built) == repr(tree.unflatten(structure, fresh))
        assert tree.structure(built) == structure


def test_written_out_structures_are_taken_apart_alike():
    Pair = collections.namedtuple("Pair", "a b")
    trees = [
        0, (), [], {}, None, (1,), [1], [1, (2, None)], (1, [2, 3]), {"b": 1, "a": (2, [3])}, {"a": 1}, {"a": 1, "c": 2},
        {"a": 1, "b": 2}, {"a": None}, [[], ()], ((), []), [{"it's": 1, "\\": 2}], {"b": (2, [3]), "a": 1},
    ]  # fmt: skip
    for t in trees:
        values, structure = tree.flatten(t)
        open_tree = opener(structure)
        assert open_tree(t) == tuple(values)
        for other in trees:
            if tree.structure(other) != structure and structure.num_leaves != 1:
                found = open_tree(other)
                # where a leaf belongs, a container is given as it is
                assert found is None or any(isinstance(x, (tuple, list, dict, type(None))) for x in found)
    for t in (Pair(1, 2), [Pair(1, 2)], {1: 2}, {"a": {(0,): 1}}, collections.OrderedDict(a=1), list(range(600))):
        assert opener(tree.structure(t)) is None
    assert opener(tree.structure([1, 2]))(Pair(1, 2)) is None  # no subclass
