"""The rows of the table: each program placed on the ranks, beside its hand-written side; compared, then timed.

`programs` has the programs, `hand_arrays`, `hand_norms`, `hand_networks` and `hand_grids` what an expert would write instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import mpiarray as jax
from mpiarray.tools.bench import hand_arrays, hand_grids, hand_networks, hand_norms
from mpiarray.tools.bench.programs import Program, mesh_of, place
from mpiarray.tools.bench.timing import Different, Timed, Times, copied, measure, same, together

TOLERANCES = {"contraction": 1e-4, "rows": 1e-4, "fft": 1e-4, "dp": 1e-4, "fsdp": 1e-4, "tp": 1e-4, "sum": 1e-4}
"""Of the largest number, where the order of a sum of many terms differs."""

_ROUNDS = 3
_ROUND_BYTES = 2**25
"""Of the operands of all ranks: programs with more are timed in one round."""


@dataclass(frozen=True)
class Row:
    """One line of the table; seconds, medians of the slowest rank.  `trouble` is why there are none."""

    name: str
    times: Times | None
    trouble: str = ""

    @property
    def ratio(self) -> float:
        """Of this library to the hand-written side."""
        return self.times.ours / self.times.hand if self.times and self.times.hand else float("nan")


def run(program: Program, n: int, seconds: float) -> Row:
    """Compare and time one program; all ranks must call.

    In rounds, for each of which both sides get new operands and buffers while the old ones are still there: where the system
    puts pages makes a difference of some percent, to either side.  Not where much memory is needed, which is many pages.
    """
    mesh = mesh_of(jax, n, program.auto)
    nbytes = sum(math.prod(g.shape) * np.dtype(g.dtype).itemsize for g in jax.tree.leaves(program.inputs))
    rounds = _ROUNDS if nbytes <= _ROUND_BYTES else 1
    function = program.build(jax)
    call = jax.jit(function) if program.how == "jit" else function
    time_one = _in_body if program.how == "body" else _called
    with jax.set_mesh(mesh):
        found, held = [], []
        try:
            for _ in range(rounds):
                inputs = place(jax, mesh, program.inputs)
                hand = by_hand(program, jax.tree.map(block, inputs), n)
                held.append((inputs, hand))
                found.append(time_one(program, call, inputs, hand, seconds / rounds))
        except Different as problem:
            return Row(program.name, None, f"differs from the hand-written result: {problem}")
    return Row(program.name, together(found))


def _called(program: Program, call: Callable[..., Any], inputs: tuple[Any, ...], hand: Timed, seconds: float) -> Times:
    compare(program, jax.tree.leaves(jax.tree.map(block, call(*inputs))), hand)
    return measure(lambda: call(*inputs), hand, seconds=seconds)


def _in_body(
    program: Program, function: Callable[..., Any], inputs: tuple[Any, ...], hand: Timed, seconds: float
) -> Times:
    """Call by call inside the body, so that what is timed is the operation and not the mapping."""
    found: list[Times] = []

    def body(b: Any) -> Any:
        compare(program, [function(b).block], hand)
        found.append(measure(lambda: function(b), hand, seconds=seconds))
        return b

    jax.shard_map(body, in_specs=jax.P("x"), out_specs=jax.P("x"))(*inputs)
    return found[0]


def block(x: Any) -> np.ndarray:
    """This rank's block, a copy that is the hand-written side's own."""
    return copied(np.asarray(x.addressable_data(0)))


def compare(program: Program, ours: list[np.ndarray], hand: Timed) -> None:
    """Different where a result is not the hand-written one."""
    kind = program.facts.get("kind", "")
    scale = 1.0 if kind == "statistics" else 0.0  # the mean of numbers about 1 may be nothing but rounding
    same(ours, hand(), program.name, TOLERANCES.get(kind, 1e-5), scale)


def by_hand(program: Program, blocks: tuple[Any, ...], n: int) -> Timed:
    """The hand-written side of a program, for this rank's blocks."""
    kind = program.facts.get("kind", program.name)
    first = blocks[0]
    match kind:
        case "psum" | "all_gather" | "psum_scatter" | "all_to_all" | "ppermute":
            return hand_arrays.collective(kind, first, n)
        case "chain":
            return hand_arrays.tiled(hand_arrays.chain_kernel, first, 1)
        case "polynomial":
            return hand_arrays.tiled(hand_arrays.polynomial_kernel, first, 0)
        case "add" | "square" | "sine":
            return hand_arrays.simple(kind, first)
        case "statistics":
            return hand_arrays.statistics(first)
        case "argmax":
            return hand_arrays.argmax(first)
        case "sort":
            return hand_arrays.sort(first)
        case "sum":
            return hand_arrays.column_sums(first)
        case "softmax" | "softmax slope" | "layer norm" | "layer norm slopes":
            return hand_norms.rows_of(kind, *blocks)
        case "reshard":
            return hand_arrays.rows_to_columns(first, n)
        case "rows":
            return hand_arrays.product(*blocks)
        case "contraction":
            return hand_arrays.summed_product(*blocks)
        case "dp" | "fsdp" | "tp":
            return hand_networks.step_of(kind, *blocks)
        case "jacobi":
            return hand_grids.jacobi(first, program.facts["steps"], program.facts["rim"] == "periodic")
        case "fft":
            return hand_grids.fft2(first)
    raise KeyError(f"bench: no hand-written side for {program.name}")
