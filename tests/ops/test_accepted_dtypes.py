"""Which dtypes ops take, and the dtype of the result, against a recorded table (record_dtypes.py); bitcasts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpiarray.ops.cumulative
import mpiarray.ops.extremes
import mpiarray.ops.reductions
import mpiarray.ops.searching
import mpiarray.ops.special  # noqa: F401
from mpiarray.core.op import OPS
from mpiarray.ops.bits import bitcast_convert_type
from mpiarray.types.aval import ShapedArray
from mpiarray.types.dtypes import as_dtype

TABLE = json.loads(Path(__file__).with_name("recorded_dtypes.json").read_text())
PARAMS: dict[str, dict[str, Any]] = {
    "round": {"rounding_method": 0},
    "integer_pow": {"y": 3},
    "reduce_precision": {"exponent_bits": 3, "mantissa_bits": 2},
    **{n: {"axis": 0, "reverse": False} for n in ("cumsum", "cumprod", "cummax", "cumlogsumexp")},
    **{n: {"axes": (0,)} for n in ("reduce_max", "reduce_prod", "reduce_and")},
    "argmax": {"axes": (0,), "index_dtype": np.dtype(np.int32)},
    "sort": {"dimension": 0, "is_stable": True, "num_keys": 1},
    "top_k": {"axis": 0, "k": 1},
}
BINARY = set(TABLE) - set(list(TABLE)[: list(TABLE).index("atan2")])
# we take what JAX has no kernel for
MORE = {("abs", "int4"), ("reduce_and", "int4")}
# and refuse in types what it refuses when it compiles
LESS = {("cumlogsumexp", d) for d in ("int8", "int16", "int32", "int64", "uint8", "uint32", "int4")}


def attempt(name: str, dtype: str) -> tuple[str, Any]:
    op, params = OPS[name], PARAMS.get(name, {})
    aval = ShapedArray((2,), as_dtype(dtype))
    try:
        outs = op.type_rule(*[aval] * (2 if name in BINARY else 1), **params)
    except (TypeError, ValueError):
        return "", None
    out = outs[0] if op.multiple_results else outs
    return str(out.dtype), out.dtype


@pytest.mark.parametrize("name", TABLE)
def test_dtypes(name: str) -> None:
    compared = [d for d in TABLE[name] if (name, d) not in MORE | LESS]
    assert {d: attempt(name, d)[0] for d in compared} == {d: TABLE[name][d] for d in compared}


@pytest.mark.parametrize("name", TABLE)
def test_blocks_have_the_dtype_of_the_type(name: str) -> None:
    op = OPS[name]
    for dtype, wanted in TABLE[name].items():
        if not wanted or (name, dtype) in LESS:
            continue
        x = np.array([1, 1]).astype(as_dtype(dtype))
        for shape in ((2,),) if name in PARAMS and name not in ("round", "integer_pow") else ((2,), ()):
            block = x.reshape(shape) if shape else x[0]
            with np.errstate(all="ignore"):
                out = op.impl(*[block] * (2 if name in BINARY else 1), **PARAMS.get(name, {}))
            assert str((out[0] if op.multiple_results else out).dtype) == wanted, f"{name} of {dtype}{shape}"


def test_bitcasts() -> None:
    x = np.array([[1.5, -2.0, np.nan]], np.float32)
    cast = lambda v, d: bitcast_convert_type.impl(v, new_dtype=np.dtype(d))
    np.testing.assert_array_equal(cast(x, "int32"), x.view(np.int32))
    narrow = cast(x, "uint8")
    assert narrow.shape == (1, 3, 4) and narrow.tobytes() == x.tobytes()
    np.testing.assert_array_equal(cast(narrow, "float32"), x)
    assert cast(np.float32(1), "uint16").shape == (2,)
    strided = np.arange(12, dtype=np.int16).reshape(3, 4)[:, ::2]
    np.testing.assert_array_equal(cast(strided, "int32"), strided.copy().view(np.int32)[:, 0])


def test_bitcasts_that_are_refused() -> None:
    rule = bitcast_convert_type.type_rule
    for shape, old, new in (
        ((3,), "complex64", "float32"),
        ((3,), "bool", "int8"),
        ((3,), "int8", "int32"),
        ((), "int8", "int16"),
    ):
        with pytest.raises((TypeError, ValueError), match="bitcast_convert_type"):
            rule(ShapedArray(shape, np.dtype(old)), new_dtype=np.dtype(new))
