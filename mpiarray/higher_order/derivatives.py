"""`jvp`, `vjp`, `linearize`, `linear_transpose`, `grad`, `value_and_grad`: derivatives of functions of trees of arrays.

Jacobians stand in `jacobians.py`.  None of these functions communicates more than the function and its derivative do;
all ranks that run the function must call them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpiarray.core.op import Zero
from mpiarray.core.trace import current, state
from mpiarray.core.value import Literal, Value, aval_of
from mpiarray.higher_order.arguments import leaf_path, operand
from mpiarray.higher_order.jit_function import flatten_result, fun_name
from mpiarray.higher_order.linear_functions import linear_function
from mpiarray.higher_order.shardings import traced_aval
from mpiarray.ops.linear import tangent_aval
from mpiarray.transforms.jvp import jvp_flat
from mpiarray.transforms.linearize import LinearProgram, linearize_flat
from mpiarray.transforms.partial_eval import PartialTrace
from mpiarray.transforms.tangents import (
    cotangent_aval,
    filled,
    finished_cotangent,
    fit_cotangent,
    instantiate,
    is_float0,
    shown,
    vary_like,
)
from mpiarray.transforms.transpose import backward_pass
from mpiarray.types import dtypes, tree
from mpiarray.types.aval import ShapedArray

# -- arguments and results --------------------------------------------------------------------------------


def flatten_args(name: str, args: Any) -> tuple[list[Any], Any]:
    """The leaves of arguments as values, and their structure."""
    leaves, structure = tree.flatten(args)
    return [
        x
        if isinstance(x, Value) and not isinstance(x, Literal)
        else operand(x, name, functools.partial(leaf_path, args, {}, i))
        for i, x in enumerate(leaves)
    ], structure


class Flat:
    """A function of trees as one of flat values; remembers the structure of its result."""

    def __init__(self, fun: Callable[..., Any], structure: Any, has_aux: bool, what: str):
        self.fun, self.structure, self.has_aux, self.what = fun, structure, has_aux, what
        self.out_tree: Any = None

    def __call__(self, *leaves: Any) -> tuple[list[Any], Callable[[Callable[[Any], Any]], Any]]:
        out = self.fun(*tree.unflatten(self.structure, leaves))
        aux = None
        if self.has_aux:
            if not isinstance(out, (tuple, list)) or len(out) != 2:
                raise TypeError(
                    f"expected function with aux output to return a two-element tuple, but got type {type(out)} with "
                    f"value {out!r}, in {self.what}"
                )
            out, aux = out
        outs, self.out_tree = flatten_result(fun_name(self.fun), out)
        return outs, lambda primal_of: tree.map(primal_of, aux)


# -- forwards ------------------------------------------------------------------------------------------------


def jvp(fun: Callable[..., Any], primals: Any, tangents: Any, has_aux: bool = False) -> Any:
    """`(fun(*primals), derivative of fun at primals applied to tangents)`, in one pass forwards.

    primals, tangents: tuples or lists, one tree per argument, with the same shapes and dtypes (float0 for integers).
    has_aux: `fun` returns (result, aux), and aux comes third.
    """
    if not isinstance(primals, (tuple, list)) or not isinstance(tangents, (tuple, list)):
        raise TypeError(
            f"primal and tangent arguments to jax.jvp must be tuples or lists; found {type(primals).__name__} and "
            f"{type(tangents).__name__}."
        )
    xs, structure = flatten_args("jvp", tuple(primals))
    ts, other = tree.flatten(tuple(tangents))
    if structure != other:
        raise TypeError(
            "primal and tangent arguments to jax.jvp must have the same tree structure; primals have tree structure "
            f"{structure} whereas tangents have {other}."
        )
    ts = [_tangent(x, t) for x, t in zip(xs, ts)]
    flat = Flat(fun, structure, has_aux, "jvp")
    aux: list[Any] = []

    def values(*leaves: Any) -> list[Any]:
        outs, finish = flat(*leaves)
        aux.append(finish(lambda x: getattr(x, "primal", x) if getattr(x, "owner", None) is state.trace else x))
        return outs

    outs, out_tangents = jvp_flat(values, xs, ts)
    result = tree.unflatten(flat.out_tree, [shown(x) for x in outs])
    derivative = tree.unflatten(flat.out_tree, [shown(instantiate(t)) for t in out_tangents])
    return (result, derivative, aux[0]) if has_aux else (result, derivative)


def _tangent(x: Any, t: Any) -> Any:
    """A given tangent, checked against its primal."""
    want = tangent_aval(aval_of(x))
    dtype = t.dtype if hasattr(t, "dtype") else dtypes.dtype_of(t)[0]
    if dtype != want.dtype:
        raise TypeError(
            "primal and tangent arguments to jax.jvp do not match; dtypes must be equal, or in case of int/bool "
            "primal dtype the tangent dtype must be float0. "
            f"Got primal dtype {aval_of(x).dtype} and so expected tangent dtype {dtypes.name(want.dtype)}, but got "
            f"tangent dtype {dtype} instead."
        )
    if np.shape(t) != want.shape:
        raise ValueError(
            f"jvp called with different primal and tangent shapes; Got primal shape {want.shape} and tangent shape "
            f"as {np.shape(t)}"
        )
    return Zero(want) if is_float0(want) else vary_like(operand(t, "jvp", lambda: "tangents"), want.manual)


def linearize(fun: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """`(fun(*primals), f_jvp)`: the value, and its derivative as a linear function of tangents that does not run
    `fun` again.

    has_aux: `fun` returns (result, aux), and aux comes third.
    """
    result, program, flat, aux = _linearized(fun, primals, has_aux, "linearize")
    f_jvp = linear_function(_push, program, flat)
    return (result, f_jvp, aux) if has_aux else (result, f_jvp)


def _push(program: LinearProgram, flat: Flat, tangents: tuple[Any, ...]) -> Any:
    """The tangents of the result for tangents of the primals."""
    ts, structure = tree.flatten(tangents)
    if structure != flat.structure:
        raise TypeError(
            f"linearized function called with tangents of tree structure {structure}, but the primals have "
            f"{flat.structure}"
        )
    wanted = [tangent_aval(a) for a in program.in_avals]
    for t, want, aval in zip(ts, wanted, program.in_avals):
        if not has_type(t, want):
            raise ValueError(
                "linearized function called on tangent values inconsistent with the original primal values: got "
                f"tangent {_named(t)} for primal {aval.str_short()}"
            )
    live = [
        t if is_float0(want) else fit_cotangent(operand(t, "linearize", lambda: "tangents"), want)
        for t, want in zip(ts, wanted)
    ]
    return tree.unflatten(flat.out_tree, [shown(instantiate(t)) for t in program.push(live)])


def has_type(x: Any, want: ShapedArray) -> bool:
    """Whether a given tangent or cotangent has this type.  Host values count as lying anywhere."""
    if isinstance(x, np.ndarray) and x.dtype == dtypes.float0:
        return x.shape == want.shape and is_float0(want)
    have = aval_of(x)
    if have.shape != want.shape or have.dtype != want.dtype:
        return False
    if not isinstance(x, Value):
        return True
    return (have.dims, have.unreduced, have.reduced, have.manual) == (
        want.dims,
        want.unreduced,
        want.reduced,
        want.manual,
    )


def _named(t: Any) -> str:
    return (
        f"float0{list(t.shape)}" if isinstance(t, np.ndarray) and t.dtype == dtypes.float0 else aval_of(t).str_short()
    )


def _linearized(
    fun: Callable[..., Any], primals: tuple[Any, ...], has_aux: bool, what: str
) -> tuple[Any, LinearProgram, Flat, Any]:
    xs, structure = flatten_args(what, primals)
    flat = Flat(fun, structure, has_aux, what)
    outs, program, aux = linearize_flat(flat, xs, fun_name(fun))
    return tree.unflatten(flat.out_tree, [shown(x) for x in outs]), program, flat, aux


# -- backwards -------------------------------------------------------------------------------------------------


def vjp(fun: Callable[..., Any], *primals: Any, has_aux: bool = False, reduce_axes: Any = ()) -> Any:
    """`(fun(*primals), f_vjp)`: the value, and the function from a cotangent of the result to the tuple of cotangents
    of the primals, which is a pytree: its leaves are the residuals, so that `jit` can return it and take it.

    has_aux: `fun` returns (result, aux), and aux comes third.
    """
    result, program, flat, aux = _linearized(fun, primals, has_aux, "vjp")
    f_vjp = linear_function(_pull, program, flat)
    return (result, f_vjp, aux) if has_aux else (result, f_vjp)


def _pull(program: LinearProgram, flat: Flat, args: tuple[Any, ...]) -> Any:
    """The cotangents of the primals for a cotangent of the result."""
    if len(args) != 1:
        raise TypeError(
            f"The function returned by `jax.vjp` applied to {fun_name(flat.fun)} was called with {len(args)} arguments, but takes "
            "one, the cotangent of its result; several results are one tuple."
        )
    (ct,) = args
    cts, structure = tree.flatten(ct)
    if structure != flat.out_tree:
        raise ValueError(
            f"unexpected tree structure of argument to vjp function: got {structure}, but expected {flat.out_tree}, "
            f"the structure of the result of {fun_name(flat.fun)}"
        )
    checked = [_cotangent(c, aval, flat.fun) for c, aval in zip(cts, program.out_avals)]
    found = program.pull(checked)
    return tuple(tree.unflatten(flat.structure, [finished_cotangent(c, a) for c, a in zip(found, program.in_avals)]))


def _cotangent(ct: Any, aval: ShapedArray, fun: Any) -> Any:
    want = cotangent_aval(aval)
    if is_float0(want):
        return Zero(want)
    if not has_type(ct, want):
        raise ValueError(
            f"unexpected JAX type (e.g. shape/dtype) for argument to VJP function: got {_named(ct)}, but expected "
            f"{want.str_short()} because the corresponding output "
            f"of the function {fun_name(fun)} had JAX type {aval.str_short()}"
        )
    return fit_cotangent(operand(ct, "vjp", lambda: "cotangents"), want)


def linear_transpose(fun: Callable[..., Any], *primals: Any, reduce_axes: Any = ()) -> Callable[[Any], Any]:
    """The transpose of a function that is linear in all its arguments.

    primals: arrays or ShapeDtypeStructs, of which only the types count.  The result takes a cotangent of `fun`'s
    result and gives a tuple of cotangents.
    """
    leaves, structure = tree.flatten(primals)
    avals = [
        traced_aval(operand(x, "linear_transpose", functools.partial(leaf_path, primals, {}, i)))
        for i, x in enumerate(leaves)
    ]
    for a in avals:
        if is_float0(tangent_aval(a)):
            raise TypeError(
                "linear_transpose only supports [float or complex] -> [float or complex] functions, got an input of "
                f"type {a.str_short()}"
            )
    trace = PartialTrace(fun_name(fun), state.trace)
    args = [trace.new_arg(a) for a in avals]
    with current(trace):
        outs, out_tree = flatten_result(fun_name(fun), fun(*tree.unflatten(structure, args)))
    out_avals = [aval_of(x) for x in outs]
    program = trace.close(args, outs)

    def transposed(ct: Any) -> Any:
        cts, other = tree.flatten(ct)
        if other != out_tree:
            raise TypeError(f"cotangent tree does not match function output, expected {out_tree} but got {other}")
        for c, a in zip(cts, out_avals):
            want = cotangent_aval(a)
            if not has_type(c, want):
                have = aval_of(c)
                same = (have.shape, have.dtype, have.dims) == (want.shape, want.dtype, want.dims)
                raise (ValueError if same else TypeError)(
                    f"linear_transpose: cotangent type does not match function output. Expected cotangent type {want.str_short()} but got "
                    f"{have.str_short()}"
                )
        values = [
            fit_cotangent(operand(c, "linear_transpose", lambda: "cotangents"), cotangent_aval(a))
            for c, a in zip(cts, out_avals)
        ]
        found = backward_pass(program.jaxpr, program.consts, values)
        return tuple(tree.unflatten(structure, [finished_cotangent(c, a) for c, a in zip(found, avals)]))

    return transposed


# -- gradients ----------------------------------------------------------------------------------------------------


def value_and_grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Any = (),
) -> Callable[..., Any]:
    """A function that gives `(fun(...), gradient)`.

    fun: returns a real scalar (a complex one if `holomorphic`), or (scalar, aux) if `has_aux`; then the result is
    ((scalar, aux), gradient).
    argnums: the argument, or tuple of arguments, to differentiate by; trees of floats.  allow_int: integers get
    gradients of dtype float0. The gradient has the primal's type, with unreduced and reduced axes exchanged.

    Raises TypeError when inputs are not real or complex, or the result is no real scalar.
    """
    return _gradient(fun, argnums, has_aux, holomorphic, allow_int, "value_and_grad")


def grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Any = (),
) -> Callable[..., Any]:
    """A function that gives the gradient of a scalar function; with `has_aux`, (gradient, aux).  See
    `value_and_grad`.
    """
    both = _gradient(fun, argnums, has_aux, holomorphic, allow_int, "grad")

    @functools.wraps(fun, updated=())
    def gradient(*args: Any, **kwargs: Any) -> Any:
        value, found = both(*args, **kwargs)
        return (found, value[1]) if has_aux else found

    return gradient


def _gradient(
    fun: Callable[..., Any], argnums: Any, has_aux: bool, holomorphic: bool, allow_int: bool, name: str
) -> Callable[..., Any]:
    if not callable(fun):
        raise TypeError(f"{name}: expected a callable value, got {fun!r} of type {type(fun)}")

    @functools.wraps(fun, updated=())
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nums = positions(argnums, len(args), name)
        partial, chosen = with_arguments(fun, args, kwargs, nums)
        for x in tree.leaves(chosen):
            check_input(name, x, holomorphic, allow_int)
        result, program, flat, aux = _linearized(partial, chosen, has_aux, name)
        check_scalar(name, result, program, flat, holomorphic)
        seed = filled(cotangent_aval(program.out_avals[0]), 1)
        found = [finished_cotangent(c, a) for c, a in zip(program.pull([seed]), program.in_avals)]
        gradients = tuple(tree.unflatten(flat.structure, found))
        return ((result, aux) if has_aux else result), gradients[0] if isinstance(argnums, int) else gradients

    return wrapped


def positions(argnums: Any, count: int, name: str) -> tuple[int, ...]:
    """`argnums` as positions from the front.  Raises ValueError when the call has no such argument."""
    if not isinstance(argnums, int) and not (
        isinstance(argnums, Sequence) and all(isinstance(n, int) for n in argnums)
    ):
        raise TypeError(f"{name}: argnums must be an int or a sequence of ints, got {argnums!r}")
    nums = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    if any(not -count <= n < count for n in nums):
        raise TypeError(
            f"differentiating with respect to argnums={argnums} requires at least "
            f"{max(n + 1 if n >= 0 else -n for n in nums)} positional arguments to be passed by the "
            f"caller, but got only {count} positional arguments."
        )
    return tuple(n % count for n in nums)


def with_arguments(
    fun: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], nums: Sequence[int]
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """`fun` as a function of the chosen arguments alone, and these."""

    @functools.wraps(fun, updated=())
    def partial(*chosen: Any) -> Any:
        full = list(args)
        for n, x in zip(nums, chosen):
            full[n] = x
        return fun(*full, **kwargs)

    return partial, tuple(args[n] for n in nums)


def check_input(name: str, x: Any, holomorphic: bool, allow_int: bool) -> None:
    """Raise TypeError when a function cannot be differentiated by `x`."""
    try:
        dtype = aval_of(x).dtype if not hasattr(x, "__jax_array__") else x.__jax_array__().dtype
    except TypeError:
        raise TypeError(
            f"{name}: argument {x!r} of type {type(x)} is not a valid JAX type: differentiated arguments must be "
            "arrays or numbers, in trees"
        ) from None
    if dtypes.is_key(dtype) and not allow_int:
        raise TypeError(
            f"{name} with input element type {dtype}: keys have no derivative; use vjp or set allow_int to True."
        )
    if holomorphic and not dtypes.is_complex(dtype):
        raise TypeError(
            f"{name} with holomorphic=True requires inputs with complex dtype, but got {dtypes.name(dtype)}."
        )
    if not allow_int and not dtypes.is_inexact(dtype):
        raise TypeError(
            f"{name} requires real- or complex-valued inputs (input dtype that is a sub-dtype of np.inexact), but "
            f"got {dtypes.name(dtype)}. If you want to use "
            "Boolean- or integer-valued inputs, use vjp or set allow_int to True."
        )


def check_scalar(name: str, result: Any, program: LinearProgram, flat: Flat, holomorphic: bool) -> None:
    """Raise TypeError when a result has no gradient."""
    if flat.out_tree.num_leaves != 1 or not isinstance(result, Value):
        raise TypeError(f"Gradient only defined for scalar-output functions. Output was: {result}.")
    aval = program.out_avals[0]
    if aval.ndim:
        raise TypeError(f"Gradient only defined for scalar-output functions. Output had shape: {aval.shape}.")
    dtype = dtypes.name(aval.dtype)
    if holomorphic and not dtypes.is_complex(aval.dtype):
        raise TypeError(f"{name} with holomorphic=True requires outputs with complex dtype, but got {dtype}.")
    if not holomorphic and not dtypes.is_float(aval.dtype):
        raise TypeError(
            f"{name} requires real-valued outputs (output dtype that is a sub-dtype of np.floating), but got "
            f"{dtype}. For differentiation of functions with "
            + (
                "complex outputs, use jax.vjp, or holomorphic=True."
                if dtypes.is_complex(aval.dtype)
                else "integer outputs, use jax.vjp directly."
            )
        )
