"""lax's convolutions and window reductions against values recorded from JAX (record_windows.py)."""

import json
from pathlib import Path

import numpy as np
import pytest

import mpiarray as jax
from mpiarray import lax
from mpiarray.lax import windows

ROWS = json.loads(Path(__file__).with_name("recorded_windows.json").read_text())


def array(shape, seed):
    return np.random.RandomState(seed).randint(-3, 4, shape).astype(np.float32)


@pytest.mark.parametrize("name, arrays, kwargs, want", ROWS, ids=[f"{k}-{r[0]}" for k, r in enumerate(ROWS)])
def test_recorded_values(name, arrays, kwargs, want):
    args = [array(*a) for a in arrays]
    if name.startswith("reduce_window"):
        init, function = (-np.inf, lax.max) if name.endswith("max") else (0.0, lax.add)
        got = windows.reduce_window(args[0], init, function, **kwargs)
    else:
        got = getattr(windows, name)(*args, **kwargs)
    np.testing.assert_array_equal(np.asarray(got), np.array(want, np.float32))


def test_reductions_start_from_the_initial_value():
    x = np.array([1.0, 5.0, 2.0], np.float32)
    got = windows.reduce_window(x, 3.0, lax.max, (2,), (1,), [(1, 0)])
    assert np.asarray(got).tolist() == [3.0, 5.0, 5.0]
    with pytest.raises(NotImplementedError, match="must start from 0"):
        windows.reduce_window(x, 3.0, lax.add, (2,), (1,), "VALID")
    with pytest.raises(NotImplementedError, match="computation must be"):
        windows.reduce_window(x, 0.0, lambda a, b: a, (2,), (1,), "VALID")


def test_a_transposed_convolution_is_the_derivative():
    x, w = array((2, 3, 9), 0), array((4, 3, 3), 1)
    ct = array((2, 4, 5), 2)
    numbers = ("NCH", "OIH", "NCH")
    back = windows.conv_transpose(ct, w, (2,), "SAME", dimension_numbers=numbers, transpose_kernel=True)
    forward = windows.conv_general_dilated(x, w, (2,), "SAME")
    if back.shape == x.shape:
        assert float((np.asarray(back) * x).sum()) == float((np.asarray(forward) * ct).sum())
    else:  # the other size that gives 5 windows
        assert back.shape == (2, 3, 10)


def test_conv_in_jit_and_errors():
    x, w = array((2, 3, 9), 0), array((4, 3, 3), 1)
    f = jax.jit(lambda x, w: windows.conv(x, w, (1,), "SAME"))
    np.testing.assert_array_equal(np.asarray(f(x, w)), np.asarray(windows.conv(x, w, (1,), "SAME")))
    with pytest.raises(ValueError, match="padding type"):
        windows.conv(x, w, (1,), "FULL")
    with pytest.raises(TypeError, match="ndim to be equal"):
        windows.conv(x, w[0], (1,), "SAME")
