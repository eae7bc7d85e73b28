"""`custom_jvp`, `custom_vjp`, `custom_gradient`: functions with derivative rules that the user writes.

Called without derivatives such a function just runs.  Under `grad`, `jvp` and the like its rules are used instead of
those of the ops in it; under `jit` it becomes an equation that carries both.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from mpiarray.core.jaxpr import ClosedJaxpr
from mpiarray.core.op import Zero
from mpiarray.core.trace import RuledFunction
from mpiarray.core.value import aval_of
from mpiarray.higher_order.arguments import operand
from mpiarray.higher_order.call_arguments import Fixed, as_operand, by_position, split_fixed
from mpiarray.higher_order.custom_rules import Keyed, VjpRule, custom_jvp_call, custom_vjp_call, derive_by_vjp
from mpiarray.higher_order.jit_function import flatten_result, fun_name
from mpiarray.higher_order.symbolic_zeros import CustomVJPPrimal, SymbolicZero, shown_or_zero
from mpiarray.ops.linear import add_any, tangent_aval
from mpiarray.transforms.evaluate import eval_jaxpr, without_constants
from mpiarray.transforms.interning import intern
from mpiarray.transforms.stage import trace_to_jaxpr
from mpiarray.transforms.tangents import as_value, filled, is_float0, shown
from mpiarray.types import tree
from mpiarray.types.aval import ShapedArray


class _Ruled(RuledFunction):
    """One call of a function with rules: its structure, and the arguments that are not differentiated by."""

    def __init__(self, fun: Callable[..., Any], fixed: Fixed, structure: Any):
        self.fun, self.fixed, self.structure = fun, fixed, structure
        self.name = fun_name(fun)
        self.out_tree: Any = None

    def arguments(self, leaves: Sequence[Any]) -> list[Any]:
        return self.fixed.join(tree.unflatten(self.structure, [shown(x) for x in leaves]))

    def run(self, args: Sequence[Any]) -> list[Any]:
        outs, self.out_tree = flatten_result(self.name, self.fun(*self.arguments(args)))
        return outs

    def staged(self, args: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
        closed = trace_to_jaxpr(lambda *xs: self.run(xs), [aval_of(x) for x in args], name=self.name)
        return intern(closed), closed.consts


# -- custom_jvp ------------------------------------------------------------------------------------------------


class custom_jvp:
    """A function with a jvp rule of its own.

    nondiff_argnums: positions of arguments that are not differentiated by; the rule gets them first.

        @jax.custom_jvp
        def f(x): ...

        @f.defjvp
        def f_jvp(primals, tangents): ...   # returns (result, its tangent)
    """

    def __init__(
        self, fun: Callable[..., Any], nondiff_argnums: Sequence[int] = (), nondiff_argnames: Sequence[str] = ()
    ):
        functools.update_wrapper(self, fun, updated=())
        self.fun, self.nondiff_argnums = fun, _argnums(fun, nondiff_argnums, nondiff_argnames)
        self.jvp: Callable[..., Any] | None = None
        self.symbolic_zeros = False

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __repr__(self) -> str:
        return f"<custom_jvp of {fun_name(self.fun)}>"

    def defjvp(self, jvp: Callable[..., Any], symbolic_zeros: bool = False) -> Callable[..., Any]:
        """Set the rule: `jvp(*nondiff, primals, tangents) -> (result, tangent of the result)`.

        symbolic_zeros: tangents that are known to be zero come as `custom_derivatives.SymbolicZero`, not as arrays.
        """
        self.jvp, self.symbolic_zeros = jvp, bool(symbolic_zeros)
        return jvp

    def defjvps(self, *jvps: Callable[..., Any] | None) -> None:
        """One rule per argument: `jvp(tangent, result, *primals) -> contribution to the result's tangent`; None
        where it is zero.
        """
        if self.nondiff_argnums:
            raise TypeError("Can't use ``defjvps`` with ``nondiff_argnums``.")

        def rule(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
            out = self(*primals)
            terms = [f(t, out, *primals) for f, t in zip(jvps, tangents, strict=True) if f is not None]
            zeros = tree.map(lambda x: filled(tangent_aval(aval_of(x)), 0), out)
            total = (
                functools.reduce(lambda a, b: tree.map(lambda x, y: add_any(as_value(x), as_value(y)), a, b), terms)
                if terms
                else zeros
            )
            return out, total

        self.defjvp(rule)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.jvp is None:
            raise AttributeError(f"No JVP defined for custom_jvp function {fun_name(self.fun)} using defjvp.")
        fixed, dynamic = split_fixed(by_position(self.fun, args, kwargs), self.nondiff_argnums)
        leaves, structure = tree.flatten(dynamic)
        call = _JvpCall(self.fun, self.jvp, fixed, structure, self.symbolic_zeros)
        outs = call([as_operand(x, call.name) for x in leaves])
        return tree.unflatten(call.out_tree, outs)


class _JvpCall(_Ruled):
    def __init__(self, fun: Callable[..., Any], jvp: Callable[..., Any], fixed: Fixed, structure: Any, symbolic: bool):
        super().__init__(fun, fixed, structure)
        self.rule = UserJvp(self, jvp, symbolic)

    def bind(self, args: Sequence[Any]) -> list[Any]:
        closed, consts = self.staged(args)
        rule = self.rule.after(len(consts))
        return custom_jvp_call(
            *consts, *args, name=self.name, call_jaxpr=closed, jvp=rule, symbolic_zeros=rule.symbolic
        )

    def derive(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        return self.rule(primals, tangents)


class UserJvp(Keyed):
    """The user's rule on flat values."""

    __name__ = "jvp"

    def __init__(self, call: _Ruled, jvp: Callable[..., Any], symbolic: bool, skipped: int = 0):
        self.call, self.jvp, self.symbolic, self.skipped = call, jvp, symbolic, skipped
        self.key = (call.fun, jvp, symbolic, call.fixed, call.structure, skipped)

    def after(self, skipped: int) -> UserJvp:
        """The rule for operands of which the first are constants."""
        return UserJvp(self.call, self.jvp, self.symbolic, skipped) if skipped else self

    def __call__(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        call = self.call
        xs = tuple(tree.unflatten(call.structure, [shown(x) for x in primals[self.skipped :]]))
        ts = tuple(tree.unflatten(call.structure, [shown_or_zero(t, self.symbolic) for t in tangents[self.skipped :]]))
        pair = self.jvp(*call.fixed.values, xs, ts)
        rule = f"Custom JVP rule {fun_name(self.jvp)} for function {call.name}"
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(
                f"{rule} must produce a pair (list or tuple of length two) representing primal and tangent outputs, "
                f"but got {pair!r}."
            )
        outs, out_tree = flatten_result(call.name, pair[0])
        out_ts, other = tree.flatten(pair[1])
        if out_tree != other:
            raise TypeError(
                f"{rule} must produce primal and tangent outputs with equal container (pytree) structures, but got "
                f"{out_tree} and {other} respectively."
            )
        if call.out_tree is not None and call.out_tree != out_tree:
            raise TypeError(
                f"{rule} must produce a primal output with the structure of the function's result, {call.out_tree}, "
                f"but got {out_tree}."
            )
        call.out_tree = out_tree
        values = [as_value(x) for x in outs]
        return values, [_checked_tangent(rule, x.aval, t) for x, t in zip(values, out_ts, strict=True)]


def _checked_tangent(rule: str, aval: ShapedArray, t: Any) -> Any:
    want = tangent_aval(aval)
    if is_float0(want):
        return Zero(want)
    if isinstance(t, SymbolicZero):
        if t.shape != want.shape or t.dtype != want.dtype:
            raise TypeError(
                f"{rule} must produce primal and tangent outputs with corresponding shapes and dtypes. Expected "
                f"{want.str_short()} (tangent type of {aval.str_short()}) but got a SymbolicZero of {t.aval.str_short()}."
            )
        return Zero(want)
    t = as_value(t)
    if t.aval.shape != want.shape or t.aval.dtype != want.dtype:
        raise TypeError(
            f"{rule} must produce primal and tangent outputs with corresponding shapes and dtypes. Expected "
            f"{want.str_short()} (tangent type of {aval.str_short()}) but got "
            f"{t.aval.str_short()}."
        )
    return t


def _argnums(fun: Callable[..., Any], nums: Sequence[int], names: Sequence[str]) -> tuple[int, ...]:
    nums = (nums,) if isinstance(nums, int) else tuple(nums)
    if not names:
        return nums
    code = getattr(fun, "__code__", None)
    positional = code.co_varnames[: code.co_argcount] if code is not None else ()
    return (*nums, *(positional.index(n) for n in ((names,) if isinstance(names, str) else names)))


# -- custom_vjp --------------------------------------------------------------------------------------------------


class custom_vjp:
    """A function with reverse derivative rules of its own.

    nondiff_argnums: positions of arguments that are not differentiated by; `bwd` gets them first.

        @jax.custom_vjp
        def f(x, y): ...

        f.defvjp(fwd, bwd)   # fwd(x, y) -> (result, residuals);  bwd(residuals, ct) -> (ct of x, ct of y)
    """

    def __init__(
        self, fun: Callable[..., Any], nondiff_argnums: Sequence[int] = (), nondiff_argnames: Sequence[str] = ()
    ):
        functools.update_wrapper(self, fun, updated=())
        self.fun, self.nondiff_argnums = fun, _argnums(fun, nondiff_argnums, nondiff_argnames)
        self.fwd: Callable[..., Any] | None = None
        self.bwd: Callable[..., Any] | None = None
        self.symbolic_zeros = False

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __repr__(self) -> str:
        return f"<custom_vjp of {fun_name(self.fun)}>"

    def defvjp(
        self,
        fwd: Callable[..., Any],
        bwd: Callable[..., Any],
        symbolic_zeros: bool = False,
        optimize_remat: bool = False,
    ) -> None:
        """Set the rules.  A cotangent may be None for zero.

        symbolic_zeros: `fwd` gets each leaf as `custom_derivatives.CustomVJPPrimal` (value, perturbed), and `bwd` gets
        `custom_derivatives.SymbolicZero` for the results that nothing depends on.
        """
        self.fwd, self.bwd, self.symbolic_zeros = fwd, bwd, bool(symbolic_zeros)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.fwd is None or self.bwd is None:
            raise AttributeError(f"No VJP defined for custom_vjp function {fun_name(self.fun)} using defvjp.")
        fixed, dynamic = split_fixed(by_position(self.fun, args, kwargs), self.nondiff_argnums)
        leaves, structure = tree.flatten(dynamic)
        call = _VjpCall(self.fun, self.fwd, self.bwd, fixed, structure, self.symbolic_zeros)
        outs = call([as_operand(x, call.name) for x in leaves])
        return tree.unflatten(call.out_tree, outs)


class _VjpCall(_Ruled):
    def __init__(
        self, fun: Callable[..., Any], fwd: Callable[..., Any], bwd: Callable[..., Any], fixed: Fixed, structure: Any, symbolic: bool,
    ):  # fmt: skip
        super().__init__(fun, fixed, structure)
        self.rule = UserVjp(self, fwd, bwd, symbolic)

    def bind(self, args: Sequence[Any]) -> list[Any]:
        closed, consts = self.staged(args)
        rule = self.rule
        if consts:
            rule = UserVjp(self, rule.fwd, rule.bwd, rule.symbolic, len(consts))
        return custom_vjp_call(
            *consts, *args, name=self.name, call_jaxpr=closed, fwd=rule, symbolic_zeros=rule.symbolic
        )

    def derive(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        return derive_by_vjp(self.rule, primals, tangents)


class UserVjp(VjpRule):
    """The user's rules on flat values."""

    def __init__(
        self, call: _Ruled, fwd: Callable[..., Any], bwd: Callable[..., Any], symbolic: bool, skipped: int = 0
    ):
        self.call, self.fwd, self.bwd, self.symbolic, self.skipped = call, fwd, bwd, symbolic, skipped
        self.key = (call.fun, fwd, bwd, symbolic, call.fixed, call.structure, skipped)

    def forward(self, primals: Sequence[Any], perturbed: Sequence[bool]) -> tuple[list[Any], list[Any], UserBackward]:
        call = self.call
        primals, perturbed = primals[self.skipped :], perturbed[self.skipped :]
        leaves = [shown(x) for x in primals]
        if self.symbolic:
            leaves = [CustomVJPPrimal(x, p) for x, p in zip(leaves, perturbed, strict=True)]
        pair = self.fwd(*call.fixed.join(tree.unflatten(call.structure, leaves)))
        rule = f"Custom VJP fwd rule {fun_name(self.fwd)} for function {call.name}"
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(
                f"{rule} must produce a pair (list or tuple of length two) where the first element represents the "
                f"primal output, but got {pair!r}."
            )
        outs, out_tree = flatten_result(call.name, pair[0])
        if call.out_tree is not None and call.out_tree != out_tree:
            raise TypeError(
                f"{rule} must produce a primal output with the structure of the function's result, {call.out_tree}, "
                f"but got {out_tree}."
            )
        call.out_tree = out_tree
        residuals, residual_tree = tree.flatten(pair[1])
        values = [operand(r, call.name, lambda: "the residuals of the fwd rule") for r in residuals]
        avals = tuple(aval_of(x) for x in primals)
        return outs, values, UserBackward(self, residual_tree, out_tree, avals)


class UserBackward(Keyed):
    """The user's backward rule on flat values."""

    __name__ = "bwd"

    def __init__(self, rule: UserVjp, residual_tree: Any, out_tree: Any, avals: tuple[ShapedArray, ...]):
        self.rule, self.residual_tree, self.out_tree, self.avals = rule, residual_tree, out_tree, avals
        self.symbolic = rule.symbolic
        self.key = (rule, residual_tree, out_tree, avals)

    @property
    def described(self) -> str:
        return f" {self.rule.call.name!r}"

    def __call__(self, residuals: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        call = self.rule.call
        saved = tree.unflatten(self.residual_tree, [shown(r) for r in residuals])
        given = [shown_or_zero(c, self.symbolic) for c in cotangents]
        found = self.rule.bwd(*call.fixed.values, saved, tree.unflatten(self.out_tree, given))
        what = f"Custom VJP bwd rule {fun_name(self.rule.bwd)} for function {call.name}"
        args = tree.unflatten(call.structure, range(call.structure.num_leaves))
        if isinstance(found, list):
            found = tuple(found)
        if not isinstance(found, tuple) or len(found) != len(args):
            got = f"a tuple of length {len(found)}" if isinstance(found, tuple) else f"{found!r} of type {type(found)}"
            raise TypeError(
                f"{what} must produce a tuple of length equal to the primal args tuple, which has {len(args)} "
                f"entries, but got {got}."
            )
        flat: list[Any] = []
        for n, (ct, arg) in enumerate(zip(found, args, strict=True)):
            flat.extend(self._leaves(what, n, ct, arg))
        return [None] * self.rule.skipped + [
            self._checked(what, k, ct, aval) for k, (ct, aval) in enumerate(zip(flat, self.avals, strict=True))
        ]

    def _leaves(self, what: str, n: int, ct: Any, arg: Any) -> list[Any]:
        """The cotangents of one argument's leaves; None for a whole tree means zeros."""
        count = len(tree.leaves(arg))
        if ct is None:
            return [None] * count
        try:
            return tree.flatten_prefix(ct, arg, what=f"output[{n}]", is_leaf=lambda c: c is None)
        except ValueError as e:
            raise TypeError(
                f"{what} must produce an output with the same container (pytree) structure as the args tuple of the "
                "primal function, and in particular must produce a tuple of "
                f"length equal to it, but output[{n}] has structure {tree.structure(ct)} for an argument of "
                f"structure {tree.structure(arg)}: {e}"
            ) from None

    def _checked(self, what: str, k: int, ct: Any, aval: ShapedArray) -> Any:
        want = tangent_aval(aval)
        if ct is None or isinstance(ct, SymbolicZero) or is_float0(want):
            return None
        ct = as_value(ct)
        if ct.aval.shape != want.shape or ct.aval.dtype != want.dtype:
            raise ValueError(
                f"{what} must produce an output with the same type as the args tuple of the primal function, but at "
                f"output[{k}] the bwd rule produced an output of type "
                f"{ct.aval.str_short()} corresponding to an input of type {aval.str_short()}."
            )
        if ct.aval.vma - want.vma:
            raise ValueError(
                f"{what} must produce an output with the same type as the args tuple of the primal function, but at "
                f"output[{k}] the bwd rule produced an output of type {ct.aval.str_short()} corresponding to an input "
                f"of type {aval.str_short()}, so the manual axis types do not match. Sum it with `jax.lax.psum`."
            )
        return ct


# -- custom_gradient -----------------------------------------------------------------------------------------------


@tree.register_pytree_node_class
class _Pullback:
    """A backward function as data: its jaxpr, and the values that it closes over as leaves."""

    def __init__(self, consts: Sequence[Any], program: Any):
        self.consts, self.program = consts, program

    def tree_flatten(self) -> tuple[Any, Any]:
        return tuple(self.consts), self.program

    @classmethod
    def tree_unflatten(cls, program: Any, consts: Any) -> _Pullback:
        return cls(consts, program)


def custom_gradient(fun: Callable[..., Any]) -> Callable[..., Any]:
    """A function that returns (result, backward function) as one that returns the result and is differentiated by the
    other.

    The backward function takes a cotangent of the result and returns the tuple of cotangents of the arguments (one,
    for one argument).
    """

    @custom_vjp
    def wrapped(*args: Any) -> Any:
        return fun(*args)[0]

    def fwd(*args: Any) -> tuple[Any, Any]:
        out, backward = fun(*args)
        closed, consts, out_tree = _converted(lambda ct: _as_tuple(backward(ct)), (out,))
        return out, _Pullback(consts, (closed, out_tree))

    def bwd(saved: _Pullback, ct: Any) -> Any:
        closed, out_tree = saved.program
        return tree.unflatten(out_tree, eval_jaxpr(closed.jaxpr, (), [*saved.consts, *tree.leaves(ct)]))

    wrapped.defvjp(fwd, bwd)
    functools.update_wrapper(wrapped, fun, updated=())
    return wrapped


def _as_tuple(x: Any) -> tuple[Any, ...]:
    return tuple(x) if isinstance(x, (tuple, list)) else (x,)


def _converted(fun: Callable[..., Any], examples: tuple[Any, ...]) -> tuple[ClosedJaxpr, Sequence[Any], Any]:
    """(jaxpr that takes what `fun` closes over first, these values, structure of the result)."""
    leaves, structure = tree.flatten(examples)
    found: list[Any] = []

    def flat(*xs: Any) -> list[Any]:
        outs, out_tree = flatten_result(fun_name(fun), fun(*tree.unflatten(structure, xs)))
        found.append(out_tree)
        return outs

    closed = trace_to_jaxpr(flat, [aval_of(x) for x in leaves], name=fun_name(fun))
    return without_constants(closed), closed.consts, found[0]


def closure_convert(fun: Callable[..., Any], *example_args: Any) -> tuple[Callable[..., Any], list[Any]]:
    """`(converted, consts)` with `converted(*args, *consts) == fun(*args)`: what `fun` closes over becomes an argument.

    It is traced with arguments of the types of `example_args`.
    """
    closed, consts, out_tree = _converted(fun, example_args)
    count = len(consts)

    def converted(*args: Any) -> Any:
        own, hoisted = args[: len(args) - count], args[len(args) - count :]
        return tree.unflatten(out_tree, eval_jaxpr(closed.jaxpr, (), [*hoisted, *tree.leaves(own)]))

    return converted, list(consts)
