"""Reads and writes of sharded arrays at generated indices, laid out by generated `out_sharding`, against numpy."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mpiarray as jax
from mpiarray.errors import ShardingTypeError
from mpiarray.types.mesh import AxisType
from mpiarray.types.partition_spec import PartitionSpec as P

sys.path.insert(0, str(Path(__file__).parent))
from test_indexing_generated import numpy_read, parts, value

pytestmark = [pytest.mark.mpi(min_size=4), pytest.mark.limit(200)]
SIZES = {"x": 2, "y": 2}


def mesh_of(kind: AxisType) -> Any:
    return jax.make_mesh((2, 2), ("x", "y"), axis_types=(kind,) * 2, devices=jax.devices()[:4])


def specs(shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
    """Specs that divide a shape."""

    def build(where: list[int]) -> P:
        dims: list[tuple[str, ...]] = [()] * len(shape)
        left = list(shape)
        for axis, d in zip(SIZES, where):
            if d < len(shape) and left[d] % SIZES[axis] == 0:
                dims[d] += (axis,)
                left[d] //= SIZES[axis]
        return P.from_dims(tuple(dims))

    return st.lists(st.integers(0, max(len(shape), 1)), min_size=2, max_size=2).map(build)


@st.composite
def cases(draw: Any) -> tuple[tuple[int, ...], Any, P]:
    shape = tuple(draw(st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=3)))
    index = [draw(parts(n)) for n in shape[: draw(st.integers(1, len(shape)))]]
    if draw(st.booleans()):
        index.insert(draw(st.integers(0, len(index))), None)
    return shape, tuple(index), draw(specs(shape))


def check(got: Any, want: np.ndarray, spec: P | None) -> None:
    if spec is not None:
        assert got.sharding.spec.padded(got.ndim).dims == spec.padded(got.ndim).dims
    assert got.shape == want.shape
    np.testing.assert_allclose(np.asarray(got), want, rtol=1e-6)


@settings(max_examples=60)
@given(cases(), st.data())
def test_reads_with_out_sharding(case, data):
    shape, index, spec = case
    want = numpy_read(value(shape), index)
    if want is None:
        return
    out = data.draw(specs(want.shape))
    with jax.set_mesh(mesh_of(AxisType.Explicit)):
        x = jax.device_put(value(shape), spec)
        check(x.at[index].get(out_sharding=out), want, out)
        check(jax.jit(lambda x: x.at[index].get(out_sharding=out))(x), want, out)
        try:
            plain = x[index]
        except ShardingTypeError:
            return
        check(plain, want, None)


@settings(max_examples=40)
@given(cases())
def test_reads_on_auto_axes(case):
    shape, index, spec = case
    want = numpy_read(value(shape), index)
    if want is None:
        return
    with jax.set_mesh(mesh_of(AxisType.Auto)):
        x = jax.device_put(value(shape), spec)
        check(x[index], want, None)
        check(jax.jit(lambda x: x[index])(x), want, None)


@settings(max_examples=60)
@given(cases(), st.sampled_from(["set", "add", "multiply", "max"]), st.data())
def test_writes(case, method, data):
    shape, index, spec = case
    places = numpy_read(np.arange(int(np.prod(shape))).reshape(shape), index)
    if places is None:
        return
    update = (np.arange(places.size, dtype=np.float32) % 7 + 2).reshape(places.shape)
    want = value(shape)
    flat = want.reshape(-1)
    combine = {"set": lambda a, b: b, "add": np.add, "multiply": np.multiply, "max": np.maximum}[method]
    for place, new in zip(places.reshape(-1), update.reshape(-1)):
        flat[place] = combine(flat[place], new)
    out = data.draw(specs(shape))
    with jax.set_mesh(mesh_of(AxisType.Explicit)):
        x = jax.device_put(value(shape), spec)
        new = jax.device_put(update, data.draw(specs(update.shape)))
        check(getattr(x.at[index], method)(new, out_sharding=out), want, out)
        try:
            plain = getattr(x.at[index], method)(update)
        except (ShardingTypeError, ValueError):
            plain = None
        if plain is not None:
            check(plain, want, spec)
    with jax.set_mesh(mesh_of(AxisType.Auto)):
        x = jax.device_put(value(shape), spec)
        check(getattr(x.at[index], method)(update), want, None)
