"""`jax.shard_map`: run a function on the blocks of its arguments, with collectives between the instances.

On concrete arrays the body runs at once, one instance per rank, so that printing shows blocks; under a transformation it is staged
into a `shard_map` equation.  Ranks outside the mesh only type the body.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpiarray import comm
from mpiarray.core.trace import Tracer, checking_vma, current, meshes, state
from mpiarray.core.value import Value, aval_of
from mpiarray.higher_order import shard_specs as specs
from mpiarray.higher_order.arguments import operand
from mpiarray.higher_order.manual_trace import ManualTrace, ManualTracer
from mpiarray.higher_order.shard_map_op import shard_map_op
from mpiarray.runtime.array import ArrayImpl
from mpiarray.runtime.placed import placed
from mpiarray.runtime.transfer import move
from mpiarray.transforms.interning import intern
from mpiarray.transforms.stage import trace_to_jaxpr
from mpiarray.types import tree
from mpiarray.types.aval import ShapedArray
from mpiarray.types.mesh import AxisType, Mesh
from mpiarray.types.partition_spec import PartitionSpec as P
from mpiarray.types.sharding import NamedSharding

Infer = specs.Infer


def shard_map(
    f: Callable[..., Any] | None = None, /, *, out_specs: Any, in_specs: Any = Infer, mesh: Any = None, axis_names: Any = frozenset(),
    check_vma: bool = True,
) -> Any:  # fmt: skip
    """Map a function over blocks: every instance gets its block of each argument and returns its block of each result.

    in_specs: P per argument (pytree prefix); left out, it is read from the arguments' types on Explicit axes.  out_specs: P per result; axes that
    a spec does not mention must not vary in the result.  mesh: default the context mesh.  axis_names: the manual axes (default all).
    check_vma: whether types track over which axes values vary.  Without `f`: a decorator.  The result takes positional arguments only.

        @jax.shard_map(in_specs=jax.P('x'), out_specs=jax.P())
        def total(block):
            return jax.lax.psum(block.sum(), 'x')

    Called on arrays by every rank of the job; communicates as its body does.
    """
    if f is None:
        return functools.partial(
            shard_map, out_specs=out_specs, in_specs=in_specs, mesh=mesh, axis_names=axis_names, check_vma=check_vma
        )
    if not callable(f):
        raise TypeError(f"shard_map requires a callable for its first argument, but got {f!r} of type {type(f)}")
    if not isinstance(axis_names, (set, frozenset)):
        raise TypeError(
            f"`axis_names` argument of shard_map should be of type `set` or `frozenset`. Got {axis_names!r} of type {type(axis_names)}"
        )

    @functools.wraps(f, updated=())
    def wrapped(*args: Any) -> Any:
        call = _Call(f, mesh, in_specs, out_specs, frozenset(axis_names), check_vma, args)
        return call.run()

    return wrapped


class _Call:
    """One call of a mapped function: its mesh, its arguments' leaves and their specs."""

    def __init__(
        self,
        f: Any,
        mesh: Any,
        in_specs: Any,
        out_specs: Any,
        axis_names: frozenset[str],
        check_vma: bool,
        args: tuple[Any, ...],
    ):
        self.f, self.out_specs, self.check_vma = f, out_specs, check_vma
        self.name = getattr(f, "__name__", type(f).__name__)
        self.given_mesh = mesh
        self.outer = specs.map_mesh(mesh, args)
        if self.outer.manual_axes and check_vma != state.check_vma:
            raise ValueError(
                f"shard_map: check_vma must be the same inside and outside, but {self.name!r} is mapped with check_vma={check_vma} in a body with "
                f"check_vma={state.check_vma}, where {tuple(self.outer.manual_axes)} are manual. Give both the same."
            )
        self.manual = specs.manual_axes(self.outer, axis_names)
        self.inner = self.outer.update_axis_types(dict.fromkeys(self.manual, AxisType.Manual))
        specs.check_leaf_specs(out_specs, "out_specs", self.outer, self.manual)
        self.args = args
        self.leaves, self.structure, self.static = specs.split_static_arguments(args, in_specs)
        self.leaves = [x if isinstance(x, Value) else operand(x, self.name, lambda: "args") for x in self.leaves]
        self.in_specs = specs.argument_specs(self, in_specs)

    def argument_name(self, k: int) -> str:
        paths = [p for p, _ in tree.leaves_with_path(tree.unflatten(self.structure, range(len(self.leaves))))]
        path = tree.keystr(paths[k])
        try:
            names = list(inspect.signature(self.f).parameters)
        except (TypeError, ValueError):
            names = []
        index = getattr(paths[k][0], "idx", 0) if paths[k] else 0
        return f"args{path}" + (f" ({names[index]!r} of {self.name})" if index < len(names) else "")

    def run(self) -> Any:
        if state.trace is None and all(isinstance(x, ArrayImpl) for x in self.leaves):
            return self.evaluate()
        if isinstance(state.trace, ManualTrace) and not any(
            isinstance(x, Tracer) and not isinstance(x, ManualTracer) for x in self.leaves
        ):
            return self.nested()
        return self.stage()

    def context(self, concrete: Mesh) -> Any:
        stack = contextlib.ExitStack()
        stack.enter_context(meshes(self.inner, concrete))
        stack.enter_context(checking_vma(self.check_vma))
        return stack

    def body(self, blocks: Sequence[Any]) -> tuple[list[Any], Any, list[P]]:
        """Call the function on tracers of blocks: its results' leaves, their structure, and the specs for them."""
        args = specs.join_static(self.structure, blocks, self.static)
        out = self.f(*args)
        leaves, structure = tree.flatten(out)
        for x in leaves:
            try:
                aval_of(x)
            except TypeError:
                raise TypeError(
                    f"shard_map: {self.name} returned a value of type {type(x)}, which is not a valid JAX type: {x!r}"
                ) from None
        return leaves, structure, specs.result_specs(self, out, leaves)

    # -- concrete arrays ---------------------------------------------------------------------------------

    def evaluate(self) -> Any:
        concrete = specs.concrete_mesh_of(self)
        moved = [self.place(x, s, concrete) for x, s in zip(self.leaves, self.in_specs)]
        if comm.rank() not in concrete.flat_ids:
            return self.outside(concrete, moved)
        trace = ManualTrace(self.inner, concrete.flat_ids, self.check_vma, state.trace)
        blocks = [
            trace.tracer(self.block_aval(x.aval, s), x._block, self.rest(x, s)) for x, s in zip(moved, self.in_specs)
        ]
        try:
            with self.context(concrete), current(trace):
                leaves, structure, out_specs = self.body(blocks)
                values = [
                    specs.check_result(self, trace.lift(x), s, k) for k, (x, s) in enumerate(zip(leaves, out_specs))
                ]
                lifted = [trace.lift(v) for v in values]
        finally:
            trace.alive = False
        outs = [
            self.assemble(self.aval_and_spec(x), getattr(x, "block", getattr(x, "val", None)), s, concrete)
            for x, s in zip(lifted, out_specs)
        ]
        return tree.unflatten(structure, outs)

    def aval_and_spec(self, x: Any) -> tuple[ShapedArray, P]:
        return x.aval, x.spec if isinstance(x, ManualTracer) else P(*(None,) * x.aval.ndim)

    def place(self, x: ArrayImpl, spec: P, concrete: Mesh) -> ArrayImpl:
        """The argument where its spec says.  On full manual Explicit meshes it is there (checked); elsewhere data may move."""
        x._check_alive()
        have = x._placed
        wanted = specs.with_rest(self, have, spec, x.aval)
        sharding = NamedSharding(concrete, wanted)
        if have.mesh is not None and have.ids == concrete.flat_ids and have.spec == wanted.padded(x.ndim):
            return x
        if have.mesh is not None and have.ids != concrete.flat_ids:
            raise ValueError(
                f"shard_map: {self.name} runs on devices {list(concrete.flat_ids)}, but an argument of type {x.aval.str_short()} is on {list(have.ids or ())}"
            )
        return move(x, sharding)

    def rest(self, x: ArrayImpl, spec: P) -> P:
        """Where the instance's value lies over the axes that are not manual."""
        dims = tuple(tuple(a for a in axes if a not in self.manual) for axes in x._placed.spec.dims)
        return P.from_dims(dims)

    def block_aval(self, aval: ShapedArray, spec: P) -> ShapedArray:
        return specs.block_aval(self, aval, spec)

    def assemble(self, found: tuple[ShapedArray, P], block: Any, spec: P, concrete: Mesh) -> ArrayImpl:
        """A result's block as this rank's part of the global array.  Nothing is communicated."""
        aval, inner_spec = found
        out, full = specs.global_result(self, aval, spec, inner_spec)
        where = placed(out, NamedSharding(concrete, full), True)
        if block is None or not where.member:
            return ArrayImpl(where, None)
        return ArrayImpl(where, np.asarray(block))

    def outside(self, concrete: Mesh, moved: list[ArrayImpl]) -> Any:
        """A rank outside the mesh types the body; what it prints is not shown."""
        avals = [self.block_aval(x.aval, s) for x, s in zip(moved, self.in_specs)]
        found: list[Any] = []

        def flat(*tracers: Any) -> list[Any]:
            leaves, structure, out_specs = self.body(tracers)
            values = [specs.check_result(self, x, s, k) for k, (x, s) in enumerate(zip(leaves, out_specs))]
            found.append((structure, out_specs))
            return values

        with self.context(concrete), contextlib.redirect_stdout(io.StringIO()):
            jaxpr = trace_to_jaxpr(flat, avals, name=self.name)
        structure, out_specs = found[0]
        outs = [
            self.assemble((a, a.sharding.spec.padded(a.ndim)), None, s, concrete)
            for a, s in zip(jaxpr.out_avals, out_specs)
        ]
        return tree.unflatten(structure, outs)

    # -- inside another body, and under transformations ----------------------------------------------------

    def nested(self) -> Any:
        """A shard_map in the body of another: the outer instances' values are split further."""
        return self.stage()

    def stage(self) -> Any:
        """Bind a `shard_map` equation."""
        avals = [self.block_aval(aval_of(x), s) for x, s in zip(self.leaves, self.in_specs)]
        found: list[Any] = []

        def flat(*tracers: Any) -> list[Any]:
            leaves, structure, out_specs = self.body(tracers)
            values = [specs.check_result(self, x, s, k) for k, (x, s) in enumerate(zip(leaves, out_specs))]
            found.append((structure, out_specs))
            return values

        with self.context(state.mesh):
            jaxpr = trace_to_jaxpr(flat, avals, name=self.name)
        structure, out_specs = found[0]
        consts = [specs.closed_constant(self, c) for c in jaxpr.consts]
        inner = jaxpr.jaxpr.replace(constvars=(), invars=(*jaxpr.jaxpr.constvars, *jaxpr.jaxpr.invars))
        outs = shard_map_op(
            *consts, *self.leaves, jaxpr=intern(specs.closed(inner)), mesh=self.outer, newly_manual_axes=frozenset(self.manual), check_vma=self.check_vma,
            in_specs=(*(P() for _ in consts), *self.in_specs), out_specs=tuple(out_specs),
        )  # fmt: skip
        return tree.unflatten(structure, outs)


def smap(f: Callable[..., Any], *, in_axes: Any = Infer, out_axes: Any, axis_name: str) -> Any:
    """`shard_map` over one axis, with axes given as for vmap: the dim to split, or None."""

    def spec(axis: int | None) -> P:
        return P() if axis is None else P(*(None,) * axis, axis_name)

    def convert(axes: Any) -> Any:
        return tree.map(spec, axes, is_leaf=lambda a: a is None)

    given = Infer if in_axes is Infer else convert(in_axes)
    return shard_map(f, in_specs=given, out_specs=convert(out_axes), axis_names=frozenset({axis_name}))
