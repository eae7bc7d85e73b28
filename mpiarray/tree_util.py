"""``jax.tree_util``: pytrees under their long names, and the registration of new container types."""

from mpiarray.types.tree import (
    DictKey,
    FlattenedIndexKey,
    GetAttrKey,
    KeyEntry,
    KeyPath,
    Partial,
    PyTreeDef,
    SequenceKey,
    all_leaves,
    flatten_one_level,
    flatten_one_level_with_keys,
    is_tree_node,
    keystr,
    register_dataclass,
    register_pytree_node,
    register_pytree_node_class,
    register_pytree_with_keys,
    register_pytree_with_keys_class,
    register_static,
    treedef_children,
    treedef_is_leaf,
    treedef_tuple,
)
from mpiarray.types.tree import all as tree_all
from mpiarray.types.tree import broadcast as tree_broadcast
from mpiarray.types.tree import flatten as tree_flatten
from mpiarray.types.tree import flatten_with_path as tree_flatten_with_path
from mpiarray.types.tree import leaves as tree_leaves
from mpiarray.types.tree import leaves_with_path as tree_leaves_with_path
from mpiarray.types.tree import map as tree_map
from mpiarray.types.tree import map_with_path as tree_map_with_path
from mpiarray.types.tree import reduce as tree_reduce
from mpiarray.types.tree import reduce_associative as tree_reduce_associative
from mpiarray.types.tree import structure as tree_structure
from mpiarray.types.tree import transpose as tree_transpose
from mpiarray.types.tree import unflatten as tree_unflatten

__all__ = [
    "DictKey",
    "FlattenedIndexKey",
    "GetAttrKey",
    "KeyEntry",
    "KeyPath",
    "Partial",
    "PyTreeDef",
    "SequenceKey",
    "all_leaves",
    "flatten_one_level",
    "flatten_one_level_with_keys",
    "is_tree_node",
    "keystr",
    "register_dataclass",
    "register_pytree_node",
    "register_pytree_node_class",
    "register_pytree_with_keys",
    "register_pytree_with_keys_class",
    "register_static",
    "tree_all",
    "tree_broadcast",
    "tree_flatten",
    "tree_flatten_with_path",
    "tree_leaves",
    "tree_leaves_with_path",
    "tree_map",
    "tree_map_with_path",
    "tree_reduce",
    "tree_reduce_associative",
    "tree_structure",
    "tree_transpose",
    "tree_unflatten",
    "treedef_children",
    "treedef_is_leaf",
    "treedef_tuple",
]
