"""Which values the backward pass of a function keeps, and where they come from: `jax.ad_checkpoint.print_saved_residuals`.

The function is staged with its linearization; its residuals are then results of a jaxpr, in which their origins are looked up.
Nothing runs and nothing is communicated.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from mpiarray.core.jaxpr import Eqn, Jaxpr, Var, callee
from mpiarray.core.value import Literal, aval_of
from mpiarray.higher_order.checkpoint import remat
from mpiarray.higher_order.derivatives import Flat, flatten_args
from mpiarray.higher_order.jit_function import fun_name, jit_op
from mpiarray.ops.names import name as name_op
from mpiarray.transforms.linearize import linearize_flat
from mpiarray.transforms.stage import trace_to_jaxpr
from mpiarray.types import tree
from mpiarray.types.aval import ShapedArray

Residual = tuple[ShapedArray, str]


def saved_residuals(f: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Residual]:
    """(type, where it comes from) of each value that the backward pass of `f(*args, **kwargs)` reads: arguments first, then
    constants, then results of operations in their order.

    Policies of `jax.checkpoint` count; derivatives are by all arguments.
    """
    leaves, structure = flatten_args("saved_residuals", (args, kwargs))
    flat = Flat(lambda xs, named: f(*xs, **named), structure, False, "saved_residuals")

    def residuals(*xs: Any) -> list[Any]:
        _, program, _ = linearize_flat(flat, xs, fun_name(f))
        return list(program.program.consts)

    jaxpr = trace_to_jaxpr(residuals, [aval_of(x) for x in leaves], name=fun_name(f)).jaxpr
    arguments = dict(zip(jaxpr.invars, _names(f, args, kwargs), strict=True))
    wanted = [v for v in dict.fromkeys(jaxpr.outvars) if not isinstance(v, Literal)]
    kept = set(wanted)
    found: list[Residual] = [(v.aval, f"from the argument {name}") for v, name in arguments.items() if v in kept]
    found += [(v.aval, "from a constant") for v in jaxpr.constvars if v in kept]
    for eqn in jaxpr.eqns:
        found += [(v.aval, _origin(eqn, k)) for k, v in enumerate(eqn.outvars) if v in kept]
    return found


def print_saved_residuals(f: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Print the values that the backward pass of `f(*args, **kwargs)` keeps, one a line, with where they come from:

        f32[3,4] from the argument w
        f32[3] output of cos from network.py:12

    Under MPI every rank that calls prints.
    """
    for aval, where in saved_residuals(f, *args, **kwargs):
        print(f"{aval.short()} {where}")


def _origin(eqn: Eqn, k: int) -> str:
    """Where result `k` of an equation comes from; bodies of `checkpoint` are looked into."""
    source = f" from {eqn.source}" if eqn.source else ""
    if eqn.op is name_op:
        return f"named {eqn.params['name']!r}{source}"
    if eqn.op is jit_op:
        return f"output of jitted function {eqn.params['name']!r}{source}"
    if eqn.op is remat:
        inner = _maker(callee(eqn.params).jaxpr, k)
        if inner is not None:
            place = inner[0] if inner[0].source else inner[0].replace(source=eqn.source)
            return _origin(place, inner[1])
    return f"output of {eqn.op.name}{source}"


def _maker(jaxpr: Jaxpr, k: int) -> tuple[Eqn, int] | None:
    v = jaxpr.outvars[k]
    for eqn in jaxpr.eqns:
        if isinstance(v, Var) and v in eqn.outvars:
            return eqn, eqn.outvars.index(v)
    return None


def _names(f: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> list[str]:
    """The name of every leaf of the arguments, as `w` or `layers[0]['w']`, in the order of (args, kwargs)."""
    named = [f"args[{i}]" for i in range(len(args))]
    try:
        parameters = list(inspect.signature(f).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    many = next((i for i, p in enumerate(parameters) if p.kind is p.VAR_POSITIONAL), None)
    for i in range(len(args)):
        if many is not None and i >= many:
            named[i] = f"{parameters[many].name}[{i - many}]"
        elif i < len(parameters) and parameters[i].kind in (
            inspect.Parameter.POSITIONAL_ONLY,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
        ):
            named[i] = parameters[i].name
    found = []
    for name, value in [*zip(named, args), *((k, kwargs[k]) for k in sorted(kwargs))]:
        found += [name + tree.keystr(path) for path, _ in tree.leaves_with_path(value)]
    return found
