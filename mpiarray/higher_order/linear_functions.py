"""What `linearize` and `vjp` return: a derivative as a function that transformed functions can take and return.

Its residuals are the leaves of a pytree (`tree_util.Partial`), so that `jit` can return it and take it; the linear program is part of
the structure, compared by what it says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from mpiarray.core.jaxpr import ClosedJaxpr
from mpiarray.transforms.interning import intern
from mpiarray.transforms.linearize import LinearProgram
from mpiarray.transforms.tangents import shown
from mpiarray.types import tree

Run = Callable[[LinearProgram, Any, tuple[Any, ...]], Any]


class LinearFunction:
    """A linear program without its residuals, and what runs it: `run(program, flat, args)`.

    Equal to another one that does the same to the same structures, so that a jitted function which takes it is not traced anew.
    """

    def __init__(self, run: Run, program: LinearProgram, flat: Any):
        self.run, self.flat = run, flat
        self.jaxpr = program.program.jaxpr
        self.types = (program.in_avals, program.active, program.out_avals, program.live)

    @cached_property
    def key(self) -> Any:
        """Made when it is first compared: most are only called."""
        structures = (self.flat.structure, self.flat.out_tree)
        return self.run, intern(ClosedJaxpr(self.jaxpr)), len(self.jaxpr.constvars), self.types, structures

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, LinearFunction) and self.key == other.key)

    def __hash__(self) -> int:
        return hash(self.key)

    def __call__(self, residuals: Sequence[Any], *args: Any) -> Any:
        in_avals, active, out_avals, live = self.types
        program = LinearProgram(ClosedJaxpr(self.jaxpr, residuals), in_avals, active, out_avals, live)
        return self.run(program, self.flat, args)

    def __repr__(self) -> str:
        return f"{self.run.__name__.strip('_')}({self.jaxpr})"


def linear_function(run: Run, program: LinearProgram, flat: Any) -> tree.Partial:
    """`run(program, flat, args)` as a function of `*args` whose residuals are leaves."""
    return tree.Partial(LinearFunction(run, program, flat), [shown(c) for c in program.program.consts])
