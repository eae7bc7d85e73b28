"""Expressions in `jnp`, and operands for them, of which JAX's results are recorded (record_expressions.py).

Kept free of imports of either library, so that both run the same text.  `x8` is x sharded by a spec in `SHARDED`.
"""

import itertools

import numpy as np


def operands():
    """The names that expressions may use: numpy arrays with distinct values where that is possible."""
    count = np.arange(60).reshape(3, 4, 5)
    f = ((count * 7 % 61 - 30) / 4).astype(np.float32)
    n = f.copy()
    n[0, 1, 2] = n[2, 3, 0] = n[1, :, 4] = np.nan
    return {
        "f": f,
        "n": n,
        "h": (f[0] / 3).astype(np.float16),
        "i": (count * 11 % 67 - 20).astype(np.int32),
        "i8": (count[0] * 3 % 50 - 20).astype(np.int8),
        "u8": (count[1] * 5 % 97).astype(np.uint8),
        "u": (count[0] * 3 % 31).astype(np.uint32),
        "c": (f[0] + 1j * f[1][::-1]).astype(np.complex64),
        "b": (count * 7 % 5 > 2),
        "e": np.zeros((0, 3), np.float32),
        "s": np.float32(2.5),
        "v": np.array([3, 1, 2, 1, 3, 0], np.int32),
        "w": np.array([1, 5, 3, 5], np.int32),
        "g": np.array([0.5, 2.0, 2.0, 3.5, 7.0], np.float32),
        "k": np.array([[0, 2], [3, -1]], np.int32),
        "m": np.array([True, False, True]),
        "d": np.array([np.inf, 1.0, -np.inf, np.nan, 0.0, -0.0], np.float32),
    }


def reductions():
    plain = [
        "sum",
        "prod",
        "max",
        "min",
        "mean",
        "var",
        "std",
        "ptp",
        "any",
        "all",
        "count_nonzero",
        "median",
        "average",
    ]
    for name, x in itertools.product(plain, ["f", "i", "i8", "u8", "h", "b", "c", "n", "e", "s"]):
        yield f"jnp.{name}({x})"
        if x in "f i8 c n":
            yield f"jnp.{name}({x}, axis=-1)"
            yield f"jnp.{name}({x}, axis=(0, 1), keepdims=True)"
    for name, x in itertools.product(
        ["argmax", "argmin", "nanargmax", "nanargmin"], ["f", "i", "i8", "u8", "h", "b", "n", "c"]
    ):
        yield f"jnp.{name}({x})"
        yield f"jnp.{name}({x}, axis=0)"
        yield f"jnp.{name}({x}, axis=-1, keepdims=True)"
    skipping = ["nansum", "nanprod", "nanmax", "nanmin", "nanmean", "nanvar", "nanstd", "nanmedian"]
    for name, x in itertools.product(skipping, ["n", "f", "i", "h", "c", "d"]):
        yield f"jnp.{name}({x})"
        yield f"jnp.{name}({x}, axis=-1)"
        yield f"jnp.{name}({x}, axis=0, keepdims=True)"
    for name, x, axis in itertools.product(
        ["cumsum", "cumprod", "nancumsum", "nancumprod"], ["f", "i8", "b", "n", "h"], (None, 0, -1)
    ):
        yield f"jnp.{name}({x}, axis={axis})"
    yield from (
        "jnp.sum(f, axis=())", "jnp.sum(f, axis=3)", "jnp.sum(f, axis=(0, 0))", "jnp.sum(f, dtype=jnp.float16)", "jnp.sum(i8, dtype=bool)",
        "jnp.prod(i8, dtype=bool)", "jnp.sum(i8, promote_integers=False)", "jnp.prod(u8, promote_integers=False)", "jnp.sum(f, where=f > 0)",
        "jnp.sum(f, initial=3)", "jnp.sum(i8, initial=2.5)", "jnp.prod(f, axis=1, initial=2., where=f > 1)", "jnp.sum(f, initial=f[0, 0])",
        "jnp.max(f, initial=100)", "jnp.max(f, axis=1, initial=0., where=f > 0)", "jnp.min(f, where=f > 0)", "jnp.max(e)", "jnp.max(e, axis=1)",
        "jnp.max(e, initial=3.)", "jnp.min(jnp.zeros((3, 0)), axis=0)", "jnp.sum(e)", "jnp.sum(e, axis=0)", "jnp.prod(e)", "jnp.mean(e)", "jnp.var(e)",
        "jnp.any(f > 100, axis=1, where=b)", "jnp.all(f > -1, axis=0, where=b)", "jnp.mean(f, where=b)", "jnp.mean(f, axis=1, where=b, keepdims=True)",
        "jnp.mean(i, dtype=jnp.float16)", "jnp.mean(f, dtype=int)", "jnp.var(f, ddof=1)", "jnp.var(f, axis=0, ddof=3)", "jnp.var(f, axis=0, ddof=4)",
        "jnp.std(f, axis=1, ddof=1, keepdims=True, where=b)", "jnp.var(f, correction=2)", "jnp.var(f, ddof=1, correction=2)",
        "jnp.var(c, dtype=jnp.float32)", "jnp.std(i8, dtype=jnp.float16)", "jnp.var(f, axis=1, mean=f[:, :1] * 0)", "jnp.mean(f + 10000.)",
        "jnp.var(f + 1000.)", "jnp.average(f, axis=1, weights=f[0, :, 0])", "jnp.average(f, weights=jnp.abs(f))",
        "jnp.average(f, axis=(0, 2), weights=jnp.abs(f[:, 0]))", "jnp.average(f, axis=1, weights=f[0, 0])", "jnp.average(f, weights=g)",
        "jnp.average(f, axis=0, weights=g[:3], returned=True)", "jnp.average(i, returned=True)", "jnp.average(f, axis=(0, 1), keepdims=True, returned=True)",
        "jnp.cumsum(s)", "jnp.cumsum(i, dtype=jnp.int8)", "jnp.cumsum(f, axis=0, dtype=jnp.float16)", "jnp.cumsum(b, 0, dtype=bool)",
        "jnp.cumulative_sum(g)", "jnp.cumulative_sum(i8, axis=0, include_initial=True)", "jnp.cumulative_prod(g, include_initial=True)",
        "jnp.cumulative_sum(f)", "jnp.cumulative_sum(s)", "jnp.cumulative_sum(b, axis=1)", "jnp.diff(f)", "jnp.diff(f, n=2, axis=0)", "jnp.diff(b)",
        "jnp.diff(g, prepend=1, append=g[:2])", "jnp.diff(g, n=9)", "jnp.diff(g, n=0)", "jnp.diff(s)", "jnp.diff(f, n=-1)", "jnp.diff(u8, axis=0)",
        "jnp.ediff1d(f)", "jnp.ediff1d(v, to_begin=9, to_end=w)", "jnp.gradient(g)", "jnp.gradient(f)", "jnp.gradient(f, 2., axis=1)",
        "jnp.gradient(f, 1., 2., g)", "jnp.gradient(f[0], f[0, :, 0], g)", "jnp.gradient(f, 1., 2.)", "jnp.gradient(e)", "jnp.gradient(f, g, axis=0)",
        "jnp.gradient(i8, axis=(0, 1))", "jnp.trapezoid(f)", "jnp.trapezoid(f, g)", "jnp.trapezoid(i, dx=2, axis=0)", "jnp.trapezoid(f, f, axis=1)",
        "jnp.trace(f[0])", "jnp.isclose(f, f + 1e-6)", "jnp.isclose(n, n, equal_nan=True)", "jnp.isclose(d, d)", "jnp.isclose(i8, i8 + 1)", "jnp.isclose(c, c)",
        "jnp.allclose(f, f * 1.00001)", "jnp.allclose(f, f + 0.1, atol=.2)", "jnp.array_equal(f, f)", "jnp.array_equal(n, n, equal_nan=True)",
        "jnp.array_equal(f, f[0])", "jnp.array_equiv(f, f[:1])", "jnp.array_equiv(f, g[:2])", "jnp.array_equal(n, n)",
    )  # fmt: skip


def orders():
    for name, x in itertools.product(["sort", "argsort"], ["f", "i8", "n", "h", "b", "c", "d"]):
        yield f"jnp.{name}({x})"
        yield f"jnp.{name}({x}, axis=0)"
        yield f"jnp.{name}({x}, axis=None)"
        yield f"jnp.{name}({x}, descending=True)"
    for name, q in itertools.product(
        ["quantile", "nanquantile", "percentile", "nanpercentile"], (".3", "g[:3] / 8", "1.", "30")
    ):
        yield f"jnp.{name}(f, {q})"
        yield f"jnp.{name}(n, {q}, axis=1)"
        yield f"jnp.{name}(i8, {q}, axis=0, keepdims=True)"
        yield f"jnp.{name}(f, {q}, axis=(0, 2), keepdims=True)"
    for method in ["linear", "lower", "higher", "midpoint", "nearest", "inverted_cdf", "hazen"]:
        yield f"jnp.quantile(f, g[:3] / 8, axis=1, method={method!r})"
        yield f"jnp.nanquantile(n, .37, axis=2, method={method!r})"
    yield from (
        "jnp.median(d[:3])", "jnp.nanmedian(d)", "jnp.median(f, keepdims=True)", "jnp.quantile(c, .5)", "jnp.quantile(f, f)", "jnp.quantile(f, [.5])",
        "jnp.sort(s)", "jnp.sort(f, axis=5)", "jnp.sort(f, kind='quicksort')", "jnp.lexsort((v, v[::-1]))", "jnp.lexsort((f, i), axis=1)", "jnp.lexsort(i)",
        "jnp.lexsort((v, w))", "jnp.lexsort(())", "jnp.sort_complex(f)", "jnp.sort_complex(v)", "jnp.sort_complex(c)", "jnp.sort(jnp.partition(v, 2)[:2])",
        "jnp.partition(v, 2)[2]", "jnp.partition(f, 9)", "v[jnp.argpartition(v, 3)][3]", "jnp.searchsorted(g, f)", "jnp.searchsorted(g, 2., side='right')",
        "jnp.searchsorted(g, v)", "jnp.searchsorted(v, 2, sorter=jnp.argsort(v))", "jnp.searchsorted(f, 1.)", "jnp.searchsorted(g, 1., side='middle')",
        "jnp.searchsorted(jnp.sort(d), d)", "jnp.searchsorted(g[:0], f)", "jnp.searchsorted(g, g, side='right', method='sort')",
        "jnp.nonzero(b)", "jnp.nonzero(v)", "jnp.nonzero(s)", "jnp.nonzero(b, size=5)", "jnp.nonzero(b, size=40, fill_value=(7, 8, 9))",
        "jnp.nonzero(v, size=9, fill_value=-1)", "jnp.flatnonzero(b)", "jnp.flatnonzero(v, size=3)", "jnp.argwhere(b)", "jnp.argwhere(b, size=2)",
        "jnp.argwhere(s)", "jnp.where(b)", "jnp.where(v, size=9)", "jnp.where(b, 1)", "jnp.extract(b, f)", "jnp.extract(b, f, size=3)",
        "jnp.extract(b, f, size=40, fill_value=-7)", "jnp.compress(m, f, axis=0)", "jnp.compress(m, f)", "jnp.compress(m, f, axis=1)", "jnp.compress(b, f)",
        "jnp.compress(v, g)", "jnp.compress(m, f, axis=2, size=4, fill_value=9)", "jnp.unique(v)", "jnp.unique(f)", "jnp.unique(n)", "jnp.unique(b)",
        "jnp.unique(n, equal_nan=False)", "jnp.unique(v, True, True, True)", "jnp.unique(i8, return_inverse=True)", "jnp.unique(v, size=3, return_counts=True)",
        "jnp.unique(v, size=9, return_index=True, return_inverse=True, return_counts=True)", "jnp.unique(v, size=9, fill_value=-5, return_counts=True)",
        "jnp.unique(k[:, :1] * 0, axis=0, return_index=True, return_counts=True)", "jnp.unique(v.reshape(3, 2), axis=1, return_inverse=True)",
        "jnp.unique(v.reshape(3, 2), axis=0, size=5, fill_value=8)", "jnp.unique(c)", "jnp.unique(e)", "jnp.unique(e, size=2)", "jnp.unique(d)",
        "jnp.unique_all(v)", "jnp.unique_counts(n[0])", "jnp.unique_inverse(i8)", "jnp.unique_values(v)", "jnp.isin(v, w)", "jnp.isin(f, g)",
        "jnp.isin(v, w, invert=True)", "jnp.isin(n, n)", "jnp.isin(v, w[:0])", "jnp.isin(v, g)", "jnp.intersect1d(v, w)", "jnp.intersect1d(v, g)",
        "jnp.intersect1d(v, w, return_indices=True)", "jnp.intersect1d(v, w, size=4, return_indices=True)", "jnp.intersect1d(v, w, size=1)",
        "jnp.intersect1d(v, w, size=4, fill_value=-9)", "jnp.union1d(v, w)", "jnp.union1d(v, g)", "jnp.union1d(v, w, size=9)", "jnp.union1d(v, w, size=3)",
        "jnp.union1d(v, w, size=9, fill_value=7)", "jnp.setdiff1d(w, v)", "jnp.setdiff1d(v, w)", "jnp.setdiff1d(w, v, assume_unique=True)",
        "jnp.setdiff1d(v, w, size=5)", "jnp.setdiff1d(v, w, size=5, fill_value=9)", "jnp.setxor1d(v, w)", "jnp.setxor1d(v, w, size=6)",
        "jnp.setxor1d(v, w, size=6, fill_value=-3)", "jnp.setxor1d(v, g)",
    )  # fmt: skip


def statistics():
    for extra in ("", ", rowvar=False", ", bias=True", ", ddof=0", ", ddof=.5"):
        yield f"jnp.cov(f[0]{extra})"
        yield f"jnp.cov(f[0], f[1]{extra})"
    yield from (
        "jnp.cov(f[0], fweights=v[:5])", "jnp.cov(f[0], aweights=g)", "jnp.cov(f[0], fweights=v[:5], aweights=g)", "jnp.cov(f[0], fweights=g)",
        "jnp.cov(f)", "jnp.cov(c)", "jnp.cov(v)", "jnp.cov(e)", "jnp.cov(f[0], fweights=v)", "jnp.cov(f[0, 0], f[0, 1])", "jnp.cov(i8)",
        "jnp.corrcoef(f[0])", "jnp.corrcoef(g)", "jnp.corrcoef(f[0, 0], f[1, 0])", "jnp.corrcoef(c)", "jnp.corrcoef(f[0], rowvar=False)",
        "jnp.histogram(f)", "jnp.histogram(f, bins=g)", "jnp.histogram(f, bins=4, range=(-5, 5))", "jnp.histogram(i, bins=3)", "jnp.histogram(f, bins=3, density=True)",
        "jnp.histogram(f, bins=5, weights=jnp.abs(f))", "jnp.histogram(f, bins=5, weights=i)", "jnp.histogram(f, weights=g)", "jnp.histogram(g * 0, bins=2)",
        "jnp.histogram(f, bins='auto')", "jnp.histogram_bin_edges(f, bins=6)", "jnp.histogram_bin_edges(v, bins=3)", "jnp.histogram_bin_edges(f, bins=g)",
        "jnp.histogram2d(f[0].ravel(), f[1].ravel(), bins=3)", "jnp.histogram2d(g, f[0, 0], bins=(2, 3), range=((0, 4), (-8, 8)))",
        "jnp.histogram2d(g, f[0, 0], bins=g)", "jnp.histogram2d(g, f[0, 0], bins=2, density=True)", "jnp.histogram2d(g, f[0, 0], bins=2, weights=g)",
        "jnp.histogramdd(f[0], bins=2)[0]", "jnp.histogramdd(f[0, :, :3], bins=(2, 3, 4))[0]", "jnp.histogramdd(f[0], bins=(2, 3))", "jnp.histogramdd(f[0, :, :2], bins=(g, 3))[0]",
        "jnp.bincount(v)", "jnp.bincount(v, minlength=9)", "jnp.bincount(v, length=3)", "jnp.bincount(v, weights=f.ravel()[:6])", "jnp.bincount(v - 2)",
        "jnp.bincount(f)", "jnp.bincount(i)", "jnp.bincount(v[:0])", "jnp.bincount(u[0])", "jnp.bincount(m)", "jnp.bincount(v, weights=g)",
        "jnp.digitize(f, g)", "jnp.digitize(f, g, right=True)", "jnp.digitize(f, g[::-1])", "jnp.digitize(g, g[::-1], right=True)", "jnp.digitize(f, f)",
        "jnp.digitize(v, jnp.array([1, 2]))", "jnp.interp(f, g[::2], f[0, 0, :3])", "jnp.interp(f[0], g, f[0, 0])", "jnp.interp(2.25, g, f[0, 0], left=-1, right=7)",
        "jnp.interp(f[0], g, f[0, 0], left=-1., right=7.)", "jnp.interp(f[0], g, f[0, 0], left='extrapolate', right='extrapolate')",
        "jnp.interp(f[0], g, f[0, 0], period=3)", "jnp.interp(v, v[:3], v[:3])", "jnp.interp(f, g, v)", "jnp.interp(f, g, c[0])", "jnp.interp(f, g, g, left='x')",
        "jnp.packbits(v)", "jnp.packbits(b, axis=1)", "jnp.packbits(b, axis=-1, bitorder='little')", "jnp.packbits(f)", "jnp.packbits(b, bitorder='x')",
        "jnp.unpackbits(u8)", "jnp.unpackbits(u8, axis=0)", "jnp.unpackbits(u8, axis=1, count=11, bitorder='little')", "jnp.unpackbits(u8, count=-3)",
        "jnp.unpackbits(u8[0], count=99)", "jnp.unpackbits(i)",
    )  # fmt: skip


INDICES = (
    "0", "-1", "2, 3", "..., 1", "1, ..., 2", ":", "...", "None", "None, 1, None", "1:", "::-1, 2:0:-1", ":, ::2", ":, 5:9", "::2, 1::2, ::-2", "k[0]",
    "k[0], k[0]", ":, k", "k[0], :, k[0]", ":, k[0], k[0]", "k[0], None, k[0]", "None, k[0], None, k[0]", "0, :, k[0]", "k, ..., 1", "m", "m, 0", "0, b[0]", "b",
    "b[..., 0]", "m, ..., m[[0, 1, 2, 1, 0]]", "True", "False", "True, 0", "7", "-9", "k * 9", "0, 9, -9", "v[0] - v[1]", "v[1], v[2]", "v[0], v[0], v[0]", "v[1], 1:3",
    "[0, 1]", "([0, 1], 0)", "([0, 1],)", "1.0", "g[:2]", "'a'", "0, 0, 0, 0", "..., ...", "m[:2]", "b[:, :3]", "object", "::0", "u8[0] % 3", "i8[0]", "k[:0]", "k, 1:3, k",
    "slice(v[1], v[0])", "()", "k[0] > 9", "k[:, :1], k[:1]", "k, m",
)  # fmt: skip


def indices():
    for index in INDICES:
        yield f"f[{index}]"
    for index in ["0", "-1", "9", "-9", "k", "k * 9", "m, 9", "..., k * 9", "b", "v[0] + 9"]:
        for mode in ("'fill'", "'clip'", "'drop'", "'promise_in_bounds'", "'wrap'"):
            yield f"f.at[{index}].get(mode={mode})"
        yield f"i.at[{index}].get(mode='fill')"
        yield f"f.at[{index}].get(mode='fill', fill_value=7)"
        yield f"f.at[{index}].get(wrap_negative_indices=False)"
    for method, index in itertools.product(
        ["set", "add", "subtract", "multiply", "divide", "power", "min", "max"], INDICES
    ):
        yield f"f.at[{index}].{method}(2.5)"
    for method, index in itertools.product(
        ["set", "add", "mul", "max"],
        ["0", "..., 1", "1:", "::2, 1::2", "::-1", "k[0]", ":, k", "k[0], :, k[0]", "None, 1", "0, b[0]", "m", "k * 9"],
    ):
        yield f"f.at[{index}].{method}(f[{index}] * 2 + 1)"
        yield f"i.at[{index}].{method}(i[{index}][..., :1] + 3)"
        yield f"f.at[{index}].{method}(g[:3])"
    yield from (
        "f.at[9].set(1., mode='clip')", "f.at[-9].set(1.)", "f.at[k].set(1., mode='wrap')", "v.at[v].add(1)", "v.at[v].set(v)", "v.at[v].multiply(2)", "v.at[v].min(w[0])",
        "v.at[v].max(4)", "v.at[0].set(2.7)", "v.at[0].add(2.7)", "i8.at[0].set(3)", "u8.at[0].add(200)", "h.at[0].add(f[0, 0])", "f.at[0].set(c[0])", "m.at[0].set(False)",
        "m.at[0].add(True)", "m.at[0].max(True)", "m.at[:2].min(False)", "c.at[0].set(1j)", "c.at[0].multiply(2)", "f.at[0, 0, 0].apply(jnp.sin)", "f.at[1:, 0].apply(jnp.exp)",
        "f.at[0].set(f)", "f.at[0].set(f[:1, 0])", "f.at[0].set(g[:4])", "f.at[0, 0].set([1, 2, 3, 4, 5])", "f.at[b].set(g)", "f.at[b].add(1)", "f.at[m].set(f[0])",
        "e.at[:, 0].set(1.)", "e.at[0].set(1.)", "s.at[()].set(1.)", "f.at[1, v[1]].set(9.)", "f.at[-1].set(5., wrap_negative_indices=False)", "f.at[v[1] - 2].set(5.)",
        "f.at[k[0]].set(5., indices_are_sorted=True, unique_indices=True)", "f.at[:, 1:3].divide(2)", "i.at[0].divide(2)", "i.at[0].power(2)", "v.at[0].subtract(9)", "u8.at[0].subtract(3)",
        "jnp.take(f, k)", "jnp.take(f, k, axis=1)", "jnp.take(f, 9, axis=0)", "jnp.take(i, k * 9, axis=2)", "jnp.take(f, k * 9, axis=1, mode='clip')", "jnp.take(f, k * 9, axis=1, mode='wrap')",
        "jnp.take(f, k * 9, axis=1, fill_value=4)", "jnp.take(f, 1, axis=9)", "jnp.take(f, g)", "jnp.take(f, [0, 1])", "jnp.take(f, m, axis=0)", "f.take(v, 0)",
        "jnp.take_along_axis(f, jnp.argsort(f, 1), 1)", "jnp.take_along_axis(f, f.argmax(2, keepdims=True), 2)", "jnp.take_along_axis(f, v, None)", "jnp.take_along_axis(f, v, 0)",
        "jnp.take_along_axis(f, k[None] * 9, 1)", "jnp.take_along_axis(f, i[:, :1], 1)", "jnp.take_along_axis(f, i[:, :1], 1, mode='clip')", "jnp.take_along_axis(f, i[:1, :, :1], 2, fill_value=3)",
        "jnp.take_along_axis(f, f, 1)", "jnp.take_along_axis(f, u8[:1, :, None].swapaxes(1, 2) % 4, 1)", "jnp.take_along_axis(i, i[:2, :1], 1)",
        "jnp.put_along_axis(f, f.argmax(2, keepdims=True), 99., 2, inplace=False)", "jnp.put_along_axis(f, f.argmax(2, keepdims=True), 99., 2)",
        "jnp.put_along_axis(f[0], jnp.argsort(f[0], 0)[:2], f[1, :2], 0, inplace=False)", "jnp.put_along_axis(f, v, g[0], None, inplace=False)",
        "jnp.put(f, v, g, inplace=False)", "jnp.put(f, k * 90, 1., mode='clip', inplace=False)", "jnp.put(f, k * 90, 1., mode='wrap', inplace=False)", "jnp.put(f, k * 90, 1., inplace=False)",
        "jnp.put(f, v, g)", "jnp.place(f, b, g, inplace=False)", "jnp.place(f, m, g, inplace=False)", "jnp.unravel_index(v * 9, (3, 4, 5))", "jnp.unravel_index(v - 3, (3, 4))",
        "jnp.unravel_index(7, (3, 4))", "jnp.unravel_index(v * 99, (3, 4))", "jnp.ravel_multi_index((v[:2], v[1:3]), (4, 5))", "jnp.ravel_multi_index((v, v), (2, 2), mode='clip')",
        "jnp.ravel_multi_index((v - 2, v), (2, 2), mode='wrap')", "jnp.ravel_multi_index((v, v), (4, 5), order='F')", "jnp.ravel_multi_index((v, v), (2, 5))", "jnp.ravel_multi_index((g, g), (2, 5))",
        "list(f[:, 0])", "list(s)", "[r for r in v]", "jnp.array([*f[0]])",
    )  # fmt: skip


DIFFERENTIABLE = (
    "jnp.sum(f**2, axis=1)",
    "jnp.prod(f[0], axis=0)",
    "jnp.max(f, axis=1)",
    "jnp.min(f)",
    "jnp.mean(f, axis=(0, 2), where=b)",
    "jnp.var(f, axis=1)",
    "jnp.std(f, axis=0, ddof=1)",
    "jnp.ptp(f, axis=2)",
    "jnp.average(f, axis=0, weights=g[:3])",
    "jnp.nansum(n*f)",
    "jnp.nanmean(f, axis=1)",
    "jnp.nanvar(f, axis=1)",
    "jnp.nanmax(f, axis=0)",
    "jnp.cumsum(f, axis=1)",
    "jnp.cumprod(f[0], axis=1)",
    "jnp.diff(f, axis=0)",
    "jnp.gradient(f, axis=1)",
    "jnp.trapezoid(f)",
    "jnp.sort(f, axis=1)",
    "jnp.sort(f, axis=None, descending=True)",
    "jnp.median(f, axis=1)",
    "jnp.quantile(f, g[:3]/8, axis=2)",
    "jnp.nanquantile(f, .3, axis=1)",
    "f[0, :, k]",
    "f[::2, 1]",
    "f[::-1, :, ::2]",
    "f[b]",
    "f[v[1], v[2]]",
    "f.at[k].get(mode='fill', fill_value=0)",
    "f.at[k].set(3.)",
    "f.at[k].add(f[k])",
    "f.at[0].multiply(f[1])",
    "f.at[:, ::2].set(f[:, 1::2]*2)",
    "f.at[1:, ::-1].max(f[:2])",
    "f.at[0, k[0]].min(0.)",
    "f.at[0].divide(f[1])",
    "f.at[0].power(2.)",
    "jnp.take(f, k, axis=1)",
    "jnp.take(f, k*9, mode='wrap')",
    "jnp.take_along_axis(f, i[:, :1]%4, 1)",
    "jnp.put_along_axis(f, i[:, :1]%4, f[:, :1]*2, 1, inplace=False)",
    "jnp.compress(m, f, axis=0)",
    "jnp.where(b, f, 0)",
    "jnp.cov(f[0])",
    "jnp.corrcoef(f[0])",
    "jnp.interp(f, g, f[0, 0])",
    "jnp.unique(f[0], size=5)",
    "jnp.put(f, v, f[0, 0], inplace=False)",
    "jnp.histogram(f, bins=3, weights=f)[0]",
    "jnp.extract(b, f)",
    "jnp.searchsorted(g, f)*1.",
    "jnp.argmax(f)*1.",
)


def derivatives():
    for f in DIFFERENTIABLE:
        yield f"jax.grad(lambda f: jnp.sum(jnp.sin({f})))(f)"
        yield f"jax.jvp(lambda f: jnp.sum({f} * 1.5), (f,), (jnp.cos(f),))"


GROUPS = {
    "reductions": reductions,
    "orders": orders,
    "statistics": statistics,
    "indices": indices,
    "derivatives": derivatives,
}
