"""Running a local program: a flat list of prepared steps over slots.

Everything that depends on the rank is resolved when an executable is built (`Op.build`): groups, coordinates, slices of
this rank.  Calling it does no type work: each step is a function of blocks.  Steps whose operands are all constant and
small are run once, at build time.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from mpiarray.comm import watch
from mpiarray.config import config
from mpiarray.core.device import DeviceContext
from mpiarray.core.jaxpr import ClosedJaxpr, Eqn, Jaxpr, Var
from mpiarray.core.op import Op
from mpiarray.core.value import Literal
from mpiarray.types.mesh import AbstractMesh

_FOLD_LIMIT = 4096  # elements; larger constants are made when they are needed

Run = Callable[..., Any]

#: names in compiled text of the steps in which ranks meet
COMMUNICATING = frozenset(
    ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")
)


class Executable:
    """A program of blocks: `run(*blocks)` gives a list of blocks.

    `device_ids` are the world ranks in the mesh's flat order (None: each rank runs it alone, on its own copies).
    """

    def __init__(self, local: ClosedJaxpr, device_ids: tuple[int, ...] | None, rank: int):
        self.local = local
        self.device_ids = device_ids
        self.rank = rank
        self.contexts: dict[AbstractMesh, DeviceContext] = {}
        self.run: Run = self._compile(local.jaxpr, local.consts)

    def context(self, mesh: AbstractMesh) -> DeviceContext:
        found = self.contexts.get(mesh)
        if found is None:
            ids = self.device_ids if self.device_ids is not None else (self.rank,)
            found = self.contexts[mesh] = DeviceContext(ids, mesh, self.rank, self.compile)
        return found

    def compile(self, local: ClosedJaxpr) -> Run:
        """A program of blocks that a step of this one runs (the body of a loop), prepared on the same devices."""
        return self._compile(local.jaxpr, local.consts)

    def prepare(self, eqn: Eqn) -> Run:
        """The function of blocks that an equation is."""
        op: Op = eqn.op
        if op.build is not None:
            step = op.build(self.context(eqn.mesh), **eqn.params)
            watched = (config.check or config.timeout) and op.hlo_name in COMMUNICATING
            return _described(step, eqn) if watched else step
        assert op.impl is not None, f"{op.name} has neither impl nor build"
        return partial(op.impl, **eqn.params) if eqn.params else op.impl

    def _compile(self, jaxpr: Jaxpr, consts: Sequence[Any]) -> Run:
        slots: dict[Any, int] = {}
        initial: list[Any] = []
        known: set[int] = set()

        def slot(v: Var, value: Any = None, constant: bool = False) -> int:
            slots[v] = len(initial)
            if constant:
                known.add(len(initial))
            initial.append(value)
            return slots[v]

        for v in jaxpr.invars:
            slot(v)
        for v, c in zip(jaxpr.constvars, consts):
            slot(v, c, True)

        def read(atom: Any) -> int:
            if isinstance(atom, Literal):
                initial.append(atom.val)
                known.add(len(initial) - 1)
                return len(initial) - 1
            return slots[atom]

        steps: list[tuple[Run, tuple[int, ...], tuple[int, ...], bool]] = []
        for eqn in jaxpr.eqns:
            run = self.prepare(eqn)
            ins = tuple(read(a) for a in eqn.invars)
            foldable = (
                not eqn.op.effects
                and all(i in known for i in ins)
                and all(v.aval.size <= _FOLD_LIMIT for v in eqn.outvars)
            )
            foldable = foldable and (eqn.op.build is None or not ins)
            if foldable:
                value = run(*(initial[i] for i in ins))
                values = value if eqn.op.multiple_results else (value,)
                for v, x in zip(eqn.outvars, values):
                    slot(v, x, True)
                continue
            outs = tuple(slot(v) for v in eqn.outvars)
            steps.append((run, ins, outs, eqn.op.multiple_results))
        results = tuple(read(a) for a in jaxpr.outvars)
        return _runner(len(jaxpr.invars), initial, steps, results)


def _described(step: Run, eqn: Eqn) -> Run:
    """A step that tells the watch what it is doing, for messages about who waits where."""
    where = f" at {eqn.source}" if eqn.source else ""
    text = f"{eqn.op.name}({', '.join(v.aval.short() for v in eqn.invars)}){where}"

    def run(*blocks: Any) -> Any:
        watch.describe(text)
        return step(*blocks)

    return run


def _runner(arity: int, initial: list[Any], steps: list[Any], results: tuple[int, ...]) -> Run:
    """The function that runs prepared steps; short programs get a function of their own."""
    if not steps:
        values = list(initial)

        def nothing(*blocks: Any) -> list[Any]:
            return [blocks[i] if i < arity else values[i] for i in results]

        return nothing
    if len(steps) == 1:
        (run, ins, outs, several) = steps[0]
        if not several and results == outs:
            return _single(run, ins, arity, initial)
    last_use: dict[int, int] = {}
    for k, (_, ins, outs, _) in enumerate(steps):
        for i in (*ins, *outs):
            last_use[i] = k
    fixed = {i for i in range(len(initial)) if initial[i] is not None} | set(results)
    dead: dict[int, list[int]] = {}
    for i, k in last_use.items():
        if i not in fixed:
            dead.setdefault(k, []).append(i)
    plan = [
        (
            run,
            _getter(ins),
            outs[0] if not several else outs,
            several,
            tuple(dead.get(k, ())),
        )
        for k, (run, ins, outs, several) in enumerate(steps)
    ]
    tail = initial[arity:]

    def execute(*blocks: Any) -> list[Any]:
        env = [*blocks, *tail]
        for run, get, out, several, done in plan:
            if several:
                for o, x in zip(out, run(*get(env))):
                    env[o] = x
                x = None  # or it would keep the last block alive
            else:
                env[out] = run(*get(env))
            for i in done:
                env[i] = None
        return [env[i] for i in results]

    return execute


def _getter(ins: tuple[int, ...]) -> Callable[[list[Any]], tuple[Any, ...]]:
    if len(ins) == 1:
        only = ins[0]
        return lambda env: (env[only],)
    if not ins:
        return lambda env: ()
    return operator.itemgetter(*ins)


def _single(run: Run, ins: tuple[int, ...], arity: int, initial: list[Any]) -> Run:
    if ins == tuple(range(arity)):
        return lambda *blocks: [run(*blocks)]
    if ins == (0, 0) and arity == 1:
        return lambda x: [run(x, x)]
    if len(ins) == 2 and arity == 1 and ins[0] == 0:
        right = initial[ins[1]]
        return lambda x: [run(x, right)]
    if len(ins) == 2 and arity == 1 and ins[1] == 0:
        left = initial[ins[0]]
        return lambda x: [run(left, x)]
    tail = initial[arity:]
    get = _getter(ins)
    return lambda *blocks: [run(*get([*blocks, *tail]))]


def as_block(x: Any) -> np.ndarray:
    """A step's result as a block: an ndarray."""
    return x if type(x) is np.ndarray else np.asarray(x)
