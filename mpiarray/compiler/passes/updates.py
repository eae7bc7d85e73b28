"""Large sums over mesh axes take the elementwise work that follows them along (`ops.sum_update`).

    total = psum(slope); new = p - rate * total        ->  new = psum_update(slope, p)

Each rank then does its part of that work while it makes its part of the sum, and the new values are sent around instead of
the sum.  So a value must be alike on all ranks of the sum to take part: an argument whose sharding says so, and what is
made of such by functions of elements.

What follows is a chain of values of the sum's shape, each read by one equation, and what is made for it alone out of
other operands.  It ends before a second reader, so that one array is sent around, as before.  The new equation stands where the
chain ended: nothing is computed earlier than before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from mpiarray.comm import ring
from mpiarray.compiler.cost import nbytes
from mpiarray.compiler.program import Program
from mpiarray.config import config
from mpiarray.core.jaxpr import Atom, ClosedJaxpr, Eqn, Jaxpr, Var, readers_of
from mpiarray.core.plan import axes_size, used_axes
from mpiarray.core.value import Literal
from mpiarray.ops.collectives import all_gather, pmax, pmin, psum
from mpiarray.ops.linear import broadcast_in_dim, reshape
from mpiarray.ops.manual import all_gather_invariant, psum_invariant, unreduced_psum
from mpiarray.ops.sum_update import Update, psum_update
from mpiarray.ops.tiles import REDUCTIONS
from mpiarray.types import dtypes
from mpiarray.types.aval import ShapedArray
from mpiarray.types.mesh import AbstractMesh

_LEAST_BYTES = 2**18
"""Of each rank's part of a sum: smaller ones are better sent in one message with others (`combine`)."""
_SUMS = (psum, psum_invariant, unreduced_psum)
_ALIKE = (*_SUMS, pmax, pmin, all_gather, all_gather_invariant)
_PLAIN = (broadcast_in_dim, reshape)


def updates(program: Program) -> Program:
    """The program with such sums; itself where there are none."""
    assert program.local is not None, "blocks are known after partition"
    jaxpr = program.local.jaxpr
    if not any(_is_large(e) for e in jaxpr.eqns):
        return program
    new = _Updates(program, jaxpr).run()
    return program if new is jaxpr else program.update(local=ClosedJaxpr(new, program.local.consts))


def _is_large(eqn: Eqn) -> bool:
    """Whether an equation is a sum that travels around the ring, and is worth a message of its own."""
    if eqn.op not in _SUMS or eqn.params.get("axis_index_groups") is not None or isinstance(eqn.invars[0], Literal):
        return False
    aval, n = eqn.invars[0].aval, axes_size(eqn.mesh, eqn.params["axes"])
    if n < 2 or not aval.ndim or not aval.size or dtypes.is_key(aval.dtype):
        return False
    dtype = dtypes.storage(aval.dtype)
    worth = config.sums == "ring" or nbytes(aval) >= _LEAST_BYTES * n
    return worth and dtype.kind in "iufc" and ring.would_take(n, "sum", dtype, aval.size)


class _Chain(NamedTuple):
    """The equations after a sum, the last of which makes the value that is sent around."""

    links: list[Eqn]
    others: list[Eqn]  # that make operands for them alone


class _Updates:
    def __init__(self, program: Program, jaxpr: Jaxpr):
        self.program, self.jaxpr = program, jaxpr
        self.maker: dict[Any, Eqn] = {v: e for e in jaxpr.eqns for v in e.outvars}
        self.place = {e: k for k, e in enumerate(jaxpr.eqns)}
        self.readers = readers_of(jaxpr)
        self.varies = _varying(program, jaxpr)
        self.taken: set[Eqn] = set()

    def run(self) -> Jaxpr:
        new: dict[Eqn, Eqn] = {}
        for eqn in self.jaxpr.eqns:
            chain = self.chain(eqn) if _is_large(eqn) else None
            if chain is not None:
                new[chain.links[-1]] = self.merged(eqn, chain)
                self.taken.update((eqn, *chain.others, *chain.links))
        if not new:
            return self.jaxpr
        return self.jaxpr.replace(eqns=[new.get(e, e) for e in self.jaxpr.eqns if e in new or e not in self.taken])

    def chain(self, eqn: Eqn) -> _Chain | None:
        """What follows a sum and can be done with it."""
        (total,), axes = eqn.outvars, frozenset(eqn.params["axes"])
        links: list[Eqn] = []
        v = total
        while (link := self.link(v, total.aval, axes)) is not None:
            links.append(link)
            (v,) = link.outvars
        while links and nbytes(links[-1].outvars[0].aval) > nbytes(total.aval):
            links.pop()  # wider values take longer to send than the work takes
        if not links or any(map(_is_in_groups, self.readers[links[-1].outvars[0]])):
            return None
        others: list[Eqn] = []
        inner = set(links)
        for link in reversed(links):
            for a in link.invars:
                self.include(a, total.aval, axes, inner, others)
        return _Chain(links, sorted(others, key=self.place.__getitem__))

    def link(self, v: Var, total: ShapedArray, axes: frozenset[str]) -> Eqn | None:
        """The one equation that reads a value, if it belongs to the chain."""
        readers = set(self.readers[v])
        reader = readers.pop() if len(readers) == 1 else None
        if reader is None or reader in self.taken or not _is_elementwise(reader, total):
            return None
        return reader if all(a is v or self.fits(a, total, axes) for a in reader.invars) else None

    def fits(self, a: Atom, total: ShapedArray, axes: frozenset[str]) -> bool:
        """Whether an operand is alike on all ranks of the sum: a scalar or an array of its shape."""
        if isinstance(a, Literal):
            return True
        return (not a.aval.ndim or a.aval.shape == total.shape) and not self.varies[a] & axes

    def include(self, a: Atom, total: ShapedArray, axes: frozenset[str], inner: set[Eqn], others: list[Eqn]) -> None:
        """Take along what makes an operand that nobody else reads."""
        maker = None if isinstance(a, Literal) else self.maker.get(a)
        if maker is None or maker in inner or maker in self.taken or not _is_elementwise(maker, total):
            return
        if any(r not in inner for r in self.readers[a]) or not all(self.fits(b, total, axes) for b in maker.invars):
            return
        inner.add(maker)
        others.append(maker)
        for b in maker.invars:
            self.include(b, total, axes, inner, others)

    def merged(self, eqn: Eqn, chain: _Chain) -> Eqn:
        """The sum and its chain as one equation."""
        (total,) = eqn.outvars
        eqns = sorted((*chain.others, *chain.links), key=self.place.__getitem__)
        made = {e.outvars[0] for e in eqns}
        outer = dict.fromkeys(
            a for e in eqns for a in e.invars if not isinstance(a, Literal) and a is not total and a not in made
        )
        update = Update(Jaxpr((), (total, *outer), (eqns[-1].outvars[0],), eqns))
        params = {"axes": eqn.params["axes"], "axis_index_groups": None, "update": update}
        (end,) = chain.links[-1].outvars
        return eqn.replace(op=psum_update, invars=(eqn.invars[0], *outer), outvars=(end,), params=params)


def _is_elementwise(eqn: Eqn, total: ShapedArray) -> bool:
    plain = eqn.op.elementwise and eqn.op.impl is not None and not eqn.op.effects and len(eqn.outvars) == 1
    return plain and eqn.outvars[0].aval.shape == total.shape and not dtypes.is_key(eqn.outvars[0].aval.dtype)


def _is_in_groups(reader: Eqn | None) -> bool:
    """Whether a reader would be fused with the chain: better all of it in one pass over the whole sum than two passes."""
    return reader is not None and (reader.op.elementwise or reader.op in REDUCTIONS or reader.op in _PLAIN)


def _varying(program: Program, jaxpr: Jaxpr) -> dict[Any, frozenset[str]]:
    """The axes along which ranks may have different values; all of them where nothing is known."""
    everywhere = frozenset(program.mesh.axis_names)
    found: dict[Any, frozenset[str]] = dict.fromkeys(jaxpr.constvars, everywhere)
    found.update(zip(jaxpr.invars, _of_arguments(program, everywhere), strict=True))
    for eqn in jaxpr.eqns:
        own = frozenset().union(*(found[a] for a in eqn.invars if not isinstance(a, Literal)))
        found.update(dict.fromkeys(eqn.outvars, own - _settled(eqn) if _is_known(eqn, program.mesh) else everywhere))
    return found


def _of_arguments(program: Program, everywhere: frozenset[str]) -> Iterator[frozenset[str]]:
    for v, spec in zip(program.jaxpr.invars, program.in_specs, strict=True):
        own = v.aval.mesh
        alike = own.empty or own.same_axes(program.mesh)
        yield frozenset(used_axes(spec.dims)) | spec.unreduced if alike else everywhere


def _is_known(eqn: Eqn, mesh: AbstractMesh) -> bool:
    """Whether an equation gives like values for like operands, along the axes of this mesh."""
    if eqn.op.elementwise or eqn.op in _PLAIN:
        return True
    return eqn.op in _ALIKE and eqn.mesh.shape_tuple == mesh.shape_tuple and not eqn.params.get("axis_index_groups")


def _settled(eqn: Eqn) -> frozenset[str]:
    """The axes along which a collective's result is alike."""
    if eqn.op not in _ALIKE:
        return frozenset()
    axes: Any = eqn.params["axes" if "axes" in eqn.params else "axis_name"]
    return frozenset(axes if isinstance(axes, tuple) else (axes,))
