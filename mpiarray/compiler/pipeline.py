"""The compiler: `PASSES`, in order, and what runs them.

    program -> inline -> dead code -> common subexpressions -> inside -> propagate -> choose -> scatter -> partition -> (local)
    dead code, operations with 1, broadcasts late, common subexpressions, sums of sums as one, variances in one pass, reads of own parts,
    fewer reshapes, small operands before large ones, updates with sums, combined sums, masks of rows and columns apart, choices of zeros, fused
    groups, cheap results of groups made again
    -> executable

Overlapping collectives have their place after combined sums.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from mpiarray.compiler.passes.again import again
from mpiarray.compiler.passes.choose import choose
from mpiarray.compiler.passes.combine import combine
from mpiarray.compiler.passes.fuse import fuse
from mpiarray.compiler.passes.inside import inside
from mpiarray.compiler.passes.masks import masks
from mpiarray.compiler.passes.moments import moments
from mpiarray.compiler.passes.narrow import narrow
from mpiarray.compiler.passes.overlap import overlap
from mpiarray.compiler.passes.partition import partition
from mpiarray.compiler.passes.parts import parts
from mpiarray.compiler.passes.propagate import propagate, spec_of
from mpiarray.compiler.passes.reshapes import reshapes
from mpiarray.compiler.passes.scatter import scatter
from mpiarray.compiler.passes.simplify import closed, common_subexpressions, inline
from mpiarray.compiler.passes.small import small
from mpiarray.compiler.passes.sums import sums
from mpiarray.compiler.passes.units import units
from mpiarray.compiler.passes.updates import updates
from mpiarray.compiler.passes.write import write
from mpiarray.compiler.passes.zeros import zeros
from mpiarray.compiler.program import Program
from mpiarray.config import config
from mpiarray.core.check import check_jaxpr
from mpiarray.core.jaxpr import ClosedJaxpr, Jaxpr
from mpiarray.transforms.evaluate import dead_code
from mpiarray.types.mesh import AbstractMesh
from mpiarray.types.partition_spec import PartitionSpec as P

Pass = Callable[[Program], Program]


def _global(f: Callable[[Jaxpr], Jaxpr]) -> Pass:
    def run(program: Program) -> Program:
        return program.update(jaxpr=f(program.jaxpr))

    run.__name__ = f.__name__
    return run


def _local(f: Callable[[Jaxpr], Jaxpr]) -> Pass:
    def run(program: Program) -> Program:
        assert program.local is not None, "local passes come after partition"
        return program.update(local=ClosedJaxpr(f(program.local.jaxpr), program.local.consts))

    run.__name__ = f"local_{f.__name__}"
    return run


PASSES: tuple[Pass, ...] = (
    _global(inline),
    _global(dead_code),
    _global(common_subexpressions),
    inside,
    propagate,
    choose,
    scatter,
    partition,
    _local(dead_code),
    _local(units),
    _local(small),
    _local(common_subexpressions),
    _local(sums),
    _local(moments),
    _local(parts),
    _local(reshapes),
    _local(narrow),
    updates,
    _local(combine),
    _local(overlap),
    _local(masks),
    _local(zeros),
    _local(fuse),
    _local(again),
    _local(write),
)


def lower(
    name: str,
    jaxpr: ClosedJaxpr,
    in_specs: Sequence[P],
    out_specs: Sequence[P | None],
    mesh: AbstractMesh,
    size: int,
    *,
    open: Collection[int] = (),
    ties: Sequence[tuple[int, int]] = (),
) -> Program:
    """Run all passes on a closed jaxpr whose constants are its first inputs (`in_specs` covers them too).

    Inputs whose numbers are in `open` may lie elsewhere on Auto axes: the program's `in_specs` say where. `ties` are pairs
    (result, input): such a result lies like the input.
    """
    program = Program(
        name, closed(jaxpr), tuple(in_specs), tuple(out_specs), mesh, size, open=frozenset(open), ties=tuple(ties)
    )
    for step in PASSES:
        program = step(program)
        if config.check:
            check_program(program, step.__name__)
    return program


def results_of(
    name: str, jaxpr: ClosedJaxpr, in_specs: Sequence[P], mesh: AbstractMesh, size: int = 1
) -> tuple[P, ...]:
    """Where the results of a program fall on Auto axes, for inputs that lie so; nothing is partitioned."""
    program = Program(name, closed(jaxpr), tuple(in_specs), (None,) * len(jaxpr.jaxpr.outvars), mesh, size)
    for step in PASSES[: PASSES.index(propagate) + 1]:
        program = step(program)
    return tuple(spec_of(program.specs, v) for v in program.jaxpr.outvars)


def check_program(program: Program, after: str) -> None:
    if program.local is None:
        check_jaxpr(program.jaxpr, after=after)
    else:
        check_jaxpr(program.local.jaxpr, after=after, types=False)


def explain(program: Program) -> str:
    """What was decided on Auto axes, a line each."""
    return "\n".join(program.why) or "nothing was left to choose: every sharding is in the types"


def passes() -> tuple[Any, ...]:
    """The passes by name, for tools that list them."""
    return tuple(p.__name__ for p in PASSES)
