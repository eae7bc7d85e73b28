"""The body of a shard_map on concrete arrays: every rank runs it once, on its own blocks.

A `ManualTracer` is this instance's block and its type.  Ops are typed as everywhere (`core.infer`, with the manual axes) and then run at once on
the block; only collectives communicate.  Where Explicit or Auto axes remain (partial manual), an op is a compiled program over the devices that
share this instance's manual coordinates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any

import numpy as np

from mpiarray import comm
from mpiarray.compiler import observe
from mpiarray.compiler.executable import COMMUNICATING, Executable, own_block
from mpiarray.compiler.pipeline import lower
from mpiarray.compiler.quiet import quietly
from mpiarray.core.device import DeviceContext
from mpiarray.core.infer import infer
from mpiarray.core.jaxpr import ClosedJaxpr, Eqn, Jaxpr, Var, callee
from mpiarray.core.op import Op
from mpiarray.core.trace import Trace, Tracer, current, leaked, state
from mpiarray.core.value import Literal, aval_of
from mpiarray.errors import (
    ConcretizationTypeError,
)
from mpiarray.higher_order.blocks import BlockPartitioner, block_program
from mpiarray.higher_order.sub_mesh import SubMesh
from mpiarray.ops.collectives import psum_many
from mpiarray.ops.manual import align
from mpiarray.runtime.array import ArrayImpl
from mpiarray.runtime.eager import compile_for
from mpiarray.runtime.transfer import move
from mpiarray.transforms.evaluate import eval_jaxpr
from mpiarray.transforms.traced_array import TracedArray
from mpiarray.types import dtypes
from mpiarray.types.aval import NOT_MANUAL, ShapedArray
from mpiarray.types.mesh import Device
from mpiarray.types.partition_spec import PartitionSpec as P
from mpiarray.types.sharding import NamedSharding


class ManualTracer(TracedArray):
    """One instance's block of a value, with its type.

    block  this rank's numpy block (on partial manual meshes: of the instance's value, which lies by `spec` over the other axes)
    """

    __slots__ = ("aval", "block", "owner", "spec")

    owner: ManualTrace

    def __init__(self, trace: ManualTrace, aval: ShapedArray, block: Any, spec: P):
        self.owner, self.aval, self.block, self.spec = trace, aval, block, spec

    @property
    def sharding(self) -> Any:
        raise AttributeError(
            f"a value inside shard_map has no `.sharding`: it is one instance's block, of type {self.aval}. Use `jax.typeof(x)`."
        )

    def _value(self) -> np.ndarray:
        return self.owner.value_of(self)

    def __str__(self) -> str:
        return self.owner.text_of(self)

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        try:
            return format(str(self), spec)
        except ValueError:
            raise TypeError(
                f"unsupported format string {spec!r} for a value inside shard_map, which is formatted as text. {self._why()}"
            ) from None

    def _why(self) -> str:
        varies = f", and varies over {sorted(self.aval.vma)}" if self.aval.vma else ""
        return (
            f"The value is one instance's block inside shard_map, of type {self.aval.str_short()}{varies}: instances could disagree. Keep it an array, "
            "make it invariant with `lax.psum` or `lax.pmax`, or return it and read it outside."
        )

    def _agreed(self) -> bool:
        """Whether it is one value that all instances have."""
        return self.owner.check_vma and self.aval.manual == NOT_MANUAL and self.aval.size == 1

    def __bool__(self) -> bool:
        return bool(self._value().item()) if self._agreed() else super().__bool__()

    def __int__(self) -> int:
        return int(self._value().item()) if self._agreed() else super().__int__()

    def __index__(self) -> int:
        whole = dtypes.is_int(self.aval.dtype) and not self.aval.ndim
        return int(self._value().item()) if whole and self._agreed() else super().__index__()

    def item(self, *args: Any) -> Any:
        return self._value().item(*args) if self._agreed() else super().item(*args)


def _placed_by(x: Any) -> P:
    """Where an operand lies over the axes that are not manual; literals are everywhere."""
    return x.spec if type(x) is ManualTracer else P()


Run = Callable[..., Any]  # of blocks: a block, or a list of blocks where the op has several results
Prepared = tuple[Run, tuple[ShapedArray, ...], tuple[P, ...]]
Entry = tuple[Run, tuple[ShapedArray, ...], tuple[P, ...], Run]  # the same without numpy's warnings; and bare
Call = tuple[Run, list[Any], Any, bool]  # what runs, on which values, the result, whether it is a collective
_CACHE_SIZE = 16384


class Memory:
    """What bodies on one mesh share: where this rank stands, and the prepared ops.

    shortcuts  whole calls of collectives, see `shortcuts`; they hold for the settings of `generation`
    """

    __slots__ = ("__weakref__", "context", "entries", "generation", "shortcuts", "sub")

    def __init__(self, mesh: Any, ids: tuple[int, ...]):
        self.context = DeviceContext(ids, mesh, comm.rank())
        self.sub = SubMesh.of(mesh, ids, comm.rank())
        self.entries: dict[Any, Entry] = {}
        self.shortcuts: dict[Any, Any] = {}
        self.generation = -1
        observe.keep(self, "entries", "shortcuts")


@lru_cache(maxsize=128)
def _memory(mesh: Any, ids: tuple[int, ...], check_vma: bool) -> Memory:
    return Memory(mesh, ids)


def _as_op(op: Op, run: Run) -> Run:
    """What a program of one op gives as the op gives it: a single result as it is."""
    return run if op.multiple_results else lambda *blocks: run(*blocks)[0]


class ManualTrace(Trace):
    """Evaluates a body on this rank's blocks."""

    evaluates = True

    def __init__(self, mesh: Any, ids: tuple[int, ...], check_vma: bool, parent: Trace | None):
        self.mesh, self.ids, self.check_vma, self.parent = mesh, ids, check_vma, parent
        self.memory = _memory(mesh, ids, check_vma)
        self.context, self.sub = self.memory.context, self.memory.sub
        self.alive = True
        self.calls: list[Call] | None = None
        self.closures: dict[
            int, tuple[ArrayImpl, ArrayImpl]
        ] = {}  # arrays that were gathered, kept while their ids count

    @contextmanager
    def recording(self) -> Iterator[list[Call]]:
        """Lists the single-result ops that run inside; blocks in it are kept until the list goes."""
        before, self.calls = self.calls, []
        try:
            yield self.calls
        finally:
            self.calls = before

    def tracer(self, aval: ShapedArray, block: Any, spec: P | None = None) -> ManualTracer:
        return ManualTracer(self, aval, block, aval.sharding.spec if spec is None else spec)

    def lift(self, x: Any) -> ManualTracer | Literal:
        """An operand from outside: closures over replicated values are invariant."""
        if isinstance(x, ManualTracer):
            if x.owner is self:
                return x
            if not x.owner.alive:
                raise leaked(x, "the body of a shard_map")
            return self.from_outer(x)
        if isinstance(x, Literal):
            return x
        if isinstance(x, ArrayImpl):
            return self.closed_over(x)
        if isinstance(x, Tracer):
            raise leaked(x, "the body of a shard_map")
        aval = aval_of(x)
        return self.tracer(
            ShapedArray(aval.shape, aval.dtype, aval.weak_type, NamedSharding(self.mesh, P(*(None,) * aval.ndim))),
            np.asarray(x, aval.dtype),
        )

    def from_outer(self, x: ManualTracer) -> ManualTracer:
        aval = x.aval.update(sharding=NamedSharding(self.mesh, x.aval.sharding.spec))
        return self.tracer(aval, x.block, x.spec)

    def closed_over(self, x: ArrayImpl) -> ManualTracer:
        x._check_alive()
        if any(x.aval.sharding.spec.dims) or x.aval.unreduced:
            raise NotImplementedError(
                f"Closing over inputs to shard_map where the input is sharded on `Explicit` axes is not implemented: got {x.aval.str_short()}. Pass it as an argument."
            )
        whole = NamedSharding(self.mesh, P(*(None,) * x.ndim))
        aval = ShapedArray(x.shape, x.dtype, x.weak_type, whole)
        if any(x._placed.spec.dims):  # on Auto axes, which its type does not show
            known = self.closures.get(id(x))
            if known is None:
                known = self.closures[id(x)] = x, self._gathered(x)
            x = known[1]
        return self.tracer(aval, x._block)

    def _gathered(self, x: ArrayImpl) -> ArrayImpl:
        """An array that the body closes over, whole on each device; all run the same body, so that all come here."""
        where = x._placed
        if where.ids != self.ids:
            raise ValueError(
                f"shard_map: the body runs on devices {list(self.ids)}, but closes over {x.aval.str_short()} on {list(where.ids or ())}. Pass it as an "
                "argument, moved there by `jax.device_put`."
            )
        with current(None):
            return move(x, NamedSharding(where.mesh, P(*(None,) * x.ndim)))

    def process(self, op: Op, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
        if op.inlines:
            return eval_jaxpr(callee(params).jaxpr, (), args)
        values: list[Any] = [a if type(a) is ManualTracer and a.owner is self else self.lift(a) for a in args]
        if len(values) > 1:
            aligned = align(op, values)
            values = values if aligned is values else [self.lift(v) for v in aligned]
        if self.sub is not None and op.steps is not None:
            return op.steps(op, values, **params)
        keys: list[Any] = []
        blocks: list[Any] = []
        for v in values:
            if type(v) is ManualTracer:
                keys.append(v.aval if self.sub is None else (v.aval, v.spec))
                blocks.append(v.block)
            else:
                keys.append(v.aval)
                blocks.append(v.val)
        key = (op, tuple(keys), tuple(params.items()) if params else ())
        entries = self.memory.entries
        entry = entries.get(key)
        if entry is None:
            run, avals, specs = self._prepare(op, values, params)
            entry = quietly(run), avals, specs, run
            if len(entries) >= _CACHE_SIZE:
                entries.clear()
            entries[key] = entry
        run, avals, specs, bare = entry
        if not op.multiple_results:
            result = ManualTracer(self, avals[0], own_block(run(*blocks)), specs[0])
            if self.calls is not None:
                collective = op.build is not None and op.hlo_name in COMMUNICATING
                self.calls.append((bare if collective else run, values, result, collective))
            return result
        return [ManualTracer(self, a, own_block(b), s) for a, b, s in zip(avals, run(*blocks), specs)]

    def sums(self, calls: Sequence[tuple[Op, Any, dict[str, Any]]]) -> list[Any]:
        """The results of sums over mesh axes, (op, operand, parameters) each; those of one dtype and axes in one message."""
        values = [self.lift(x) for _, x, _ in calls]
        together: dict[Any, list[int]] = {}
        for k, ((_, _, params), value) in enumerate(zip(calls, values)):
            key = (params["axes"], params.get("axis_index_groups"), value.aval.dtype)
            together.setdefault(key, []).append(k)
        results: list[Any] = [None] * len(calls)
        for (axes, groups, _), members in together.items():
            if len(members) == 1:
                (k,) = members
                op, _, params = calls[k]
                results[k] = self.process(op, (values[k],), params)
                continue
            avals = [infer(calls[k][0], [values[k].aval], calls[k][2])[0] for k in members]
            assert psum_many.build is not None, "sums are communication"
            run = psum_many.build(self.context, axes=axes, axis_index_groups=groups)
            blocks = run(*(v.val if isinstance(v, Literal) else v.block for v in (values[k] for k in members)))
            for k, aval, block in zip(members, avals, blocks):
                results[k] = ManualTracer(self, aval, block, _placed_by(values[k]))
        return results

    def _prepare(self, op: Op, values: list[Any], params: dict[str, Any]) -> Prepared:
        avals = infer(op, [v.aval for v in values], params)
        if op.lower is not None and self.sub is None:
            return self._program(op, values, avals, params), avals, tuple(a.sharding.spec for a in avals)
        if self.sub is None:
            run = self._direct(op, params)
            if observe.observing:
                invars, outvars = [Var(v.aval) for v in values], [Var(a) for a in avals]
                run = observe.step(run, Eqn(op, invars, outvars, params, self.mesh))
            return run, avals, tuple(a.sharding.spec for a in avals)
        return self._partial(op, values, avals, params)

    def _direct(self, op: Op, params: dict[str, Any]) -> Run:
        """Full manual: the op runs on the block as it is."""
        if op.build is not None:
            run = op.build(self.context, **params)
        else:
            assert op.impl is not None, f"{op.name} needs an impl or a build"
            run = partial(op.impl, **params) if params else op.impl
        return run

    def _program(self, op: Op, values: list[Any], avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> Run:
        """An op that carries jaxprs (a loop): a prepared program on blocks."""
        invars, outvars = [Var(v.aval) for v in values], [Var(a) for a in avals]
        jaxpr = Jaxpr((), invars, outvars, (Eqn(op, invars, outvars, params, self.mesh),), op.name)
        program = block_program(BlockPartitioner(), ClosedJaxpr(jaxpr), self.mesh)
        return _as_op(op, Executable(program, self.ids, comm.rank()).run)

    def _partial(self, op: Op, values: list[Any], avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> Prepared:
        """Partial manual: a compiled program over the devices that share the manual coordinates; collectives over manual axes run between their blocks."""
        assert self.sub is not None, "only partial manual meshes come here"
        if op.build is not None or op.casts:  # blocks stay where they lie, on Auto axes too
            return self._direct(op, params), avals, tuple(map(_placed_by, values[:1])) * len(avals)
        if op.lower is not None:
            return self._mapped(op, values, avals, params)
        args = [self.sub.placed(v.aval, _placed_by(v)) for v in values]
        invars = [Var(a.aval) for a in args]
        with self.sub.context():
            outs = infer(op, [v.aval for v in invars], params)
            outvars = [Var(a) for a in outs]
            jaxpr = ClosedJaxpr(
                Jaxpr((), invars, outvars, (Eqn(op, invars, outvars, params, state.abstract_mesh),), op.name)
            )
            run, found = compile_for(op.name, jaxpr, args, [None] * len(outs), self.sub.ids)
        assert run is not None, "this rank is one of the instance's devices"
        return _as_op(op, run), avals, tuple(p.spec for p in found)

    def _mapped(self, op: Op, values: list[Any], avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> Prepared:
        """A map in a partial manual one: a compiled program of all devices, since its body may communicate over the outer axes too."""
        invars, outvars = [Var(v.aval) for v in values], [Var(a) for a in avals]
        jaxpr = ClosedJaxpr(Jaxpr((), invars, outvars, (Eqn(op, invars, outvars, params, self.mesh),), op.name))
        program = lower(op.name, jaxpr, [_placed_by(v) for v in values], [None] * len(avals), self.mesh, len(self.ids))
        assert program.local is not None, "the pipeline partitions"
        run = Executable(program.local, self.ids, comm.rank()).run
        return _as_op(op, run), avals, tuple(s for s in program.out_specs if s is not None)

    def value_of(self, x: ManualTracer) -> np.ndarray:
        """The instance's value; over the remaining axes of a partial manual mesh it must be whole on each device."""
        if any(x.spec.dims):
            raise ConcretizationTypeError(
                f"the value of {x.aval.str_short()} lies on several devices; it cannot be read inside shard_map"
            )
        return np.asarray(x.block)

    def text_of(self, x: ManualTracer) -> str:
        """What `print` shows on this rank: the device, its coordinates, and its block."""
        names = ", ".join(str(n) for n in self.mesh.manual_axes)
        coords = tuple(self.context.coords[n] for n in self.mesh.manual_axes)
        rank = self.ids[self.context.position]
        return f"On {Device(rank)} at mesh coordinates ({names},) = {coords}:\n{x.block}\n"
