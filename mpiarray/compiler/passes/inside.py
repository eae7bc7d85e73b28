"""What is computed from slices of an array and written into its inside lies like the array.

`u.at[1:-1].set(f(u[:-2], u[2:]))`, and all that is written like it in numpy's way, works on arrays that are a little smaller
than `u`.  On Auto axes a smaller array seldom divides among the devices; then each of them would compute all of it.  So that
is computed for whole arrays: slices become shifts (`pad` by as much on one side as is cut on the other), equations
between them work on whole arrays, and `update_inside` takes the values where the box is.  A reduction of such values over
all dims counts what is outside of the box as nothing.  What is computed outside is never seen, and mostly not computed:
groups are cut to the box (`passes.write`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mpiarray.compiler.program import Program
from mpiarray.core.infer import infer
from mpiarray.core.jaxpr import Atom, Eqn, Jaxpr, Var, readers_of
from mpiarray.core.op import Op
from mpiarray.core.trace import abstract_mesh
from mpiarray.core.value import Literal, literal
from mpiarray.ops.inside import update_inside
from mpiarray.ops.linear import broadcast_in_dim
from mpiarray.ops.slicing import dynamic_update_slice, pad, slice_
from mpiarray.ops.tiles import CACHE_BYTES
from mpiarray.transforms.evaluate import dead_code
from mpiarray.types import dtypes

Shape = tuple[int, ...]

_LARGE = CACHE_BYTES // 4  # bytes of a block from which it is worth it wherever its inside divides too
_MOST_EQUATIONS = 256  # between slices and an update


def inside(program: Program) -> Program:
    """The program with such updates on whole arrays."""
    program = _shifted(program)
    rewriter = _Rewriter(program)
    if not any(map(rewriter.box_of, program.jaxpr.eqns)):
        return program
    return program.update(jaxpr=rewriter.run())


def _shifted(program: Program) -> Program:
    """The program with slices of padded arrays that are as large as these were before as shifts."""
    finder = _Rewriter(program)
    found: list[Eqn] = []
    for eqn in program.jaxpr.eqns:
        maker = finder.makers.get(eqn.invars[0]) if _is_plain_slice(eqn) else None
        if maker is not None and maker.op is pad and finder.devices(eqn) > 1:
            x, value = maker.invars
            sides = zip(maker.params["padding_config"], eqn.params["start_indices"], eqn.params["limit_indices"])
            config = tuple(
                (low - a, high - (n - b), inner)
                for ((low, high, inner), a, b), n in zip(sides, maker.outvars[0].aval.shape)
            )
            if eqn.outvars[0].aval.shape == x.aval.shape and not any(inner for _, _, inner in config):
                eqn = eqn.replace(op=pad, invars=(x, value), params={"padding_config": config})
        found.append(eqn)
    if all(a is b for a, b in zip(found, program.jaxpr.eqns)):
        return program
    return program.update(jaxpr=dead_code(program.jaxpr.replace(eqns=found)))


class _Box:
    """Where an update writes: indices from `start` to `limit` of an array of shape `full`."""

    def __init__(self, start: Shape, sizes: Shape, full: Shape):
        self.start, self.sizes, self.full = start, sizes, full
        self.limit = tuple(s + n for s, n in zip(start, sizes))
        self.key = (start, sizes, full)

    @property
    def cut(self) -> list[int]:
        return [d for d, (n, m) in enumerate(zip(self.full, self.sizes)) if n != m]


class _Rewriter:
    def __init__(self, program: Program):
        self.program = program
        jaxpr = program.jaxpr
        self.makers: dict[Atom, Eqn] = {v: e for e in jaxpr.eqns for v in e.outvars}
        self.order = {e: k for k, e in enumerate(jaxpr.eqns)}
        self.readers = readers_of(jaxpr)
        self.whole: dict[Any, Atom] = {}  # (variable, box) -> the same on whole arrays
        self.out: list[Eqn] = []

    def run(self) -> Jaxpr:
        for eqn in self.program.jaxpr.eqns:
            box = self.box_of(eqn)
            if box is None or not self._update(eqn, box):
                self.out.append(eqn)
        return dead_code(self.program.jaxpr.replace(eqns=self.out))

    def box_of(self, eqn: Eqn) -> _Box | None:
        """The box that an equation writes, if its place is known and not all of the array, and the array may lie on Auto axes."""
        if eqn.op is dynamic_update_slice:
            array, update, *starts = eqn.invars
            if not all(isinstance(s, Literal) for s in starts):
                return None
            at = tuple(max(0, min(int(s.val), n - m)) for s, n, m in zip(starts, array.aval.shape, update.aval.shape))  # type: ignore[union-attr]
            box = _Box(at, update.aval.shape, array.aval.shape)
        elif eqn.op is pad and all(
            low >= 0 and high >= 0 and not inner for low, high, inner in eqn.params["padding_config"]
        ):
            at = tuple(low for low, _, _ in eqn.params["padding_config"])
            box = _Box(at, eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape)
        else:
            return None
        devices = self.devices(eqn)
        if devices == 1 or not box.cut or 0 in box.sizes or dtypes.is_key(eqn.outvars[0].aval.dtype):
            return None
        divides = all(box.sizes[d] % devices == 0 for d in box.cut)
        size = math.prod(box.full) * dtypes.storage(eqn.outvars[0].aval.dtype).itemsize
        return None if divides and size < devices * _LARGE else box

    def devices(self, eqn: Eqn) -> int:
        """Over how many devices the compiler may spread an equation's values; 1 where their types say anything about it."""
        for v in (*eqn.invars, *eqn.outvars):
            if v.aval.manual or any(v.aval.dims) or v.aval.unreduced or v.aval.reduced:
                return 1
        mesh = eqn.outvars[0].aval.mesh
        mesh = self.program.mesh if mesh.empty else mesh
        return math.prod(mesh.shape[a] for a in mesh.auto_axes)

    # -- rewriting ---------------------------------------------------------------------------------

    def _update(self, eqn: Eqn, box: _Box) -> bool:
        """Write an update on whole arrays; False where what is written is not computed from slices."""
        value = eqn.invars[0] if eqn.op is pad else eqn.invars[1]
        chain = self._chain(value, box)
        if chain is None or not self._pays(chain, value, box, eqn):
            return False
        for e in chain:
            self.whole[e.outvars[0], box.key] = self._widened(e, box)
        if eqn.op is pad:
            params = {"shape": box.full, "broadcast_dimensions": (), "sharding": None}
            base: Atom = self._emit(broadcast_in_dim, (eqn.invars[1],), params, eqn)
        else:
            base = eqn.invars[0]
        params = {"start": box.start, "limit": box.limit, "blocks": None}
        self.out.append(eqn.replace(op=update_inside, invars=(base, self.whole[value, box.key]), params=params))
        return True

    def _chain(self, value: Atom, box: _Box) -> list[Eqn] | None:
        """The equations from slices (and what is broadcast) to a value, which are not yet written on whole arrays, in order."""
        found: set[Eqn] = set()
        todo = [value]
        while todo:
            v = todo.pop()
            if isinstance(v, Literal) or not v.aval.ndim or (v, box.key) in self.whole:
                continue
            eqn = self.makers.get(v)
            if eqn is None or self.devices(eqn) == 1 or len(found) > _MOST_EQUATIONS:
                return None
            if eqn not in found:
                found.add(eqn)
                if eqn.op.elementwise and len(eqn.outvars) == 1:
                    todo += eqn.invars
                elif not (_is_plain_slice(eqn) or (eqn.op is broadcast_in_dim and eqn.params["sharding"] is None)):
                    return None
        return sorted(found, key=self.order.__getitem__)

    def _pays(self, chain: Sequence[Eqn], value: Atom, box: _Box, update: Eqn) -> bool:
        """Not where little of the whole is written, or what is computed is needed as it was as well and divides."""
        work = [e for e in chain if e.op.elementwise]
        if not work:
            return True
        members = {*chain, update}
        shared = any(r not in members for e in work for r in self.readers.get(e.outvars[0], ()))
        divides = all(box.sizes[d] % self.devices(update) == 0 for d in box.cut)
        return 2 * math.prod(box.sizes) >= math.prod(box.full) and not (shared and divides)

    def _widened(self, eqn: Eqn, box: _Box) -> Atom:
        """An equation of a chain on whole arrays."""
        x = eqn.invars[0]
        if eqn.op is slice_:
            lows = [s - first for s, first in zip(box.start, eqn.params["start_indices"])]
            return self._padded(x, lows, box.full, eqn)
        if eqn.op is broadcast_in_dim:
            scalar = self._scalar(x)
            if scalar is not None:
                x, eqn = scalar, eqn.replace(params=eqn.params | {"broadcast_dimensions": ()})
            dims = eqn.params["broadcast_dimensions"]
            grows = [
                x.aval.shape[d] == box.sizes[b] and b in box.cut and x.aval.shape[d] > 1 for d, b in enumerate(dims)
            ]
            sizes = tuple(box.full[b] if grow else n for n, b, grow in zip(x.aval.shape, dims, grows))
            x = self._padded(x, [box.start[b] if grow else 0 for b, grow in zip(dims, grows)], sizes, eqn)
            return self._emit(broadcast_in_dim, (x,), eqn.params | {"shape": box.full}, eqn)
        operands = [v if isinstance(v, Literal) or not v.aval.ndim else self.whole[v, box.key] for v in eqn.invars]
        return self._emit(eqn.op, operands, eqn.params, eqn)

    def _scalar(self, x: Atom) -> Atom | None:
        """The scalar that an array is a broadcast of."""
        while x.aval.ndim:
            eqn = self.makers.get(x)
            if eqn is None or eqn.op is not broadcast_in_dim:
                return None
            x = eqn.invars[0]
        return x

    def _padded(self, x: Atom, lows: Sequence[int], shape: Shape, eqn: Eqn) -> Atom:
        """An array moved by so many places along each dim, in an array of that shape."""
        config = tuple((low, m - low - n, 0) for low, n, m in zip(lows, x.aval.shape, shape))
        if not any(low or high for low, high, _ in config):
            return x
        return self._emit(pad, (x, literal(0, x.aval.dtype)), {"padding_config": config}, eqn)

    def _emit(self, op: Op, invars: Sequence[Atom], params: dict[str, Any], origin: Eqn) -> Var:
        with abstract_mesh(origin.mesh):
            (aval,) = infer(op, [v.aval for v in invars], params)
        out = Var(aval)
        self.out.append(Eqn(op, invars, (out,), params, origin.mesh, origin.source))
        return out


def _is_plain_slice(eqn: Eqn) -> bool:
    return eqn.op is slice_ and all(s == 1 for s in eqn.params["strides"] or ())
