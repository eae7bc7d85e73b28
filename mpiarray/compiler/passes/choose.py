"""Automatic sharding: where every value of a program lies on Auto axes, chosen for the whole program by the cost model.

`propagate` decides one equation after the other; here the equations' plans, and the specs of inputs that were left open,
are chosen together: each equation and open input is a node, its labels are the ways to run it (`labels`), and an edge costs
what it takes to bring a value from where it is made to where it is read (`search`).  What the user fixed stays: inputs,
constraints, results.

Without open inputs this runs only where propagation sends something at several equations, and results stay where
propagation leaves them: a jitted function gives what the same operations give one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from mpiarray.compiler.cost import program_cost
from mpiarray.compiler.labels import Label, Labels, bare_spec, layouts
from mpiarray.compiler.machine import machine
from mpiarray.compiler.passes.combine import combine
from mpiarray.compiler.passes.partition import partition
from mpiarray.compiler.passes.propagate import itemsize, mesh_of_eqn, propagate, spec_of
from mpiarray.compiler.passes.simplify import inline
from mpiarray.compiler.program import Program
from mpiarray.compiler.search import Edge, Graph, search
from mpiarray.core.jaxpr import ClosedJaxpr, Eqn, Var
from mpiarray.core.plan import local_shape
from mpiarray.core.value import Literal
from mpiarray.transforms.evaluate import dead_code
from mpiarray.types.partition_spec import PartitionSpec as P

_GAIN = 0.95  # of propagation's time: what is hardly faster is left as it is
_HOLDING = 0.01  # of the time it takes to read an open input: between equals, the one that holds less wins
_LARGE = 10_000  # equations of a program that propagation alone is trusted with, unless inputs are open
_LOOPS = 16  # layouts of what a loop carries that are tried
_TOLD = 40  # inputs, and equations, that `explain` lists


def choose(program: Program) -> Program:
    """Better plans on Auto axes, and specs for open inputs."""
    several = len(program.why) > 1  # for one equation that sends something propagation has tried what there is
    asked = bool(program.open) or (several and len(program.jaxpr.eqns) <= _LARGE)
    if not asked or not _one_mesh(program):
        return program
    return _Chooser(program).run()


def _one_mesh(program: Program) -> bool:
    """Whether all values are on the program's mesh; those on several meshes are left to propagation."""
    mesh = program.mesh
    if mesh.empty or not mesh.auto_axes or mesh.manual_axes:
        return False
    values = [*program.jaxpr.invars, *(v for e in program.jaxpr.eqns for v in e.outvars)]
    return all(v.aval.mesh.empty or v.aval.mesh is mesh or v.aval.mesh.same_axes(mesh) for v in values)


def _counted(program: Program) -> float:
    """The time of the program's steps as they come out, with the sums that travel together."""
    local = partition(program).local
    assert local is not None, "partition makes a local program"
    combined = ClosedJaxpr(combine(local.jaxpr), local.consts)
    return machine().seconds(program_cost(program.update(local=combined)))


class _Chooser:
    def __init__(self, program: Program, labels: Labels | None = None):
        self.program, self.mesh = program, program.mesh
        # shared with the bodies of loops, so that a loop in a loop is looked at once
        self.labels = labels or Labels(program, machine(), self.loop)
        self.pinned = tuple(
            s if s is not None or program.open else spec_of(program.specs, v)
            for v, s in zip(program.jaxpr.outvars, program.out_specs)
        )
        self.uses = Counter(v for e in program.jaxpr.eqns for v in e.invars if not isinstance(v, Literal))
        self.uses.update(v for v in program.jaxpr.outvars if not isinstance(v, Literal))
        self.makers: dict[Var, tuple[int, int]] = {}
        self.places: list[list[P]] = []  # of inputs, which are the first nodes
        self.ways: list[list[Label]] = []  # of equations, which are the others
        self.costs: list[np.ndarray] = []
        self.edges: list[Edge] = []
        self.matrices: dict[object, np.ndarray] = {}

    def run(self) -> Program:
        jaxpr = self.program.jaxpr
        for k, v in enumerate(jaxpr.invars):
            self.input(k, v)
        for eqn in jaxpr.eqns:
            self.equation(eqn)
        self.results()
        graph = Graph(self.costs, self.edges)
        start = [0] * len(self.costs)
        chosen = search(graph, [start])
        before, after = graph.total(start), graph.total(chosen)
        if not self.program.open and after > _GAIN * before:
            return self.program
        found = self.chosen(graph, chosen, before, after)
        if not self.program.open and _counted(found) > _GAIN * _counted(self.program):
            return self.program  # the estimates of moves were not exact enough
        return found

    # -- the graph ---------------------------------------------------------------------------------------------

    def input(self, number: int, v: Var) -> None:
        """The first label is where propagation started from."""
        have = self.program.specs[v]
        options = [have]
        if number in self.program.open:
            options += [s for s in layouts(v.aval, self.mesh) if s != have]
        self.makers[v] = number, 0
        self.places.append(options)
        held = [np.prod(local_shape(self.mesh, v.aval.shape, s.dims)) * itemsize(v.aval) for s in options]
        self.costs.append(_HOLDING / machine().memory * np.array(held, float) if len(options) > 1 else np.zeros(1))

    def equation(self, eqn: Eqn) -> None:
        mesh, plan = mesh_of_eqn(eqn), self.program.plans[eqn]
        node = len(self.costs)
        communicates = eqn.op.build is not None and eqn.op.lower is None
        fixed = mesh.empty or eqn.op.effects or communicates
        fixed = fixed or any(v.aval.unreduced or v.aval.reduced for v in (*eqn.invars, *eqn.outvars))
        if fixed:
            outs = plan.result or plan.outs
            options = [Label(plan, outs, (), 0.0, 0.0)]
        else:
            options = self.labels.of(eqn, mesh, plan)
        late = len(eqn.outvars) == 1 and self.uses[eqn.outvars[0]] == 1
        self.ways.append(options)
        self.costs.append(np.array([x.unsummed if late else x.seconds for x in options]))
        for k, v in enumerate(eqn.outvars):
            self.makers[v] = node, k
        for k, atom in enumerate(eqn.invars):
            if not isinstance(atom, Literal):
                source, _ = self.makers[atom]
                self.edges.append(Edge(source, node, self.prices(atom, [x.plan.ins[k] for x in options])))

    def results(self) -> None:
        """Results that must lie somewhere, and those that must lie like an input."""
        ties = dict(self.program.ties)
        for k, (v, wanted) in enumerate(zip(self.program.jaxpr.outvars, self.pinned)):
            if isinstance(v, Literal):
                continue
            node, _ = self.makers[v]
            if wanted is not None:
                self.costs[node] = self.costs[node] + self.prices(v, [wanted])[:, 0]
            elif k in ties and ties[k] != node:  # inputs are the first nodes
                self.edges.append(Edge(node, ties[k], self.prices(v, self.places[ties[k]])))

    def specs(self, v: Var) -> list[P]:
        """Where a value may come from, label by label of its maker."""
        node, k = self.makers[v]
        if node < len(self.places):
            return self.places[node]
        late = self.uses[v] == 1
        return [x.partial[k] if late and x.partial else x.outs[k] for x in self.ways[node - len(self.places)]]

    def prices(self, v: Var, wanted: Sequence[P]) -> np.ndarray:
        """Seconds from each place of a value to each wanted one."""
        have = self.specs(v)
        key = (v.aval.shape, itemsize(v.aval), tuple(have), tuple(wanted))
        found = self.matrices.get(key)
        if found is None:
            rows, columns = ({s: k for k, s in enumerate(dict.fromkeys(specs))} for specs in (have, wanted))
            small = np.array([[self.labels.move(v.aval, self.mesh, a, b) for b in columns] for a in rows])
            found = small[[rows[s] for s in have]][:, [columns[s] for s in wanted]]
            self.matrices[key] = found
        return found

    def loop(self, eqn: Eqn) -> list[list[P]]:
        """Where the operands of a loop would best lie, one answer for each layout of its first carried array: the same
        search over its body, in which what is carried comes out as it went in.  Only where inputs are open: it takes time."""
        if "num_carry" not in eqn.params or not self.program.open:
            return []
        closed, consts, carried = (eqn.params[k] for k in ("jaxpr", "num_consts", "num_carry"))
        inner = dead_code(inline(closed.jaxpr))
        arrays = [k for k in range(consts, consts + carried) if inner.invars[k].aval.ndim]
        first = arrays[0] if arrays else next((k for k, v in enumerate(inner.invars) if v.aval.ndim), None)
        if first is None or inner.constvars:
            return []
        bare = [bare_spec(v.aval) for v in inner.invars]
        others = frozenset(k for k in range(len(bare)) if k != first)
        ties = tuple((k, consts + k) for k in range(carried))
        found = []
        spread = layouts(inner.invars[first].aval, self.mesh)
        for spec in spread[:_LOOPS]:
            ins = tuple(spec if k == first else s for k, s in enumerate(bare))
            free = (None,) * len(inner.outvars)
            program = self.program
            body = Program(program.name, inner, ins, free, self.mesh, program.size, open=others, ties=ties)
            specs = _Chooser(propagate(body), self.labels).run().in_specs
            slices = (P.from_dims(((), *s.dims), s.unreduced, s.reduced) for s in specs[consts + carried :])
            found.append([*specs[: consts + carried], *slices])
        return found

    # -- the choice --------------------------------------------------------------------------------------------

    def chosen(self, graph: Graph, chosen: list[int], before: float, after: float) -> Program:
        jaxpr = self.program.jaxpr
        in_specs = tuple(options[k] for options, k in zip(self.places, chosen))
        specs: dict[Var, P] = dict(zip(jaxpr.invars, in_specs))
        plans = {}
        for eqn, options, k in zip(jaxpr.eqns, self.ways, chosen[len(self.places) :]):
            plans[eqn] = options[k].plan
            specs.update(zip(eqn.outvars, options[k].outs))
        ties = dict(self.program.ties)
        out_specs = tuple(in_specs[ties[k]] if s is None and k in ties else s for k, s in enumerate(self.pinned))
        why = self.explained(graph, chosen, before, after)
        return self.program.update(
            specs=specs, plans=plans, in_specs=in_specs, out_specs=out_specs, why=why, open=frozenset()
        )

    def explained(self, graph: Graph, chosen: list[int], before: float, after: float) -> tuple[str, ...]:
        """The whole, the inputs, then the equations at which another choice would cost most."""
        jaxpr, first = self.program.jaxpr, len(self.places)
        lines = [f"chosen for the whole program: {_time(after)}, one equation after the other it was {_time(before)}"]
        told: list[tuple[float, int, np.ndarray]] = []
        for k in self.program.open:
            costs = graph.alternatives(k, chosen)
            told.append((_lead(costs, chosen[k]), k, costs))
        for _, k, costs in _mattered(told):
            text = f"input {k}, {jaxpr.invars[k].aval.short()}: {self.places[k][chosen[k]]}"
            lines.append(text + _others(costs, chosen[k], [str(s) for s in self.places[k]]))
        told = []
        for node in range(first, len(chosen)):
            if len(self.ways[node - first]) > 1:
                costs = graph.alternatives(node, chosen)
                told.append((_lead(costs, chosen[node]), node, costs))
        for _, node, costs in _mattered(told):
            eqn, names = jaxpr.eqns[node - first], [_way(x) for x in self.ways[node - first]]
            where = f" at {eqn.source}" if eqn.source else ""
            text = f"{eqn.op.name}{where}: {names[chosen[node]]}, {_time(costs[chosen[node]])}"
            lines.append(text + _others(costs, chosen[node], names))
        return tuple(lines)


def _lead(costs: np.ndarray, chosen: int) -> float:
    """How much longer the next best way would take."""
    return float(np.partition(costs, 1)[1] - costs[chosen]) if len(costs) > 1 else 0.0


def _mattered(told: list[tuple[float, int, np.ndarray]]) -> list[tuple[float, int, np.ndarray]]:
    """The nodes with the largest leads, in the program's order."""
    return sorted(sorted(told, key=lambda t: (-t[0], t[1]))[:_TOLD], key=lambda t: t[1])


def _others(costs: np.ndarray, chosen: int, names: Sequence[str]) -> str:
    """The next best ways, and how much longer each would take with everything else as it is."""
    order = [int(i) for i in np.argsort(costs, kind="stable") if i != chosen and names[i] != names[chosen]][:2]
    return "".join(f"; {names[i]} would take {_time(costs[i] - costs[chosen])} more" for i in order)


def _way(label: Label) -> str:
    ins = ", ".join(map(str, label.plan.ins))
    return f"({ins}) -> {', '.join(map(str, label.outs))}"


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
