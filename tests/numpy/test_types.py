"""The result types of elementwise functions, weak types included, against a table recorded from JAX (record_types.py)."""

import importlib.util
import json
import warnings
from pathlib import Path

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp

HERE = Path(__file__)
spec = importlib.util.spec_from_file_location("record_types", HERE.with_name("record_types.py"))
record = importlib.util.module_from_spec(spec)
spec.loader.exec_module(record)
RECORDED = json.loads(HERE.with_name("recorded_types.json").read_text())

# JAX's own functions do not agree on the strength of such results; only the dtype is compared
WEAK_IS_OPEN = {
    "angle", "gcd", "heaviside", "hypot", "iscomplex", "isfinite", "isinf", "isnan", "isneginf", "isposinf", "isreal", "lcm", "logaddexp",
    "logaddexp2", "logical_and", "power", "signbit",
}  # fmt: skip

VALUES = {name: record.operand(jnp, np, name) for name in record.OPERANDS}


def agree(name, got, want):
    if name in WEAK_IS_OPEN:
        got, want = got.replace("~", ""), want.replace("~", "")
    return got == want


@pytest.mark.parametrize("name", record.UNARY)
def test_of_one_operand(name):
    wanted = dict(zip(record.OPERANDS, RECORDED[name].split(), strict=True))
    wrong = []
    for kind, want in wanted.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            got = record.result(getattr(jnp, name), VALUES[kind])
        if not agree(name, got, want):
            wrong.append(f"{name}({kind}) is {got} instead of {want}")
    assert not wrong


@pytest.mark.parametrize("name", record.BINARY)
def test_of_two_operands(name):
    wrong = []
    for first, row in zip(record.OPERANDS, RECORDED[name], strict=True):
        for second, want in zip(record.OPERANDS, row.split(), strict=True):
            got = record.result(getattr(jnp, name), VALUES[first], VALUES[second])
            if not agree(name, got, want):
                wrong.append(f"{name}({first}, {second}) is {got} instead of {want}")
    assert not wrong


@pytest.mark.parametrize("name", ["add", "divide", "equal", "power", "floor_divide", "logaddexp", "maximum"])
def test_types_are_the_same_when_staged(name):
    f = getattr(jnp, name)
    for first in record.OPERANDS:
        for second in record.OPERANDS:
            a, b = VALUES[first], VALUES[second]
            eager = record.result(f, a, b)
            if isinstance(a, jax.Array) and isinstance(b, jax.Array) and not eager.startswith("!"):
                staged = jax.make_jaxpr(f)(a, b).out_avals[0]
                assert record.code(staged) == eager, (name, first, second)
