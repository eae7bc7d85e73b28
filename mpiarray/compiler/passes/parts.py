"""Sums and gathers of which a rank reads its own part only: nothing else is made or sent.

    mine = dynamic_slice(psum(x), axis_index * k, k)        ->  reduce_scatter(x)
    mine = dynamic_slice(all_gather(x), axis_index * k, k)  ->  x
    all_gather(reduce_scatter(x))                           ->  psum(x)

Apart from `scatter`, which does the like on global programs by their types: here it is the blocks' program that says so, as people
write it in `shard_map`.  A block's program depends on the rank by `axis_index` alone, so that scalars made from it are
known for every position of the mesh: whatever the user's arithmetic, the starts of a slice are compared as numbers.
Elementwise work between the sum and the slice is done on parts, too, where nobody else reads it.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from mpiarray.compiler.cost import nbytes, step_cost
from mpiarray.compiler.machine import machine
from mpiarray.compiler.passes.bodies import map_bodies
from mpiarray.core.device import coordinates, mixed_radix
from mpiarray.core.jaxpr import Atom, Eqn, Jaxpr, Var, readers_of
from mpiarray.core.plan import axes_size
from mpiarray.core.value import Literal
from mpiarray.ops.collectives import all_gather, axis_index, psum, reduce_scatter, shard_slice
from mpiarray.ops.linear import reshape
from mpiarray.ops.manual import (
    all_gather_invariant,
    all_gather_reduced,
    own_part,
    psum_invariant,
    unreduced_psum,
    unreduced_reduce_scatter,
)
from mpiarray.ops.slicing import dynamic_slice
from mpiarray.transforms.evaluate import dead_code
from mpiarray.types.aval import ShapedArray
from mpiarray.types.mesh import AbstractMesh

_SUMS = (psum, psum_invariant, unreduced_psum)
_GATHERS = (all_gather, all_gather_invariant, all_gather_reduced)
_SCATTERS = (reduce_scatter, unreduced_reduce_scatter)
_READS = (dynamic_slice, shard_slice, own_part)
_ORDERS = 6  # orders of a sum's axes that are compared with a slice: all of three axes


class Part(NamedTuple):
    """The part along `dim` of a rank, numbered by its position on the axes, the first most significant."""

    mesh: AbstractMesh
    axes: tuple[str, ...]
    dim: int

    @property
    def parts(self) -> int:
        return axes_size(self.mesh, self.axes)

    def of(self, aval: ShapedArray) -> ShapedArray:
        """The type of the part."""
        shape = list(aval.shape)
        shape[self.dim] //= self.parts
        return ShapedArray(tuple(shape), aval.dtype, aval.weak_type)


def parts(jaxpr: Jaxpr) -> Jaxpr:
    """The program, and the bodies of its loops, with such reads on parts; itself where there are none."""
    jaxpr = map_bodies(jaxpr, parts)
    if any(e.op in _SUMS or e.op in _GATHERS for e in jaxpr.eqns):
        if any(e.op in _READS for e in jaxpr.eqns):
            jaxpr = _Reads(jaxpr).run()
        if any(e.op in _SCATTERS for e in jaxpr.eqns):
            jaxpr = _whole_again(jaxpr)
    return jaxpr


class _Reads:
    def __init__(self, jaxpr: Jaxpr):
        self.jaxpr = jaxpr
        self.place = {v: k for k, eqn in enumerate(jaxpr.eqns) for v in eqn.outvars}
        self.readers = readers_of(jaxpr)
        self.positions = _Positions()
        self.sums = Counter(_kind(e) for e in jaxpr.eqns if e.op in _SUMS)
        self.env: dict[Var, Atom] = {}
        self.out: list[Eqn] = []

    def run(self) -> Jaxpr:
        spread = list(self.spreads())
        for eqn in self.jaxpr.eqns:
            self.positions.enter(eqn)
            if eqn.op not in _READS or not any(self.replaced(eqn, part) for part in self.parts_of(eqn, spread)):
                invars = tuple(self.read(v) for v in eqn.invars)
                self.out.append(eqn if invars == eqn.invars else eqn.replace(invars=invars))
        if not self.env:
            return self.jaxpr
        return dead_code(self.jaxpr.replace(eqns=self.out, outvars=[self.read(v) for v in self.jaxpr.outvars]))

    def read(self, atom: Atom) -> Atom:
        return atom if isinstance(atom, Literal) else self.env.get(atom, atom)

    def spreads(self) -> Iterator[tuple[AbstractMesh, tuple[str, ...]]]:
        """The axes that values were summed or gathered over, in every order that a slice may have."""
        found = {(e.mesh, _axes(e), e.op in _GATHERS) for e in self.jaxpr.eqns if e.op in _SUMS or e.op in _GATHERS}
        seen = set()
        for mesh, axes, ordered in sorted(found, key=lambda f: (f[1], f[2])):
            for order in [axes] if ordered else itertools.islice(itertools.permutations(axes), _ORDERS):
                if (mesh, order) not in seen:
                    seen.add((mesh, order))
                    yield mesh, order

    def parts_of(self, eqn: Eqn, spread: Sequence[tuple[AbstractMesh, tuple[str, ...]]]) -> list[Part]:
        """What a reading equation is, if it reads this rank's own part; several where axes of one device leave it open."""
        params, x = eqn.params, eqn.invars[0]
        if isinstance(x, Literal):
            return []
        if eqn.op is shard_slice:
            return [Part(eqn.mesh, params["axes"], params["dim"])]
        if eqn.op is own_part:
            return [Part(eqn.mesh, params["axis_name"], params["dimension"])] if params["tiled"] else []
        cut = [d for d, (n, k) in enumerate(zip(x.aval.shape, params["slice_sizes"])) if n != k]
        if len(cut) != 1:
            return []
        (dim,) = cut
        size, count = x.aval.shape[dim], params["slice_sizes"][dim]
        found = []
        for mesh, axes in spread:
            starts = self.positions.of(eqn.invars[1 + dim], mesh)
            if starts is not None and count * axes_size(mesh, axes) == size:
                numbers = _numbers(mesh, axes) * count
                if np.array_equal(np.clip(starts, 0, size - count), numbers):
                    found.append(Part(mesh, axes, dim))
        return found

    def replaced(self, eqn: Eqn, part: Part) -> bool:
        """Put the work on parts in the place of a read, if that saves communication."""
        x = eqn.invars[0]
        assert isinstance(x, Var), "literals have no parts"
        inner, leaves = self.region(eqn, x, part)
        if not any(leaves.values()):
            return False
        new: dict[Var, Atom] = {v: self.leaf(v, kind, part) for v, kind in leaves.items()}
        for k in sorted(inner):
            old = self.jaxpr.eqns[k]
            v = Var(part.of(old.outvars[0].aval))
            invars = [self.read(a) if isinstance(a, Literal) or a not in new else new[a] for a in old.invars]
            self.out.append(old.replace(invars=invars, outvars=(v,)))
            new[old.outvars[0]] = v
        self.env[eqn.outvars[0]] = new[x]
        return True

    def region(self, end: Eqn, x: Var, part: Part) -> tuple[set[int], dict[Var, str]]:
        """The elementwise equations that only this read needs, and what they start from: "sum", "gather", or "" for a plain value.

        Values are visited from the last made to the first: all readers of a value that may be inside were then visited.
        """
        inner: set[int] = set()
        leaves: dict[Var, str] = {}
        waiting = [(-self.place.get(x, -1), 0, x)]
        seen, number = {x}, itertools.count(1)
        whole = x.aval.shape[part.dim]
        while waiting:
            k, _, v = heapq.heappop(waiting)
            maker = self.jaxpr.eqns[-k] if v in self.place else None
            alone = all(r is end or (r is not None and self.inside(r, inner)) for r in self.readers[v])
            if maker is not None and alone and _is_elementwise(maker, part, v):
                inner.add(-k)
                for a in maker.invars:
                    if not isinstance(a, Literal) and a not in seen and a.aval.ndim and a.aval.shape[part.dim] == whole:
                        seen.add(a)
                        heapq.heappush(waiting, (-self.place.get(a, -1), next(number), a))
            else:
                leaves[v] = self.kind(maker, part, alone) if maker is not None else ""
        return inner, leaves

    def inside(self, reader: Eqn, inner: set[int]) -> bool:
        return len(reader.outvars) == 1 and self.place[reader.outvars[0]] in inner

    def kind(self, maker: Eqn, part: Part, alone: bool) -> str:
        """What a part of an equation's result can be had from."""
        if maker.mesh.shape_tuple != part.mesh.shape_tuple or maker.params.get("axis_index_groups") is not None:
            return ""
        if maker.op in _GATHERS:
            same = maker.params["axis_name"] == part.axes and maker.params["all_gather_dimension"] == part.dim
            return "gather" if same else ""
        if maker.op in _SUMS and alone and set(maker.params["axes"]) == set(part.axes):
            return "sum" if self.pays(maker, part) else ""
        return ""

    def pays(self, maker: Eqn, part: Part) -> bool:
        """Whether fewer bytes are worth what scattering takes beside them: a message of its own, where sums of one kind would
        otherwise travel in one (`combine`), and a packed copy, where parts do not lie in one piece."""
        aval, constants = maker.outvars[0].aval, machine()
        alone, in_one_piece = self.sums[_kind(maker)] == 1, math.prod(aval.shape[: part.dim]) == 1
        if alone and in_one_piece:
            return True
        whole, scattered = step_cost(maker), step_cost(self.scattered(maker, part))
        saved = (whole.communication_bytes - scattered.communication_bytes) / constants.bandwidth
        message = 0.0 if alone else scattered.communication_messages * constants.latency
        return saved > message + (0.0 if in_one_piece else 2 * nbytes(aval) / constants.memory)

    def scattered(self, maker: Eqn, part: Part) -> Eqn:
        (old,) = maker.outvars
        params = {
            "scatter_dimension": part.dim, "axis_name": part.axes, "axis_size": part.parts, "axis_index_groups": None, "tiled": True,
        }  # fmt: skip
        invars = (self.read(maker.invars[0]),)
        return maker.replace(op=reduce_scatter, invars=invars, outvars=(Var(part.of(old.aval)),), params=params)

    def leaf(self, v: Var, kind: str, part: Part) -> Atom:
        """This rank's part of a value, made with what communication it takes."""
        if kind == "gather":
            return self.own_block(self.jaxpr.eqns[self.place[v]], part)
        if kind == "sum":
            eqn = self.scattered(self.jaxpr.eqns[self.place[v]], part)
        else:
            params = {"axes": part.axes, "axes_size": part.parts, "dim": part.dim}
            eqn = Eqn(shard_slice, (self.read(v),), (Var(part.of(v.aval)),), params, part.mesh)
        self.out.append(eqn)
        return eqn.outvars[0]

    def own_block(self, gather: Eqn, part: Part) -> Atom:
        """What this rank gave to a gather, with the dim that an untiled one adds."""
        block = self.read(gather.invars[0])
        if gather.params["tiled"]:
            return block
        v = Var(part.of(gather.outvars[0].aval))
        params = {"new_sizes": v.aval.shape, "dimensions": None, "sharding": None}
        self.out.append(gather.replace(op=reshape, invars=(block,), outvars=(v,), params=params))
        return v


class _Positions:
    """Integer scalars that follow from this rank's place on the mesh: their values at every place."""

    def __init__(self) -> None:
        self.found: dict[Var, tuple[AbstractMesh, np.ndarray]] = {}

    def enter(self, eqn: Eqn) -> None:
        """Note the result of an equation, if it is such a scalar."""
        if eqn.op is axis_index:
            self.found[eqn.outvars[0]] = eqn.mesh, _numbers(eqn.mesh, _axes(eqn)).astype(np.int32)
            return
        if not eqn.op.elementwise or eqn.op.impl is None or len(eqn.outvars) != 1:
            return
        (v,) = eqn.outvars
        known = [self.found.get(a) for a in eqn.invars if not isinstance(a, Literal)]
        mesh = known[0][0] if known and known[0] is not None else None
        if v.aval.ndim or v.aval.dtype.kind not in "iub" or mesh is None:
            return
        if any(k is None or k[0].shape_tuple != mesh.shape_tuple for k in known):
            return
        values = [np.asarray(a.val) if isinstance(a, Literal) else self.found[a][1] for a in eqn.invars]
        with np.errstate(all="ignore"):
            value = np.asarray(eqn.op.kernel(values[0].dtype)(*values, **eqn.params))
        if value.shape == (mesh.size,):
            self.found[v] = mesh, value

    def of(self, atom: Atom, mesh: AbstractMesh) -> np.ndarray | None:
        """The values of a scalar at every place of the mesh; None where they are not known."""
        if isinstance(atom, Literal):
            return np.full(mesh.size, atom.val)
        found = self.found.get(atom)
        return found[1] if found is not None and found[0].shape_tuple == mesh.shape_tuple else None


def _whole_again(jaxpr: Jaxpr) -> Jaxpr:
    """A sum that is scattered, and gathered by its only reader, is one message: a sum."""
    maker = {v: eqn for eqn in jaxpr.eqns for v in eqn.outvars}
    readers = readers_of(jaxpr)
    out = []
    for eqn in jaxpr.eqns:
        x = eqn.invars[0] if eqn.op in _GATHERS else None
        made = maker.get(x) if isinstance(x, Var) and len(readers[x]) == 1 else None
        if made is not None and made.op in _SCATTERS and _undoes(eqn, made):
            params = {"axes": eqn.params["axis_name"], "axis_index_groups": None}
            eqn = eqn.replace(op=psum, invars=made.invars, params=params)
        out.append(eqn)
    return jaxpr if all(a is b for a, b in zip(out, jaxpr.eqns)) else dead_code(jaxpr.replace(eqns=out))


def _undoes(gather: Eqn, scatter: Eqn) -> bool:
    a, b = gather.params, scatter.params
    alike = all(a[name] == b[name] for name in ("axis_name", "axis_size", "tiled"))
    whole = a["axis_index_groups"] is None and b["axis_index_groups"] is None
    same_dim = a["all_gather_dimension"] == b["scatter_dimension"]
    return alike and whole and same_dim and gather.mesh.shape_tuple == scatter.mesh.shape_tuple


def _is_elementwise(eqn: Eqn, part: Part, v: Var) -> bool:
    """Whether a part of the result follows from the same parts of the operands."""
    plain = eqn.op.elementwise and eqn.op.impl is not None and not eqn.op.effects and len(eqn.outvars) == 1
    return plain and v.aval.ndim > part.dim and all(a.aval.ndim in (0, v.aval.ndim) for a in eqn.invars)


def _axes(eqn: Eqn) -> tuple[str, ...]:
    found = eqn.params["axes" if "axes" in eqn.params else "axis_name"]
    return found if isinstance(found, tuple) else (found,)


def _kind(eqn: Eqn) -> Any:
    """What `combine` puts sums together by."""
    return eqn.mesh, eqn.params["axes"], eqn.outvars[0].aval.dtype


@lru_cache(maxsize=256)
def _numbers(mesh: AbstractMesh, axes: tuple[str, ...]) -> np.ndarray:
    """The number of each place of the mesh on the axes."""
    return np.array([mixed_radix(mesh, coordinates(mesh, k), axes) for k in range(mesh.size)])
