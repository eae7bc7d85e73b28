"""Programs as data: variables, equations, jaxprs.

A jaxpr is immutable once made; passes build new ones.  Equations carry the abstract mesh that they were bound
under (axis names in params mean this mesh) and the user's source line.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mpiarray.core.op import Op
from mpiarray.core.printer import eqn_text, jaxpr_text
from mpiarray.core.value import Literal
from mpiarray.types.aval import ShapedArray
from mpiarray.types.mesh import AbstractMesh


class Var:
    """A variable of a jaxpr; equal only to itself."""

    __slots__ = ("aval",)

    def __init__(self, aval: ShapedArray):
        self.aval = aval

    def __repr__(self) -> str:
        return f"Var(id={id(self):x}):{self.aval.short()}"


Atom = Var | Literal


class Eqn:
    """One equation: `outvars = op[params] invars`."""

    __slots__ = ("invars", "mesh", "op", "outvars", "params", "source")

    def __init__(
        self,
        op: Op,
        invars: Sequence[Atom],
        outvars: Sequence[Var],
        params: dict[str, Any],
        mesh: AbstractMesh,
        source: str = "",
    ):
        self.op = op
        self.invars = tuple(invars)
        self.outvars = tuple(outvars)
        self.params = params
        self.mesh = mesh
        self.source = source

    @property
    def primitive(self) -> Op:
        return self.op

    def replace(self, **changes: Any) -> Eqn:
        fields = {k: getattr(self, k) for k in ("op", "invars", "outvars", "params", "mesh", "source")}
        return Eqn(**(fields | changes))

    def __repr__(self) -> str:
        return eqn_text(self)


class Jaxpr:
    """`{ lambda constvars ; invars . let eqns in outvars }`."""

    __slots__ = ("constvars", "eqns", "invars", "outvars", "debug_name")

    def __init__(
        self,
        constvars: Sequence[Var],
        invars: Sequence[Var],
        outvars: Sequence[Atom],
        eqns: Sequence[Eqn],
        debug_name: str = "",
    ):
        self.constvars = tuple(constvars)
        self.invars = tuple(invars)
        self.outvars = tuple(outvars)
        self.eqns = tuple(eqns)
        self.debug_name = debug_name

    def replace(self, **changes: Any) -> Jaxpr:
        fields = {k: getattr(self, k) for k in ("constvars", "invars", "outvars", "eqns", "debug_name")}
        return Jaxpr(**(fields | changes))

    @property
    def in_avals(self) -> tuple[ShapedArray, ...]:
        return tuple(v.aval for v in self.invars)

    @property
    def out_avals(self) -> tuple[ShapedArray, ...]:
        return tuple(v.aval for v in self.outvars)

    def __repr__(self) -> str:
        return jaxpr_text(self)


class ClosedJaxpr:
    """A jaxpr with the values of its constants; compared and hashed by identity, so that it can be a parameter."""

    __slots__ = ("consts", "jaxpr")

    def __init__(self, jaxpr: Jaxpr, consts: Sequence[Any] = ()):
        self.jaxpr = jaxpr
        self.consts = tuple(consts)

    def __repr__(self) -> str:
        return jaxpr_text(self)

    @property
    def eqns(self) -> tuple[Eqn, ...]:
        return self.jaxpr.eqns

    @property
    def in_avals(self) -> tuple[ShapedArray, ...]:
        return self.jaxpr.in_avals

    @property
    def out_avals(self) -> tuple[ShapedArray, ...]:
        return self.jaxpr.out_avals


def substituted(atoms: Sequence[Atom], instead: Mapping[Any, Atom]) -> tuple[Atom, ...]:
    """The atoms, with what stands in the place of some variables."""
    return tuple([a if isinstance(a, Literal) else instead.get(a, a) for a in atoms])


def readers_of(jaxpr: Jaxpr) -> defaultdict[Any, list[Eqn | None]]:
    """The equations that read each variable, one as often as it does; None, at the end, for a result of the jaxpr."""
    found: defaultdict[Any, list[Eqn | None]] = defaultdict(list)
    for eqn in (*jaxpr.eqns, None):
        for v in jaxpr.outvars if eqn is None else eqn.invars:
            if not isinstance(v, Literal):
                found[v].append(eqn)
    return found


def uses_of(jaxpr: Jaxpr) -> Counter[Any]:
    """How often each variable is read by equations, or is a result."""
    return Counter({v: len(eqns) for v, eqns in readers_of(jaxpr).items()})


def subjaxprs(params: dict[str, Any]) -> Iterator[Jaxpr]:
    """The jaxprs among an equation's parameters."""
    for value in params.values():
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, ClosedJaxpr):
                yield item.jaxpr
            elif isinstance(item, Jaxpr):
                yield item


def callee(params: dict[str, Any]) -> ClosedJaxpr:
    """The jaxpr that an op with `inlines` calls."""
    return params["jaxpr"] if "jaxpr" in params else params["call_jaxpr"]
