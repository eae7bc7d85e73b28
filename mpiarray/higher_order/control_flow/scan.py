"""`lax.scan`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from mpiarray.config import config
from mpiarray.core.plan import dims_of
from mpiarray.higher_order.control_flow.bodies import Body, first_parameter, name_of, placed_aval, trace_body, values_of
from mpiarray.higher_order.control_flow.carries import avals_of, check_carry, promoted
from mpiarray.higher_order.control_flow.casts import lifted
from mpiarray.higher_order.control_flow.scan_op import scan_op
from mpiarray.numpy.host import as_array
from mpiarray.numpy.manipulation import stack
from mpiarray.transforms.batching import example_aval
from mpiarray.types import tree
from mpiarray.types.aval import ShapedArray


def scan(
    f: Callable[..., Any], init: Any, xs: Any = None, length: int | None = None, reverse: bool = False, unroll: int | bool = 1,
    _split_transpose: bool = False,
) -> tuple[Any, Any]:  # fmt: skip
    """Run `carry, y = f(carry, x)` for each slice of `xs` along its first dim; the last carry, and the ys stacked.

    init: the first carry, a tree of arrays; every iteration must return one of the same types (weak types give way).
    xs: a tree of arrays with one first dim, which must not be sharded, or None; then `length` says how many iterations.
    reverse: from the last slice to the first.  unroll: how many iterations a compiled program writes out one after another
    for each turn of its loop (True or `length`: all, and no loop is left).

    Raises TypeError when `f` returns no pair or a carry of another type, ValueError when lengths differ.
    Communicates as `f` does, once per iteration.
    """
    if not callable(f):
        raise TypeError(f"lax.scan: f argument should be a callable, got {f!r} of type {type(f)}")
    carry, carry_tree = values_of("scan", "init", init)
    slices, xs_tree = values_of("scan", "xs", xs)
    count = _length(avals_of(slices), length)
    _check_unroll(unroll)
    if config.jax_disable_jit:
        return _in_python(f, init, slices, xs_tree, count, reverse)
    body, carry = _trace(f, carry, carry_tree, slices, xs_tree)
    outs = scan_op(
        *body.consts, *carry, *slices, jaxpr=body.jaxpr, length=count, num_carry=len(carry), num_consts=len(body.consts), reverse=bool(reverse),
        unroll=1 if count == 0 and unroll is True else count if unroll is True else int(unroll) or 1,
    )  # fmt: skip
    out_tree = tree.treedef_children(body.structure)
    n = len(carry)
    return tree.unflatten(out_tree[0], outs[:n]), tree.unflatten(out_tree[1], outs[n:])


def _length(avals: Sequence[ShapedArray], length: Any) -> int:
    """The number of iterations.  Raises ValueError when xs and `length` do not agree."""
    for a in avals:
        if not a.ndim:
            raise ValueError(f"scan got value with no leading axis to scan over: {a.str_short()}")
        if dims_of(a)[0]:
            raise ValueError(
                f"0th dimension of all xs should be replicated. Got {a.sharding.spec} for {a.str_short()}: the iterations run one after another on all "
                "devices. Use `jax.reshard` to shard another dimension."
            )
    sizes = [a.shape[0] for a in avals]
    if length is not None:
        try:
            length = operator.index(length)
        except TypeError:
            raise TypeError(
                f"The `length` argument to `scan` expects a concrete `int` value, got {length!r}."
            ) from None
        if length < 0:
            raise ValueError(f"scan: length must not be negative, got {length}")
        if any(n != length for n in sizes):
            raise ValueError(f"scan got `length` argument of {length} which disagrees with leading axis sizes {sizes}.")
        return length
    if len(set(sizes)) > 1:
        raise ValueError(f"scan got values with different leading axis sizes: {', '.join(str(n) for n in sizes)}.")
    if not sizes:
        raise ValueError("scan got no values to scan over and `length` not provided.")
    return sizes[0]


def _check_unroll(unroll: Any) -> None:
    if not isinstance(unroll, (bool, int)) or (not isinstance(unroll, bool) and unroll < 0):
        raise ValueError(f"`unroll` must be a `bool` or a non-negative `int`, got {unroll!r}.")


def _trace(
    f: Callable[..., Any], carry: list[Any], carry_tree: Any, slices: list[Any], xs_tree: Any
) -> tuple[Body, list[Any]]:
    """The body's jaxpr, and the initial carry with the types that the body keeps."""
    what, name = "scan body function", first_parameter(f, "carry")
    structure = tree.treedef_tuple((carry_tree, xs_tree))
    x_avals = [example_aval(placed_aval(a), 0) for a in avals_of(slices)]
    avals = [placed_aval(a) for a in avals_of(carry)]
    for _ in range(3):
        body = trace_body("scan", f, structure, [*avals, *x_avals])
        parts = tree.treedef_children(body.structure)
        if len(parts) != 2 or body.structure != tree.treedef_tuple(parts):
            raise TypeError(f"scan body output must be a pair, got {name_of(f)} returning {body.structure}")
        outs = body.out_avals[: parts[0].num_leaves]
        carry, avals, changed = promoted(carry, avals, outs)
        if not changed:
            break
    check_carry(what, name, carry_tree, avals, parts[0], outs)
    return lifted(body), carry


def _in_python(
    f: Callable[..., Any], init: Any, slices: list[Any], xs_tree: Any, count: int, reverse: bool
) -> tuple[Any, Any]:
    """Under `disable_jit`: a Python loop, so that its values can be looked at."""
    if not count:
        raise ValueError("zero-length scan is not supported in disable_jit() mode because the output type is unknown.")
    carry, rows = tree.map(as_array, init), []
    for i in reversed(range(count)) if reverse else range(count):
        carry, y = f(carry, tree.unflatten(xs_tree, [as_array(x)[i] for x in slices]))
        rows.append(y)
    rows = rows[::-1] if reverse else rows
    return carry, tree.map(lambda *ys: stack([as_array(y) for y in ys]), rows[0], *rows[1:])
