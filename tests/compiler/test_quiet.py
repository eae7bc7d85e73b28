"""numpy's settings while programs run."""

from __future__ import annotations

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray.compiler import quiet


@pytest.mark.skipif(quiet.STATE is None, reason="this numpy does not let us have its state")
def test_settings_are_numpys_own_again():
    seen = []

    def f(x):
        seen.append((np.getbufsize(), np.geterr()["divide"]))
        return x

    before = np.getbufsize(), np.geterr()
    quiet.quietly(f)(1)
    assert seen == [(quiet._BUFFER, "ignore")]
    assert (np.getbufsize(), np.geterr()) == before
    with pytest.raises(ZeroDivisionError):
        quiet.quietly(lambda: 1 / 0)()
    assert (np.getbufsize(), np.geterr()) == before
    x = jnp.zeros(3)
    assert np.isnan(np.asarray(jax.jit(lambda x: x / x)(x))).all(), "without a warning, which would be an error here"
    assert (np.getbufsize(), np.geterr()) == before
