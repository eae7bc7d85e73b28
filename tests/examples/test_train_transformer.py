"""The transformer of the examples: its loss against numpy, its slopes in all ways of training, its compile-only report.

CI trains it on 8 ranks; here a mesh of threads runs one step.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import mpiarray as jax
from tests.ops.pretended_mesh import mesh_of, run

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def example() -> ModuleType:
    specification = importlib.util.spec_from_file_location("train_transformer", ROOT / "examples/train_transformer.py")
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules["train_transformer"] = module  # where dataclasses look for it
    specification.loader.exec_module(module)
    return module


def numpy_loss(parameters, text, following):
    """The loss with numpy alone, in double precision, from the definition of each part."""
    others = parameters["others"]

    def norm(x, scale):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * scale

    def softmax(x):
        x = np.exp(x - x.max(-1, keepdims=True))
        return x / x.sum(-1, keepdims=True)

    x = others["characters"][text] + others["positions"]
    for p in parameters["layers"]:
        y = norm(x, p["before"])
        query, key, value = (np.einsum("blw,whd->bhld", y, p[name]) for name in ("query", "key", "value"))
        scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
        scores[..., np.triu(np.ones(scores.shape[-2:], bool), 1)] = -np.inf
        x = x + np.einsum("bhld,hdw->blw", softmax(scores) @ value, p["out"])
        y = norm(x, p["between"]) @ p["up"]
        y = y / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)))
        x = x + y @ p["down"]
    found = softmax(norm(x, others["last"]) @ others["characters"].T)
    return -np.log(np.take_along_axis(found, following[..., None], -1)).mean()


@pytest.fixture(scope="module")
def problem(example: ModuleType):
    """A small model, its parameters, text, and what numpy says: the loss and its slope along one direction."""
    model = example.Model(layers=2, width=16, heads=4, length=6)
    parameters = jax.tree.map(lambda p: p.astype(np.float64), example.initial(model, 3))
    text, following = example.batch(example.corpus(), 4, model.length, np.random.default_rng(0))
    random = np.random.default_rng(1)
    direction = jax.tree.map(lambda p: random.normal(size=p.shape), parameters)
    ahead, behind = (
        numpy_loss(jax.tree.map(lambda p, d, s=s: p + s * d, parameters, direction), text, following)
        for s in (1e-5, -1e-5)
    )
    return (
        model,
        parameters,
        text,
        following,
        direction,
        numpy_loss(parameters, text, following),
        (ahead - behind) / 2e-5,
    )


@pytest.mark.parametrize("scan", [False, True], ids=["unrolled", "scan"])
@pytest.mark.parametrize("name", ["dp", "fsdp", "tp"])
def test_loss_and_slopes_are_numpys(example: ModuleType, problem, name: str, scan: bool):
    model, parameters, text, following, direction, expected, slope = problem
    way = example.WAYS[name]
    if scan:
        model = example.Model(model.layers, model.width, model.heads, model.length, scan=True)
        parameters, direction = (
            t | {"layers": jax.tree.map(lambda *p: np.stack(p), *t["layers"])} for t in (parameters, direction)
        )
    leaves, structure = jax.tree.flatten(parameters)
    specs = jax.tree.leaves(example.spread(model, way))

    def step(text, following, *leaves):
        tree = jax.tree.unflatten(structure, leaves)
        value, slopes = jax.value_and_grad(example.loss)(tree, text, following, model, way)
        return [value, *jax.tree.leaves(slopes)]

    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    try:
        mesh = mesh_of((example.AXIS, 4))
        (value, *slopes), _, out_specs, _ = run(step, [text, following, *leaves], [way.text, way.text, *specs], mesh)
    finally:
        jax.config.update("jax_enable_x64", before)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    along = sum((s * d).sum() for s, d in zip(slopes, jax.tree.leaves(direction)))
    np.testing.assert_allclose(along, slope, rtol=1e-4)
    assert list(out_specs[1:]) == [s.padded(p.ndim) for s, p in zip(specs, leaves)], "slopes lie as parameters do"


@pytest.mark.parametrize("name", ["dp", "fsdp", "tp", "auto"])
def test_it_says_what_a_step_costs_on_a_mesh_that_is_not_there(example, name, monkeypatch, capsys):
    monkeypatch.setattr(
        sys, "argv", ["x", "--compile-only", "16", "--heads", "16", "--parallel", name, "--layers", "1"]
    )
    example.main()
    out = capsys.readouterr().out
    assert "tracing" in out and "communication bytes" in out
    assert ("chosen for the whole program" in out) == (name == "auto")


def test_it_says_which_sizes_it_needs(example, monkeypatch, capsys):
    for arguments, words in (
        (["--compile-only", "3"], "3 ranks must divide --batch 16"),
        (["--compile-only", "3", "--parallel", "tp"], "3 ranks must divide --heads 8"),
        (["--compile-only", "64", "--parallel", "fsdp", "--batch", "64"], "64 ranks must divide --width"),
        (["--heads", "7"], "--heads 7 must divide --width 64"),
    ):
        monkeypatch.setattr(sys, "argv", ["x", *arguments])
        with pytest.raises(SystemExit):
            example.main()
        assert words in capsys.readouterr().err
