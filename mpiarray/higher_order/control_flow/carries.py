"""A loop's carry: its type must not change from one iteration to the next.

Weak types of initial values give way, and values without a mesh are replicated on the body's; everything else that
differs is an error that says which component, both types, and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpiarray.core.plan import mesh_order
from mpiarray.core.trace import state
from mpiarray.core.value import aval_of
from mpiarray.numpy.promotion import cast
from mpiarray.types import dtypes, tree
from mpiarray.types.aval import ShapedArray


def differences(a: ShapedArray, b: ShapedArray) -> list[str]:
    """In what two types differ, in words; weak types do not count."""
    found = []
    if a.shape != b.shape:
        found.append("the shapes do not match")
    if a.dtype != b.dtype:
        found.append("the dtypes do not match")
    if a.shape == b.shape and (a.dims, a.unreduced, a.reduced) != (b.dims, b.unreduced, b.reduced):
        found.append("the shardings do not match")
    if state.check_vma and a.manual is not b.manual and a.manual != b.manual:
        found.append("the manual axis types do not match")
    return found


def promoted(
    values: Sequence[Any], avals: Sequence[ShapedArray], outs: Sequence[ShapedArray]
) -> tuple[list[Any], list[ShapedArray], bool]:
    """(initial values, their types, whether any changed) with weak types and missing meshes as the body's results have them."""
    if len(avals) != len(outs):
        return list(values), list(avals), False
    new_values, new_avals = [], []
    for x, a, o in zip(values, avals, outs):
        if a.weak_type and a.dtype != o.dtype and a.shape == o.shape:
            dtype = dtypes.result_type((a.dtype, True), (o.dtype, o.weak_type))
            if dtype != a.dtype:
                x = cast(x, dtype)
                a = a.update(dtype=dtype, weak_type=False)
        if (
            a.sharding.mesh.empty
            and not o.sharding.mesh.empty
            and not any(o.dims)
            and not o.unreduced
            and not o.reduced
        ):
            a = a.update(sharding=o.sharding)
        new_values.append(x)
        new_avals.append(a)
    return new_values, new_avals, any(a is not b for a, b in zip(new_avals, avals))


def check_carry(
    what: str, name: str, structure: Any, avals: Sequence[ShapedArray], out_structure: Any, outs: Sequence[ShapedArray]
) -> None:
    """Raise TypeError unless a body returns a carry like the one that it takes.

    what: who, e.g. 'scan body function'; name: of the carry in the user's function.
    """
    if structure != out_structure:
        raise TypeError(
            f"{what} carry input and carry output must have the same pytree structure, but they differ:\n\nThe input carry {name} has structure "
            f"{structure}, but the corresponding output carry has structure {out_structure}.\n\nRevise the function so that the carry "
            "output has the same pytree structure as the carry input."
        )
    paths = tree.paths(structure)
    lines, hints = [], []
    for path, a, o in zip(paths, avals, outs):
        found = differences(a, o)
        if not found:
            continue
        part = f"{name}{tree.keystr(path)}"
        component = f"component {part}" if path else part
        lines.append(
            f"The input carry {component} has type {a.str_short()} but the corresponding output carry component has type {o.str_short()}, so "
            f"{', and '.join(found)}."
        )
        missing = mesh_order(state.abstract_mesh, o.vma - a.vma) if state.check_vma else ()
        if missing:
            hints.append(
                f"This might be fixed by applying `jax.lax.pcast(..., {missing}, to='varying')` to the initial carry value corresponding to the "
                f"input carry {component}."
            )
    if lines:
        shown = "\n\n".join([*("  * " + line if len(lines) > 1 else line for line in lines), *hints])
        raise TypeError(
            f"{what} carry input and carry output must have equal types, but they differ:\n\n{shown}\n\nRevise the function so that all output "
            "types match the corresponding input types."
        )


def avals_of(values: Sequence[Any]) -> list[ShapedArray]:
    return [aval_of(x) for x in values]
