"""`jax.checkpoint_policies`: which values of a checkpointed function are kept for the backward pass.

A policy is asked for every operation, `policy(primitive, *types, **params) -> bool`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mpiarray.ops.dot as dot
from mpiarray.ops.names import name as named

__all__ = [
    "checkpoint_dots",
    "checkpoint_dots_with_no_batch_dims",
    "dots_saveable",
    "dots_with_no_batch_dims_saveable",
    "everything_saveable",
    "nothing_saveable",
    "offload_dot_with_no_batch_dims",
    "save_and_offload_only_these_names",
    "save_any_names_but_these",
    "save_anything_except_these_names",
    "save_from_both_policies",
    "save_only_these_names",
]

Policy = Callable[..., bool]


def everything_saveable(prim: Any, *avals: Any, **params: Any) -> bool:
    """Keep all: nothing is computed again."""
    return True


def nothing_saveable(prim: Any, *avals: Any, **params: Any) -> bool:
    """Keep the function's inputs only; the default."""
    return False


def dots_saveable(prim: Any, *avals: Any, **params: Any) -> bool:
    """Keep the results of matrix products and convolutions."""
    return prim is dot.dot_general or prim.name == "conv_general_dilated"


checkpoint_dots = dots_saveable


def dots_with_no_batch_dims_saveable(prim: Any, *avals: Any, **params: Any) -> bool:
    """Keep the results of matrix products without batch dims."""
    if prim is not dot.dot_general:
        return False
    (_, (lhs_batch, rhs_batch)) = params["dimension_numbers"]
    return not lhs_batch and not rhs_batch


checkpoint_dots_with_no_batch_dims = dots_with_no_batch_dims_saveable


def save_only_these_names(*names_which_can_be_saved: str) -> Policy:
    """Keep only values that `checkpoint_name` gave one of these names."""
    names = frozenset(names_which_can_be_saved)

    def policy(prim: Any, *avals: Any, **params: Any) -> bool:
        return prim is named and params["name"] in names

    return policy


def save_any_names_but_these(*names_not_to_save: str) -> Policy:
    """Keep named values, except those with these names."""
    names = frozenset(names_not_to_save)

    def policy(prim: Any, *avals: Any, **params: Any) -> bool:
        return prim is named and params["name"] not in names

    return policy


def save_anything_except_these_names(*names_not_to_save: str) -> Policy:
    """Keep all values, except those with these names."""
    names = frozenset(names_not_to_save)

    def policy(prim: Any, *avals: Any, **params: Any) -> bool:
        return not (prim is named and params["name"] in names)

    return policy


def save_from_both_policies(policy_1: Policy, policy_2: Policy) -> Policy:
    """Keep what either policy keeps."""

    def policy(prim: Any, *avals: Any, **params: Any) -> bool:
        return bool(policy_1(prim, *avals, **params) or policy_2(prim, *avals, **params))

    return policy


def save_and_offload_only_these_names(
    *,
    names_which_can_be_saved: Sequence[str],
    names_which_can_be_offloaded: Sequence[str],
    offload_src: str,
    offload_dst: str,
) -> Policy:
    """Keep values of either set of names; there is one kind of memory here, so that nothing is moved."""
    return save_only_these_names(*names_which_can_be_saved, *names_which_can_be_offloaded)


def offload_dot_with_no_batch_dims(offload_src: str, offload_dst: str) -> Policy:
    """Keep the results of matrix products without batch dims; there is one kind of memory here, so that nothing is
    moved.
    """
    return dots_with_no_batch_dims_saveable
