"""Derivatives of numpy's functions, at ties and zeros too, against those recorded from JAX (record_gradients.py)."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp

HERE = Path(__file__)
spec = importlib.util.spec_from_file_location("record_gradients", HERE.with_name("record_gradients.py"))
record = importlib.util.module_from_spec(spec)
spec.loader.exec_module(record)
RECORDED = json.loads(HERE.with_name("recorded_gradients.json").read_text())
ARRAYS = record.of_arrays(jnp)


@pytest.mark.parametrize("name", record.ONE)
def test_of_one_number(name):
    got = [float(jax.grad(getattr(jnp, name))(jnp.float32(p))) for p in record.POINTS]
    np.testing.assert_allclose(got, RECORDED[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", record.TWO)
def test_of_two_numbers(name):
    slopes = jax.grad(getattr(jnp, name), argnums=(0, 1))
    got = [[float(v) for v in slopes(jnp.float32(a), jnp.float32(b))] for a, b in record.PAIRS]
    np.testing.assert_allclose(got, RECORDED[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ARRAYS)
def test_of_a_matrix(name):
    x = jnp.arange(6.0).reshape(2, 3) - 2.5
    for f in (ARRAYS[name], jax.jit(ARRAYS[name])):
        np.testing.assert_allclose(np.asarray(jax.grad(f)(x)).ravel(), RECORDED[f"array {name}"], rtol=1e-5, atol=1e-5)
