"""Evaluation: the trace at the bottom.  An eager op is a compiled program of one equation.

The first call of an op on operands placed in a certain way compiles it; later ones find the prepared steps by one
look-up keyed by interned metadata, call numpy and, where planned, MPI.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from mpiarray import comm
from mpiarray.compiler import observe
from mpiarray.compiler.executable import Executable
from mpiarray.compiler.pipeline import lower
from mpiarray.compiler.program import Program
from mpiarray.config import config
from mpiarray.core.infer import infer
from mpiarray.core.jaxpr import ClosedJaxpr, Eqn, Jaxpr, Var
from mpiarray.core.op import Op
from mpiarray.core.plan import replicated
from mpiarray.core.trace import Trace, Tracer, install_evaluation, leaked, state
from mpiarray.core.value import Literal
from mpiarray.runtime.array import ArrayImpl, from_host
from mpiarray.runtime.nans import check_nans
from mpiarray.runtime.placed import Placed, devices_of, on_device, placed, uncommitted
from mpiarray.types.aval import ShapedArray
from mpiarray.types.mesh import EMPTY_ABSTRACT_MESH, AbstractMesh, Device, Mesh
from mpiarray.types.partition_spec import PartitionSpec as P
from mpiarray.types.sharding import NamedSharding

_CACHE_SIZE = 16384
_cache: dict[Any, tuple[Callable[..., Any] | None, tuple[Placed, ...], bool]] = {}


class EvalTrace(Trace):
    """Runs ops at once."""

    evaluates = True

    def process(self, op: Op, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
        keys: list[Any] = []
        blocks: list[Any] = []
        for a in args:
            kind = type(a)
            if kind is ArrayImpl:
                keys.append(a._placed)
                blocks.append(a._block)
            elif kind is Literal:
                keys.append(a.aval)
                blocks.append(a.val)
            else:
                a = _operand(a, op)
                keys.append(a._placed if isinstance(a, ArrayImpl) else a.aval)
                blocks.append(a._block if isinstance(a, ArrayImpl) else a.val)
        key = (op, tuple(keys), tuple(params.items()) if params else (), state.abstract_mesh, state.mesh)
        entry = _cache.get(key)
        if entry is None:
            entry, lasting = _prepare(op, args, keys, params)
            if lasting:
                _remember(key, entry)
        run, outs, several = entry
        results: Sequence[ArrayImpl]
        if run is None:
            results = [ArrayImpl(p, None) for p in outs]
        elif several:
            results = [ArrayImpl(p, b) for p, b in zip(outs, run(*blocks))]
        else:
            results = (ArrayImpl(outs[0], run(*blocks)[0]),)
        if config.jax_debug_nans and run is not None:
            check_nans(op.name, results)
        return results if several else results[0]


def _operand(a: Any, op: Op) -> ArrayImpl | Literal:
    """Numpy operands are copies that every rank has."""
    if isinstance(a, Tracer):
        raise leaked(a, op.name)
    return from_host(a)


def _remember(key: Any, entry: Any) -> None:
    if len(_cache) >= _CACHE_SIZE:
        for old in list(_cache)[: _CACHE_SIZE // 2]:
            del _cache[old]
    _cache[key] = entry


def _prepare(op: Op, args: Sequence[Any], keys: Sequence[Any], params: dict[str, Any]) -> tuple[Any, bool]:
    """The entry for the cache, and whether it holds as long as its key: not where the devices are those of the latest arrays."""
    for a in args:
        if type(a) is ArrayImpl:
            a._check_alive()
    avals = [k.aval if isinstance(k, Placed) else k for k in keys]
    outs = infer(op, avals, params)
    args_placed = [k if isinstance(k, Placed) else uncommitted(k) for k in keys]
    ids = common_devices(op.name, args_placed)
    guessed = devices_of(outs) if ids is None else None
    invars = [Var(a) for a in avals]
    outvars = [Var(a) for a in outs]
    eqn = Eqn(op, invars, outvars, params, state.abstract_mesh)
    jaxpr = ClosedJaxpr(Jaxpr((), invars, outvars, (eqn,), op.name))
    run, out_placed = compile_for(op.name, jaxpr, args_placed, [None] * len(outs), guessed or ids)
    return (run, out_placed, op.multiple_results), guessed is None


def compile_for(
    name: str,
    jaxpr: ClosedJaxpr,
    args: Sequence[Placed],
    out_specs: Sequence[P | None],
    ids: tuple[int, ...] | None,
    program: Program | None = None,
    owned: Callable[[tuple[Placed, ...]], Collection[int]] | None = None,
) -> tuple[Callable[..., Any] | None, tuple[Placed, ...]]:
    """Compile a program for arguments placed so: what runs it on this rank (None on a rank outside), and its results' metadata.

    program: what is compiled already, for arguments that lie just so.
    owned: from the results' metadata the numbers of the arguments whose blocks it may write over.
    """
    mesh = program_mesh(jaxpr, args)
    program = program or lower(name, jaxpr, [p.spec for p in args], out_specs, mesh, len(ids or (0,)))
    local, specs = program.local, program.out_specs
    assert local is not None, "the pipeline partitions"
    outs = tuple(place_result(v.aval, s, mesh, ids) for v, s in zip(program.jaxpr.outvars, specs) if s is not None)
    rank = comm.rank()
    if ids is not None and rank not in ids:
        return None, outs
    own = () if owned is None else owned(outs)
    return Executable(local, ids, rank, complete=True, owned=own).run, outs


def program_mesh(jaxpr: ClosedJaxpr, args: Sequence[Placed]) -> AbstractMesh:
    """The abstract mesh for values whose type has none: the context's, else an argument's."""
    if not state.abstract_mesh.empty:
        return state.abstract_mesh
    for p in args:
        if p.mesh is not None:
            return p.mesh.abstract_mesh
    for v in jaxpr.jaxpr.outvars:
        if not v.aval.mesh.empty:
            return v.aval.mesh
    return EMPTY_ABSTRACT_MESH


def common_devices(name: str, args: Sequence[Placed]) -> tuple[int, ...] | None:
    """The devices, in order, that all committed operands and the context mesh are on; None: every rank by itself.

    Raises ValueError when they differ.
    """
    found = None if state.mesh.empty else state.mesh.flat_ids
    origin = "the context mesh"
    for p in args:
        if not p.committed:
            continue
        if found is None:
            found, origin = p.ids, f"an operand of type {p.aval.str_short()}"
        elif p.ids != found:
            raise ValueError(
                f"Received incompatible devices for jitted computation {name}. Got an operand of type {p.aval.str_short()} with device "
                f"ids {list(p.ids or ())} and {origin} with device ids {list(found)}. Move one with `jax.device_put`."
            )
    return found


def place_result(aval: ShapedArray, spec: P, mesh: AbstractMesh, ids: tuple[int, ...] | None) -> Placed:
    """Metadata of a result of that type which lies by `spec`."""
    own = aval.mesh if not aval.mesh.empty else mesh
    if ids is None:
        return uncommitted(aval)
    if own.empty:
        return on_device(aval, ids[0])
    if aval.mesh.empty:
        aval = aval.update(sharding=NamedSharding(own, replicated(aval.ndim)))
    shown = strip(spec) if own.are_all_axes_auto else spec
    return placed(aval, NamedSharding(concrete_mesh(own, ids), shown), True)


def strip(spec: P) -> P:
    """Without trailing unsharded dims, as `.sharding` shows specs on Auto axes."""
    dims = list(spec.dims)
    while dims and not dims[-1]:
        dims.pop()
    return P.from_dims(tuple(dims), spec.unreduced, spec.reduced)


@lru_cache(maxsize=1024)
def concrete_mesh(mesh: AbstractMesh, ids: tuple[int, ...]) -> Mesh:
    """A mesh of these axes on these devices, in the same flat order."""
    grid = np.array([Device(i) for i in ids], dtype=object).reshape(mesh.axis_sizes)
    return Mesh(grid, mesh.axis_names, mesh.axis_types)


observe.keep(sys.modules[__name__], "_cache")
evaluation = EvalTrace()
install_evaluation(evaluation)
