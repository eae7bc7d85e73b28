"""Staging: run a function on tracers and record what it does as a jaxpr.

`trace_to_jaxpr` is how `jit`, `make_jaxpr`, control flow and the compiler's partition pass get their programs.
Values from outside (arrays that a function closes over) become constants of the jaxpr, in order of first use.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import numpy as np

from mpiarray.core import trace as core_trace
from mpiarray.core.infer import infer
from mpiarray.core.jaxpr import Atom, ClosedJaxpr, Eqn, Jaxpr, Var
from mpiarray.core.op import Op
from mpiarray.core.trace import Trace, current, leaked, state
from mpiarray.core.value import Literal, Value, aval_of
from mpiarray.ops.manual import align
from mpiarray.transforms.traced_array import TracedArray
from mpiarray.types.aval import ShapedArray
from mpiarray.types.mesh import AbstractMesh
from mpiarray.types.partition_spec import PartitionSpec
from mpiarray.types.sharding import NamedSharding

_PACKAGE = __name__.partition(".")[0]


class JitTracer(TracedArray):
    """Stands for a value while a function is staged: a type and a variable, no data."""

    __slots__ = ("aval", "owner", "variable")

    owner: StageTrace

    def __init__(self, trace: StageTrace, aval: ShapedArray, var: Atom):
        self.owner = trace
        self.aval = aval
        self.variable = var

    def __repr__(self) -> str:
        return f"JitTracer({self.aval})"

    __str__ = __repr__

    def _why(self) -> str:
        return (
            f"The value has type {self.aval.str_short()} in the function {self.owner.name!r} that is being traced; keep it an array, or mark the "
            "argument that it depends on static with `static_argnums`."
        )


class StageTrace(Trace):
    """Records equations."""

    def __init__(self, name: str, parent: Trace | None, record_source: bool = True):
        self.name = name
        self.parent = parent
        self.eqns: list[Eqn] = []
        self.constants: dict[int, tuple[Var, Any]] = {}
        self.alive = True
        self.record_source = record_source

    def new_arg(self, aval: ShapedArray) -> JitTracer:
        return JitTracer(self, aval, Var(aval))

    def process(self, op: Op, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
        if state.abstract_mesh.manual_axes:
            args = tuple(align(op, args))
        atoms = [self.atom(a) for a in args]
        avals = self.types(op, [a.aval for a in atoms], params)
        outvars = [Var(a) for a in avals]
        source = _user_line() if self.record_source else ""
        self.eqns.append(Eqn(op, atoms, outvars, params, state.abstract_mesh, source))
        outs = [JitTracer(self, a, v) for a, v in zip(avals, outvars)]
        return outs if op.multiple_results else outs[0]

    def types(self, op: Op, avals: list[ShapedArray], params: dict[str, Any]) -> Sequence[ShapedArray]:
        return infer(op, avals, params)

    def atom(self, x: Any) -> Atom:
        """The variable or literal that stands for an operand in this jaxpr."""
        if isinstance(x, JitTracer):
            if x.owner is self:
                return x.variable
            if not x.owner.alive or not self._is_ancestor(x.owner):
                raise leaked(x, self.name)
            return self._constant(x, x.aval)
        if isinstance(x, Literal):
            return x
        if isinstance(x, Value):
            if isinstance(x, core_trace.Tracer) and not x.owner.alive:
                raise leaked(x, self.name)
            return self._constant(x, x.aval)
        aval = aval_of(x)
        if aval.ndim == 0:
            return Literal(np.asarray(x, aval.dtype)[()], aval)
        return self._constant(x, aval)

    def _is_ancestor(self, trace: Trace) -> bool:
        parent = self.parent
        while parent is not None:
            if parent is trace:
                return True
            parent = getattr(parent, "parent", None)
        return False

    def _constant(self, x: Any, aval: ShapedArray) -> Var:
        found = self.constants.get(id(x))
        if found is None:
            found = self.constants[id(x)] = (Var(type_inside(aval)), x)
        return found[0]

    def finish(self, args: Sequence[JitTracer], outs: Sequence[Any]) -> ClosedJaxpr:
        out_atoms = [self.atom(x) for x in outs]
        self.alive = False
        constvars = [v for v, _ in self.constants.values()]
        consts = [c for _, c in self.constants.values()]
        invars = [a.variable for a in args if isinstance(a.variable, Var)]
        return ClosedJaxpr(Jaxpr(constvars, invars, out_atoms, self.eqns, self.name), consts)


def _within(aval: ShapedArray, mesh: AbstractMesh) -> ShapedArray:
    """The type that a value from outside has inside shard_map, where some axes of its mesh are manual: it must be whole along these."""
    own = aval.sharding.mesh
    if not mesh.manual_axes or own.empty or own.axis_types == mesh.axis_types or own.axis_names != mesh.axis_names:
        return aval
    spec = aval.sharding.spec
    if spec.unreduced or any(a in mesh.manual_axes for axes in spec.dims for a in axes):
        raise NotImplementedError(
            f"Closing over inputs to shard_map where the input is sharded on `Explicit` axes is not implemented: got {aval.str_short()}. Pass it as an argument."
        )
    return aval.update(sharding=NamedSharding(mesh, spec))


def type_inside(aval: ShapedArray) -> ShapedArray:
    """The type of a value from outside in the body of a shard_map: replicated over the manual axes, invariant."""
    context, mesh = state.abstract_mesh, aval.mesh
    if not context.manual_axes or mesh.empty or mesh is context or mesh.same_axes(context):
        return aval
    manual = frozenset(context.manual_axes) - frozenset(mesh.manual_axes)
    if any(manual & set(axes) for axes in aval.dims) or aval.unreduced or mesh.axis_names != context.axis_names:
        raise NotImplementedError(
            f"Closing over inputs to shard_map where the input is sharded on `Explicit` axes is not implemented: got {aval.str_short()} in a body whose "
            f"manual axes are {tuple(context.manual_axes)}. Pass it as an argument."
        )
    explicit = frozenset(context.explicit_axes)
    dims = tuple(tuple(a for a in axes if a in explicit) for axes in aval.dims)
    return aval.update(sharding=NamedSharding(context, PartitionSpec.from_dims(dims)))


def trace_to_jaxpr(
    fun: Callable[..., Sequence[Any]], avals: Sequence[ShapedArray], *, name: str = "", record_source: bool = True
) -> ClosedJaxpr:
    """The jaxpr of `fun(*args)`, which takes one tracer per type and returns a flat sequence of values."""
    staging = StageTrace(name or getattr(fun, "__name__", "function"), state.trace, record_source)
    try:
        with current(staging):
            args = [staging.new_arg(a) for a in avals]
            outs = fun(*args)
            return staging.finish(args, outs)
    finally:
        staging.alive = False


def _user_line() -> str:
    """file:line of the nearest frame outside the package, for messages about who waits where."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if not module.startswith(_PACKAGE):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
