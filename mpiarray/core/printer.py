"""The text of jaxprs, in JAX's grammar (spec transforms.md 2), so that readers and line-oriented checks
(`'psum' in line`) find what they expect: one equation a line, parameters sorted by name.
"""

from __future__ import annotations

import itertools
import string
from collections.abc import Iterator
from typing import Any

import numpy as np

from mpiarray.core.value import Literal
from mpiarray.types import dtypes

_WIDTH = 80

# parameters that say nothing new beside the types: hidden always, or when they have this value
_HIDDEN: dict[str, dict[str, Any]] = {
    "broadcast_in_dim": {"shape": ..., "sharding": ..., "broadcast_dimensions": ()},
    "dot_general": {"out_sharding": ..., "precision": None, "preferred_element_type": None},
    "reshard": {"dst_sharding": ...},
    "random_bits": {"sharding": ..., "block": None},
    "random_gamma": {"block": None},
    "random_trips": {"block": None},
    "random_sample": {"block": None},
}


def names() -> Iterator[str]:
    for length in itertools.count(1):
        for letters in itertools.product(string.ascii_lowercase, repeat=length):
            yield "".join(letters)


class _Context:
    """Names of variables, given in the order of binding."""

    def __init__(self) -> None:
        self.fresh = names()
        self.names: dict[Any, str] = {}

    def bind(self, var: Any) -> str:
        name = self.names[var] = next(self.fresh)
        return f"{name}:{var.aval.short()}"

    def atom(self, atom: Any) -> str:
        if isinstance(atom, Literal):
            return f"{literal_text(atom.val)}:{atom.aval.short()}"
        return self.names.get(atom, "?")


def literal_text(val: Any) -> str:
    """A scalar as Python prints it; 16- and 32-bit floats as the double they are."""
    if hasattr(val, "item") and np.ndim(val) == 0:
        kind = np.asarray(val).dtype
        return str(complex(val) if kind.kind == "c" else float(val) if dtypes.is_float(kind) else val.item())
    return str(val)


def jaxpr_text(jaxpr: Any) -> str:
    """The text of a jaxpr or a closed jaxpr."""
    return "\n".join(_jaxpr_lines(getattr(jaxpr, "jaxpr", jaxpr), _Context()))


def eqn_text(eqn: Any) -> str:
    ctx = _Context()
    for v in eqn.invars:
        if not isinstance(v, Literal) and v not in ctx.names:
            ctx.bind(v)
    return "\n".join(_eqn_lines(eqn, ctx, frozenset(eqn.outvars)))


def _jaxpr_lines(jaxpr: Any, ctx: _Context, indent: int = 0, prefix: str = "") -> list[str]:
    """The lines of `prefix` and a jaxpr, which will be indented by `indent`: a single one where it fits."""
    used = {v for e in jaxpr.eqns for v in e.invars if not isinstance(v, Literal)}
    used |= {v for v in jaxpr.outvars if not isinstance(v, Literal)}
    consts = [ctx.bind(v) for v in jaxpr.constvars]
    ins = [ctx.bind(v) for v in jaxpr.invars]
    head = f"{prefix}{{ lambda {' '.join(consts)}; {' '.join(ins)}{'. let' if ins else ' . let'}".replace(";  .", "; .")
    body = [_eqn_lines(e, ctx, used, indent + 4) for e in jaxpr.eqns]
    outs = [ctx.atom(v) for v in jaxpr.outvars]
    tail = f"in ({', '.join(outs)}{',' if len(outs) == 1 else ''}) }}"
    one_line = f"{head} {'; '.join(lines[0] for lines in body)} {tail}"
    if len(one_line) + indent <= _WIDTH and all(len(lines) == 1 for lines in body):
        return [one_line]
    return [head, *(f"    {line}" for lines in body for line in lines), f"  {tail}"]


def _eqn_lines(eqn: Any, ctx: _Context, used: Any, indent: int = 0) -> list[str]:
    operands = " ".join(ctx.atom(v) for v in eqn.invars)
    shown = [k for k in sorted(eqn.params, key=_place) if not _hidden(eqn.op.name, k, eqn.params[k])]
    params = [_param_lines(k, eqn.params[k], ctx, indent + 2) for k in shown]
    outs = " ".join(ctx.bind(v) if v in used else f"_:{v.aval.short()}" for v in eqn.outvars)
    head = f"{outs} = {eqn.op.name}" if outs else eqn.op.name
    if not params:
        return [f"{head} {operands}"]
    flat = f"{head}[{' '.join(p[0] for p in params)}] {operands}"
    if all(len(p) == 1 for p in params) and len(flat) + indent <= _WIDTH:
        return [flat]
    return [f"{head}[", *(f"  {line}" for p in params for line in p), f"] {operands}"]


def _place(key: str) -> tuple[bool, str]:
    """Parameters in alphabetical order, but names first: `jit[name=f jaxpr=...]`."""
    return key != "name", key


def _hidden(op: str, key: str, value: Any) -> bool:
    rules = _HIDDEN.get(op, {})
    return key in rules and (rules[key] is ... or rules[key] == value)


def _param_lines(key: str, value: Any, ctx: _Context, indent: int) -> list[str]:
    if hasattr(value, "eqns"):
        return _jaxpr_lines(getattr(value, "jaxpr", value), ctx, indent, f"{key}=")
    if isinstance(value, tuple) and value and all(hasattr(v, "eqns") for v in value):
        lines = [line for v in value for line in _jaxpr_lines(getattr(v, "jaxpr", v), ctx, indent + 2)]
        return [f"{key}=(", *(f"  {line}" for line in lines), ")"]
    return [f"{key}={param_text(value)}"]


def param_text(value: Any) -> str:
    """A parameter's value: dtypes by name, functions by name, sets sorted, dimension numbers as lists."""
    if isinstance(value, frozenset):
        return f"frozenset({{{', '.join(repr(v) for v in sorted(value))}}})"
    if isinstance(value, (np.dtype, dtypes.KeyDtype)):
        return dtypes.canonical_name(value) if hasattr(dtypes, "canonical_name") else str(value)
    if callable(value) and hasattr(value, "__name__"):
        return value.__name__
    if isinstance(value, tuple) and len(value) == 2 and all(_is_pair_of_tuples(v) for v in value):
        return "(" + ", ".join("(" + ", ".join(str(list(d)) for d in pair) + ")" for pair in value) + ")"
    return str(value)


def _is_pair_of_tuples(v: Any) -> bool:
    return isinstance(v, tuple) and len(v) == 2 and all(isinstance(d, tuple) for d in v)
