"""Running a local program: its steps as the statements of one function.

Everything that depends on the rank is resolved when an executable is built (`Op.build`): groups, coordinates, slices of
this rank.  Calling it does no type work: each step is a function of blocks, and the program is a Python function that
calls them one after another.  Steps whose operands are all constant and small are run once, at build time.  A block
is forgotten after its last use.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from mpiarray import memory
from mpiarray.comm import prepared, stats, watch
from mpiarray.compiler import observe, quiet, shifted
from mpiarray.compiler.cost import nbytes
from mpiarray.compiler.pieces import Pieces, boxes_of, find, late_of, origins_of, sources_of
from mpiarray.compiler.reuse import Dead, ends_of, overwritable
from mpiarray.compiler.shifted import Over
from mpiarray.config import config
from mpiarray.core.device import DeviceContext
from mpiarray.core.jaxpr import ClosedJaxpr, Eqn, Jaxpr, Var, uses_of
from mpiarray.core.op import Op
from mpiarray.core.source import Source
from mpiarray.core.value import Literal
from mpiarray.ops import fused_update
from mpiarray.ops.fused_update import fusion_update
from mpiarray.ops.in_place import OVERWRITING
from mpiarray.ops.sum_update import psum_update
from mpiarray.ops.sweeps import overwriting, tiled
from mpiarray.ops.tiles import fusion, kernel_of, ufunc_of, writer_of
from mpiarray.types import dtypes
from mpiarray.types.mesh import AbstractMesh

_FOLD_LIMIT = 4096  # elements; larger constants are made when they are needed
_FEW = 8  # sums are copied out of a message if their elements are at most one in so many
_TALLY_BYTES = 4 << 20  # programs that allocate less matter little to the heap, and the look takes a microsecond

Run = Callable[..., Any]

#: names in compiled text of the steps in which ranks meet
COMMUNICATING = frozenset(
    ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")
)


class Executable:
    """A program of blocks: `run(*blocks)` gives a list of blocks.

    `device_ids` are the world ranks in the mesh's flat order (None: each rank runs it alone, on its own copies).  With
    `complete`, numpy's warnings are off while it runs, and its results are blocks that stand for themselves (`own_block`).
    `owned` are the numbers of arguments whose blocks are the program's to write over: row-major, and seen by nobody else.
    """

    def __init__(
        self,
        local: ClosedJaxpr,
        device_ids: tuple[int, ...] | None,
        rank: int,
        *,
        complete: bool = False,
        owned: Collection[int] = (),
    ):
        self.local = local
        self.device_ids = device_ids
        self.rank = rank
        self.contexts: dict[AbstractMesh, DeviceContext] = {}
        self.run: Run = _Writer(self, local.jaxpr, local.consts, complete, owned).function()

    def context(self, mesh: AbstractMesh) -> DeviceContext:
        found = self.contexts.get(mesh)
        if found is None:
            ids = self.device_ids if self.device_ids is not None else (self.rank,)
            found = self.contexts[mesh] = DeviceContext(ids, mesh, self.rank, self.compile)
        return found

    def compile(self, local: ClosedJaxpr, carries: Mapping[int, int] | None = None) -> Run:
        """A program of blocks that a step of this one runs (the body of a loop), prepared on the same devices.

        `carries`: results that are arguments of the next run, by their numbers.  Where they could be written over these, the
        function has an attribute `overwrites`, and a parameter `own`: whether the arguments are what a run before gave.
        """
        return _Writer(self, local.jaxpr, local.consts, False, carries=carries).function()

    def prepare(self, eqn: Eqn) -> Run:
        """The function of blocks that an equation is; one that tells a trace when it ran, while one is recorded."""
        return observe.step(self._prepare(eqn), eqn)

    def _prepare(self, eqn: Eqn) -> Run:
        op: Op = eqn.op
        if op.build is not None:
            step = op.build(self.context(eqn.mesh), **eqn.params)
            watched = (config.check or config.timeout) and op.hlo_name in COMMUNICATING
            return _described(step, eqn) if watched else step
        return kernel_of(eqn)


class _Writer:
    """Writes the function of a jaxpr of blocks."""

    def __init__(
        self,
        executable: Executable,
        jaxpr: Jaxpr,
        consts: Sequence[Any],
        complete: bool,
        owned: Collection[int] = (),
        carries: Mapping[int, int] | None = None,
    ):
        self.executable, self.jaxpr, self.complete = executable, jaxpr, complete
        self.source = Source("program", [f"a{k}" for k in range(len(jaxpr.invars))])
        self.names: dict[Var, str] = {v: f"a{k}" for k, v in enumerate(jaxpr.invars)}
        self.known: dict[Var, Any] = dict(zip(jaxpr.constvars, consts))  # values that do not depend on the arguments
        self.makers: dict[Var, Eqn] = {}
        self.owned = {jaxpr.invars[k] for k in owned}
        self.dead = overwritable(jaxpr, owned)
        self.places: dict[Any, tuple[Run, int]] = {}  # the message in which a value is to be written, and where
        self.messages: dict[Run, str] = {}  # the names of messages that are begun
        self.until: dict[Run, float] = {}  # the step that reads a sum for the last time, where they stay in the message
        self.copied: dict[Run, list[int]] = {}  # those that are needed for longer
        self.allocated = 0
        pieces = find(jaxpr, executable.context)
        origins = origins_of(jaxpr, pieces)
        # groups that may write over an array of which they read shifted parts, and whether one does so only where the caller says it
        self.over = {} if observe.observing else shifted.find(jaxpr, pieces, self.owned, carries)
        self.asks = False
        self.runs = [self._prepared(eqn, pieces, origins) for eqn in jaxpr.eqns]
        self.computes = not all(
            getattr(run, "moves", False) for run in self.runs
        )  # where numpy could warn of something
        self.fresh: set[Any] = set()  # results of collectives: new blocks in C order

    def function(self) -> Run:
        state = quiet.STATE if self.complete and self.computes else None
        line, value = self.source.line, self.source.value
        if state is not None:
            line(f"token = {value(state.set)}({value(state.ignore)})")
            line("try:")
            self.source.indent()
        self._steps()
        if self.allocated >= _TALLY_BYTES:
            line(f"{value(memory.tally)}({self.allocated})")
        line(f"return [{', '.join(map(self._result, self.jaxpr.outvars))}]")
        if state is not None:
            self.source.indent(-1)
            line("finally:")
            line(f"    {value(state.reset)}(token)")
        run = self.source.function()
        if self.asks:
            return overwriting(run)
        return quiet.with_errstate(run) if self.complete and self.computes and quiet.STATE is None else run

    def _packed(self, runs: Sequence[Run]) -> None:
        """Let what is only sent in a message with others be computed where it lies in the message."""
        makers = {v: e for e in self.jaxpr.eqns for v in e.outvars}
        uses = uses_of(self.jaxpr)
        ends = ends_of(self.jaxpr)
        for k, (eqn, run) in enumerate(zip(self.jaxpr.eqns, runs)):
            if not hasattr(run, "lay_out"):
                continue
            able = [v for v in eqn.invars if v in makers and uses[v] == 1 and hasattr(makers[v].op.impl, "into")]
            last = {n: ends.get(v, k) for n, v in enumerate(eqn.outvars)}
            lasting = [n for n, end in last.items() if end == math.inf]
            if _FEW * sum(eqn.outvars[n].aval.size for n in lasting) <= sum(v.aval.size for v in eqn.outvars):
                self.until[run] = max((end for n, end in last.items() if n not in lasting), default=k)
                self.copied[run] = lasting
            if able or run in self.until:
                run.lay_out([v.aval.shape for v in eqn.invars], eqn.invars[0].aval.dtype)
                self.places.update((v, (run, k)) for k, v in enumerate(eqn.invars) if v in able)

    def _prepared(self, eqn: Eqn, pieces: dict[Var, Pieces], origins: dict[Any, Any]) -> Run:
        """A step; one that gives, or takes, values in pieces."""
        over = self.over.get(eqn)
        if eqn.op is fusion:
            dead = self.dead.get(eqn, Dead())
            given: dict[str, Any] = {"pieces": boxes_of(eqn, pieces), "sources": sources_of(eqn, origins)}
            given |= {"late": late_of(eqn, pieces), "shifts": over.shifts if over else None}
            group = tiled(**eqn.params, **given, dead=dead.over, lent=dead.lent)
            return observe.step(group.run if over is None else group, eqn)
        if eqn.op is fusion_update:
            context = self.executable.context(eqn.mesh)
            given = {"pieces": boxes_of(eqn, pieces), "sources": sources_of(eqn, origins)}
            given |= {"late": late_of(eqn, pieces), "reads": over.shifts.reads if over else None}
            return observe.step(fused_update.prepare(context, **eqn.params, **given), eqn)
        if len(eqn.outvars) == 1 and eqn.outvars[0] in pieces:
            return observe.step(pieces[eqn.outvars[0]].run, eqn)
        if eqn.op in OVERWRITING and eqn in self.dead:
            eqn = eqn.replace(op=OVERWRITING[eqn.op])
        if eqn.op is psum_update:
            eqn = eqn.replace(params=dict(eqn.params, over=0 in self.dead.get(eqn, Dead()).over))
        return self.executable.prepare(eqn)

    def _steps(self) -> None:
        runs = self.runs
        self._packed(runs)
        last: dict[Any, int] = {v: k for k, e in enumerate(self.jaxpr.eqns) for v in (*e.invars, *e.outvars)}
        last |= {self.over[e].array: k for k, e in enumerate(self.jaxpr.eqns) if e in self.over}
        kept = {v for v in self.jaxpr.outvars if not isinstance(v, Literal)}
        for k, (eqn, run) in enumerate(zip(self.jaxpr.eqns, runs)):
            if self._foldable(eqn):
                found = run(*map(self._constant, eqn.invars))
                self.known.update(zip(eqn.outvars, found if eqn.op.multiple_results else (found,)))
                continue
            self._step(eqn, run)
            for message in [m for m, until in self.until.items() if until == k]:
                self.source.line(f"{self.source.value(message.give)}({self.messages[message]})")  # type: ignore[attr-defined]
            dead = [
                self.names[v]
                for v in dict.fromkeys((*eqn.invars, *eqn.outvars))
                if last[v] == k and v in self.names and v not in kept
            ]
            if dead and k + 1 < len(self.jaxpr.eqns):
                self.source.line(f"{' = '.join(dead)} = None")

    def _foldable(self, eqn: Eqn) -> bool:
        return (
            not eqn.op.effects
            and all(isinstance(v, Literal) or v in self.known for v in eqn.invars)
            and all(v.aval.size <= _FOLD_LIMIT for v in eqn.outvars)
            and (eqn.op.build is None or not eqn.invars)
        )

    def _constant(self, atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else self.known[atom]

    def _read(self, atom: Any) -> str:
        if isinstance(atom, Literal) or atom in self.known:
            return self.source.value(self._constant(atom))
        return self.names[atom]

    def _step(self, eqn: Eqn, run: Run) -> None:
        operands = list(map(self._read, eqn.invars))
        place = self._place(eqn, run)
        if place is not None:
            operands.append(f"out={place}")
            if hasattr(eqn.op.impl, "into"):
                run = getattr(kernel_of(eqn), "into", None) or partial(eqn.op.impl.into, **eqn.params)  # type: ignore[union-attr]
        if run in self.until or run in self.messages:
            operands.append(f"message={self._message(run)}")
            if run in self.until:
                operands.append(f"copied={self.copied[run]}")
                run = run.in_place  # type: ignore[attr-defined]
        if eqn in self.over and getattr(run, "overwrites", False):
            operands.append(f"over={self._array_of(self.over[eqn])}")
        call = self._typed(eqn, run, operands) or f"{self.source.value(run)}({', '.join(operands)})"
        for v in eqn.outvars:
            self.names[v] = f"v{len(self.names)}"
            self.makers[v] = eqn
            self.allocated += nbytes(v.aval)
        names = ", ".join(self.names[v] for v in eqn.outvars)
        if eqn.op.multiple_results:
            self.source.line(f"[{names}] = {call}" if names else call)
        else:
            self.source.line(f"{names} = {call}")

    def _typed(self, eqn: Eqn, run: Run, operands: list[str]) -> str | None:
        """The call of a collective made for the type of its operand, where it has such a form."""
        if not hasattr(run, "plan"):
            return None
        self.fresh.update(eqn.outvars)
        (x,) = eqn.invars
        if isinstance(x, Literal) or not x.aval.ndim or len(operands) > 1:
            return None
        # what is no result is used and gone, and its memory serves the next step
        given = self.complete and eqn.outvars[0] in self.jaxpr.outvars
        step = prepared.for_type(run, x.aval.shape, dtypes.storage(x.aval.dtype), recycled=given)
        if step is None:
            return None
        value, (name,) = self.source.value, operands
        now = f"{value(config)}.generation == {config.generation} and not {value(stats)}.active"
        return f"{value(step)}({name}) if {name}.flags.c_contiguous and {now} else {value(run)}({name})"

    def _array_of(self, over: Over) -> str:
        """The array that a group writes over, or None."""
        name = self._read(over.array)
        if not over.asks:
            return name
        if not self.asks:
            self.asks = True
            self.source.parameter("own=False")
        return f"{name} if own else None"

    def _place(self, eqn: Eqn, run: Run) -> str | None:
        """Where the result of an equation is to be written: in a message, or for a large one in new memory that is aligned."""
        value, (out, *others) = self.source.value, eqn.outvars or (None,)
        if out is None or others:
            return None
        if out in self.places:
            message, k = self.places[out]
            return f"{self._message(message)}[{k}]"
        over = self._over(eqn, run)
        if over is not None:
            return over
        aval = out.aval
        able = run is ufunc_of(eqn) or (hasattr(eqn.op.impl, "into") and not observe.observing)
        if able and nbytes(aval) >= memory.ALIGNED_FROM:
            return f"{value(memory.maker(aval.shape, dtypes.storage(aval.dtype)))}()"
        return None

    def _message(self, run: Run) -> str:
        """The name of the message that a step sends; it is taken before its first part is computed."""
        if run not in self.messages:
            self.messages[run] = f"m{len(self.messages)}"
            self.source.line(f"{self.messages[run]} = {self.source.value(run.take)}()")  # type: ignore[attr-defined]
        return self.messages[run]

    def _over(self, eqn: Eqn, run: Run) -> str | None:
        """The name of an operand that the result of a function of elements is written over: a large one, or an argument."""
        out, writer = eqn.outvars[0], writer_of(eqn)
        if writer is None or eqn not in self.dead or (observe.observing and run is not writer):
            return None
        dtype = dtypes.storage(out.aval.dtype)
        for k in self.dead[eqn].over:
            v = eqn.invars[k]
            large = nbytes(v.aval) >= memory.ALIGNED_FROM or v in self.owned
            if large and v.aval.shape == out.aval.shape and dtypes.storage(v.aval.dtype) == dtype:
                return self._read(v)
        return None

    def _result(self, atom: Any) -> str:
        name = self._read(atom)
        if not self.complete or (isinstance(atom, Var) and atom in self.fresh and atom.aval.ndim):
            return name
        own = f"{self.source.value(own_block)}({name})"
        eqn = self.makers.get(atom) if isinstance(atom, Var) else None
        if eqn is None or not atom.aval.ndim:
            return own
        if eqn.op is fusion or eqn.op is psum_update:
            return name
        return f"{name} if {name}.flags.c_contiguous else {own}" if ufunc_of(eqn) is not None else own


def own_block(b: Any) -> np.ndarray:
    """A result as a block: row-major, and not a small view that keeps a large buffer alive."""
    if type(b) is not np.ndarray:
        return np.asarray(b)
    flags = b.flags
    if flags.owndata and flags.c_contiguous:
        return b
    if not flags.c_contiguous:
        return np.asarray(b, order="C")
    base = b.base
    while base is not None and type(base) is np.ndarray and base.base is not None:
        base = base.base
    return b if type(base) is np.ndarray and base.nbytes <= b.nbytes + memory.alignment(b.nbytes) else b.copy()


def _described(step: Run, eqn: Eqn) -> Run:
    """A step that tells the watch what it is doing, for messages about who waits where."""
    where = f" at {eqn.source}" if eqn.source else ""
    text = f"{eqn.op.name}({', '.join(v.aval.short() for v in eqn.invars)}){where}"

    def run(*blocks: Any) -> Any:
        watch.describe(text)
        return step(*blocks)

    return run
