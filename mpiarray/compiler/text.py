"""Compiled programs as text: one line per step of the local program, in the words that readers of HLO know.

    HloModule jit_f, num_partitions=8
    %a = f32[2,2] parameter(0)
    %b = f32[2] reduce(%a), axes=(0,)
    %c = f32[2] all-reduce(%b), axes=(x)
    ROOT (%c)

Collectives are spelled `all-reduce(`, `all-gather(`, `reduce-scatter(`, `all-to-all(`, `collective-permute(`, one line
for each that is executed; where small gathers, or scattered sums, travel in one message, each has its line, which says of
how many that is (`message=3 of 5`: the third of five arrays).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpiarray.compiler.program import Program
from mpiarray.core.jaxpr import Eqn, Jaxpr
from mpiarray.core.printer import literal_text, param_text
from mpiarray.core.printer import names as fresh_names
from mpiarray.core.value import Literal
from mpiarray.ops.together import gather_many, scatter_many

TOGETHER = {gather_many: "all_gather_dimension", scatter_many: "scatter_dimension"}
_SKIP = {"axis_size", "axes_size", "axis_index_groups", "tiled", "sharding", "out_sharding"}


def program_text(program: Program) -> str:
    """The text of a lowered program."""
    assert program.local is not None, "only partitioned programs have a text"
    lines = [f"HloModule jit_{program.name}, num_partitions={program.size}"]
    lines += _lines(program.local.jaxpr, fresh_names(), {}, "")
    return "\n".join(lines) + "\n"


def _lines(jaxpr: Jaxpr, fresh: Any, names: dict[Any, str], indent: str) -> list[str]:
    def name(v: Any) -> str:
        if isinstance(v, Literal):
            return f"{literal_text(v.val)}"
        if v not in names:
            names[v] = f"%{next(fresh)}"
        return names[v]

    out = [
        f"{indent}{name(v)} = {v.aval.short()} parameter({k})" for k, v in enumerate((*jaxpr.constvars, *jaxpr.invars))
    ]
    for eqn in jaxpr.eqns:
        if eqn.op in TOGETHER:
            out += [indent + line for line in _apart(eqn, name)]
            continue
        results = ", ".join(name(v) for v in eqn.outvars)
        types = ", ".join(v.aval.short() for v in eqn.outvars)
        types = types if len(eqn.outvars) == 1 else f"({types})"
        operands = ", ".join(name(v) for v in eqn.invars)
        out.append(f"{indent}{results} = {types} {eqn.op.hlo_name}({operands}){_attributes(eqn)}")
        for key, value in eqn.params.items():
            for number, inner in enumerate(_bodies(value)):
                out.append(f"{indent}  {key}{f'[{number}]' if isinstance(value, tuple) else ''}:")
                out += _lines(inner, fresh, names, indent + "    ")
    out.append(f"{indent}ROOT ({', '.join(name(v) for v in jaxpr.outvars)})")
    return out


def _apart(eqn: Eqn, name: Callable[[Any], str]) -> list[str]:
    """A line for each of several arrays that travel in one message."""
    single = eqn.op.hlo_name
    lines = []
    for k, (v, out, (dim, _)) in enumerate(zip(eqn.invars, eqn.outvars, eqn.params["ways"]), 1):
        rest = eqn.replace(params={k: p for k, p in eqn.params.items() if k != "ways"} | {TOGETHER[eqn.op]: dim})
        place = f"message={k} of {len(eqn.invars)}"
        lines.append(f"{name(out)} = {out.aval.short()} {single}({name(v)}){_attributes(rest)}, {place}")
    return lines


def _bodies(value: Any) -> list[Jaxpr]:
    """The jaxprs that a parameter holds: of a loop's body, of a conditional's branches."""
    items = value if isinstance(value, tuple) else (value,)
    found = [getattr(v, "jaxpr", v) for v in items]
    return [v for v in found if isinstance(v, Jaxpr)]


def _attributes(eqn: Eqn) -> str:
    shown = [
        f"{k}={param_text(v)}"
        for k, v in sorted(eqn.params.items())
        if k not in _SKIP and v is not None and not _bodies(v)
    ]
    return "".join(f", {s}" for s in shown)
