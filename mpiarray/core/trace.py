"""Who interprets an op: the current trace, and the context meshes it is typed under.

There is one trace at a time.  At the bottom is evaluation (`runtime.eager` installs it); transformations put
another on top for as long as the traced function runs, and take it away (`with current(trace): ...`) while their
rules bind ops of their own.  A tracer that is used after its trace has ended raises UnexpectedTracerError.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mpiarray.core.value import Value
from mpiarray.errors import InternalError, UnexpectedTracerError
from mpiarray.types.mesh import EMPTY_ABSTRACT_MESH, EMPTY_MESH, AbstractMesh, Mesh

if TYPE_CHECKING:
    from mpiarray.core.op import Op


class Trace:
    """An interpreter of ops.  `process` returns one value, or a list when the op has several results.

    evaluates  whether it computes values at once, so that functions with derivative rules of their own are just called
    alive      False when the function that it interprets has returned
    parent     the trace that its own rules bind ops under
    """

    evaluates = False
    alive = True
    parent: Trace | None = None

    def process(self, op: Op, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
        raise NotImplementedError

    def call(self, function: RuledFunction, args: Sequence[Any]) -> list[Any]:
        """Call a function that has derivative rules of its own; by default it becomes an op with these rules."""
        return function.bind(args)


class RuledFunction:
    """A function of flat values with derivative rules of its own (`custom_jvp`, `custom_vjp`)."""

    def run(self, args: Sequence[Any]) -> list[Any]:
        """The function's results."""
        raise NotImplementedError

    def bind(self, args: Sequence[Any]) -> list[Any]:
        """Bind an op that carries the function as a jaxpr, and its rules."""
        raise NotImplementedError

    def derive(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Results and their tangents, by the function's rules; tangents may be Zero."""
        raise NotImplementedError

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        """Call it under the current trace."""
        t = current_trace()
        return self.run(args) if t.evaluates else t.call(self, args)


class Tracer(Value):
    """A value of which a trace knows more than its type.  Subclasses say what `str` shows."""

    __slots__ = ("owner",)

    owner: Trace  # not `trace`: arrays have a method of that name


class _State(threading.local):
    trace: Trace | None = None  # None: evaluation
    abstract_mesh: AbstractMesh = EMPTY_ABSTRACT_MESH
    mesh: Mesh = EMPTY_MESH
    check_vma: bool = True  # inside shard_map: whether types say over which manual axes values vary
    mapped: tuple[Any, ...] = ()  # the axes of enclosing vmaps (`ops.common.BatchAxis`), the outermost first


state = _State()
_evaluation: list[Trace] = []


def install_evaluation(trace: Trace) -> None:
    """Set the interpreter at the bottom; called once, by the runtime, when it is imported."""
    _evaluation[:] = [trace]


def bind(op: Op, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
    """Interpret an op on values under the current trace."""
    t = state.trace
    if t is None:
        if not _evaluation:
            raise InternalError(f"bind: {op.name} was used before the runtime was imported")
        t = _evaluation[0]
    return t.process(op, args, params)


def current_trace() -> Trace:
    return state.trace or _evaluation[0]


def is_evaluating() -> bool:
    """True when ops run at once on arrays, outside of every transformation."""
    return state.trace is None


@contextmanager
def current(trace: Trace | None) -> Iterator[None]:
    """Interpret ops by `trace` inside the block (None: evaluate them)."""
    before = state.trace
    state.trace = trace
    try:
        yield
    finally:
        state.trace = before


@contextmanager
def abstract_mesh(mesh: AbstractMesh) -> Iterator[None]:
    """Type ops under `mesh` inside the block; the concrete mesh stays."""
    before = state.abstract_mesh
    state.abstract_mesh = mesh
    try:
        yield
    finally:
        state.abstract_mesh = before


@contextmanager
def meshes(abstract: AbstractMesh, concrete: Mesh) -> Iterator[None]:
    """Both context slots inside the block."""
    before = state.abstract_mesh, state.mesh
    state.abstract_mesh, state.mesh = abstract, concrete
    try:
        yield
    finally:
        state.abstract_mesh, state.mesh = before


@contextmanager
def checking_vma(on: bool) -> Iterator[None]:
    """Whether types track manual axes inside the block (shard_map's `check_vma`)."""
    before = state.check_vma
    state.check_vma = on
    try:
        yield
    finally:
        state.check_vma = before


@contextmanager
def mapping(axis: Any) -> Iterator[None]:
    """Inside the block a vmap maps `axis`: collectives may name it, and the mesh axes that it is sharded over are taken."""
    before = state.mapped
    state.mapped = (*before, axis)
    try:
        yield
    finally:
        state.mapped = before


def leaked(tracer: Any, where: str) -> UnexpectedTracerError:
    """The error for a tracer that outlived the function it was made in."""
    return UnexpectedTracerError(
        f"Encountered an unexpected tracer in {where}: {tracer.aval} was made inside a function that jit, grad, vmap or another transformation "
        "has finished tracing, and was kept (in a global, a list, an attribute); the trace has ended, so that it let the tracer "
        "escape the scope of the transformation. Return the value from the function instead."
    )
