"""`jax.checkpoint` (`jax.remat`): functions whose inner values are computed again on the way back instead of kept.

Under differentiation such a function becomes two things: its results, computed as usual, and a `remat2` equation on the
way back that holds the whole derivative, forward part included, with the function's inputs as its only residuals (and
what a policy says to keep).  An optimization barrier at its entry keeps the compiler from merging both computations
again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from mpiarray.core.jaxpr import ClosedJaxpr, Eqn, Jaxpr, Var
from mpiarray.core.op import Op, Undefined, define
from mpiarray.core.trace import current, current_trace
from mpiarray.core.value import Literal, aval_of
from mpiarray.higher_order.arguments import StaticSplit, flatten_call, split_static
from mpiarray.higher_order.jit_function import UNSPECIFIED, JitFunction, called, fun_name, jit_op
from mpiarray.higher_order.kept import kept_equations
from mpiarray.ops.names import name as name_op
from mpiarray.ops.select import optimization_barrier
from mpiarray.transforms.batching import call_batch
from mpiarray.transforms.calls import call_jvp, call_transpose
from mpiarray.transforms.evaluate import Derived, DerivedCache, dead_code, eval_jaxpr
from mpiarray.transforms.interning import intern
from mpiarray.transforms.partial_eval import PartialTrace, matters, partial_eval_jaxpr
from mpiarray.transforms.stage import trace_to_jaxpr
from mpiarray.types import tree

Policy = Callable[..., Any]


def checkpoint(
    fun: Callable[..., Any] | None = None,
    *,
    prevent_cse: bool = True,
    policy: Policy | None = None,
    static_argnums: Any = (),
    static_argnames: Any = (),
    concrete: bool = False,
) -> Any:
    """`fun`, whose inner values are computed again in the backward pass.

    policy: which values to keep all the same, `policy(primitive, *types, **params) -> bool`; see
    `jax.checkpoint_policies`.  prevent_cse: keep the compiler from merging both computations.
    static_argnums, static_argnames: arguments that are no arrays; hashable.  Without `fun`: a decorator.
    Collectives in `fun` run again in the backward pass, on every rank.
    """
    if fun is None:
        return functools.partial(
            checkpoint,
            prevent_cse=prevent_cse,
            policy=policy,
            static_argnums=static_argnums,
            static_argnames=static_argnames,
        )
    if not callable(fun):
        raise TypeError(f"checkpoint: expected a callable value, got {fun!r} of type {type(fun)}")
    if concrete:
        raise NotImplementedError(
            "The 'concrete' option to jax.checkpoint is not supported: mark arguments static with `static_argnums`."
        )
    static = StaticSplit(fun, static_argnums, static_argnames, "checkpoint: static")
    none = StaticSplit(fun, (), (), "checkpoint")
    traced = JitFunction(
        fun,
        in_shardings=UNSPECIFIED,
        out_shardings=UNSPECIFIED,
        static=static,
        donate=none,
        inline=False,
        keep_unused=True,
    )
    name = fun_name(fun)

    @functools.wraps(fun, updated=())
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if current_trace().evaluates:
            return fun(*args, **kwargs)
        fixed, dynamic, named = split_static(args, kwargs, static)
        leaves, structure = flatten_call(name, dynamic, named)
        staged = traced.stage(fixed, [aval_of(x) for x in leaves], structure)
        outs = remat(
            *staged.consts,
            *leaves,
            jaxpr=intern(called(staged)),
            prevent_cse=prevent_cse,
            differentiated=False,
            policy=policy,
        )
        return tree.unflatten(staged.out_tree, outs)

    return wrapped


def checkpoint_name(x: Any, name: str) -> Any:
    """`x` (a tree of arrays), whose values policies like `save_only_these_names` know by this name."""
    return tree.map(lambda leaf: name_op(leaf, name=name), x)


# -- the equation -----------------------------------------------------------------------------------------------


def _partial_eval(
    op: Op,
    trace: PartialTrace,
    args: Sequence[Any],
    unknown: Sequence[bool],
    *,
    jaxpr: ClosedJaxpr,
    prevent_cse: bool,
    policy: Policy | None,
    **params: Any,
) -> list[Any]:
    """Known results now; the whole derivative, by the known operands and what the policy keeps, later."""
    found = _split(jaxpr, tuple(unknown), policy, prevent_cse)
    fixed = {"prevent_cse": prevent_cse, "policy": policy}
    ins = [a for a, u in zip(args, unknown) if not u]
    with current(trace.parent):
        outs = op(*found.consts, *ins, jaxpr=found.known, **fixed, **params) if matters(found.known) else []
    count = sum(found.out_known)
    kept = outs[count:]
    later: Sequence[Any] = ()
    if not all(found.out_known):
        passed = [ins[n] for n in found.used]
        rest = [a for a, u in zip(args, unknown) if u]
        later = trace.stage(
            op, [*found.consts, *kept, *passed, *rest], fixed | {"jaxpr": found.unknown, "differentiated": True}
        )
    k, u = iter(outs[:count]), iter(later)
    return [next(k) if flag else next(u) for flag in found.out_known]


class _Split:
    """known: (*consts, *known inputs) -> (*known results, *kept).  unknown: (*consts, *kept, *used known inputs,
    *unknown inputs) -> unknown results.
    """

    def __init__(
        self,
        known: ClosedJaxpr,
        unknown: ClosedJaxpr,
        consts: Sequence[Any],
        out_known: Sequence[bool],
        used: Sequence[int],
    ):
        self.known, self.unknown, self.consts, self.out_known, self.used = (
            known,
            unknown,
            tuple(consts),
            tuple(out_known),
            tuple(used),
        )


_cache = DerivedCache()


def _split(jaxpr: ClosedJaxpr, unknown: tuple[bool, ...], policy: Policy | None, prevent_cse: bool) -> _Split:
    return _cache.get((jaxpr, unknown, policy, prevent_cse), lambda: _make_split(jaxpr, unknown, policy, prevent_cse))


def _make_split(closed: ClosedJaxpr, unknown: tuple[bool, ...], policy: Policy | None, prevent_cse: bool) -> _Split:
    flat, out_known = _sorted_out(closed, unknown)
    jaxpr, n = flat.jaxpr.jaxpr, len(flat.consts)
    consts, ins = jaxpr.invars[:n], jaxpr.invars[n:]
    known_ins = [v for v, u in zip(ins, unknown, strict=True) if not u]
    later_outs = [v for v, flag in zip(jaxpr.outvars, out_known, strict=True) if not flag]
    known_eqns = _known_eqns(jaxpr, {*consts, *known_ins})
    known_set = set(known_eqns)
    unknown_eqns = [e for e in jaxpr.eqns if e not in known_set]
    now, again = known_eqns, known_eqns
    saved: list[Var] = []
    if policy is not None:
        reads_later = [*later_outs, *(v for e in unknown_eqns for v in e.invars)]
        now, again, saved = kept_equations(known_eqns, reads_later, policy)
    eqns = [*again, *unknown_eqns]
    later = dead_code(jaxpr.replace(invars=(), outvars=later_outs, eqns=[e for e in eqns if not e.op.effects]))
    reads = {v for e in later.eqns for v in e.invars} | set(later.outvars)
    kept = [v for v in dict.fromkeys(saved) if v in reads]
    used = [k for k, v in enumerate(known_ins) if v in reads]
    outs = [v for v, flag in zip(jaxpr.outvars, out_known) if flag]
    known = dead_code(jaxpr.replace(invars=(*consts, *known_ins), outvars=(*outs, *kept), eqns=now))
    passed = [known_ins[k] for k in used]
    rest = [v for v, u in zip(ins, unknown) if u]
    later = later.replace(invars=(*consts, *kept, *passed, *rest))
    program = ClosedJaxpr(later)
    if prevent_cse:
        program = _behind_barrier(program, len(consts) + len(kept) + len(passed))
    return _Split(ClosedJaxpr(known), program, flat.consts, out_known, used)


def _sorted_out(closed: ClosedJaxpr, unknown: tuple[bool, ...]) -> tuple[Derived, tuple[bool, ...]]:
    """The jaxpr without nested calls, in which every equation is known or not as a whole, and which results are
    known.
    """
    run = partial(eval_jaxpr, closed.jaxpr, closed.consts, inlined={jit_op})
    name = closed.jaxpr.debug_name
    flat = Derived(trace_to_jaxpr(lambda *xs: run(xs), closed.in_avals, name=name, record_source=False))
    flags = (*(False,) * len(flat.consts), *unknown)
    split = partial_eval_jaxpr(flat.jaxpr, flags)

    def f(*xs: Any) -> list[Any]:
        xs = (*flat.consts, *xs)
        ins = [x for x, u in zip(xs, flags, strict=True) if not u]
        outs = eval_jaxpr(split.known.jaxpr, (), [*split.consts, *ins])
        count = len(outs) - split.residuals
        rest = [x for x, u in zip(xs, flags, strict=True) if u]
        later = eval_jaxpr(split.unknown.jaxpr, (), [*outs[count:], *(ins[k] for k in split.forwarded), *rest])
        return split.merge(outs[:count], later)

    return Derived(trace_to_jaxpr(f, closed.in_avals, name=name, record_source=False)), split.out_known


def _known_eqns(jaxpr: Jaxpr, given: set[Var]) -> list[Eqn]:
    """The equations that depend on given variables only."""
    known, eqns = set(given), []
    for e in jaxpr.eqns:
        if all(isinstance(v, Literal) or v in known for v in e.invars):
            known.update(e.outvars)
            eqns.append(e)
    return eqns


def _behind_barrier(closed: ClosedJaxpr, count: int) -> ClosedJaxpr:
    """The jaxpr with a barrier on its first inputs, one each, since their types may differ."""

    def f(*args: Any) -> list[Any]:
        guarded = [optimization_barrier(x)[0] for x in args[:count]]
        return eval_jaxpr(closed.jaxpr, closed.consts, [*guarded, *args[count:]])

    return Derived(trace_to_jaxpr(f, closed.in_avals, name=closed.jaxpr.debug_name, record_source=False)).jaxpr


remat = define(
    "remat2",
    type_rule=Undefined("its types are those of its jaxpr"),
    infer=lambda avals, mesh, *, jaxpr, **params: jaxpr.out_avals,
    plan=Undefined("the compiler inlines it"),
    jvp=call_jvp(),
    transpose=call_transpose(),
    partial_eval=_partial_eval,
    batch=call_batch(),
    multiple_results=True,
    inlines=True,
    aligns=False,
)
