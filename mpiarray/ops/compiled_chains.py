"""`chain`: elementwise equations of a group that become one function of elements, compiled (`ops.machine_code`).

Where numpy runs seven cheap operations on a tile, seven loops read and write the cache.  A chain is some equations with one
result, whose other values nobody else reads; its loop keeps them in registers.  Which equations may be in one the
ops say themselves (`Op.code`): those whose results are the same to the last bit.  Functions such as exp, which numpy has
written for vectors, are not among them.

Apart from `ops.tiles`, which runs a chain as any other ufunc.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from mpiarray.config import config
from mpiarray.core.jaxpr import Eqn, Var
from mpiarray.core.op import Op
from mpiarray.core.value import Literal, literal
from mpiarray.ops import machine_code
from mpiarray.ops.linear import convert_element_type
from mpiarray.ops.machine_code import Code, Declined, Text, Value
from mpiarray.ops.names import name
from mpiarray.ops.select import stop_gradient_op
from mpiarray.ops.tile_steps import kernel_of, ufunc_of
from mpiarray.types import dtypes
from mpiarray.types.aval import ShapedArray

_LEAST_ELEMENTS = 1 << 16  # of a block, for which 10 ms of compiling are soon regained
# bytes of a result that nobody will find in a core's caches anyway: measured, writing past them takes a third less, and a sum of
# it at once takes as long as before
_STREAMED_FROM = 30_000_000
_MOST_EQUATIONS = 64
_MOST_OPERANDS = 20  # numpy 1 takes 32 with the result


def _function_of(*, function: np.ufunc) -> np.ufunc:
    return function


def _apply(*blocks: Any, function: np.ufunc) -> Any:
    return function(*blocks)


_apply.for_params = _function_of  # type: ignore[attr-defined]

# not one of core.op.OPS: programs never contain it, only steps on tiles do
chain = Op(name="chain", impl=_apply, elementwise=True, multiple_results=False, code=None)


def are_on() -> bool:
    """Whether groups have chains, large ones at least."""
    return bool(config.llvm) and not machine_code.available()


def wanted(shape: Sequence[int]) -> bool:
    """Whether groups on blocks of that shape are to have chains.

    Raises ImportError where the user asks for them and they cannot be compiled.
    """
    if config.llvm == "auto":
        return math.prod(shape) >= _LEAST_ELEMENTS and not machine_code.available()
    if config.llvm and (missing := machine_code.available()):
        raise ImportError(f"config.llvm (MPIARRAY_LLVM) is on, but {missing}")
    return bool(config.llvm)


def with_chains(steps: Sequence[Eqn], able: Callable[[Eqn], bool], kept: Collection[Any]) -> list[Eqn]:
    """The steps with chains of equations in place of those that they are made of.

    able  whether an equation may be part of one, as far as the caller knows
    kept  values that others than the steps read
    """
    steps = [e for eqn in steps for e in (_with_casts(eqn) if able(eqn) else [eqn])]
    found = _cones(steps, able, kept)
    made = {cone[-1].outvars[0]: cone for cone in found if len(cone) > 1 or _is_better_alone(cone[0])}
    inner = {e.outvars[0] for cone in made.values() for e in cone[:-1]}
    steps = [e for e in steps if e.outvars[0] not in inner]
    return [compiled(made[e.outvars[0]]) if e.outvars[0] in made else e for e in steps]


def _with_casts(eqn: Eqn) -> list[Eqn]:
    """An equation whose function computes floats of 16 bits as float32, as one of float32 and casts, which may be in chains."""
    (out,) = eqn.outvars
    operands, dtype = _variables(eqn), dtypes.storage(out.aval.dtype)
    if dtype not in machine_code.NARROW or not getattr(kernel_of(eqn), "widens", False):
        return [eqn]
    if eqn.op.code is not None or any(v.aval.shape != out.aval.shape for v in operands):
        return [eqn]
    wide, before = np.dtype(np.float32), []
    new: dict[Any, Any] = {}
    for v in operands:
        if dtypes.storage(v.aval.dtype) == dtype:
            new[v] = Var(ShapedArray(out.aval.shape, wide))
            before.append(_cast(v, new[v], eqn))
    result = Var(ShapedArray(out.aval.shape, wide))
    same = lambda v: dtypes.storage(v.aval.dtype) == dtype
    invars = [
        new.get(v, v) if not isinstance(v, Literal) else literal(v.val, wide) if same(v) else v for v in eqn.invars
    ]
    return [*before, eqn.replace(invars=invars, outvars=(result,)), _cast(result, out, eqn)]


def _cast(source: Any, target: Any, eqn: Eqn) -> Eqn:
    params = {"new_dtype": target.aval.dtype, "weak_type": False}
    return Eqn(convert_element_type, (source,), (target,), params, eqn.mesh, eqn.source)


def _cones(steps: Sequence[Eqn], able: Callable[[Eqn], bool], kept: Collection[Any]) -> list[list[Eqn]]:
    """Equations in sets with one result each, in their order: an equation is with its readers if they all are in one set."""
    readers: dict[Any, list[Eqn]] = {}
    for eqn in steps:
        for v in _variables(eqn):
            readers.setdefault(v, []).append(eqn)
    of: dict[Any, list[Eqn]] = {}  # by result
    operands: dict[int, set[Any]] = {}
    cones: list[list[Eqn]] = []
    for eqn in reversed(steps):
        if not able(eqn) or not has_code(eqn):
            continue
        (out,) = eqn.outvars
        theirs = [of.get(e.outvars[0]) for e in readers.get(out, ())]
        cone = theirs[0] if theirs and out not in kept and all(c is theirs[0] for c in theirs) else None
        if cone is not None:
            reads = (operands[id(cone)] - {out}) | set(_variables(eqn))
            if len(cone) >= _MOST_EQUATIONS or len(reads) > _MOST_OPERANDS:
                cone = None
        if cone is None:
            cone, reads = [], set(_variables(eqn))
            cones.append(cone)
        cone.insert(0, eqn)
        of[out] = cone
        operands[id(cone)] = reads
    return cones


def _is_better_alone(eqn: Eqn) -> bool:
    """Whether one equation is faster compiled: where numpy has no loop, or none for vectors; values that pass unchanged are not."""
    if eqn.op in (name, stop_gradient_op):
        return False
    return ufunc_of(eqn) is None or any(
        dtypes.storage(v.aval.dtype) in machine_code.NARROW for v in (*eqn.invars, *eqn.outvars)
    )


def _variables(eqn: Eqn) -> list[Any]:
    return [v for v in dict.fromkeys(eqn.invars) if not isinstance(v, Literal)]


def has_code(eqn: Eqn) -> bool:
    """Whether an equation's op has code for these dtypes."""
    if eqn.op.code is None or not _variables(eqn):
        return False
    if not all(machine_code.has_code(dtypes.storage(v.aval.dtype)) for v in (*eqn.invars, *eqn.outvars)):
        return False
    code = Code(1, Text())
    try:
        out = _written(code, eqn, {v: Value("%x", dtypes.storage(v.aval.dtype)) for v in _variables(eqn)})
    except Declined:
        return False
    return out.dtype == dtypes.storage(eqn.outvars[0].aval.dtype)


def _written(code: Code, eqn: Eqn, values: dict[Any, Value]) -> Value:
    """What an equation makes of values, added to the text."""
    operands = [
        code.constant(v.val, dtypes.storage(v.aval.dtype)) if isinstance(v, Literal) else values[v] for v in eqn.invars
    ]
    assert eqn.op.code is not None, "asked before"
    return eqn.op.code(code, *operands, **eqn.params)


def compiled(cone: Sequence[Eqn]) -> Eqn:
    """The equation that a set is."""
    made = {e.outvars[0] for e in cone}
    operands = [v for v in dict.fromkeys(v for e in cone for v in _variables(e)) if v not in made]
    result = cone[-1].outvars[0]

    def body(code: Code, inputs: Sequence[Value]) -> Value:
        values = dict(zip(operands, inputs))
        for eqn in cone:
            values[eqn.outvars[0]] = _written(code, eqn, values)
        return values[result]

    kinds = tuple(dtypes.storage(v.aval.dtype) for v in operands)
    kind = dtypes.storage(result.aval.dtype)
    streamed = _STREAMED_FROM if result.aval.size * kind.itemsize >= _STREAMED_FROM else 0
    function = machine_code.ufunc(machine_code.text_of(kinds, kind, body, streamed), kinds, kind)
    return Eqn(chain, operands, (result,), {"function": function}, cone[-1].mesh, cone[-1].source)
