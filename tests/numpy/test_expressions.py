"""Reductions, order, statistics and indexing against recorded results of the same expressions (record_expressions.py),
at once and under jit."""

from __future__ import annotations

import base64
import builtins
import gzip
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray import errors

sys.path.insert(0, str(Path(__file__).parent))
from expressions import operands

TABLE = json.loads(gzip.decompress(Path(__file__).with_name("recorded_expressions.json.gz").read_bytes()))
ARRAYS = {k: jnp.asarray(v) for k, v in operands().items()}

# prefixes of what is meant to be otherwise than in JAX
OTHERWISE = (
    "jnp.all(c",  # JAX asks for the real part only
    "jnp.median(e)",  # another class of error
    *(f"jnp.{name}({x}, 30" for name in ("quantile", "nanquantile") for x in ("f", "n", "i8")),  # it refuses integers
    "jnp.compress(m, f, axis=2, size=4",  # it refuses more rows than the condition has elements
)


def evaluate(text: str, arrays: dict[str, Any]) -> list[Any]:
    out = eval(text, {"jnp": jnp, "jax": jax, **arrays})
    return [jnp.asarray(v) for v in (out if isinstance(out, (list, tuple)) else (out,))]


def error_class(name: str) -> type[BaseException]:
    known = {"AssertionError": Exception, "TracerBoolConversionError": errors.ConcretizationTypeError}
    return known.get(name) or getattr(errors, name, None) or getattr(builtins, name)


def differs(got: Any, want: Any) -> str | None:
    shape, dtype, weak, data = want
    expected = np.frombuffer(base64.b64decode(data), jnp.dtype(dtype)).reshape(shape)
    if (list(got.shape), str(got.dtype), got.weak_type) != (shape, dtype, weak):
        return f"{jax.typeof(got)} weak={got.weak_type}, recorded {dtype}{shape} weak={weak}"
    value = np.asarray(got)
    if value.dtype.kind in "iub":
        bad = value != expected
    else:
        wide = np.complex128 if value.dtype.kind == "c" else np.float64
        a, b = value.astype(wide), expected.astype(wide)
        finite = np.abs(b[np.isfinite(b)])
        scale = finite.max() if finite.size else 1.0
        tolerance = 2 * float(jnp.finfo(value.dtype).eps) * 8
        bad = ~np.isclose(a, b, rtol=tolerance, atol=tolerance * scale / 8, equal_nan=True)
    return f"{value[bad][:4]} instead of {expected[bad][:4]}" if np.any(bad) else None


def check(run: Any, want: Any) -> str | None:
    try:
        got = run()
    except Exception as e:
        if isinstance(want, str):
            return None if isinstance(e, error_class(want)) else f"{type(e).__name__}: {e}, recorded {want}"
        return f"{type(e).__name__}: {e}"
    if isinstance(want, str):
        return f"no error, recorded {want}: {[str(jax.typeof(v)) for v in got]}"
    if len(got) != len(want):
        return f"{len(got)} results, recorded {len(want)}"
    return next((d for d in map(differs, got, want) if d), None)


def rows(group: str, part: int) -> list[Any]:
    return list(TABLE[group].items())[part::4]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("group", TABLE)
def test_at_once(group, part):
    bad = [
        f"{t}: {d}"
        for t, (want, _) in rows(group, part)
        if not t.startswith(OTHERWISE) and (d := check(partial(evaluate, t, ARRAYS), want))
    ]
    assert not bad, f"{len(bad)} differ:\n" + "\n".join(bad)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("group", TABLE)
def test_under_jit(group, part):
    bad = []
    for text, (eager, traced) in rows(group, part):
        run = partial(jax.jit(partial(evaluate, text)), ARRAYS)
        if not text.startswith(OTHERWISE) and (d := check(run, eager if traced is None else traced)):
            bad.append(f"{text}: {d}")
    assert not bad, f"{len(bad)} differ:\n" + "\n".join(bad)
