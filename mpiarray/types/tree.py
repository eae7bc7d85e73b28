"""Pytrees: nested containers of leaves, their structure, and the functions that map over them.

A tree is a leaf, or a container (tuple, list, dict, named tuple, OrderedDict, defaultdict, None, or a registered class)
of trees. ``None`` has no leaves. Dicts are ordered by their sorted keys, so equal keys give equal structures. Specs,
meshes, shardings and array types are leaves: nothing registers them.
"""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable, Iterable
from typing import Any

from mpiarray.types.tree_nodes import (
    TUPLE,
    DictKey,
    FlattenedIndexKey,
    GetAttrKey,
    KeyEntry,
    KeyPath,
    NodeKind,
    Partial,
    SequenceKey,
    keystr,
    kind_of_type,
    register_dataclass,
    register_pytree_node,
    register_pytree_node_class,
    register_pytree_with_keys,
    register_pytree_with_keys_class,
    register_static,
    static,
)
from mpiarray.types.treedef import (
    IsLeaf,
    PyTreeDef,
    flatten,
    flatten_up_to,
    leaves,
    prefix_leaves,
    spell_aux,
    structure,
    treedef_of_spelling,
    unflatten,
)

__all__ = [
    # structure
    "PyTreeDef",
    "flatten",
    "unflatten",
    "leaves",
    "structure",
    "all_leaves",
    "flatten_one_level",
    "flatten_one_level_with_keys",
    "is_tree_node",
    "treedef_children",
    "treedef_is_leaf",
    "treedef_tuple",
    # mapping
    "map",
    "reduce",
    "reduce_associative",
    "all",
    "transpose",
    "flatten_up_to",
    # prefixes
    "broadcast",
    "flatten_prefix",
    "prefix_leaves",
    # paths
    "KeyEntry",
    "KeyPath",
    "DictKey",
    "FlattenedIndexKey",
    "GetAttrKey",
    "SequenceKey",
    "flatten_with_path",
    "keystr",
    "leaves_with_path",
    "map_with_path",
    "paths",
    # nodes
    "Partial",
    "register_dataclass",
    "register_pytree_node",
    "register_pytree_node_class",
    "register_pytree_with_keys",
    "register_pytree_with_keys_class",
    "register_static",
    "static",
]

# ---------------------------------------------------------------------------------------------------------------------
# One level at a time


def all_leaves(values: Iterable[Any], is_leaf: IsLeaf = None) -> bool:
    """Whether none of `values` is a container."""
    return builtins.all(
        (is_leaf is not None and is_leaf(value)) or kind_of_type(type(value)) is None for value in values
    )


def is_tree_node(value_type: type) -> bool:
    """Whether values of this type are containers."""
    return kind_of_type(value_type) is not None


def _kind_or_raise(tree: Any) -> NodeKind:
    kind = kind_of_type(type(tree))
    if kind is None:
        raise ValueError(f"can't tree-flatten type: {type(tree)}: it is a leaf")
    return kind


def flatten_one_level(tree: Any) -> tuple[Iterable[Any], Any]:
    """The children of the root and its aux data.

    Raises:
      ValueError: `tree` is a leaf.
    """
    return _kind_or_raise(tree).flatten(tree)


def flatten_one_level_with_keys(tree: Any) -> tuple[list[tuple[KeyEntry, Any]], Any]:
    """`flatten_one_level` with the key of each child."""
    return _kind_or_raise(tree).keyed(tree)


def treedef_tuple(treedefs: Iterable[PyTreeDef]) -> PyTreeDef:
    """The structure of a tuple of trees of these structures."""
    return PyTreeDef(TUPLE, None, tuple(treedefs))


def treedef_children(treedef: PyTreeDef) -> list[PyTreeDef]:
    """The structures of the root's children."""
    return treedef.children()


def treedef_is_leaf(treedef: PyTreeDef) -> bool:
    """Whether this is the structure of a single leaf."""
    return treedef.kind is None


# ---------------------------------------------------------------------------------------------------------------------
# Prefixes


def flatten_prefix(
    prefix_tree: Any, full_tree: Any, *, what: str, is_leaf: IsLeaf = None, full_is_leaf: IsLeaf = None
) -> list[Any]:
    """`prefix_leaves` for a full tree instead of its structure."""
    return prefix_leaves(prefix_tree, structure(full_tree, full_is_leaf), what=what, is_leaf=is_leaf)


def broadcast(prefix_tree: Any, full_tree: Any, is_leaf: IsLeaf = None) -> Any:
    """A tree with the structure of `full_tree` and the leaves of `prefix_tree`, repeated where it ends earlier.

    Raises:
      ValueError: `prefix_tree` is not a prefix of `full_tree`.
    """
    treedef = structure(full_tree, is_leaf)
    return unflatten(treedef, prefix_leaves(prefix_tree, treedef, what="tree.broadcast prefix_tree", is_leaf=is_leaf))


# ---------------------------------------------------------------------------------------------------------------------
# Mapping


def map(f: Callable[..., Any], tree: Any, *rest: Any, is_leaf: IsLeaf = None) -> Any:
    """The tree of ``f(leaf, *others)`` over the leaves of `tree`.

    Args:
      f: called once for each leaf of `tree`, left to right.
      tree: its structure is the result's.
      rest: trees of which `tree` is a prefix; f gets their subtrees.
      is_leaf: as in `flatten`, for `tree`.

    Raises:
      ValueError: "pytree structure error": a tree in `rest` differs, with the key path.
    """
    values, treedef = flatten(tree, is_leaf)
    if not rest:
        return unflatten(treedef, [f(value) for value in values])
    columns = [values, *[_aligned(treedef, other, i) for i, other in enumerate(rest)]]
    return unflatten(treedef, [f(*row) for row in zip(*columns)])


def _aligned(treedef: PyTreeDef, other: Any, i: int) -> list[Any]:
    # Trees are nearly always of one structure: flattening the second then finds the identical treedef.
    values, found = flatten(other)
    return values if found is treedef else flatten_up_to(treedef, other, what=f"(rest[{i}] of tree.map) tree")


_UNSET: Any = object()


def reduce(function: Callable[[Any, Any], Any], tree: Any, initializer: Any = _UNSET, is_leaf: IsLeaf = None) -> Any:
    """`functools.reduce` over the leaves of a tree, left to right."""
    values = leaves(tree, is_leaf)
    if initializer is _UNSET:
        return functools.reduce(function, values)
    return functools.reduce(function, values, initializer)


def reduce_associative(
    operation: Callable[[Any, Any], Any], tree: Any, *, identity: Any = _UNSET, is_leaf: IsLeaf = None
) -> Any:
    """Reduce the leaves pairwise, as a balanced tree of calls of an associative `operation`.

    Raises:
      ValueError: there is no leaf and no `identity`.
    """
    values = leaves(tree, is_leaf)
    if not values:
        if identity is _UNSET:
            raise ValueError("tree.reduce_associative: the tree has no leaves, and no identity was given")
        return identity
    while len(values) > 1:
        odd = values[len(values) - len(values) % 2 :]
        values = [operation(a, b) for a, b in zip(values[::2], values[1::2])] + odd
    return values[0]


def all(tree: Any, *, is_leaf: IsLeaf = None) -> bool:
    """Whether all leaves are true."""
    return builtins.all(leaves(tree, is_leaf))


def transpose(outer_treedef: PyTreeDef, inner_treedef: PyTreeDef | None, pytree_to_transpose: Any) -> Any:
    """Turn an outer tree of inner trees into an inner tree of outer trees, e.g. a list of dicts into a dict of lists.

    Args:
      outer_treedef: the structure of the outside.
      inner_treedef: the structure of the inside; None takes it from the first inner tree.
      pytree_to_transpose: a tree of structure `outer_treedef` of trees of structure `inner_treedef`.

    Raises:
      TypeError: it has another structure.
      ValueError: an outer or inner structure is needed but has no leaves.
    """
    values, treedef = flatten(pytree_to_transpose)
    if inner_treedef is None:
        if not outer_treedef.num_leaves:
            raise ValueError("tree.transpose: outer_treedef has no leaves, so inner_treedef must be given")
        inner_treedef = structure(flatten_up_to(outer_treedef, pytree_to_transpose, what="tree.transpose tree")[0])
    expected = outer_treedef.compose(inner_treedef)
    if treedef != expected:
        raise TypeError(
            f"tree.transpose: the tree has the structure\n  {treedef}\nbut outer_treedef and inner_treedef need\n  "
            f"{expected}"
        )
    if not outer_treedef.num_leaves or not inner_treedef.num_leaves:
        raise ValueError("tree.transpose: the outer and the inner structure must have leaves")
    width = inner_treedef.num_leaves
    return unflatten(inner_treedef, [unflatten(outer_treedef, values[i::width]) for i in range(width)])


# ---------------------------------------------------------------------------------------------------------------------
# Paths


def flatten_with_path(
    tree: Any, is_leaf: Callable[..., bool] | None = None, is_leaf_takes_path: bool = False
) -> tuple[list[tuple[KeyPath, Any]], PyTreeDef]:
    """`flatten` with pairs ``(path, leaf)``; a path is a tuple of keys such as ``DictKey('a')``.

    Args:
      tree: any value.
      is_leaf: as in `flatten`.
      is_leaf_takes_path: call ``is_leaf(path, subtree)``.
    """
    found: list[tuple[KeyPath, Any]] = []
    spelling: list[Any] = []
    auxes: list[Any] = []

    def visit(node: Any, path: KeyPath) -> None:
        if is_leaf is not None and (is_leaf(path, node) if is_leaf_takes_path else is_leaf(node)):
            kind = None
        else:
            kind = kind_of_type(type(node))
        if kind is None:
            found.append((path, node))
            spelling.append(0)
            return
        pairs, aux = kind.keyed(node)
        spelling.extend((kind, spell_aux(aux), len(pairs)))
        auxes.append(aux)
        for key, child in pairs:
            visit(child, path + (key,))

    visit(tree, ())
    return found, treedef_of_spelling(spelling, auxes)


def leaves_with_path(
    tree: Any, is_leaf: Callable[..., bool] | None = None, is_leaf_takes_path: bool = False
) -> list[tuple[KeyPath, Any]]:
    """The pairs ``(path, leaf)`` of a tree, left to right."""
    return flatten_with_path(tree, is_leaf, is_leaf_takes_path)[0]


def map_with_path(
    f: Callable[..., Any],
    tree: Any,
    *rest: Any,
    is_leaf: Callable[..., bool] | None = None,
    is_leaf_takes_path: bool = False,
) -> Any:
    """`map` with the path of the leaf as the first argument of f."""
    pairs, treedef = flatten_with_path(tree, is_leaf, is_leaf_takes_path)
    columns = [_aligned(treedef, other, i) for i, other in enumerate(rest)]
    return unflatten(treedef, [f(*pair, *others) for pair, *others in zip(pairs, *columns)])


def paths(treedef: PyTreeDef) -> list[KeyPath]:
    """The path of each leaf of a structure, for messages. Unnamed children of registered classes go by position."""
    found: list[KeyPath] = []

    def visit(node: PyTreeDef, path: KeyPath) -> None:
        if node.kind is None:
            found.append(path)
            return
        for key, kid in zip(node.kind.entries(node.aux, len(node.kids)), node.kids):
            visit(kid, path + (key,))

    visit(treedef, ())
    return found
