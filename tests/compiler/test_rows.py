"""Reductions over last dims, and what is made of them, in the groups that they belong to."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray.compiler.passes import fuse, rows
from mpiarray.config import config
from mpiarray.ops import row_reductions, tile_steps, tiles
from tests.ops.test_tiles import unfused

RNG = np.random.default_rng(0)
X = RNG.standard_normal((12, 5, 8)).astype(np.float32)
W = RNG.standard_normal((12, 5, 8)).astype(np.float32)
G = RNG.uniform(0.5, 1.5, 8).astype(np.float32)
SHAPE = "f32[12,5,8]"


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """Groups of blocks of 900 bytes, tiles of two or three rows."""
    monkeypatch.setattr(fuse, "_SMALLEST", 900)
    monkeypatch.setattr(tiles, "_FEWEST", 1)
    monkeypatch.setattr(tiles, "_MOST", 20)


def text_of(f, *args):
    return jax.jit(f).lower(*args).compile().as_text()


def groups_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if " fusion(" in line]


def layer_norm(x, g, xp, axis=-1):
    mean = xp.mean(x, axis, keepdims=True)
    return (x - mean) / xp.sqrt(xp.var(x, axis, keepdims=True) + 1e-5) * g


def softmax(x, xp, axis=-1):
    e = xp.exp(x - xp.max(x, axis, keepdims=True))
    return e / xp.sum(e, axis, keepdims=True)


FUNCTIONS = {
    "softmax": lambda x, w, g, xp: softmax(x * 2, xp),
    "softmax of two dims": lambda x, w, g, xp: softmax(x + w, xp, (1, 2)),
    "log_softmax": lambda x, w, g, xp: x - xp.log(xp.sum(xp.exp(x), -1, keepdims=True)),
    "logsumexp": lambda x, w, g, xp: xp.log(xp.sum(xp.exp(x - 1), -1)) + 1,
    "layer norm": lambda x, w, g, xp: layer_norm(x + w, g, xp),
    "rms norm": lambda x, w, g, xp: x / xp.sqrt(xp.mean(x * x, -1, keepdims=True) + 1) * g,
    "variance": lambda x, w, g, xp: xp.var(x * w, -1),
    "rows without their dim": lambda x, w, g, xp: x - (xp.sum(x * w, -1) * 2)[..., None],
    "extremes": lambda x, w, g, xp: (
        (x - xp.min(x, -1, keepdims=True)) / (1 + xp.max(x, -1) - xp.min(x, -1))[:, :, None]
    ),
    "row meets another array of rows": lambda x, w, g, xp: x * (xp.sum(x, -1) + w[:, :, 0])[..., None],
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("order", ["C", "F"])
def test_one_group(name, order, monkeypatch):
    f = lambda x, w, g: FUNCTIONS[name](x, w, g, jnp)
    args = (np.asarray(X, order=order), W, G)
    (line,) = groups_of(text_of(f, *args))
    assert f"rows={2 if 'two' in name else 1}" in line
    assert line.count(SHAPE) == (name not in ("logsumexp", "variance")), "results of the group's size"
    got = np.asarray(jax.jit(f)(*args))
    want = FUNCTIONS[name](*(a.astype(np.float64) for a in args), np)
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6)
    if order == "C":
        np.testing.assert_array_equal(got, np.asarray(unfused(f, args, monkeypatch)))


@pytest.mark.parametrize("f", [
    lambda x, w, g: x / jnp.sqrt(jnp.mean(x * x, -1, keepdims=True) + 1) * g,
    lambda x, w, g: jnp.sum(jnp.sin(x) * w, (1, 2)) * 2,
    lambda x, w, g: jnp.var(x, -1) + 1,
    lambda x, w, g: x - jnp.sum(x, -1, keepdims=True) * jnp.sum(x * w),
])  # fmt: skip
def test_sums_of_products_make_no_product(f, monkeypatch):
    calls = []
    inner, vecdot = tile_steps.sum_of_products, np.vecdot
    counted = lambda f: lambda a, b, *rest, **named: (b.ndim > 1 and calls.append(a.shape)) or f(a, b, *rest, **named)
    monkeypatch.setattr(tile_steps, "sum_of_products", counted(inner))
    monkeypatch.setattr(row_reductions, "_vecdot", counted(vecdot))
    got = jax.jit(f)(X, W, G)
    assert len(calls) > 12 / 3 / 5, "for each tile"
    np.testing.assert_allclose(np.asarray(got), np.asarray(unfused(f, (X, W, G), monkeypatch)), rtol=2e-5, atol=1e-5)


def test_a_sum_of_columns_of_an_operand_is_in_the_pass_that_reads_it():
    """Also where it stands before the others: the slope of a bias is the sum of what the slope of the rows is made of."""
    f = lambda x, w, g: (jnp.sum(w, (0, 1)), jnp.sin(x) * w * g)
    (line,) = groups_of(text_of(f, X, W, G))
    assert line.count("f32[8]") == 1
    got = jax.jit(f)(X, W, G)
    np.testing.assert_allclose(np.asarray(got[0]), W.sum((0, 1)), rtol=1e-5)
    np.testing.assert_allclose(np.asarray(got[1]), np.sin(X) * W * G, rtol=1e-6)


def test_products_that_others_read_are_made():
    f = lambda x, w, g: (x * w - jnp.sum(x * w, -1, keepdims=True), jnp.sum(x * G, -1) * 2)
    for a, b in zip(jax.jit(f)(X, W, G), (X * W - (X * W).sum(-1, keepdims=True), (X * G).sum(-1) * 2), strict=True):
        np.testing.assert_allclose(np.asarray(a), b, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16, np.complex64, np.int32])
def test_dtypes(dtype, monkeypatch):
    with jax.enable_x64():
        x = (X * 10).astype(dtype)

        def f(x):
            centered = x - x.sum(-1, keepdims=True) * 2
            return centered * centered.sum(-1)[..., None] + jnp.prod(x, -1)[..., None]

        assert "rows=" in text_of(f, x)
        np.testing.assert_array_equal(np.asarray(jax.jit(f)(x)), np.asarray(unfused(f, (x,), monkeypatch)))


def test_softmax_of_16_bit_floats(monkeypatch):
    x = X.astype(np.float16)
    f = lambda x: jax.nn.softmax(x * 2)
    (line,) = groups_of(text_of(f, x))
    assert "rows=1" in line and line.count("f16[12,5,8]") == 1
    np.testing.assert_array_equal(np.asarray(jax.jit(f)(x)), np.asarray(unfused(f, (x,), monkeypatch)))


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "layer norm", "rms norm"])
def test_gradients_are_one_group(name, monkeypatch):
    """Also the slopes of parameters, which are sums over all rows, and the value."""
    f = lambda x, w, g: jnp.sum(FUNCTIONS[name](x, w, g, jnp) * w) / 7
    grad = jax.value_and_grad(f, argnums=(0, 2))
    (line,) = groups_of(text_of(grad, X, W, G))
    assert line.count(SHAPE) == 1 and "rows=1" in line
    got, want = jax.jit(grad)(X, W, G), unfused(grad, (X, W, G), monkeypatch)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-5, atol=1e-5)
    step = 1e-5
    at = lambda x: float(np.sum(FUNCTIONS[name](x, *(a.astype(np.float64) for a in (W, G)), np) * W) / 7)
    moved = X.astype(np.float64)
    for place in [(0, 0, 0), (11, 4, 7), (5, 2, 3)]:
        up, down = moved.copy(), moved.copy()
        up[place] += step
        down[place] -= step
        np.testing.assert_allclose(np.asarray(got[1][0])[place], (at(up) - at(down)) / 2 / step, rtol=1e-3, atol=1e-5)


def test_results_of_rows_leave_in_their_shapes():
    def f(x, xp):
        kept = xp.max(x * 2, -1, keepdims=True)
        total = xp.sum(x - kept, -1)
        return kept, total, total + 1, kept * 3, (x - kept) * total[..., None], kept + xp.zeros_like(x)

    (line,) = groups_of(text_of(lambda x: f(x, jnp), X))
    assert line.count("f32[12,5,1]") == 2 and line.count("f32[12,5]") == 2
    for got, want in zip(jax.jit(lambda x: f(x, jnp))(X), f(X, np), strict=True):
        np.testing.assert_allclose(np.asarray(got), want, rtol=1e-5, atol=1e-5)


def test_a_broadcast_that_others_read_too():
    def f(x, y, xp):
        top = xp.broadcast_to(xp.max(x * 2, -1, keepdims=True), x.shape)
        return x - top, xp.concatenate([top, y], 0), top.T @ xp.ones((12, 1))

    for got, want in zip(jax.jit(lambda x: f(x, x, jnp))(X), f(X, X, np), strict=True):
        np.testing.assert_allclose(np.asarray(got), want, rtol=1e-5, atol=1e-5)


def test_rows_of_different_dims_are_in_different_groups():
    def f(x, xp):
        y = x * 2 - xp.max(x, -1, keepdims=True)
        z = y / xp.sum(xp.exp(y), (1, 2), keepdims=True)
        z = z * xp.max(z * 2, (1, 2), keepdims=True)
        return z * xp.max(z * 2, -1, keepdims=True), xp.sum(z, (0, 1)), xp.sum(z * 2)

    lines = groups_of(text_of(lambda x: f(x, jnp), X))
    assert [n for line in lines for n in "12" if f"rows={n}" in line] == ["1", "2"]
    for got, want in zip(jax.jit(lambda x: f(x, jnp))(X), f(X.astype(np.float64), np), strict=True):
        np.testing.assert_allclose(np.asarray(got), want, rtol=1e-4, atol=1e-5)


def test_rows_that_do_not_fit_into_the_cache_are_no_rows(monkeypatch):
    monkeypatch.setattr(rows, "_LARGEST", 16)
    text = text_of(lambda x: softmax(x, jnp), X)
    assert "rows=" not in text and len(groups_of(text)) == 1


def test_a_reduction_alone_is_no_group_and_what_follows_it_is():
    assert "fusion(" not in text_of(lambda x: x.mean(-1), X)
    text = text_of(lambda x: jnp.exp(jnp.sin(x.sum(-1)) * 2), np.zeros((600, 2), np.float32))
    (line,) = groups_of(text)
    assert "shape=(600,)" in line and "rows=" not in line


def test_dims_of_size_one():
    x = X.reshape(1, 60, 1, 8)

    def f(x, xp):
        y = x * 2
        return y - xp.max(y, (2, 3), keepdims=True), y.sum(0), y.sum((0, 2)), y / (1 + y.sum(2) ** 2)[:, :, None]

    for got, want in zip(jax.jit(lambda x: f(x, jnp))(x), f(x, np), strict=True):
        np.testing.assert_allclose(np.asarray(got), want, rtol=1e-5)


def test_shifted_operands_and_updates():
    def f(x):
        y = jnp.roll(x, 1, 2) + jnp.roll(x, 1, 0)
        return x.at[1:-1].set(softmax(y, jnp)[1:-1] * 2), x.at[:, :, 1:].set(softmax(y[:, :, 1:], jnp))

    y = np.roll(X, 1, 2) + np.roll(X, 1, 0)
    first, second = X.copy(), X.copy()
    first[1:-1] = softmax(y, np)[1:-1] * 2
    second[:, :, 1:] = softmax(y[:, :, 1:], np)
    for got, want in zip(jax.jit(f)(X), (first, second)):
        np.testing.assert_allclose(np.asarray(got), want, rtol=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_not_finite_rows():
    x = X.copy()
    x[0, 0] = -np.inf
    x[1, 1, 3], x[2, 2, 2], x[3, 3] = np.inf, np.nan, 1e30
    got = np.asarray(jax.jit(lambda x: softmax(x, jnp))(x))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(softmax(x, np)))
    np.testing.assert_allclose(got, softmax(x, np), rtol=1e-5)


def test_in_a_loop(monkeypatch):
    f = lambda x: jax.lax.fori_loop(0, 3, lambda _, x: softmax(x * 3, jnp) - 0.1, x)
    assert "rows=1" in text_of(f, X)
    np.testing.assert_array_equal(np.asarray(jax.jit(f)(X)), np.asarray(unfused(f, (X,), monkeypatch)))


def random_program(rng, shape):
    """A function of (array, array of rows), made of random steps on whole arrays and on rows; many results."""
    steps = rng.integers(0, 11, size=rng.integers(4, 12))
    picks = rng.integers(0, 1 << 30, size=(len(steps), 3))
    wanted = rng.random(60) < 0.4

    def f(x, y):
        full, narrow, sums = [x, x * 2], [], [y]
        for step, (i, j, k) in zip(steps, picks):
            a, b = full[i % len(full)], full[j % len(full)]
            dims = 1 + int(k) % (x.ndim - 1)
            axes = tuple(range(x.ndim - dims, x.ndim))
            row = narrow[k % len(narrow)] if narrow else y[..., None]
            match int(step):
                case 0:
                    full.append(a - b)
                case 1 | 2:
                    narrow.append(a.max(axes, keepdims=True))
                case 3:
                    narrow.append(a.sum(axes).reshape(*x.shape[: x.ndim - dims], *(1,) * dims))
                case 4:
                    narrow.append(jnp.sin(row) + row)
                case 5 | 6:
                    full.append(a - row)
                case 7:
                    full.append(jnp.where(row > 0, a, jnp.broadcast_to(row, x.shape)))
                case 8:
                    sums.append(a.sum(0))
                case 9:
                    sums.append(a.min())
                case _:
                    narrow.append(row * y[..., None] if row.ndim == y.ndim + 1 else row)
        results = [*full[2:], *narrow, *sums[1:]]
        return [r for r, w in zip(results, wanted) if w] or results[:1] or [x + 1]

    return f


@pytest.mark.parametrize("shape", [(10, 40), (6, 7, 9), (3, 4, 5, 8), (1, 30, 1, 12)], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_random_programs(shape, seed, monkeypatch):
    for number in range(3):
        rng = np.random.default_rng([seed, number, *shape])
        f = random_program(rng, shape)
        args = [rng.integers(-8, 9, s).astype(np.float32) / 8 for s in (shape, shape[:-1])]
        for got, want in zip(jax.jit(f)(*args), unfused(f, args, monkeypatch), strict=True):
            np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-5, atol=1e-4)


@pytest.mark.mpi
def test_over_ranks():
    n = jax.device_count()
    mesh = jax.make_mesh((n,), ("x",))
    x = np.tile(X, (n, 1, 1)) * np.arange(12 * n, dtype=np.float32)[:, None, None]
    with jax.set_mesh(mesh):
        for spec, count in ((jax.P("x"), 1), (jax.P(None, None, "x"), 2 if n > 1 else 1)):
            if x.shape[2] % n and spec[0] is None:
                continue
            placed = jax.device_put(x, jax.NamedSharding(mesh, spec))
            f = jax.jit(lambda x: layer_norm(softmax(x, jnp) + x, 2, jnp))
            text = f.lower(placed).compile().as_text()
            assert len(groups_of(text)) >= count and ("rows=1" in text) == (count == 1)
            want = layer_norm(softmax(x.astype(np.float64), np) + x, 2, np)
            np.testing.assert_allclose(np.asarray(f(placed)), want, rtol=1e-3, atol=1e-4)


def test_operands_are_not_written():
    args = [jnp.asarray(a) for a in (X, W, G)]
    for f in FUNCTIONS.values():
        jax.jit(lambda x, w, g, f=f: f(x, w, g, jnp))(*args)
    for a, b in zip(args, (X, W, G)):
        np.testing.assert_array_equal(np.asarray(a), b)


def test_tiles_have_whole_rows():
    for shape, k in itertools.product([(3, 4, 50), (7, 30), (2, 2, 3, 9)], [1, 2]):
        if k < len(shape):
            row = int(np.prod(shape[-k:]))
            for part in tiles.scan(shape, max(20, row)).shapes:
                assert part[-k:] == shape[-k:]


NORM_SLOPES = jax.grad(lambda x, g, w: jnp.sum(w * layer_norm(x, g, jnp)), argnums=(0, 1))


def test_slopes_over_ranks_are_one_group():
    """The sum over ranks of the slopes of a scale, which only the result waits for, does not cut the way back in two."""
    mesh = jax.sharding.AbstractMesh((2,), ("x",), (jax.sharding.AxisType.Explicit,))
    specs = {"x": jax.P("x"), "g": jax.P(), "w": jax.P("x")}
    x, g, w = (
        jax.ShapeDtypeStruct(shape, np.float32, sharding=jax.NamedSharding(mesh, specs[name]))
        for name, shape in (("x", (24, 40)), ("g", (40,)), ("w", (24, 40)))
    )
    with jax.sharding.use_abstract_mesh(mesh):
        text = jax.jit(NORM_SLOPES).lower(x, g, w).compile().as_text()
    (group,) = groups_of(text)
    assert text.index(group) < text.index(" all-reduce(") and text.count(" all-reduce(") == 1


def test_sums_over_ranks_wait_for_their_groups_only():
    """A sum leaves when the group of its operand is done, though a later group is open, and before what reads it."""
    mesh = jax.sharding.AbstractMesh((2,), ("x",), (jax.sharding.AxisType.Explicit,))

    def body(x, y, w):
        late = jnp.cos(y) * 2
        total = jax.lax.psum(jnp.sum(jnp.sin(x)), "x")
        made = (jnp.cos(x) * 2) @ w
        return total / 2, made, late - jnp.sum(late)

    specs = (jax.P("x"), jax.P("x"), jax.P())
    args = [
        jax.ShapeDtypeStruct(shape, np.float32, sharding=jax.NamedSharding(mesh, spec))
        for shape, spec in zip(((60, 8), (60, 9), (8, 8)), specs)
    ]
    outs = (jax.P(), jax.P("x"), jax.P("x"))
    mapped = jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=outs)
    text = jax.jit(mapped).lower(*args).compile().as_text()
    first, *others = groups_of(text)
    places = [text.index(first), text.index(" all-reduce("), text.index(" dot("), text.index(others[0])]
    assert places == sorted(places)


def over_ranks(body, *outs):
    outs = outs if len(outs) > 1 else outs[0]
    mesh = jax.sharding.AbstractMesh((8,), ("x",), (jax.sharding.AxisType.Explicit,))
    x = jax.ShapeDtypeStruct((8 * 512, 1024), np.float32, sharding=jax.NamedSharding(mesh, jax.P("x")))
    mapped = jax.shard_map(body, mesh=mesh, in_specs=jax.P("x"), out_specs=outs)
    return jax.jit(mapped).lower(x).compile().as_text()


def test_a_sum_over_ranks_comes_after_what_it_reads():
    """A value that waits is needed by a group, which closes the group that it reads, after which the sum could be sent."""

    def body(x):
        a = jnp.sum(jnp.sin(x) * 2) * 3
        return jnp.cos(x) * a * 2 + 1, jax.lax.psum(a, "x")

    text = over_ranks(body, jax.P("x"), jax.P())
    rows = [next(k for k, row in enumerate(text.splitlines()) if word in row) for word in (", 3.0)", "all-reduce(")]
    assert rows == sorted(rows)


@pytest.mark.parametrize("seed", range(12))
def test_random_sums_over_ranks_are_in_order(seed):
    """Programs of sums over ranks between groups; compiling with MPIARRAY_CHECK looks at each pass's result."""
    rng = np.random.default_rng(seed)

    def body(x):
        arrays, numbers = [x], [jnp.sum(x), jnp.max(x), jnp.sum(x * x)]
        for _ in range(24):
            a, n, m = arrays[rng.integers(len(arrays))], *(numbers[i] for i in rng.integers(len(numbers), size=2))
            match rng.integers(6):
                case 0 | 1:
                    arrays.append(jnp.sin(a) * n + arrays[rng.integers(len(arrays))])
                case 2:
                    numbers.append(jnp.sum(a * m))
                case 3:
                    numbers.append(n * 3 - m)
                case 4:
                    numbers.append(jax.lax.psum(n, "x"))
                case 5:
                    numbers.append(jax.lax.pmax(jnp.max(a), "x") + n)
        return arrays[-1], *(jax.lax.psum(n, "x") for n in numbers[-3:])

    with config.override("check", True):
        text = over_ranks(body, jax.P("x"), jax.P(), jax.P(), jax.P())
    assert " all-reduce(" in text


def test_long_chains_of_numbers():
    """They wait for each other, however many they are."""

    def body(x):
        total = 0.0
        for _ in range(1100):
            total = total + jnp.mean(x * x)
        return x + total + jax.lax.psum(total, "x")

    assert "all-reduce(" in over_ranks(body, jax.P("x"))


@pytest.mark.mpi
def test_slopes_over_ranks():
    n = jax.device_count()
    x, w = (np.concatenate([a.reshape(-1, 8) * (k + 1) for k in range(n)]) for a in (X, W))
    with jax.set_mesh(jax.make_mesh((n,), ("x",))):
        args = [jax.device_put(a, jax.P("x")) for a in (x, w)]
        for_x, for_g = jax.jit(NORM_SLOPES)(args[0], jnp.asarray(G), args[1])
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True) + 1e-5
    np.testing.assert_allclose(np.asarray(for_g), (w * (x - mean) / np.sqrt(var)).sum(0), rtol=1e-4)
    z, t = (x - mean) / np.sqrt(var), w * G
    want = (t - t.mean(-1, keepdims=True) - z * (t * z).mean(-1, keepdims=True)) / np.sqrt(var)
    np.testing.assert_allclose(np.asarray(for_x), want, rtol=1e-3, atol=1e-4)
