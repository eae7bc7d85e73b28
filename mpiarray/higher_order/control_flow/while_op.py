"""The `while` equation: a body that is run as long as a condition holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from mpiarray.core.device import DeviceContext
from mpiarray.core.jaxpr import ClosedJaxpr, Eqn
from mpiarray.core.op import Op, Out, Zero, define
from mpiarray.core.plan import Plan, mesh_of
from mpiarray.core.trace import current
from mpiarray.higher_order.control_flow import lowering
from mpiarray.higher_order.control_flow.divergence import check_meeting, communicating_axes
from mpiarray.higher_order.control_flow.in_place import compiled, overwriting, owned_blocks
from mpiarray.higher_order.control_flow.scan_rules import three
from mpiarray.higher_order.control_flow.select import any_of, choose
from mpiarray.higher_order.control_flow.values import concrete
from mpiarray.ops.collectives import pmax
from mpiarray.ops.common import BatchAxis
from mpiarray.ops.linear import batch_to, tangent_aval
from mpiarray.transforms.batching import batch_jaxpr, front
from mpiarray.transforms.evaluate import Derived, DerivedCache, eval_jaxpr
from mpiarray.transforms.interning import rearranged, widened
from mpiarray.transforms.jvp import jvp_jaxpr
from mpiarray.transforms.partial_eval import PartialTrace, partial_eval_jaxpr
from mpiarray.transforms.stage import trace_to_jaxpr
from mpiarray.transforms.tangents import filled
from mpiarray.types.aval import ShapedArray

Body = ClosedJaxpr


def _infer(
    avals: Sequence[ShapedArray], mesh: Any, *, cond_jaxpr: Body, cond_nconsts: int, body_jaxpr: Body, body_nconsts: int
) -> list[ShapedArray]:
    outs = body_jaxpr.out_avals
    carry = body_jaxpr.in_avals[body_nconsts:]
    lowering.check_operands("while", avals, [*cond_jaxpr.in_avals[:cond_nconsts], *body_jaxpr.in_avals])
    lowering.check_loop("while", carry, outs)
    check_meeting("while_loop", cond_jaxpr.out_avals[0].vma, (cond_jaxpr, body_jaxpr))
    return list(outs)


def _type(*avals: ShapedArray, cond_jaxpr: Body, cond_nconsts: int, body_jaxpr: Body, body_nconsts: int) -> list[Out]:
    return lowering.outs_of(body_jaxpr.out_avals)


def _plan(avals: Sequence[Any], *, cond_jaxpr: Body, cond_nconsts: int, body_jaxpr: Body, body_nconsts: int) -> Plan:
    specs = tuple(a.sharding.spec.padded(a.ndim) for a in avals)
    cond_consts, body_consts, carry = three(specs, cond_nconsts, body_nconsts)
    settled, _ = lowering.settle(body_jaxpr, tuple(body_consts), tuple(carry), (), mesh_of(avals))
    return Plan((*cond_consts, *body_consts, *settled), settled)


def _lower(partitioner: Any, eqn: Eqn, operands: Sequence[Any]) -> list[Any]:
    params = eqn.params
    cond, body = params["cond_jaxpr"], params["body_jaxpr"]
    plan = lowering.plan_of(partitioner, eqn)
    if plan is None:
        programs = lowering.local_body(partitioner, eqn, cond), lowering.local_body(partitioner, eqn, body)
    else:
        c, b, carry = three(plan.ins, params["cond_nconsts"], params["body_nconsts"])
        (out,) = lowering.typed_specs(cond.out_avals)
        programs = (
            lowering.global_body(partitioner, eqn, cond, (*c, *carry), (out,)),
            lowering.global_body(partitioner, eqn, body, (*b, *carry), carry),
        )
    return while_op(*operands, **params | {"cond_jaxpr": programs[0], "body_jaxpr": programs[1]})


def _build(
    ctx: DeviceContext, *, cond_jaxpr: Body, cond_nconsts: int, body_jaxpr: Body, body_nconsts: int
) -> Callable[..., Any]:
    assert ctx.compile is not None, "loops are steps of executables"
    prepared, owned = overwriting(body_jaxpr, body_nconsts, len(body_jaxpr.out_avals))
    cond = ctx.compile(cond_jaxpr)
    body = compiled(ctx, prepared, body_nconsts, len(body_jaxpr.out_avals))
    first = cond_nconsts + body_nconsts

    def run(*blocks: Any) -> list[Any]:
        cond_consts, body_consts = blocks[:cond_nconsts], blocks[cond_nconsts:first]
        carry = owned_blocks(blocks[first:], owned)
        step = body(False)
        while cond(*cond_consts, *carry)[0]:
            carry = step(*body_consts, *carry)
            step = body(True)
        return list(carry)

    return run


def _steps(
    op: Op, args: Sequence[Any], *, cond_jaxpr: Body, cond_nconsts: int, body_jaxpr: Body, body_nconsts: int
) -> list[Any]:
    cond_consts, body_consts, carry = three(args, cond_nconsts, body_nconsts)
    while np.asarray(concrete(eval_jaxpr(cond_jaxpr.jaxpr, cond_jaxpr.consts, [*cond_consts, *carry])[0])).reshape(())[
        ()
    ]:
        carry = eval_jaxpr(body_jaxpr.jaxpr, body_jaxpr.consts, [*body_consts, *carry])
    return carry


# -- batching --------------------------------------------------------------------------------------------------

_cache = DerivedCache()


def _batch(
    op: Op,
    axis: BatchAxis,
    args: Sequence[Any],
    dims: Sequence[int | None],
    *,
    cond_jaxpr: Body,
    cond_nconsts: int,
    body_jaxpr: Body,
    body_nconsts: int,
) -> tuple[list[Any], list[int | None]]:
    """Examples that are done keep their values until all are."""
    cond_flags, body_flags, carry = three([d is not None for d in dims], cond_nconsts, body_nconsts)
    while True:
        body = batch_jaxpr(body_jaxpr, axis, [*body_flags, *carry], carry)
        cond = batch_jaxpr(cond_jaxpr, axis, [*cond_flags, *carry])
        several = cond.mapped[0]
        grown = [True] * len(carry) if several else [a or b for a, b in zip(carry, body.mapped)]
        if grown == carry:
            break
        carry = grown
    moved = front(args, dims)
    cond_args, body_args, carry_args = three(moved, cond_nconsts, body_nconsts)
    _, _, carry_dims = three(dims, cond_nconsts, body_nconsts)
    carry_args = [
        batch_to(x, axis, None, 0) if m and d is None else x for x, d, m in zip(carry_args, carry_dims, carry)
    ]
    cond_args, body_args = [*cond.consts, *cond_args], [*body.consts, *body_args]
    cond_done, body_done = cond.jaxpr, body.jaxpr
    if several:
        shared = {axis.name, *axis.split} & (
            communicating_axes(cond_jaxpr.jaxpr) | communicating_axes(body_jaxpr.jaxpr)
        )
        key = (cond.jaxpr, body.jaxpr, len(cond_args), len(body_args), axis.split if shared else ())
        frozen = _cache.get(key, lambda: _Frozen(*key))
        cond_done, body_done, body_args = frozen.cond, frozen.jaxpr, [*frozen.consts, *cond_args, *body_args]
    outs = op(
        *cond_args, *body_args, *carry_args,
        cond_jaxpr=cond_done, cond_nconsts=len(cond_args), body_jaxpr=body_done, body_nconsts=len(body_args),
    )  # fmt: skip
    return list(outs), [0 if m else None for m in carry]


class _Frozen(Derived):
    """A loop over examples that end at different times.

    cond   whether any goes on; on any of the devices along `split`, which take part in each other's iterations
    jaxpr  (*consts, *cond constants, *body constants, *carry) -> carry, in which examples that have ended stay as they are
    """

    def __init__(self, cond: Body, body: Body, cond_nconsts: int, body_nconsts: int, split: tuple[str, ...]):
        carry = body.in_avals[body_nconsts:]
        c_avals, b_avals = cond.in_avals[:cond_nconsts], body.in_avals[:body_nconsts]

        def step(*args: Any) -> list[Any]:
            c, b, old = three(args, cond_nconsts, body_nconsts)
            (going,) = eval_jaxpr(cond.jaxpr, cond.consts, [*c, *old])
            new = eval_jaxpr(body.jaxpr, body.consts, [*b, *old])
            return [choose(going, [o, n]) for o, n in zip(old, new)]

        super().__init__(
            trace_to_jaxpr(step, [*c_avals, *b_avals, *carry], name=body.jaxpr.debug_name, record_source=False)
        )

        def goes_on(*args: Any) -> list[Any]:
            going = any_of(eval_jaxpr(cond.jaxpr, cond.consts, args)[0])
            return [pmax(going, axes=split, axis_index_groups=None) if split else going]

        going = trace_to_jaxpr(goes_on, cond.in_avals, name=cond.jaxpr.debug_name, record_source=False)
        self.cond = Derived(going).jaxpr


# -- derivatives ------------------------------------------------------------------------------------------------


def _jvp(
    op: Op,
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    cond_jaxpr: Body,
    cond_nconsts: int,
    body_jaxpr: Body,
    body_nconsts: int,
) -> tuple[list[Any], list[Any]]:
    _, consts, carry = three([not isinstance(t, Zero) for t in tangents], cond_nconsts, body_nconsts)
    while True:
        derived = jvp_jaxpr(body_jaxpr, [*consts, *carry], carry)
        grown = [a or b for a, b in zip(carry, derived.nonzero)]
        if grown == carry:
            break
        carry = grown
    c_args, b_args, k_args = three(primals, cond_nconsts, body_nconsts)
    _, b_tangents, k_tangents = three(tangents, cond_nconsts, body_nconsts)
    avals = [tangent_aval(a) for a, flag in zip(body_jaxpr.in_avals[body_nconsts:], carry) if flag]
    live = [t for t, flag in zip(k_tangents, carry) if flag]
    live = [filled(a, 0) if isinstance(t, Zero) else t for t, a in zip(live, avals)]
    b_live = [t for t in b_tangents if not isinstance(t, Zero)]
    extra, n = len(derived.consts), len(carry)
    total = extra + body_nconsts + n
    # constants first, each kind with its tangents behind
    order = (
        *range(extra + body_nconsts),
        *range(total, total + len(b_live)),
        *range(extra + body_nconsts, total),
        *range(total + len(b_live), total + len(b_live) + len(live)),
    )
    body = rearranged(derived.jaxpr, order, tuple(range(len(derived.jaxpr.out_avals))))
    cond = widened(cond_jaxpr, tuple(avals), len(cond_jaxpr.in_avals))
    outs = op(
        *c_args, *derived.consts, *b_args, *b_live, *k_args, *live,
        cond_jaxpr=cond, cond_nconsts=cond_nconsts, body_jaxpr=body, body_nconsts=extra + body_nconsts + len(b_live),
    )  # fmt: skip
    rest = iter(outs[n:])
    return list(outs[:n]), [
        next(rest) if flag else Zero(tangent_aval(o.aval)) for flag, o in zip(derived.nonzero, outs)
    ]


def _partial_eval(
    op: Op,
    trace: PartialTrace,
    args: Sequence[Any],
    unknown: Sequence[bool],
    *,
    cond_jaxpr: Body,
    cond_nconsts: int,
    body_jaxpr: Body,
    body_nconsts: int,
) -> list[Any]:
    """What is carried from known values alone is computed now; the rest is the whole loop, later: nothing is kept of its iterations."""
    params = {
        "cond_jaxpr": cond_jaxpr,
        "cond_nconsts": cond_nconsts,
        "body_jaxpr": body_jaxpr,
        "body_nconsts": body_nconsts,
    }
    cond_flags, body_flags, carry = three(unknown, cond_nconsts, body_nconsts)
    while True:
        split = partial_eval_jaxpr(body_jaxpr, [*body_flags, *carry])
        grown = [a or not k for a, k in zip(carry, split.out_known)]
        if grown == carry:
            break
        carry = grown
    decided = partial_eval_jaxpr(cond_jaxpr, [*cond_flags, *carry]).out_known[0]
    if not decided or all(carry):
        return trace.stage(op, args, params)
    keep = tuple(k for k, u in enumerate(carry) if not u)
    known = split.known
    body = rearranged(known, tuple(range(len(known.in_avals))), tuple(_positions(split.out_known, keep)))
    c_args, b_args, k_args = three(args, cond_nconsts, body_nconsts)
    b_known = [*split.consts, *(a for a, u in zip(b_args, body_flags) if not u)]
    # the condition needs no unknown value: its jaxpr without them
    cond_split = partial_eval_jaxpr(cond_jaxpr, [*cond_flags, *carry])
    cond = rearranged(cond_split.known, tuple(range(len(cond_split.known.in_avals))), (0,))
    c_known = [*cond_split.consts, *(a for a, u in zip(c_args, cond_flags) if not u)]
    with current(trace.parent):
        outs = op(
            *c_known,
            *b_known,
            *(k_args[k] for k in keep),
            cond_jaxpr=cond,
            cond_nconsts=len(c_known),
            body_jaxpr=body,
            body_nconsts=len(b_known),
        )
    later = trace.stage(op, args, params)
    found = dict(zip(keep, outs))
    return [found.get(k, x) for k, x in enumerate(later)]


def _positions(out_known: Sequence[bool], keep: Sequence[int]) -> list[int]:
    """Where among the known results those of `keep` stand."""
    numbers = {k: n for n, k in enumerate(k for k, flag in enumerate(out_known) if flag)}
    return [numbers[k] for k in keep]


def _transpose(op: Op, cts: Sequence[Any], *args: Any, **params: Any) -> NoReturn:
    raise ValueError(
        "Reverse-mode differentiation does not work for lax.while_loop or lax.fori_loop with dynamic start/stop values: nothing is kept of its "
        f"iterations, whose number is not known (carry of types {', '.join(a.str_short() for a in params['body_jaxpr'].out_avals)}). Try using "
        "lax.scan, or using fori_loop with static start/stop."
    )


while_op = define(
    "while",
    type_rule=_type,
    infer=_infer,
    plan=_plan,
    lower=_lower,
    build=_build,
    jvp=_jvp,
    transpose=_transpose,
    partial_eval=_partial_eval,
    batch=_batch,
    multiple_results=True,
    aligns=False,
    steps=_steps,
)
