"""The structure of pytrees: `PyTreeDef`, and taking trees apart and putting them together.

`flatten` is on the call path of every compiled function. It makes one pass that collects the leaves and a *spelling* of
the structure (a flat list of kinds, aux data and counts); the `PyTreeDef` of a spelling seen before is looked up, not
built. So equal structures are usually identical, though nothing may rely on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, TypeAlias

from mpiarray.types.tree_nodes import DICT, KINDS, LIST, NONE, TUPLE, KeyEntry, KeyPath, NodeKind, keystr, kind_of_type

IsLeaf: TypeAlias = "Callable[[Any], bool] | None"


class PyTreeDef:
    """The structure of a tree: the tree without its leaves. Immutable and hashable.

    Attributes:
      num_leaves: leaves of a tree of this structure.
      num_nodes: leaves and containers.
    """

    __slots__ = ("_hash", "aux", "flat", "kids", "kind", "num_leaves", "num_nodes")

    kind: NodeKind | None
    aux: Any
    kids: tuple[PyTreeDef, ...]
    #: whether every child is a leaf
    flat: bool
    num_leaves: int
    num_nodes: int

    def __init__(self, kind: NodeKind | None, aux: Any, kids: tuple[PyTreeDef, ...]) -> None:
        self.kind = kind
        self.aux = aux
        self.kids = kids
        self.flat = kind is not None and all(kid.kind is None for kid in kids)
        self.num_leaves = 1 if kind is None else sum(kid.num_leaves for kid in kids)
        self.num_nodes = 1 + sum(kid.num_nodes for kid in kids)
        try:
            mark = hash(aux)
        except TypeError:
            # Aux data should be hashable, but only its equality decides.
            mark = 0
        self._hash = hash((None if kind is None else kind.type, mark, kids))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, PyTreeDef) or self._hash != other._hash:
            return False
        if self.kind is not other.kind or len(self.kids) != len(other.kids):
            return False
        return bool(self.aux is other.aux or self.aux == other.aux) and self.kids == other.kids

    def __reduce__(self) -> tuple[Any, ...]:
        return PyTreeDef, (self.kind, self.aux, self.kids)

    def __repr__(self) -> str:
        return f"PyTreeDef({_text(self)})"

    def unflatten(self, leaves: Iterable[Any]) -> Any:
        """The tree of this structure with these leaves."""
        return unflatten(self, leaves)

    def flatten_up_to(self, tree: Any) -> list[Any]:
        """The subtrees of `tree` that stand where this structure has its leaves."""
        return flatten_up_to(self, tree)

    def children(self) -> list[PyTreeDef]:
        """The structures of the root's children; none for a leaf."""
        return list(self.kids)

    def node_data(self) -> tuple[type, Any] | None:
        """The root's type and aux data; None for a leaf."""
        if self.kind is None:
            return None
        return self.kind.type, list(self.aux) if self.kind is DICT else self.aux

    def compose(self, inner: PyTreeDef) -> PyTreeDef:
        """This structure with each leaf replaced by `inner`."""
        if self.kind is None:
            return inner
        return PyTreeDef(self.kind, self.aux, tuple([kid.compose(inner) for kid in self.kids]))


LEAF = PyTreeDef(None, None, ())


def _text(treedef: PyTreeDef) -> str:
    kind, aux = treedef.kind, treedef.aux
    if kind is None:
        return "*"
    if kind is NONE:
        return "None"
    kids = [_text(kid) for kid in treedef.kids]
    if kind is TUPLE:
        return f"({kids[0]},)" if len(kids) == 1 else f"({', '.join(kids)})"
    if kind is LIST:
        return f"[{', '.join(kids)}]"
    if kind is DICT:
        return "{" + ", ".join([f"{key!r}: {kid}" for key, kid in zip(aux, kids)]) + "}"
    if issubclass(kind.type, tuple) and hasattr(kind.type, "_fields") and aux is None:
        label = f"namedtuple[{kind.type.__name__}]"
    else:
        label = f"{kind.type.__name__}[{aux}]"
    return f"CustomNode({label}, [{', '.join(kids)}])"


# Structures by spelling. Bounded, because aux data could differ at each call.
_TREEDEFS: dict[tuple[Any, ...], PyTreeDef] = {(0,): LEAF}
_TREEDEFS_LIMIT = 10_000
_WRITTEN_OUT = 500  # leaves of a tree, at most, that `builder` writes as one expression


class _Unshared:
    """Stands in a spelling for aux data that equals other aux data without being the same thing."""

    __slots__ = ("aux",)

    def __init__(self, aux: Any) -> None:
        self.aux = aux


def spell_aux(aux: Any) -> Any:
    """`aux` as a part of a spelling, which must differ where rebuilding a tree would differ.

    1, 1.0 and True are equal, but a tree made with one must not come back with another. Only types for which equal
    means interchangeable are spelled by themselves.
    """
    kind = type(aux)
    if kind is str or aux is None or kind is type:
        return aux
    if kind is tuple:
        for part in aux:
            if type(part) is not str:
                return (tuple, tuple([spell_aux(part) for part in aux]))
        return aux
    if kind is int or kind is bool or kind is bytes:
        return (kind, aux)
    if kind is float or kind is complex:
        return (kind, repr(aux))
    return _Unshared(aux)


def _scan(tree: Any, leaves: list[Any], spelling: list[Any], auxes: list[Any]) -> None:
    try:
        kind = KINDS[type(tree)]
    except KeyError:
        kind = kind_of_type(type(tree))
    if kind is None:
        leaves.append(tree)
        spelling.append(0)
        return
    if kind is TUPLE or kind is LIST:
        children = tree
        spelling += (kind, None, len(tree))
        auxes.append(None)
    else:
        children, aux = kind.flatten(tree)
        if not isinstance(children, (tuple, list)):
            children = tuple(children)
        spelling += (kind, None if aux is None else spell_aux(aux), len(children))
        auxes.append(aux)
    for child in children:
        # The same lookup as above; a call per leaf would double the cost of a flat container.
        if KINDS.get(type(child), kind) is None:
            leaves.append(child)
            spelling.append(0)
        else:
            _scan(child, leaves, spelling, auxes)


def _scan_until(tree: Any, is_leaf: Callable[[Any], bool], out: list[Any], spelling: list[Any], aux_out: list) -> None:
    kind = None if is_leaf(tree) else kind_of_type(type(tree))
    if kind is None:
        out.append(tree)
        spelling.append(0)
        return
    children, aux = kind.flatten(tree)
    children = tuple(children)
    spelling += (kind, spell_aux(aux), len(children))
    aux_out.append(aux)
    for child in children:
        _scan_until(child, is_leaf, out, spelling, aux_out)


def _assemble(spelling: Iterator[Any], auxes: Iterator[Any]) -> PyTreeDef:
    kind = next(spelling)
    if kind == 0:
        return LEAF
    next(spelling)
    n = next(spelling)
    aux = next(auxes)
    return PyTreeDef(kind, aux, tuple([_assemble(spelling, auxes) for _ in range(n)]))


def treedef_of_spelling(spelling: list[Any], auxes: list[Any]) -> PyTreeDef:
    key = tuple(spelling)
    found = _TREEDEFS.get(key)
    if found is None:
        found = _assemble(iter(spelling), iter(auxes))
        if not _has_unshared(key):
            if len(_TREEDEFS) >= _TREEDEFS_LIMIT:
                _TREEDEFS.clear()
                _TREEDEFS[(0,)] = LEAF
            _TREEDEFS[key] = found
    return found


def _has_unshared(spelling: tuple[Any, ...]) -> bool:
    return any(type(part) is _Unshared or (type(part) is tuple and _has_unshared(part)) for part in spelling)


def flatten(tree: Any, is_leaf: IsLeaf = None) -> tuple[list[Any], PyTreeDef]:
    """The leaves of a tree, left to right, and its structure.

    Args:
      tree: any value.
      is_leaf: called with each subtree, the root included; where it is true the subtree is taken as a leaf.
    """
    leaves: list[Any] = []
    spelling: list[Any] = []
    auxes: list[Any] = []
    if is_leaf is None:
        _scan(tree, leaves, spelling, auxes)
    else:
        _scan_until(tree, is_leaf, leaves, spelling, auxes)
    return leaves, treedef_of_spelling(spelling, auxes)


def leaves(tree: Any, is_leaf: IsLeaf = None) -> list[Any]:
    """The leaves of a tree, left to right."""
    return flatten(tree, is_leaf)[0]


def structure(tree: Any, is_leaf: IsLeaf = None) -> PyTreeDef:
    """The structure of a tree."""
    return flatten(tree, is_leaf)[1]


def unflatten(treedef: PyTreeDef, leaves: Iterable[Any]) -> Any:
    """The tree with this structure and these leaves: the inverse of `flatten`.

    Raises:
      ValueError: there are more or fewer leaves than the structure has.
    """
    values = leaves if isinstance(leaves, (list, tuple)) else list(leaves)
    if len(values) != treedef.num_leaves:
        many = "few" if len(values) < treedef.num_leaves else "many"
        raise ValueError(
            f"unflatten: Too {many} leaves for PyTreeDef; expected {treedef.num_leaves}, got {len(values)}. "
            f"The structure is {treedef}."
        )
    if treedef.flat:
        return _build_node(treedef, values)
    return _build(treedef, iter(values))


def builder(treedef: PyTreeDef) -> Callable[[Sequence[Any]], Any]:
    """`unflatten` for one structure and as many leaves as it has, written out as one expression: for who does it often."""
    scope: dict[str, Any] = {}
    places = iter(range(treedef.num_leaves))

    def named(value: Any) -> str:
        name = f"k{len(scope)}"
        scope[name] = value
        return name

    def text(node: PyTreeDef) -> str:
        kind = node.kind
        if kind is None:
            return f"v[{next(places)}]"
        parts = [text(kid) for kid in node.kids]
        if kind is TUPLE:
            return f"({''.join(f'{part}, ' for part in parts)})"
        if kind is LIST:
            return f"[{', '.join(parts)}]"
        if kind is DICT:
            return "{" + ", ".join([f"{named(key)}: {part}" for key, part in zip(node.aux, parts)]) + "}"
        return f"{named(partial(_build_node, node))}([{', '.join(parts)}])"

    try:
        if treedef.num_leaves <= _WRITTEN_OUT:
            return eval(f"lambda v: {text(treedef)}", scope)
    except (SyntaxError, MemoryError, RecursionError):  # deeper than Python's parser goes
        pass
    return partial(unflatten, treedef)


@lru_cache(maxsize=1024)
def opener(treedef: PyTreeDef) -> Callable[[Any], tuple[Any, ...] | None] | None:
    """What gives the leaves of trees of one structure, or None for a tree of another, written out as one function.

    It does not look at leaves: a container where a leaf belongs is given as that leaf.  None where the structure has more
    than tuples, lists, None, and dicts whose keys are strings, or too many leaves.
    """
    if treedef.num_leaves > _WRITTEN_OUT:
        return None
    lines, leaves = ["def open_tree(t0):", "  try:", "    pass"], []
    todo, count = [(treedef, "t0")], 1
    while todo:
        node, name = todo.pop()
        kind, names = node.kind, [f"t{count + k}" for k in range(len(node.kids))]
        count += len(names)
        if kind is None:
            leaves.append(name)
        elif kind is NONE:
            lines.append(f"    if {name} is not None: return None")
        elif kind is TUPLE or kind is LIST or (kind is DICT and all(type(key) is str for key in node.aux)):
            lines.append(f"    if type({name}) is not {kind.type.__name__} or len({name}) != {len(names)}: return None")
            parts = ", ".join(f"{name}[{key!r}]" for key in node.aux) + "," if kind is DICT else name
            lines += [f"    {', '.join(names)}, = {parts}"] if names else []
        else:
            return None
        todo += reversed(list(zip(node.kids, names)))
    lines += ["  except KeyError: return None", f"  return ({''.join(f'{name}, ' for name in leaves)})"]
    scope: dict[str, Any] = {}
    exec("\n".join(lines), scope)
    return scope["open_tree"]


def _build_node(treedef: PyTreeDef, children: Sequence[Any]) -> Any:
    kind = treedef.kind
    if kind is TUPLE:
        return tuple(children)
    if kind is LIST:
        return list(children)
    if kind is DICT:
        return dict(zip(treedef.aux, children))
    return kind.build(treedef.aux, tuple(children))  # type: ignore[union-attr]


def _build(treedef: PyTreeDef, values: Iterator[Any]) -> Any:
    if treedef.kind is None:
        return next(values)
    return _build_node(treedef, [next(values) if kid.kind is None else _build(kid, values) for kid in treedef.kids])


# ---------------------------------------------------------------------------------------------------------------------
# Comparing a tree with a structure


def _describe(kind: NodeKind | None, aux: Any, n: int) -> str:
    if kind is None:
        return "a leaf"
    if kind is NONE:
        return "None"
    if kind is TUPLE or kind is LIST:
        return f"a {kind.type.__name__} of length {n}"
    if kind is DICT:
        return f"a dict with keys {list(aux)}"
    return f"{kind.type.__name__} with {n} children" + ("" if aux is None else f" and metadata {aux!r}")


def _mismatch(what: str, path: KeyPath, wanted: PyTreeDef, kind: NodeKind | None, aux: Any, n: int, value: Any) -> str:
    """The text for a place where a full tree does not continue a prefix (`wanted`) that still has containers."""
    if wanted.kind is not kind:
        difference = "different types"
    elif kind is TUPLE or kind is LIST:
        difference = f"different lengths of {kind.type.__name__}"
    elif wanted.aux != aux:
        difference = "different pytree metadata"
    else:
        difference = "different numbers of pytree children"
    got = f"a leaf of type {type(value).__name__}" if kind is None and value is not LEAF else _describe(kind, aux, n)
    text = (
        f"pytree structure error: {difference} at key path\n    {what}{keystr(path)}\n"
        f"There the prefix has {_describe(wanted.kind, wanted.aux, len(wanted.kids))}, "
        f"but the full tree has {got}."
    )
    if kind is DICT and wanted.kind is DICT:
        missing = [key for key in wanted.aux if key not in aux]
        extra = [key for key in aux if key not in wanted.aux]
        text += f" Only in the prefix: {missing}; only in the full tree: {extra}."
    return text


def flatten_up_to(treedef: PyTreeDef, tree: Any, *, what: str = "tree") -> list[Any]:
    """The subtrees of `tree` that stand where `treedef` has its leaves.

    Args:
      treedef: a structure that is a prefix of the structure of `tree`.
      tree: any tree.
      what: how the tree is called in errors, in front of the key path.

    Raises:
      ValueError: "pytree structure error", with the key path of the first difference.
    """
    found: list[Any] = []
    _collect_up_to(treedef, tree, found, (), what)
    return found


def _collect_up_to(treedef: PyTreeDef, tree: Any, found: list[Any], path: KeyPath, what: str) -> None:
    if treedef.kind is None:
        found.append(tree)
        return
    kind = kind_of_type(type(tree))
    if kind is not treedef.kind:
        children, aux = kind.flatten(tree) if kind is not None else ((), None)
        raise ValueError(_mismatch(what, path, treedef, kind, aux, len(tuple(children)), tree))
    children, aux = kind.flatten(tree)
    children = tuple(children)
    if len(children) != len(treedef.kids) or not (aux is treedef.aux or aux == treedef.aux):
        raise ValueError(_mismatch(what, path, treedef, kind, aux, len(children), tree))
    for i, (kid, child) in enumerate(zip(treedef.kids, children)):
        if kid.kind is None:
            found.append(child)
        else:
            _collect_up_to(kid, child, found, path + (_entry(treedef, i),), what)


def _entry(treedef: PyTreeDef, i: int) -> KeyEntry:
    return list(treedef.kind.entries(treedef.aux, len(treedef.kids)))[i]  # type: ignore[union-attr]


def prefix_leaves(prefix_tree: Any, treedef: PyTreeDef, *, what: str, is_leaf: IsLeaf = None) -> list[Any]:
    """The leaves of a prefix tree, each repeated for all leaves of `treedef` below it.

    Args:
      prefix_tree: a tree that ends where `treedef` does or earlier, e.g. ``in_specs``. Its containers must be of the
        same types as those of `treedef`. Note that None is an empty tree, unless `is_leaf` says otherwise.
      treedef: the structure of the full tree.
      what: the name of the argument, for errors.
      is_leaf: as in `flatten`, for the prefix tree.

    Returns:
      As many values as `treedef` has leaves.

    Raises:
      ValueError: "pytree structure error", with the key path of the first difference.
    """
    found: list[Any] = []
    prefix = structure(prefix_tree, is_leaf)
    _repeat(prefix, iter(leaves(prefix_tree, is_leaf)), treedef, found, (), what)
    return found


def _repeat(
    prefix: PyTreeDef, values: Iterator[Any], full: PyTreeDef, found: list[Any], path: KeyPath, what: str
) -> None:
    if prefix.kind is None:
        found.extend([next(values)] * full.num_leaves)
        return
    kids = full.kids
    if prefix.kind is not full.kind or len(prefix.kids) != len(kids) or prefix.aux != full.aux:
        raise ValueError(_mismatch(what, path, prefix, full.kind, full.aux, len(kids), LEAF))
    for i, (kid, other) in enumerate(zip(prefix.kids, kids)):
        _repeat(kid, values, other, found, path + (_entry(prefix, i),), what)
