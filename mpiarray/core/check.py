"""Is a jaxpr well formed?  Every variable bound once and before its use, every equation's types what its op says.

Runs between the compiler's passes under `MPIARRAY_CHECK=1` (always in tests): a pass that breaks a program is
found where it did.
"""

from __future__ import annotations

from typing import Any

from mpiarray.core.infer import infer
from mpiarray.core.jaxpr import Eqn, Jaxpr, Var, subjaxprs
from mpiarray.core.trace import abstract_mesh, checking_vma, state
from mpiarray.core.value import Literal
from mpiarray.errors import InternalError
from mpiarray.types.aval import ShapedArray


def check_jaxpr(jaxpr: Jaxpr, *, after: str, types: bool = True) -> None:
    """Raise InternalError naming the pass `after` which `jaxpr` is not well formed."""
    bound: set[Var] = set()

    def bind(var: Var, what: object) -> None:
        if var in bound:
            raise InternalError(f"after {after}: {what} binds a variable twice: {var}\n{jaxpr}")
        bound.add(var)

    def use(atom: Any, what: object) -> None:
        if not isinstance(atom, Literal) and atom not in bound:
            raise InternalError(f"after {after}: {what} uses an unbound variable {atom}\n{jaxpr}")

    for v in (*jaxpr.constvars, *jaxpr.invars):
        bind(v, "the head")
    for eqn in jaxpr.eqns:
        for atom in eqn.invars:
            use(atom, eqn)  # as text only if something is wrong: there are many
        if types:
            _check_types(eqn, after)
        for v in eqn.outvars:
            bind(v, eqn)
        with checking_vma(eqn.params.get("check_vma", state.check_vma)):
            for inner in subjaxprs(eqn.params):
                check_jaxpr(inner, after=f"{after}, in {eqn.op.name}", types=types)
    for atom in jaxpr.outvars:
        use(atom, "the result")


def _check_types(eqn: Eqn, after: str) -> None:
    with abstract_mesh(eqn.mesh):
        expected = infer(eqn.op, [a.aval for a in eqn.invars], eqn.params)
    got = [v.aval for v in eqn.outvars]
    wrong = len(expected) != len(got) or any(_different(e, g) for e, g in zip(expected, got))
    if wrong:
        raise InternalError(f"after {after}: {eqn.op.name} gives {list(expected)}, but its variables are {got}\n{eqn}")


def _different(a: ShapedArray, b: ShapedArray) -> bool:
    """Weak types and the descriptions of meshes may change from pass to pass; what the blocks are may not."""
    return (a.shape, a.dtype, a.sharding.spec, a.manual) != (b.shape, b.dtype, b.sharding.spec, b.manual)
