"""Ops that carry a function together with derivative rules that a user wrote for it: `custom_jvp_call`,
`custom_vjp_call`, and `custom_lin`, which stands for the tangents of a `custom_vjp` function until they are
transposed.

Rules are objects on flat values.  Equal ones compare equal, so that programs that carry them are found again.

    JvpRule   rule(primals, tangents) -> (results, their tangents)
    VjpRule   rule.forward(primals) -> (results, residuals, backward);  backward(residuals, cotangents) -> cotangents
    of the primals
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mpiarray.core.op import Linear, Op, Out, Undefined, Zero, define
from mpiarray.core.trace import current_trace
from mpiarray.core.value import aval_of
from mpiarray.ops.common import BatchAxis
from mpiarray.ops.linear import reduce_sum, tangent_aval
from mpiarray.transforms.batching import batch_flat, batch_jaxpr, example_aval, front, to_front
from mpiarray.transforms.calls import call_transpose
from mpiarray.transforms.tangents import as_value, filled, is_float0
from mpiarray.types.aval import ShapedArray

JvpRule = Callable[[Sequence[Any], Sequence[Any]], tuple[list[Any], list[Any]]]
Backward = Callable[[Sequence[Any], Sequence[Any]], list[Any]]


class Keyed:
    """Compared by what it was made from."""

    key: tuple[Any, ...]

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.key == other.key

    def __hash__(self) -> int:
        return hash((type(self), self.key))


# -- custom_jvp ----------------------------------------------------------------------------------------------


def _jvp_of_call(op: Op, primals: Sequence[Any], tangents: Sequence[Any], *, jvp: JvpRule, **params: Any) -> Any:
    return jvp(primals, tangents)


def _batch_jvp_call(
    op: Op,
    axis: BatchAxis,
    args: Sequence[Any],
    dims: Sequence[int | None],
    *,
    call_jaxpr: Any,
    jvp: JvpRule,
    **params: Any,
) -> tuple[list[Any], list[int]]:
    mapped = tuple(d is not None for d in dims)
    derived = batch_jaxpr(call_jaxpr, axis, mapped, force=True)
    rule = BatchedJvp(jvp, axis, mapped, len(derived.consts))
    outs = op(*derived.consts, *front(args, dims), call_jaxpr=derived.jaxpr, jvp=rule, **params)
    return outs, [0] * len(outs)


class BatchedJvp(Keyed):
    """A jvp rule for all examples; every result has the mapped dim in front."""

    __name__ = "jvp"

    def __init__(self, rule: JvpRule, axis: BatchAxis, mapped: tuple[bool, ...], skipped: int):
        self.rule, self.axis, self.mapped, self.skipped = rule, axis, mapped, skipped
        self.key = (rule, axis, mapped, skipped)

    def __call__(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        primals, tangents = primals[self.skipped :], tangents[self.skipped :]
        live = [not isinstance(t, Zero) for t in tangents]
        flags: list[bool] = []

        def f(*flat: Any) -> list[Any]:
            xs, ts = flat[: len(primals)], iter(flat[len(primals) :])
            given = [next(ts) if n else Zero(tangent_aval(aval_of(x))) for x, n in zip(xs, live, strict=True)]
            outs, out_ts = self.rule(xs, given)
            flags.extend(not isinstance(t, Zero) for t in out_ts)
            return [*outs, *(t for t in out_ts if not isinstance(t, Zero))]

        dims = [0 if m else None for m in self.mapped]
        args = [*primals, *(t for t in tangents if not isinstance(t, Zero))]
        outs, out_dims = batch_flat(f, self.axis, args, [*dims, *(d for d, n in zip(dims, live, strict=True) if n)])
        placed = [to_front(x, self.axis, d) for x, d in zip(outs, out_dims, strict=True)]
        values, ts = placed[: len(flags)], iter(placed[len(flags) :])
        return values, [next(ts) if n else Zero(tangent_aval(aval_of(x))) for x, n in zip(values, flags, strict=True)]


custom_jvp_call = define(
    "custom_jvp_call",
    type_rule=Undefined("its types are those of its jaxpr"),
    infer=lambda avals, mesh, *, call_jaxpr, **params: call_jaxpr.out_avals,
    plan=Undefined("the compiler inlines it"),
    jvp=_jvp_of_call,
    transpose=call_transpose("call_jaxpr"),
    batch=_batch_jvp_call,
    multiple_results=True,
    inlines=True,
    aligns=False,
)

# -- custom_vjp ----------------------------------------------------------------------------------------------


class VjpRule(Keyed):
    """The rules of a function for reverse derivatives."""

    __name__ = "fwd"

    def forward(self, primals: Sequence[Any], perturbed: Sequence[bool]) -> tuple[list[Any], list[Any], Backward]:
        """(results, residuals, backward rule); `perturbed`: whether somebody differentiates by each operand."""
        raise NotImplementedError


def derive_by_vjp(rule: VjpRule, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Results, and tangents that can only be transposed."""
    active = tuple(not isinstance(t, Zero) for t in tangents)
    outs, residuals, backward = rule.forward(primals, active)
    outs = [as_value(x) for x in outs]
    out_avals = tuple(tangent_aval(x.aval) for x in outs)
    linear = [t for t in tangents if not isinstance(t, Zero)]
    floats = tuple(a for a in out_avals if not is_float0(a))
    if linear and floats and current_trace().evaluates:
        _no_forward(backward=backward)
    found = iter(
        custom_lin(*residuals, *linear, num_res=len(residuals), backward=backward, active=active, out_avals=out_avals)
        if floats and linear
        else ()
    )
    return outs, [Zero(a) if is_float0(a) or not linear else next(found) for a in out_avals]


def _jvp_of_vjp_call(op: Op, primals: Sequence[Any], tangents: Sequence[Any], *, fwd: VjpRule, **params: Any) -> Any:
    return derive_by_vjp(fwd, primals, tangents)


def _batch_vjp_call(
    op: Op,
    axis: BatchAxis,
    args: Sequence[Any],
    dims: Sequence[int | None],
    *,
    call_jaxpr: Any,
    fwd: VjpRule,
    **params: Any,
) -> tuple[list[Any], list[int]]:
    mapped = tuple(d is not None for d in dims)
    derived = batch_jaxpr(call_jaxpr, axis, mapped, force=True)
    batched = BatchedVjp(fwd, axis, mapped, len(derived.consts))
    outs = op(*derived.consts, *front(args, dims), call_jaxpr=derived.jaxpr, fwd=batched, **params)
    return outs, [0] * len(outs)


class BatchedVjp(VjpRule):
    """Rules for all examples; every result has the mapped dim in front."""

    def __init__(self, rule: VjpRule, axis: BatchAxis, mapped: tuple[bool, ...], skipped: int):
        self.rule, self.axis, self.mapped, self.skipped = rule, axis, mapped, skipped
        self.key = (rule, axis, mapped, skipped)

    def forward(self, primals: Sequence[Any], perturbed: Sequence[bool]) -> tuple[list[Any], list[Any], Backward]:
        found: list[tuple[int, Backward]] = []

        def f(*xs: Any) -> list[Any]:
            outs, residuals, backward = self.rule.forward(xs, perturbed[self.skipped :])
            found.append((len(outs), backward))
            return [*outs, *residuals]

        flat, dims = batch_flat(f, self.axis, primals[self.skipped :], [0 if m else None for m in self.mapped])
        count, backward = found[0]
        outs = [to_front(x, self.axis, d) for x, d in zip(flat[:count], dims[:count], strict=True)]
        return outs, flat[count:], BatchedBackward(backward, self.axis, self.mapped, self.skipped, tuple(dims[count:]))


class BatchedBackward(Keyed):
    """A backward rule for all examples: cotangents of what is the same for all are summed over them."""

    __name__ = "bwd"

    def __init__(
        self,
        backward: Backward,
        axis: BatchAxis,
        mapped: tuple[bool, ...],
        skipped: int,
        residual_dims: tuple[int | None, ...],
    ):
        self.backward, self.axis, self.mapped, self.skipped, self.residual_dims = (
            backward,
            axis,
            mapped,
            skipped,
            residual_dims,
        )
        self.symbolic = getattr(backward, "symbolic", False)
        self.key = (backward, axis, mapped, skipped, residual_dims)

    def __call__(self, residuals: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        flags: list[bool] = []
        n = len(residuals)
        live = [not isinstance(c, Zero) and not is_float0(aval_of(c)) for c in cotangents]

        def f(*flat: Any) -> list[Any]:
            given = iter(flat[n:])
            cts = [next(given) if flag else self._example(c) for flag, c in zip(live, cotangents, strict=True)]
            found = self.backward(flat[:n], cts)
            flags.extend(_present(c) for c in found)
            return [c for c in found if _present(c)]

        args = [*residuals, *(c for c, flag in zip(cotangents, live) if flag)]
        outs, dims = batch_flat(f, self.axis, args, [*self.residual_dims, *[0] * sum(live)])
        pairs = iter(zip(outs, dims, strict=True))
        return [None] * self.skipped + [
            self._placed(*next(pairs), m) if flag else None for flag, m in zip(flags, self.mapped, strict=True)
        ]

    def _example(self, c: Any) -> Any:
        return Zero(example_aval(c.aval, 0)) if isinstance(c, Zero) else c

    def _placed(self, ct: Any, dim: int | None, mapped: bool) -> Any:
        ct = to_front(ct, self.axis, dim)
        return ct if mapped else reduce_sum(ct, axes=(0,), out_sharding=None)


def _present(ct: Any) -> bool:
    return ct is not None and not isinstance(ct, Zero) and not is_float0(aval_of(ct))


custom_vjp_call = define(
    "custom_vjp_call",
    type_rule=Undefined("its types are those of its jaxpr"),
    infer=lambda avals, mesh, *, call_jaxpr, **params: call_jaxpr.out_avals,
    plan=Undefined("the compiler inlines it"),
    jvp=_jvp_of_vjp_call,
    transpose=call_transpose("call_jaxpr"),
    batch=_batch_vjp_call,
    multiple_results=True,
    inlines=True,
    aligns=False,
)


def _no_forward(*args: Any, backward: Any = None, **params: Any) -> Any:
    name = getattr(backward, "described", "")
    raise TypeError(
        f"can't apply forward-mode autodiff (jvp) to a custom_vjp function{name}: its rules only say how cotangents "
        "go backwards. Use `jax.custom_jvp` instead."
    )


def _lin_type(*avals: ShapedArray, out_avals: tuple[ShapedArray, ...], **params: Any) -> list[Out]:
    return [Out(a.shape, a.dtype, a.weak_type) for a in out_avals if not is_float0(a)]


def _lin_transpose(
    op: Op,
    cts: Sequence[Any],
    *args: Any,
    num_res: int,
    backward: Backward,
    active: tuple[bool, ...],
    out_avals: tuple[ShapedArray, ...],
) -> list[Any]:
    given = iter(cts)
    full = [Zero(a) if is_float0(a) else next(given) for a in out_avals]
    if not getattr(backward, "symbolic", False):
        full = [filled(c.aval, 0) if isinstance(c, Zero) else c for c in full]
    found = backward(args[:num_res], full)
    chosen = [c for c, flag in zip(found, active, strict=True) if flag]
    linear = args[num_res:]
    return [None] * num_res + [
        (c if _present(c) else None) if isinstance(a, Linear) else None for c, a in zip(chosen, linear, strict=True)
    ]


custom_lin = define(
    "custom_lin",
    type_rule=_lin_type,
    infer=lambda avals, mesh, *, out_avals, **params: tuple(a for a in out_avals if not is_float0(a)),
    plan=_no_forward,
    lower=_no_forward,
    jvp=_no_forward,
    transpose=_lin_transpose,
    batch=_no_forward,
    multiple_results=True,
    aligns=False,
)
