"""Where the rest of a program would like each value to lie, on Auto axes: read backward from its results and constraints.

`propagate` counts the bytes from a result to its wish, so that a product is reduced to where a later constraint wants it,
and values that are made from nothing are made in place instead of whole on every rank.
"""

from __future__ import annotations

from typing import Any

from mpiarray.compiler.program import Program
from mpiarray.core.jaxpr import Eqn, Var
from mpiarray.core.plan import has_duplicates, spec_from, used_axes
from mpiarray.core.value import Literal
from mpiarray.types.partition_spec import PartitionSpec as P

_PLACEMENTS = {"sharding_constraint": "sharding", "reshard": "dst_sharding"}


def wishes(program: Program) -> dict[Var, P]:
    """The spec that each variable's readers ask for, where one does; over all axes of its mesh."""
    found: dict[Var, P] = {}

    def wish(atom: Any, spec: P | None) -> None:
        if spec is not None and not isinstance(atom, Literal) and atom not in found and _fits(atom, spec):
            found[atom] = spec

    for atom, spec in zip(program.jaxpr.outvars, program.out_specs):
        wish(atom, spec)
    for eqn in reversed(program.jaxpr.eqns):
        if eqn.op.name in _PLACEMENTS:
            own = eqn.invars[0].aval.mesh
            target = eqn.params[_PLACEMENTS[eqn.op.name]]
            if not own.empty and own.shape_tuple == target.mesh.shape_tuple:
                wish(eqn.invars[0], _with_explicit(eqn.invars[0], target.spec))
            continue
        result = found.get(eqn.outvars[0]) if len(eqn.outvars) == 1 else None
        if result is not None:
            for atom in eqn.invars:
                wish(atom, _before(eqn, atom, result))
    return found


def _fits(atom: Any, spec: P) -> bool:
    mesh = atom.aval.mesh
    if mesh.empty or len(spec.dims) != atom.aval.ndim or has_duplicates(spec.dims):
        return False
    if not used_axes(spec.dims) <= set(mesh.axis_names):
        return False
    return all(n % _size(mesh, axes) == 0 for n, axes in zip(atom.aval.shape, spec.dims))


def _size(mesh: Any, axes: tuple[str, ...]) -> int:
    n = 1
    for a in axes:
        n *= mesh.shape[a]
    return n


def _with_explicit(atom: Any, spec: P) -> P:
    """The type's Explicit axes, and the wish's Auto ones."""
    aval = atom.aval
    auto = set(aval.mesh.auto_axes)
    return spec_from([own + tuple(a for a in want if a in auto) for own, want in zip(aval.dims, spec.dims)])


def _before(eqn: Eqn, atom: Any, result: P) -> P | None:
    """What a wish for a result means for an operand: the same for ops that work element by element, permuted for transposes."""
    if eqn.op.name == "transpose":
        permutation = eqn.params["permutation"]
        dims: list[tuple[str, ...]] = [()] * len(permutation)
        for d, p in enumerate(permutation):
            dims[p] = result.dims[d]
        return _with_explicit(atom, spec_from(dims))
    shape_changes = any(
        k in eqn.params
        for k in ("new_sizes", "broadcast_dimensions", "dimension_numbers", "axes", "dimension", "dimensions")
    )
    if shape_changes or atom.aval.shape != eqn.outvars[0].aval.shape:
        return None
    return _with_explicit(atom, result)
