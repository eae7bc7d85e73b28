"""What the passes hand to each other.

Global programs are typed by what the user sees; `Program.specs` says where every value really lies, Auto axes
included.  After `partition` the program is `local`: blocks, and explicit collectives.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mpiarray.core.jaxpr import ClosedJaxpr, Eqn, Jaxpr, Var
from mpiarray.core.plan import Plan
from mpiarray.types.mesh import AbstractMesh
from mpiarray.types.partition_spec import PartitionSpec as P


@dataclass(frozen=True)
class Program:
    """A program between two passes.

    name       for messages and texts
    jaxpr      the global program; constants are its first inputs
    in_specs   where each input lies, over all axes of its type's mesh (its own mesh, or `mesh` when its type has none)
    out_specs  where each result must lie; None: where it falls
    mesh       the abstract mesh of the call; `size` devices
    specs      (after propagate) where each variable lies
    plans      (after propagate) the plan chosen for each equation
    local      (after partition) the program on blocks
    open       numbers of the inputs whose Auto axes are ours to choose (until `choose`, which sets their in_specs)
    ties       (result, input) pairs: results that must lie like an open input
    why        (after propagate) what was decided on Auto axes, a line each
    """

    name: str
    jaxpr: Jaxpr
    in_specs: tuple[P, ...]
    out_specs: tuple[P | None, ...]
    mesh: AbstractMesh
    size: int
    specs: dict[Var, P] = field(default_factory=dict)
    plans: dict[Eqn, Plan] = field(default_factory=dict)
    local: ClosedJaxpr | None = None
    why: tuple[str, ...] = ()
    open: frozenset[int] = frozenset()
    ties: tuple[tuple[int, int], ...] = ()

    def update(self, **changes: Any) -> Program:
        new = object.__new__(Program)  # what dataclasses.replace does, without looking at each field
        new.__dict__.update(self.__dict__, **changes)
        return new
