"""What counts as a node of a pytree: the registry of container types, and the keys that paths are made of.

A `NodeKind` says how one container type is taken apart and put together again. `tree.py` walks trees with them; it
knows no container type itself (but for the shortcuts that make flat tuples, lists and dicts cheap).

Containers are recognised by their exact type: a subclass of list is a leaf unless it is registered. The exception are
named tuples, which are subclasses of tuple by construction.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeVar

_T = TypeVar("_T")

# ---------------------------------------------------------------------------------------------------------------------
# Keys of paths


@dataclasses.dataclass(frozen=True)
class SequenceKey:
    """A position in a tuple or list."""

    idx: int

    def __str__(self) -> str:
        return f"[{self.idx!r}]"


@dataclasses.dataclass(frozen=True)
class DictKey:
    """A key of a dict."""

    key: Hashable

    def __str__(self) -> str:
        return f"[{self.key!r}]"


@dataclasses.dataclass(frozen=True)
class GetAttrKey:
    """An attribute of a dataclass, named tuple or registered class."""

    name: str

    def __str__(self) -> str:
        return f".{self.name}"


@dataclasses.dataclass(frozen=True)
class FlattenedIndexKey:
    """The position of a child of a registered class that does not say what its children are called."""

    key: int

    def __str__(self) -> str:
        return f"[<flat index {self.key}>]"


KeyEntry = Hashable
KeyPath = tuple[KeyEntry, ...]


def keystr(path: KeyPath, *, simple: bool = False, separator: str = "") -> str:
    """A path as text: ``['a'][0].x``, or with ``simple=True, separator='/'`` as ``a/0/x``."""
    if not simple:
        return separator.join([str(key) for key in path])
    names = []
    for key in path:
        for field in ("idx", "key", "name"):
            if hasattr(key, field):
                names.append(str(getattr(key, field)))
                break
        else:
            names.append(str(key))
    return separator.join(names)


# ---------------------------------------------------------------------------------------------------------------------
# Kinds of nodes


class NodeKind:
    """How one container type is taken apart and rebuilt.

    Attributes:
      type: the container type.
      flatten: container -> (children, aux); aux is what is left of the container without its children.
      build: (aux, children) -> container.
      entries: (aux, number of children) -> the keys of the children, for types whose keys follow from aux.
      flatten_with_keys: container -> (pairs of key and child, aux), or None to use `entries`.
    """

    __slots__ = ("build", "entries", "flatten", "flatten_with_keys", "type")

    def __init__(
        self,
        type: type,
        flatten: Callable[[Any], tuple[Any, Any]],
        build: Callable[[Any, Any], Any],
        entries: Callable[[Any, int], Iterable[KeyEntry]] | None = None,
        flatten_with_keys: Callable[[Any], tuple[Iterable[tuple[KeyEntry, Any]], Any]] | None = None,
    ) -> None:
        self.type = type
        self.flatten = flatten
        self.build = build
        self.entries = entries if entries is not None else _flat_entries
        self.flatten_with_keys = flatten_with_keys

    def __reduce__(self) -> tuple[Any, ...]:
        return kind_of_type, (self.type,)

    def keyed(self, node: Any) -> tuple[list[tuple[KeyEntry, Any]], Any]:
        """`node` taken apart, with the key of each child."""
        if self.flatten_with_keys is not None:
            pairs, aux = self.flatten_with_keys(node)
            return [(key, child) for key, child in pairs], aux
        children, aux = self.flatten(node)
        children = list(children)
        return list(zip(self.entries(aux, len(children)), children)), aux


def _flat_entries(aux: Any, n: int) -> list[KeyEntry]:
    return [FlattenedIndexKey(i) for i in range(n)]


def _sequence_entries(aux: Any, n: int) -> list[KeyEntry]:
    return [SequenceKey(i) for i in range(n)]


def _dict_entries(aux: Any, n: int) -> list[KeyEntry]:
    return [DictKey(key) for key in aux]


def _flatten_dict(node: dict[Any, Any]) -> tuple[list[Any], tuple[Any, ...]]:
    try:
        keys = sorted(node)
    except TypeError as error:
        raise ValueError(
            f"the keys of a dict in a pytree must be comparable with each other, to give all dicts with these keys "
            f"one order; got {list(node)}: {error}. Use keys of one type, or an OrderedDict."
        ) from error
    return [node[key] for key in keys], tuple(keys)


def _build_defaultdict(aux: Any, children: Iterable[Any]) -> Any:
    factory, keys = aux
    return collections.defaultdict(factory, zip(keys, children))


def _flatten_defaultdict(node: Any) -> tuple[Any, Any]:
    children, keys = _flatten_dict(node)
    return children, (node.default_factory, keys)


NONE = NodeKind(type(None), lambda node: ((), None), lambda aux, children: None)
TUPLE = NodeKind(tuple, lambda node: (node, None), lambda aux, children: tuple(children), _sequence_entries)
LIST = NodeKind(list, lambda node: (node, None), lambda aux, children: list(children), _sequence_entries)
DICT = NodeKind(dict, _flatten_dict, lambda aux, children: dict(zip(aux, children)), _dict_entries)

#: Every type seen so far: its kind, or None if its values are leaves. Only `kind_of_type` and `register` write here.
KINDS: dict[type, NodeKind | None] = {
    type(None): NONE,
    tuple: TUPLE,
    list: LIST,
    dict: DICT,
    collections.OrderedDict: NodeKind(
        collections.OrderedDict,
        lambda node: (tuple(node.values()), tuple(node)),
        lambda aux, children: collections.OrderedDict(zip(aux, children)),
        _dict_entries,
    ),
    collections.defaultdict: NodeKind(
        collections.defaultdict, _flatten_defaultdict, _build_defaultdict, lambda aux, n: _dict_entries(aux[1], n)
    ),
}


def kind_of_type(node_type: type) -> NodeKind | None:
    """The kind of a container type; None for a type whose values are leaves."""
    try:
        return KINDS[node_type]
    except KeyError:
        pass
    kind = None
    if issubclass(node_type, tuple) and hasattr(node_type, "_fields"):
        names: tuple[str, ...] = node_type._fields
        kind = NodeKind(
            node_type,
            lambda node: (node, None),
            lambda aux, children: node_type(*children),
            lambda aux, n: [GetAttrKey(name) for name in names],
        )
    KINDS[node_type] = kind
    return kind


# ---------------------------------------------------------------------------------------------------------------------
# Registration


def _register(kind: NodeKind) -> None:
    if not isinstance(kind.type, type):
        raise TypeError(f"only classes can be registered as pytree nodes, got {kind.type!r}")
    # None here only means that a value of the type was met and taken for a leaf.
    if KINDS.get(kind.type) is not None:
        raise ValueError(f"Duplicate custom PyTreeDef type registration for {kind.type}.")
    KINDS[kind.type] = kind


def register_pytree_node(
    nodetype: type,
    flatten_func: Callable[[Any], tuple[Iterable[Any], Any]],
    unflatten_func: Callable[[Any, Any], Any],
    flatten_with_keys_func: Callable[[Any], tuple[Iterable[tuple[KeyEntry, Any]], Any]] | None = None,
) -> None:
    """Make values of `nodetype` nodes of pytrees.

    Args:
      nodetype: a class; its subclasses are not included.
      flatten_func: value -> (children, aux). aux must be hashable and comparable: it is part of the tree's structure.
      unflatten_func: (aux, children) -> value. Children can be anything, so it should not check them.
      flatten_with_keys_func: value -> (pairs of a path's key and a child, aux), for functions that report paths.

    Raises:
      ValueError: `nodetype` is already registered.
    """
    _register(NodeKind(nodetype, flatten_func, unflatten_func, None, flatten_with_keys_func))


def register_pytree_with_keys(
    nodetype: type,
    flatten_with_keys: Callable[[Any], tuple[Iterable[tuple[KeyEntry, Any]], Any]],
    unflatten_func: Callable[[Any, Any], Any],
    flatten_func: Callable[[Any], tuple[Iterable[Any], Any]] | None = None,
) -> None:
    """`register_pytree_node` for a class whose children have names.

    Args:
      nodetype: a class.
      flatten_with_keys: value -> (pairs of key and child, aux); keys such as ``GetAttrKey('w')``.
      unflatten_func: (aux, children) -> value.
      flatten_func: value -> (children, aux), if that is cheaper than dropping the keys.
    """

    def without_keys(node: Any) -> tuple[list[Any], Any]:
        pairs, aux = flatten_with_keys(node)
        return [child for _, child in pairs], aux

    _register(NodeKind(nodetype, flatten_func or without_keys, unflatten_func, None, flatten_with_keys))


def register_pytree_node_class(cls: type[_T]) -> type[_T]:
    """Class decorator: register a class that has the methods ``tree_flatten`` and (class method) ``tree_unflatten``."""
    register_pytree_node(cls, lambda node: node.tree_flatten(), cls.tree_unflatten)  # type: ignore[attr-defined]
    return cls


def register_pytree_with_keys_class(cls: type[_T]) -> type[_T]:
    """Class decorator like `register_pytree_node_class`, for a class that also has ``tree_flatten_with_keys``."""
    flatten = (lambda node: node.tree_flatten()) if hasattr(cls, "tree_flatten") else None
    build = cls.tree_unflatten  # type: ignore[attr-defined]
    register_pytree_with_keys(cls, lambda node: node.tree_flatten_with_keys(), build, flatten)
    return cls


def static(**kwargs: Any) -> Any:
    """``dataclasses.field`` for a field that `register_dataclass` shall treat as structure, not as data."""
    metadata = {**(kwargs.pop("metadata", None) or {}), "static": True}
    return dataclasses.field(metadata=metadata, **kwargs)


def register_static(cls: type[_T]) -> type[_T]:
    """Class decorator: values are nodes without children. They must be hashable, and are part of the structure."""
    register_pytree_node(cls, lambda node: ((), node), lambda node, children: node)
    return cls


def register_dataclass(
    nodetype: type[_T],
    data_fields: Sequence[str] | None = None,
    meta_fields: Sequence[str] | None = None,
    drop_fields: Sequence[str] = (),
) -> type[_T]:
    """Make a dataclass a node: data fields are children, meta fields are part of the structure.

    Args:
      nodetype: a dataclass, or any class that takes its fields as keywords (then both lists are needed).
      data_fields: names of the children in order. By default every field that is not `static`.
      meta_fields: names of the fields that must be equal for two trees to have one structure.
      drop_fields: fields that are neither, and that ``__init__`` fills in again.

    Raises:
      TypeError: the fields are not given and cannot be told from the class.
      ValueError: the lists do not name exactly the fields that ``__init__`` takes.
    """
    if (data_fields is None) != (meta_fields is None):
        raise TypeError(
            f"register_dataclass: data_fields and meta_fields must both be specified when either is specified. "
            f"Got {data_fields=} {meta_fields=}."
        )
    if data_fields is None or meta_fields is None:
        if not dataclasses.is_dataclass(nodetype):
            raise TypeError(
                f"register_dataclass: data_fields and meta_fields are required when nodetype is not a dataclass. "
                f"Got nodetype={nodetype!r}."
            )
        fields = [f for f in dataclasses.fields(nodetype) if f.init and f.name not in drop_fields]
        data_fields = [f.name for f in fields if not f.metadata.get("static", False)]
        meta_fields = [f.name for f in fields if f.metadata.get("static", False)]
    data, meta = tuple(data_fields), tuple(meta_fields)
    if dataclasses.is_dataclass(nodetype):
        _check_fields(nodetype, {*data, *meta}, set(drop_fields))

    def flatten(node: Any) -> tuple[Any, Any]:
        return [getattr(node, name) for name in data], tuple([getattr(node, name) for name in meta])

    def build(aux: Any, children: Any) -> Any:
        return nodetype(**dict(zip(meta, aux)), **dict(zip(data, children)))

    _register(NodeKind(nodetype, flatten, build, lambda aux, n: [GetAttrKey(name) for name in data]))
    return nodetype


def _check_fields(nodetype: Any, given: set[str], dropped: set[str]) -> None:
    wanted = {f.name for f in dataclasses.fields(nodetype) if f.init} - dropped
    message = "data_fields and meta_fields must include all dataclass fields with ``init=True`` and only them. "
    if wanted - given:
        missing = sorted(wanted - given)
        raise ValueError(f"{message}Missing fields: {missing}. Add them to drop_fields to suppress this error.")
    if given - wanted:
        raise ValueError(f"{message}Unexpected fields: {sorted(given - wanted)}.")


# ---------------------------------------------------------------------------------------------------------------------
# Partial


class _Opaque:
    """A `functools.partial` inside a `Partial`: called as it is, its arguments are not children."""

    __slots__ = ("inner",)

    def __init__(self, inner: functools.partial[Any]) -> None:
        self.inner = inner

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner(*args, **kwargs)

    def __repr__(self) -> str:
        return repr(self.inner)

    def _parts(self) -> tuple[Any, ...]:
        # Arguments may be arrays, whose == has no single answer: the same object is what counts.
        inner = self.inner
        named = tuple([(key, id(value)) for key, value in inner.keywords.items()])
        return inner.func, tuple([id(value) for value in inner.args]), named

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Opaque) and self._parts() == other._parts()

    def __hash__(self) -> int:
        return hash(self._parts())


class Partial(functools.partial):
    """`functools.partial` whose arguments are leaves of a pytree, so that it can be passed to transformed functions.

    The function itself is part of the structure: it must be hashable.
    """

    def __new__(cls, func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Partial:
        if isinstance(func, functools.partial):
            # functools would merge the two, and make children of arguments that may not be arrays.
            func = _Opaque(func)
        return super().__new__(cls, func, *args, **kwargs)


register_pytree_node(
    Partial,
    lambda node: ((node.args, node.keywords), node.func),
    lambda func, children: Partial(func, *children[0], **children[1]),
)
