"""The op record: everything that an op is, in one expression.

    add = define(
        "add",
        type_rule=...,   # shapes and dtypes of the results from the operands' types
        plan=...,        # shardings and communication, as data (core.plan)
        impl=np.add,     # numpy on local blocks; it never communicates
        jvp=...,         # derivative
        transpose=...,   # transposed linear map
        batch=...,       # rule for vmap
    )

A rule that does not exist is written `Undefined("reason")`, never left out: `define` insists on every
field, so a hole cannot be forgotten, and the completeness test walks `OPS`.

The contract of each field (args are positional, params by keyword, params hashable):

type_rule(*avals, **params) -> Out | sequence of Out (when `multiple_results`)
    Shapes, dtypes, weak types.  Raises TypeError/ValueError naming the op, the types and what to do.  No shardings.
plan(avals, **params) -> Plan
    See core.plan.  Raises ShardingTypeError.  `avals` is a tuple; only specs, shapes and mesh sizes matter.
impl(*blocks, **params) -> ndarray | tuple of ndarrays
    numpy on blocks (ndarray or numpy scalar; C order is not promised).  It may return views of its inputs, must not
    write to them, and must return the dtype that type_rule says.  float16/bfloat16 sums accumulate in float32.
build(ctx, **params) -> callable(*blocks)
    Instead of impl, for ops that communicate or depend on the rank: `ctx` (a `DeviceContext`) gives groups and coordinates.
jvp(op, primals, tangents, **params) -> (out, tangent_out)   [sequences when multiple_results]
    tangents are values or `Zero(aval)`; tangent_out may be Zero.  `op` is the record itself, for rules that ops share.
transpose(op, cts, *args, **params) -> list, one entry per arg: the cotangent for args that are `Linear`, None for others
    `cts` is one cotangent, or the list of them when multiple_results (entries may be Zero); linear args are passed as
    `Linear(aval)`, the others as values.
batch(op, axis, args, dims, **params) -> (out, out_dim)   [sequences when multiple_results]
    dims[i] is the position of the mapped dim of args[i], or None; `axis` has .size, .name and .spec (the mesh axes that the mapped
    dim is sharded over).
partial_sums(op, avals, params) -> (unreduced, reduced)
    What the op does to operands that are unreduced or reduced (sharding_rules.md 19), as pairs of axis sets, over the axes in
    `(spec.unreduced, spec.reduced)`; `pass_through`, `refuse` (the default) or the op's own rule.
vma(avals, params) -> frozenset
    The manual axes that the result varies over; default: the join of the operands.
partial_eval(op, trace, args, unknown, **params) -> value, or list of values when multiple_results
    For ops that carry a jaxpr: called by the trace of the unknown (transforms.partial_eval.PartialTrace) when some operands are known and
    some are not (`unknown[i]`).  It binds the known part under `trace.parent` and stages the rest with `trace.stage`.
steps(op, args, **params) -> list of values
    For loops and conditionals: bind the equations of their jaxprs under the current trace, which evaluates, one iteration after
    another; used where blocks cannot run a program of their own (partial manual maps).
unrolled(equation) -> Jaxpr or None
    For loops: the program that the compiler puts in the equation's place, of the same operands; None: the equation stays.
code(b, *values, **params) -> ops.machine_code.Value
    What `impl` makes of elements, to the last bit, written with the operations of `b` (`ops.machine_code.Code`), which raise `Declined`
    for dtypes that they are not for.  None: only numpy computes it.
kept(equation, policy, needed) -> higher_order.kept.Kept or None
    For ops that carry a jaxpr: the equation in two, by what a policy of `jax.checkpoint` keeps inside; `needed` says which results
    are needed again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from mpiarray.core import trace
from mpiarray.errors import ShardingTypeError
from mpiarray.types.aval import ShapedArray

OPS: dict[str, Op] = {}

Rule = Callable[..., Any]


class Out(NamedTuple):
    """A result's shape, dtype and weak type."""

    shape: tuple[int, ...]
    dtype: Any
    weak_type: bool = False


class Zero:
    """A tangent or cotangent that is known to be zero."""

    __slots__ = ("aval",)

    def __init__(self, aval: ShapedArray):
        self.aval = aval

    def __repr__(self) -> str:
        return f"Zero({self.aval})"


class Linear:
    """Stands for an operand with respect to which an equation is transposed."""

    __slots__ = ("aval",)

    def __init__(self, aval: ShapedArray):
        self.aval = aval

    def __repr__(self) -> str:
        return f"Linear({self.aval})"


class Undefined:
    """A rule that does not exist, and why."""

    def __init__(self, reason: str):
        self.reason = reason

    def bind_name(self, rule: str, name: str) -> Undefined:
        bound = Undefined(self.reason)
        bound.rule, bound.name = rule, name
        return bound

    rule, name = "", ""

    def __call__(self, *args: Any, **params: Any) -> Any:
        raise NotImplementedError(f"{self.rule} rule for '{self.name}' not implemented: {self.reason}")

    def __repr__(self) -> str:
        return f"Undefined({self.reason!r})"


class Op:
    """A first-order or higher-order operation.  Calling it binds it to the current trace."""

    __slots__ = (
        "batch", "build", "impl", "jvp", "lower", "multiple_results", "name", "partial_sums", "plan", "transpose", "type_rule", "vma", "infer", "hlo_name", "effects", "inlines", "casts", "aligns",
        "partial_eval", "steps", "unrolled", "kept", "elementwise", "code",
    )  # fmt: skip

    name: str
    multiple_results: bool
    type_rule: Rule
    plan: Rule
    impl: Rule | None
    build: Rule | None
    lower: Rule | None
    infer: Rule | None
    jvp: Rule
    transpose: Rule
    batch: Rule
    partial_sums: Rule
    vma: Rule
    partial_eval: Rule | None
    hlo_name: str
    effects: bool
    inlines: bool
    casts: bool
    aligns: bool
    steps: Rule | None
    unrolled: Rule | None
    kept: Rule | None
    elementwise: bool
    code: Rule | None

    def __init__(self, **fields: Any):
        for key, value in fields.items():
            if isinstance(value, Undefined):
                value = value.bind_name(
                    {"jvp": "Differentiation", "transpose": "Transpose", "batch": "Batching"}.get(key, key),
                    fields["name"],
                )
            setattr(self, key, value)

    def __call__(self, *args: Any, **params: Any) -> Any:
        return trace.bind(self, args, params)

    def kernel(self, dtype: Any) -> Callable[..., Any]:
        """`impl` for blocks whose first one has this dtype: where functions differ by dtype (ops.elementwise), the chosen one."""
        found = self.impl
        assert found is not None, f"{self.name} has no impl"
        while (choose := getattr(found, "for_dtype", None)) is not None:
            found = choose(dtype)
        return found

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> Any:
        return (_lookup, (self.name,))


def _lookup(name: str) -> Op:
    return OPS[name]


def define(
    name: str,
    *,
    type_rule: Callable[..., Any],
    plan: Callable[..., Any],
    impl: Callable[..., Any] | None = None,
    jvp: Callable[..., Any],
    transpose: Callable[..., Any],
    batch: Callable[..., Any],
    build: Callable[..., Any] | None = None,
    multiple_results: bool = False,
    partial_sums: Callable[..., Any] | None = None,
    vma: Callable[..., Any] | None = None,
    lower: Callable[..., Any] | None = None,
    infer: Callable[..., Any] | None = None,
    hlo_name: str | None = None,
    effects: bool = False,
    inlines: bool = False,
    casts: bool = False,
    aligns: bool = True,
    partial_eval: Callable[..., Any] | None = None,
    steps: Callable[..., Any] | None = None,
    unrolled: Callable[..., Any] | None = None,
    kept: Callable[..., Any] | None = None,
    elementwise: bool = False,
    code: Callable[..., Any] | None = None,
) -> Op:
    """Make an op from its rules and enter it in `OPS`.  The module docstring is the contract of each rule.

    lower     partition rule of an op that carries a jaxpr: `lower(partitioner, equation, operands)`
    infer     replaces type_rule, plan and partial_sums together for ops whose type is a sharding (reshard, ...)
    hlo_name  the op's name in compiled text, where readers of HLO expect another one
    effects   True for ops that must run even when nobody uses their result
    inlines   True for ops that only call their `jaxpr` (or `call_jaxpr`) parameter
    casts     True for ops that make unreduced or reduced values out of others (partial_sums is asked always)
    elementwise  True where an element of the result depends on the operands' elements at its own place only (dims of size 1
              and scalars go with any), so that blocks may be computed part by part
    aligns    False for ops whose operands may differ in the manual axes that they vary over; others get casts first
    """
    if name in OPS:
        raise ValueError(f"define: two ops are named {name!r}")
    if impl is None and build is None and lower is None and not inlines:
        raise ValueError(f"define: {name!r} needs an impl, a build or a lower rule")
    OPS[name] = op = Op(
        name=name, type_rule=type_rule, plan=plan, impl=impl, jvp=jvp, transpose=transpose, batch=batch, build=build, multiple_results=multiple_results,
        partial_sums=partial_sums or refuse, vma=vma or join_vma, lower=lower, infer=infer, hlo_name=hlo_name or name, effects=effects, inlines=inlines, casts=casts, aligns=aligns,
        partial_eval=partial_eval, steps=steps, unrolled=unrolled, kept=kept, elementwise=elementwise, code=code,
    )  # fmt: skip
    return op


# -- what ops do to unreduced and reduced operands --------------------------------------------------

PartialSums = tuple[frozenset[str], frozenset[str]]
NONE: PartialSums = (frozenset(), frozenset())


def refuse(op: Op, sums: list[PartialSums], avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> PartialSums:
    """The default: unreduced operands are an error, reduced ones pass through an op of one operand."""
    unreduced = frozenset().union(*(u for u, _ in sums)) if sums else frozenset()
    if unreduced:
        raise ShardingTypeError(
            f"unreduced rule for {op.name} is not implemented: got operands {', '.join(a.short() for a in avals)}, unreduced over "
            f"{sorted(unreduced)}; the value is the sum of the blocks over these axes. Use `jax.reshard` to reduce it first."
        )
    return join_reduced(op, sums, avals, params)


def pass_through(
    op: Op, sums: list[PartialSums], avals: tuple[ShapedArray, ...], params: dict[str, Any]
) -> PartialSums:
    """For linear ops of one operand, and of several whose operands must all agree (concatenate, select)."""
    if not sums:
        return NONE
    if len(set(sums)) > 1:
        raise ShardingTypeError(
            f"{op.name}: all operands should be unreduced and reduced over the same axes, got {', '.join(a.short() for a in avals)}. "
            "Use `jax.reshard` to bring them to one type."
        )
    return sums[0]


def join_reduced(
    op: Op, sums: list[PartialSums], avals: tuple[ShapedArray, ...], params: dict[str, Any]
) -> PartialSums:
    """Operands reduced over axes: all that are arrays must be, or none."""
    kinds = {r for _, r in sums}
    reduced = frozenset().union(*kinds) if kinds else frozenset()
    if not reduced:
        return NONE
    if len(kinds) > 1:
        sharded = any(reduced & {x for axes in a.sharding.spec.dims for x in axes} for a in avals)
        raise ShardingTypeError(
            f"{op.name}: Inputs cannot be {'sharded/varying' if sharded else 'replicated'} on the same axes that another input is reduced on, "
            f"got {', '.join(a.short() for a in avals)}. Use `jax.reshard` with `reduced=`."
        )
    return frozenset(), reduced


def join_vma(avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> frozenset[str]:
    out: frozenset[str] = frozenset()
    for a in avals:
        if a.vma:
            out |= a.vma
    return out
