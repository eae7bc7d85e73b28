"""The `scan` equation: a jaxpr run once for each slice of its operands along their first dim, with values carried over.

Compiled, it is one step that runs the body's prepared program in every iteration: slices are views, stacked
results are written where they belong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpiarray.core.device import DeviceContext
from mpiarray.core.jaxpr import ClosedJaxpr, Eqn, Var
from mpiarray.core.op import Op, Out, define
from mpiarray.core.plan import Plan, mesh_of
from mpiarray.core.value import aval_of
from mpiarray.higher_order.control_flow import lowering, scan_rules
from mpiarray.higher_order.control_flow.in_place import compiled, overwriting, owned_blocks
from mpiarray.higher_order.control_flow.lowering import stacked_aval
from mpiarray.higher_order.control_flow.unrolling import unrolled
from mpiarray.higher_order.kept import Kept, Policy, kept_body
from mpiarray.ops.linear import expand_dims, full_of, squeeze
from mpiarray.ops.shape import concatenate
from mpiarray.ops.slicing import slice_
from mpiarray.transforms.evaluate import eval_jaxpr
from mpiarray.transforms.interning import rearranged
from mpiarray.types.aval import ShapedArray


def _split(
    values: Sequence[Any], num_consts: int, num_carry: int
) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
    n = num_consts + num_carry
    return values[:num_consts], values[num_consts:n], values[n:]


def _infer(
    avals: Sequence[ShapedArray],
    mesh: Any,
    *,
    jaxpr: ClosedJaxpr,
    length: int,
    num_carry: int,
    num_consts: int,
    reverse: bool,
    unroll: int,
) -> list[ShapedArray]:
    consts, carry, xs = _split(jaxpr.in_avals, num_consts, num_carry)
    lowering.check_operands("scan", avals, [*consts, *carry, *(stacked_aval(a, length) for a in xs)])
    outs = jaxpr.out_avals
    lowering.check_loop("scan", carry, outs[:num_carry])
    return [*outs[:num_carry], *(stacked_aval(a, length) for a in outs[num_carry:])]


def _type(
    *avals: ShapedArray, jaxpr: ClosedJaxpr, length: int, num_carry: int, num_consts: int, reverse: bool, unroll: int
) -> list[Out]:
    outs = lowering.outs_of(jaxpr.out_avals)
    return [*outs[:num_carry], *(Out((length, *o.shape), o.dtype, o.weak_type) for o in outs[num_carry:])]


def _plan(avals: Sequence[Any], *, jaxpr: ClosedJaxpr, num_carry: int, num_consts: int, **params: Any) -> Plan:
    """Slices are taken along the first dim of xs, so that it must be whole on every rank."""
    specs = tuple(a.sharding.spec.padded(a.ndim) for a in avals)
    consts, carry, xs = _split(specs, num_consts, num_carry)
    slices = tuple(lowering.without_leading(s) for s in xs)
    carry, outs = lowering.settle(jaxpr, tuple(consts), tuple(carry), slices, mesh_of(avals))
    return Plan(
        (*consts, *carry, *(lowering.leading(s) for s in slices)),
        (*carry, *(lowering.leading(s) for s in outs[num_carry:])),
    )


def _lower(partitioner: Any, eqn: Eqn, operands: Sequence[Any]) -> list[Any]:
    params = eqn.params
    jaxpr, n, c = params["jaxpr"], params["num_carry"], params["num_consts"]
    plan = lowering.plan_of(partitioner, eqn)
    if plan is None:
        body = lowering.local_body(partitioner, eqn, jaxpr)
    else:
        ins = (*plan.ins[: c + n], *(lowering.without_leading(s) for s in plan.ins[c + n :]))
        outs = (*plan.ins[c : c + n], *(lowering.without_leading(s) for s in plan.outs[n:]))
        body = lowering.global_body(partitioner, eqn, jaxpr, ins, outs)
    return scan_op(*operands, **params | {"jaxpr": body})


def _build(
    ctx: DeviceContext, *, jaxpr: ClosedJaxpr, length: int, num_carry: int, num_consts: int, reverse: bool, unroll: int
) -> Callable[..., Any]:
    assert ctx.compile is not None, "loops are steps of executables"
    prepared, owned = overwriting(jaxpr, num_consts, num_carry)
    body = compiled(ctx, prepared, num_consts, num_carry)
    stacks = [((length, *a.shape), lowering.block_dtype(a)) for a in jaxpr.out_avals[num_carry:]]
    order = range(length)[::-1] if reverse else range(length)
    first = num_consts + num_carry

    def run(*blocks: Any) -> list[Any]:
        consts, xs = blocks[:num_consts], blocks[first:]
        carry: Sequence[Any] = owned_blocks(blocks[num_consts:first], owned)
        ys = [np.empty(shape, dtype) for shape, dtype in stacks]
        step = body(False)
        if not xs and not ys:
            for _ in order:
                carry = step(*consts, *carry)
                step = body(True)
            return list(carry)
        for i in order:
            outs = step(*consts, *carry, *[x[i] for x in xs])
            step = body(True)
            carry = outs[:num_carry]
            for y, out in zip(ys, outs[num_carry:]):
                y[i] = out
        return [*carry, *ys]

    return run


def _steps(
    op: Op,
    args: Sequence[Any],
    *,
    jaxpr: ClosedJaxpr,
    length: int,
    num_carry: int,
    num_consts: int,
    reverse: bool,
    unroll: int,
) -> list[Any]:
    consts, carry, xs = _split(args, num_consts, num_carry)
    rows: list[list[Any]] = []
    for i in range(length)[::-1] if reverse else range(length):
        outs = eval_jaxpr(jaxpr.jaxpr, jaxpr.consts, [*consts, *carry, *(_at(x, i) for x in xs)])
        carry = outs[:num_carry]
        rows.append(outs[num_carry:])
    if not rows:
        return [*carry, *(full_of(stacked_aval(a, 0), 0) for a in jaxpr.out_avals[num_carry:])]
    rows = rows[::-1] if reverse else rows
    return [*carry, *(concatenate(*(expand_dims(y, (0,)) for y in ys), dimension=0) for ys in zip(*rows))]


def _at(x: Any, i: int) -> Any:
    shape = aval_of(x).shape
    part = slice_(x, start_indices=(i, *(0 for _ in shape[1:])), limit_indices=(i + 1, *shape[1:]), strides=None)
    return squeeze(part, dimensions=(0,))


def _kept(eqn: Eqn, policy: Policy, needed: Sequence[bool]) -> Kept | None:
    """What a policy keeps in the body is stacked, and sliced again."""
    params = eqn.params
    n = params["num_carry"]
    flags = [*(True,) * n, *needed[n:]]
    found = kept_body(params["jaxpr"], policy, flags)
    if found is None:
        return None
    saved = tuple(Var(stacked_aval(v.aval, params["length"])) for v in found.saved)
    k = len(saved)
    count = len(found.again.in_avals)
    order = (*range(k, count), *range(k))  # saved slices after the others
    again = rearranged(found.again, order, tuple(range(len(found.again.out_avals))))
    return Kept(
        eqn.replace(outvars=(*eqn.outvars, *saved), params=params | {"jaxpr": found.forward}),
        eqn.replace(
            invars=(*eqn.invars, *saved),
            outvars=[v for v, flag in zip(eqn.outvars, flags) if flag],
            params=params | {"jaxpr": again},
        ),
        saved,
    )


scan_op = define(
    "scan",
    type_rule=_type,
    infer=_infer,
    plan=_plan,
    lower=_lower,
    build=_build,
    jvp=scan_rules.jvp,
    transpose=scan_rules.transpose,
    partial_eval=scan_rules.partial_eval,
    batch=scan_rules.batch,
    multiple_results=True,
    aligns=False,
    steps=_steps,
    unrolled=unrolled,
    kept=_kept,
    hlo_name="while",
)
