"""What a compiled program costs, from its text alone: flops, bytes, messages, memory.  Works for meshes larger than the job.

Flops: a dot or a convolution counts 2 per multiply-add, a Fourier transform 5 n log2 n, an elementwise op or reduction 1 per
element of its larger side.  Bytes accessed:
operands and results of every step.  Communication per rank by the usual algorithms (ring, recursive doubling).
A scan costs its body as often as it is long; a while loop, whose length nobody knows, costs its condition and body once;
a conditional costs its most expensive branch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mpiarray.compiler.program import Program
from mpiarray.core.jaxpr import Eqn, Jaxpr, subjaxprs
from mpiarray.core.value import Literal
from mpiarray.ops.tiles import fusion
from mpiarray.types import dtypes


@dataclass
class Cost:
    """Sums over the steps of a local program, per rank."""

    flops: float = 0.0
    bytes_accessed: float = 0.0
    communication_bytes: float = 0.0
    communication_messages: float = 0.0
    by_collective: dict[str, float] = field(default_factory=dict)
    by_axes: dict[str, float] = field(default_factory=dict)

    def add(self, other: Cost, times: int) -> None:
        """Add another program's cost, `times` times."""
        self.flops += times * other.flops
        self.bytes_accessed += times * other.bytes_accessed
        self.communication_bytes += times * other.communication_bytes
        self.communication_messages += times * other.communication_messages
        for own, more in ((self.by_collective, other.by_collective), (self.by_axes, other.by_axes)):
            for name, moved in more.items():
                own[name] = own.get(name, 0.0) + times * moved

    def as_dict(self) -> dict[str, float]:
        out = {
            "flops": self.flops, "bytes accessed": self.bytes_accessed,
            "communication bytes": self.communication_bytes, "communication messages": self.communication_messages,
        }  # fmt: skip
        out |= {f"communication bytes {k}": v for k, v in sorted(self.by_collective.items())}
        return out | {f"communication bytes over {k}": v for k, v in sorted(self.by_axes.items())}


@dataclass(frozen=True)
class Memory:
    """Bytes per rank: of the arguments' blocks, of the results', and the most that is alive between them."""

    argument_size_in_bytes: int
    output_size_in_bytes: int
    temp_size_in_bytes: int
    alias_size_in_bytes: int = 0
    generated_code_size_in_bytes: int = 0

    @property
    def peak_memory_in_bytes(self) -> int:
        return self.argument_size_in_bytes + self.output_size_in_bytes + self.temp_size_in_bytes


def program_cost(program: Program) -> Cost:
    """The cost of a lowered program."""
    assert program.local is not None, "only partitioned programs have a cost"
    return _cost(program.local.jaxpr)


def step_cost(eqn: Eqn) -> Cost:
    """The cost of one equation of a local program."""
    return _cost(Jaxpr((), (), (), (eqn,)))


def _cost(jaxpr: Jaxpr) -> Cost:
    cost = Cost()
    for eqn in jaxpr.eqns:
        inner = [_cost(body) for body in subjaxprs(eqn.params)]
        if not inner:
            _add(cost, eqn)
        elif "branches" in eqn.params:
            cost.add(
                max(inner, key=lambda branch: (branch.communication_bytes, branch.flops, branch.bytes_accessed)), 1
            )
        else:
            for body in inner:
                cost.add(body, eqn.params.get("length", 1))
    return cost


def nbytes(aval: Any) -> int:
    return aval.size * dtypes.storage(aval.dtype).itemsize


def _add(cost: Cost, eqn: Eqn) -> None:
    sent = eqn.invars if eqn.op.multiple_results else eqn.invars[:1]
    block = sum(nbytes(v.aval) for v in sent) or sum(nbytes(v.aval) for v in eqn.outvars)
    cost.bytes_accessed += sum(nbytes(v.aval) for v in (*eqn.invars, *eqn.outvars))
    if eqn.op.build is None or "transforms" in eqn.params:
        shapes = [tuple(v.aval.shape) for v in (*eqn.invars, *eqn.outvars)]
        cost.flops += flops(eqn, shapes[: len(eqn.invars)], shapes[len(eqn.invars) :])
    moved, messages = communication(eqn, block)
    if messages:
        cost.communication_bytes += moved
        cost.communication_messages += messages
        for sums, name in ((cost.by_collective, collective_of(eqn)), (cost.by_axes, ",".join(axes_of(eqn)))):
            sums[name] = sums.get(name, 0.0) + moved


def flops(eqn: Eqn, ins: Sequence[tuple[int, ...]], outs: Sequence[tuple[int, ...]]) -> float:
    """What an equation computes on operands and results of these shapes (those of its types, or of blocks)."""
    match eqn.op.name:
        case "dot_general":
            (contract, _), _ = eqn.params["dimension_numbers"]
            return 2.0 * math.prod(ins[0][d] for d in contract) * math.prod(outs[0])
        case "conv_general_dilated":  # each result is a product with the filter of its feature
            features = ins[1][eqn.params["dimension_numbers"].rhs_spec[0]]
            return 2.0 * math.prod(outs[0]) * math.prod(ins[1]) / max(1, features)
        case "fft" | "fft_along" | "moved_fft":  # the last after an all-to-all
            lengths = eqn.params.get("fft_lengths") or [t.length for t in eqn.params["transforms"]]
            return 5.0 * max(math.prod(ins[0]), math.prod(outs[0])) * math.log2(max(1, math.prod(lengths)))
    return float(max(map(math.prod, (*ins, *outs)), default=0))


def axes_of(eqn: Eqn) -> tuple[str, ...]:
    """The mesh axes that a step names; some ops name those of each dim, one tuple a dim."""
    axes = eqn.params.get("axes", eqn.params.get("axis_name", ()))
    if not isinstance(axes, tuple):
        return (axes,)
    return tuple(a for entry in axes for a in (entry if isinstance(entry, tuple) else (entry,)))


def collective_of(eqn: Eqn) -> str:
    """The name of a collective that a step does or starts; waiting for one moves nothing more."""
    return eqn.op.hlo_name.removesuffix("-start")


def communication(eqn: Eqn, block: int) -> tuple[float, float]:
    """Bytes and messages that a rank receives in a step, for an operand of `block` bytes."""
    if eqn.op.name == "exchange":
        step = eqn.params["step"]
        table = step.for_rank(step.target.ids[0])
        item = step.itemsize
        return float(sum(math.prod(s.stop - s.start for s in r.box) * item for r in table.recvs)), float(
            len(table.recvs)
        )
    n = math.prod(eqn.mesh.shape[a] for a in axes_of(eqn)) if eqn.op.build is not None and axes_of(eqn) else 1
    rounds = float((n - 1).bit_length())
    match collective_of(eqn):
        case _ if n == 1 and eqn.op.name != "move_blocks":
            return 0.0, 0.0
        case "all-reduce":
            return 2.0 * block * (n - 1) / n, 2 * rounds
        case "all-gather":
            return float(block * (n - 1)), rounds
        case "reduce-scatter":
            return block * (n - 1) / n, rounds
        case "all-to-all":
            return block * (n - 1) / n, float(n - 1)
        case "collective-permute":
            return float(block), 1.0
    return 0.0, 0.0


def program_memory(program: Program) -> Memory:
    """Arguments, results and the largest sum of live temporaries, from the order of the steps."""
    assert program.local is not None, "only partitioned programs have a memory"
    jaxpr = program.local.jaxpr
    outs = _results(jaxpr)
    return Memory(sum(nbytes(v.aval) for v in jaxpr.invars), sum(nbytes(v.aval) for v in outs), _most_alive(jaxpr))


def _results(jaxpr: Jaxpr) -> set[Any]:
    return {v for v in jaxpr.outvars if not isinstance(v, Literal)}


def _most_alive(jaxpr: Jaxpr) -> int:
    """Bytes of temporaries at the worst moment; while a body runs, its temporaries and results are alive as well."""
    last: dict[Any, int] = {}
    for k, eqn in enumerate(jaxpr.eqns):
        for v in (*eqn.invars, *eqn.outvars):
            if not isinstance(v, Literal):
                last[v] = k
    kept = _results(jaxpr) | {*jaxpr.invars, *jaxpr.constvars}
    live = most = 0
    for k, eqn in enumerate(jaxpr.eqns):
        live += sum(nbytes(v.aval) for v in eqn.outvars if v not in kept)
        bodies = (
            ()
            if eqn.op.hlo_name == fusion.hlo_name
            else (_most_alive(body) + sum(nbytes(v.aval) for v in _results(body)) for body in subjaxprs(eqn.params))
        )
        most = max(most, live + max(bodies, default=0))
        used = {v for v in (*eqn.invars, *eqn.outvars) if not isinstance(v, Literal)}
        live -= sum(nbytes(v.aval) for v in used if last[v] == k and v not in kept)
    return most
