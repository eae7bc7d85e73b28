"""What `print_saved_residuals` says, against what JAX says for the same functions (its line, without column and function)."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray.ad_checkpoint import checkpoint_name, print_saved_residuals, saved_residuals

W, X, C = np.ones((3, 4), np.float32), np.ones(4, np.float32), np.arange(3, dtype=np.float32)


def layer(w, x):
    return jnp.sin(jnp.dot(w, x)) * 2.0


def named(d, x):
    return jnp.cos(checkpoint_name(jnp.sin(d["w"] @ x), "act")).sum() * 3


policies = jax.checkpoint_policies
INPUTS = ["f32[3,4] from the argument w", "f32[4] from the argument x"]
CASES: list[tuple[Any, tuple[Any, ...], list[str]]] = [
    (layer, (W, X), [*INPUTS, "f32[3] output of cos from {here}"]),
    (jax.checkpoint(layer), (W, X), INPUTS),
    (
        jax.checkpoint(layer, policy=policies.dots_saveable),
        (W, X),
        [*INPUTS, "f32[3] output of dot_general from {here}"],
    ),
    (
        named,
        ({"w": W}, X),
        ["f32[3,4] from the argument d['w']", INPUTS[1], "f32[3] output of cos from {here}", "f32[3] output of sin from {here}"],
    ),
    (
        jax.checkpoint(named, policy=policies.save_only_these_names("act")),
        ({"w": W}, X),
        ["f32[3,4] from the argument d['w']", INPUTS[1], "f32[3] named 'act' from {here}"],
    ),
    (jax.jit(layer), (W, X), [*INPUTS, "f32[3] output of jitted function 'layer' from {here}"]),
    (lambda x: x * jnp.asarray(C), (C,), ["f32[3] from a constant"]),
    (lambda *xs: xs[0] * xs[1], (C, C), ["f32[3] from the argument xs[0]", "f32[3] from the argument xs[1]"]),
    (
        lambda x: jax.lax.scan(lambda c, _: (jnp.sin(c), None), x, None, length=4)[0],
        (C,),
        ["f32[4,3] output of scan from {here}"],
    ),
    (lambda x: 2 * x, (C,), []),
]  # fmt: skip


@pytest.mark.parametrize(("f", "args", "want"), CASES, ids=range(len(CASES)))
def test_what_is_printed(f, args, want, capsys):
    print_saved_residuals(f, *args)
    printed = capsys.readouterr().out.splitlines()
    assert [re.sub(r"from \S*test_residuals\.py:\d+$", "from {here}", line) for line in printed] == want


def test_keywords_and_types():
    found = saved_residuals(lambda x, *, scale: x * scale["by"], C, scale={"by": np.float32(2) * C})
    assert [(a.short(), where) for a, where in found] == [
        ("f32[3]", "from the argument x"),
        ("f32[3]", "from the argument scale['by']"),
    ]


def test_nothing_runs():
    """The function is staged only: a value that is read raises."""
    with pytest.raises(jax.errors.TracerBoolConversionError):
        saved_residuals(lambda x: x if x.sum() > 0 else -x, C)
