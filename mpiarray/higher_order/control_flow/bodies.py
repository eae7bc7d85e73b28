"""Tracing the functions that loops and conditionals are given."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from mpiarray.core.jaxpr import ClosedJaxpr
from mpiarray.core.trace import state
from mpiarray.core.value import Value, aval_of
from mpiarray.transforms.interning import intern, rearranged, widened
from mpiarray.transforms.stage import trace_to_jaxpr, type_inside
from mpiarray.transforms.tangents import as_value
from mpiarray.types import tree
from mpiarray.types.aval import ShapedArray
from mpiarray.types.partition_spec import PartitionSpec as P
from mpiarray.types.sharding import NamedSharding


class Body(NamedTuple):
    """A traced function.

    jaxpr      (*consts, *arguments) -> results; equal functions have one object
    consts     what it closes over
    structure  of its result
    """

    jaxpr: ClosedJaxpr
    consts: tuple[Any, ...]
    structure: Any

    @property
    def in_avals(self) -> tuple[ShapedArray, ...]:
        """The types of its arguments."""
        return self.jaxpr.in_avals[len(self.consts) :]

    @property
    def out_avals(self) -> tuple[ShapedArray, ...]:
        return self.jaxpr.out_avals


def trace_body(what: str, fun: Callable[..., Any], structure: Any, avals: Sequence[ShapedArray]) -> Body:
    """Trace `fun(*args)`, whose arguments have these types and structure."""
    found: list[Any] = []

    def flat(*tracers: Any) -> list[Any]:
        leaves, out_tree = tree.flatten(fun(*tree.unflatten(structure, tracers)))
        for x in leaves:
            try:
                aval_of(x)
            except TypeError:
                raise TypeError(
                    f"{what}: {name_of(fun)} returned a value of type {type(x)}, which is not a valid JAX type: {x!r}"
                ) from None
        found.append(out_tree)
        return leaves

    closed = trace_to_jaxpr(flat, avals, name=name_of(fun))
    return Body(intern(closed), closed.consts, found[0])


def name_of(fun: Any) -> str:
    while hasattr(fun, "func"):
        fun = fun.func
    return getattr(fun, "__name__", type(fun).__name__)


def first_parameter(fun: Any, default: str) -> str:
    """The name of a function's first parameter, for messages about its components."""
    try:
        parameters = list(inspect.signature(fun).parameters.values())
    except (TypeError, ValueError):
        return default
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return positional[0] if positional else default


def values_of(what: str, argument: str, full: Any) -> tuple[list[Any], Any]:
    """The leaves of an argument as values, and its structure.  Raises TypeError for what is no array."""
    found, structure = tree.flatten(full)
    out = []
    for k, x in enumerate(found):
        try:
            out.append(as_value(x if isinstance(x, Value) or not hasattr(x, "__jax_array__") else x.__jax_array__()))
        except TypeError:
            path = tree.keystr(tree.paths(structure)[k])
            raise TypeError(
                f"{what}: {argument}{path} is {x!r} of type {type(x)}, which is not a valid JAX type; only arrays and numbers can be passed"
            ) from None
    return out, structure


def placed_aval(aval: ShapedArray) -> ShapedArray:
    """A type on the context mesh: replicated there when it has no mesh, invariant when it comes from outside of a map's body."""
    aval, mesh = type_inside(aval), state.abstract_mesh
    if mesh.empty or not aval.sharding.mesh.empty:
        return aval
    return aval.update(sharding=NamedSharding(mesh, P(*(None,) * aval.ndim)))


def join_constants(bodies: Sequence[Body]) -> tuple[list[ClosedJaxpr], list[Any]]:
    """Bodies that take the constants of all of them, each value once: (jaxprs, constants)."""
    shared: dict[int, int] = {}
    consts: list[Any] = []
    for c in (c for b in bodies for c in b.consts):
        if id(c) not in shared:
            shared[id(c)] = len(consts)
            consts.append(c)
    return [_with_constants(b, [shared[id(c)] for c in b.consts], consts) for b in bodies], consts


def _with_constants(body: Body, own: list[int], consts: Sequence[Any]) -> ClosedJaxpr:
    from_own = {n: k for k, n in enumerate(own)}
    missing = [n for n in range(len(consts)) if n not in from_own]
    wide = widened_front(body.jaxpr, tuple(aval_of(consts[n]) for n in missing))
    place = {n: k for k, n in enumerate(missing)} | {n: len(missing) + k for n, k in from_own.items()}
    rest = range(len(consts), len(wide.in_avals))
    return rearranged(wide, (*(place[n] for n in range(len(consts))), *rest), tuple(range(len(wide.out_avals))))


def widened_front(closed: ClosedJaxpr, avals: tuple[ShapedArray, ...]) -> ClosedJaxpr:
    return widened(closed, avals, 0) if avals else closed
