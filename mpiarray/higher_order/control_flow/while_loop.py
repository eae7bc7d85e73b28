"""`lax.while_loop` and `lax.fori_loop`."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any

import numpy as np

from mpiarray.config import config
from mpiarray.core.value import Value, aval_of, literal
from mpiarray.higher_order.control_flow.bodies import Body, first_parameter, name_of, placed_aval, trace_body, values_of
from mpiarray.higher_order.control_flow.carries import avals_of, check_carry, promoted
from mpiarray.higher_order.control_flow.casts import lifted
from mpiarray.higher_order.control_flow.scan import scan
from mpiarray.higher_order.control_flow.while_op import while_op
from mpiarray.numpy.host import as_array
from mpiarray.numpy.promotion import cast
from mpiarray.ops.arithmetic import add
from mpiarray.ops.common import const_like
from mpiarray.ops.comparison import lt
from mpiarray.types import dtypes, tree
from mpiarray.types.aval import ShapedArray


def while_loop(cond_fun: Callable[..., Any], body_fun: Callable[..., Any], init_val: Any) -> Any:
    """`val = body_fun(val)` as long as `cond_fun(val)` holds, starting from `init_val`, a tree of arrays.

    `body_fun` must return a tree of the same types (weak types give way), `cond_fun` a boolean scalar.  Has forward derivatives only.

    Raises TypeError for other results.  In shard_map, a condition that varies over an axis allows no collectives over it
    (ValueError).
    """
    if not callable(cond_fun) or not callable(body_fun):
        raise TypeError("lax.while_loop: body_fun and cond_fun arguments should be callable.")
    if config.jax_disable_jit:
        val = tree.map(as_array, init_val)
        while cond_fun(val):
            val = body_fun(val)
        return val
    carry, structure = values_of("while_loop", "init_val", init_val)
    args = tree.treedef_tuple((structure,))
    avals = [placed_aval(a) for a in avals_of(carry)]
    for _ in range(3):
        body = trace_body("while_loop", body_fun, args, avals)
        carry, avals, changed = promoted(carry, avals, body.out_avals)
        if not changed:
            break
    cond = trace_body("while_loop", cond_fun, args, avals)
    _check_condition(cond, cond_fun)
    check_carry(
        "while_loop body function", first_parameter(body_fun, "val"), structure, avals, body.structure, body.out_avals
    )
    cond, body = lifted(cond), lifted(body)
    outs = while_op(
        *cond.consts, *body.consts, *carry,
        cond_jaxpr=cond.jaxpr, cond_nconsts=len(cond.consts), body_jaxpr=body.jaxpr, body_nconsts=len(body.consts),
    )  # fmt: skip
    return tree.unflatten(structure, outs)


def _check_condition(cond: Body, fun: Any) -> None:
    avals = cond.out_avals
    if not tree.treedef_is_leaf(cond.structure):
        raise TypeError(f"cond_fun must return a boolean scalar, but got pytree {cond.structure} from {name_of(fun)}.")
    if avals[0].ndim or not dtypes.is_bool(avals[0].dtype):
        raise TypeError(
            f"cond_fun must return a boolean scalar (bool[]), but got output type(s) [{avals[0].str_short()}] from {name_of(fun)}."
        )


def fori_loop(
    lower: Any, upper: Any, body_fun: Callable[..., Any], init_val: Any, *, unroll: int | bool | None = None
) -> Any:
    """`val = body_fun(i, val)` for i from `lower` up to `upper`, not included; none when `upper <= lower`.

    Bounds that are known when the loop is traced make it a `scan`, which has derivatives in both directions; others make
    it a `while_loop`.
    """
    if not callable(body_fun):
        raise TypeError(f"lax.fori_loop: body_fun argument should be callable, got {body_fun!r}")
    avals = [_bound("lower", lower), _bound("upper", upper)]
    dtype, weak = dtypes.result_type(*((a.dtype, a.weak_type) for a in avals)), all(a.weak_type for a in avals)
    first, last = _static(lower), _static(upper)
    start = _as_bound(lower, dtype, weak)
    if first is not None and last is not None and (unroll is None or unroll is not False):

        def scan_body(loop_carry: Any, _: Any) -> Any:
            i, val = loop_carry
            return (_next(i), body_fun(i, val)), None

        if config.jax_disable_jit and last <= first:
            return init_val
        (_, result), _ = scan(
            scan_body, (start, init_val), None, length=max(last - first, 0), unroll=1 if unroll is None else unroll
        )
        return result
    return _dynamic(start, _as_bound(upper, dtype, weak), body_fun, init_val)


def _dynamic(start: Any, stop: Any, body_fun: Callable[..., Any], init_val: Any) -> Any:
    """As a while loop: its carry is (i, stop, val), so that the bounds may be traced values."""

    def going(loop_carry: Any) -> Any:
        i, end, _ = loop_carry
        return lt(i, end)

    def body(loop_carry: Any) -> Any:
        i, end, val = loop_carry
        return _next(i), end, body_fun(i, val)

    return while_loop(going, body, (start, stop, init_val))[2]


def _bound(name: str, x: Any) -> ShapedArray:
    try:
        aval = aval_of(x)
    except TypeError:
        raise TypeError(f"fori_loop: {name} is {x!r} of type {type(x)}; the bounds must be integers") from None
    if aval.ndim or not dtypes.is_int(aval.dtype):
        raise TypeError(
            f"fori_loop: lower and upper arguments must be integer scalars, got {name} of type {aval.str_short()}"
        )
    return aval


def _static(x: Any) -> int | None:
    """A bound that is known now.  Python's conversion says so for arrays: tracers refuse it."""
    if isinstance(x, (numbers.Integral, np.ndarray)):
        return int(x)
    try:
        return int(x)
    except TypeError:
        return None


def _as_bound(x: Any, dtype: Any, weak: bool) -> Any:
    if not isinstance(x, Value):
        return literal(x, dtype, weak)
    aval = aval_of(x)
    return x if (aval.dtype, aval.weak_type) == (dtype, weak) else cast(x, dtype, weak)


def _next(i: Any) -> Any:
    return add(i, const_like(i, 1))
