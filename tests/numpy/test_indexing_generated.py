"""Reads and writes at generated indices, against numpy at the same index."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import mpiarray as jax
import mpiarray.numpy as jnp


def parts(n: int) -> st.SearchStrategy[Any]:
    """What may stand for one dim of size n: numbers, slices, index arrays, masks."""
    bound = st.one_of(st.none(), st.integers(-n - 2, n + 2))
    step = st.one_of(st.none(), st.sampled_from([1, 2, 3, -1, -2]))
    whole = st.builds(slice, bound, bound, step)
    if n == 0:
        return st.one_of(whole, st.just(slice(None)))
    place = st.integers(-n, n - 1)
    lists = st.one_of(st.lists(place, min_size=0, max_size=3), st.just([0]))
    arrays = st.sampled_from([(3,), (1,), (2, 1), (2, 3)]).flatmap(
        lambda shape: st.lists(place, min_size=int(np.prod(shape)), max_size=int(np.prod(shape))).map(
            lambda v: np.array(v, np.int32).reshape(shape)
        )
    )
    masks = st.lists(st.booleans(), min_size=n, max_size=n).map(lambda v: np.array(v, bool))
    return st.one_of(place, whole, whole, arrays, lists.map(lambda v: np.array(v, np.int64)), masks)


@st.composite
def cases(draw: Any) -> tuple[tuple[int, ...], Any]:
    shape = tuple(draw(st.lists(st.integers(0, 4), min_size=1, max_size=4)))
    used = draw(st.integers(0, len(shape)))
    items = [draw(parts(n)) for n in shape[:used]]
    if used < len(shape) and draw(st.booleans()):  # dims at the end, behind an ellipsis
        behind = draw(st.integers(0, len(shape) - used))
        items += [Ellipsis, *(draw(parts(n)) for n in shape[len(shape) - behind :])]
    for _ in range(draw(st.integers(0, 2))):
        items.insert(draw(st.integers(0, len(items))), None)
    return shape, tuple(items)


def value(shape: tuple[int, ...]) -> np.ndarray:
    return (np.arange(int(np.prod(shape)), dtype=np.float32) + 1).reshape(shape)


def numpy_read(x: np.ndarray, index: Any) -> np.ndarray | None:
    try:
        return x[index]
    except IndexError:  # index arrays that do not broadcast
        return None


@settings(max_examples=400)
@given(cases())
def test_reads(case):
    shape, index = case
    x = value(shape)
    want = numpy_read(x, index)
    if want is None:
        return
    for read in (lambda a: a[index], jax.jit(lambda a: a[index])):
        got = read(jnp.asarray(x))
        assert got.shape == want.shape
        np.testing.assert_array_equal(got, want)


@settings(max_examples=300)
@given(cases(), st.sampled_from(["set", "add", "multiply", "max"]), st.booleans())
def test_writes(case, method, scalar):
    shape, index = case
    x = value(shape)
    places = numpy_read(np.arange(x.size).reshape(shape), index)
    if places is None:
        return
    update = np.float32(2.5) if scalar else (np.arange(places.size, dtype=np.float32) % 7 + 2).reshape(places.shape)
    want = x.copy()
    flat, updates = want.reshape(-1), np.broadcast_to(update, places.shape).reshape(-1)
    combine = {"set": lambda a, b: b, "add": np.add, "multiply": np.multiply, "max": np.maximum}[method]
    for place, new in zip(places.reshape(-1), updates):  # one after the other, so that repeated places count
        flat[place] = combine(flat[place], new)
    for write in (
        lambda a: getattr(a.at[index], method)(update),
        jax.jit(lambda a: getattr(a.at[index], method)(update)),
    ):
        np.testing.assert_allclose(write(jnp.asarray(x)), want, rtol=1e-6)
