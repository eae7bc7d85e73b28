"""Expressions of which JAX's result types are recorded for many shardings of `x` (record_sharded.py): reductions, order, indexing.

x is float32[8,4], r a replicated float32[8,4], i replicated integers, on an Explicit mesh x=4, y=2.
"""

SPECS = [
    ((), ()), (("x",), ("y",)), (("x",), ()), ((), ("y",)), (("x", "y"), ()), (("y",), ()), ((), ("x",)), (("y", "x"), ()), (("y",), ("x",)),
]  # fmt: skip

EXPRESSIONS = [
    *(f"jnp.{f}(x, axis={a})" for f in ["sum", "max", "mean", "var", "std", "any", "prod", "ptp", "nansum", "nanmax", "nanstd", "count_nonzero"] for a in (None, 0, 1, (0, 1))),
    *(f"jnp.{f}(x, axis={a}, keepdims=True)" for f in ("sum", "min", "var", "all", "nanmean") for a in (None, 0, 1)),
    *(f"jnp.{f}(x, axis={a})" for f in ["argmax", "argmin", "nanargmax", "cumsum", "cumprod", "nancumsum", "sort", "argsort", "median", "nanmedian"] for a in (None, 0, 1)),
    *(f"jnp.quantile(x, .5, axis={a}, keepdims=True)" for a in (0, 1)), *(f"jnp.quantile(x, jnp.array([.2, .5]), axis={a})" for a in (0, 1)),
    *(f"jnp.percentile(x, 30., axis={a})" for a in (0, 1)), *(f"jnp.lexsort((x, x), axis={a})" for a in (0, 1)), *(f"jnp.partition(x, 1, axis={a})" for a in (0, 1)),
    "jnp.average(x)", "jnp.average(x, axis=0)", "jnp.average(x, axis=1, weights=r[0])", "jnp.average(x, axis=0, weights=r[:, 0])", "jnp.average(x, weights=r)",
    "jnp.allclose(x, x)", "jnp.isclose(x, r)", "jnp.array_equal(x, r)", "jnp.diff(x, axis=0)", "jnp.diff(x, axis=1)", "jnp.gradient(x, axis=1)", "jnp.trapezoid(x)",
    "jnp.mean(x, where=x > 0)", "jnp.sum(x, axis=0, where=x > 0, initial=1.)", "jnp.max(x, axis=1, where=r > 0, initial=0.)", "jnp.sum(x, dtype=jnp.float16)",
    "x[0]", "x[-1]", "x[:, 0]", "x[0, 0]", "x[:4]", "x[:2]", "x[::2]", "x[::-1]", "x[:, ::-1]", "x[:, :2]", "x[4:, 2:]", "x[...]", "x[None]", "x[:, None]", "x[..., 0]",
    "x[i[0]]", "x[:, i[0]]", "x[i]", "x[:, i]", "x[i, i]", "x[i, :2]", "x[None, i]", "x[0, i]", "x[i, 0]", "x[i[:, None], i]", "x[1:3, i]", "x[i, None]", "x[i[0], i]",
    "x[np.array([0, 1])]", "x[:, np.array([[0], [1]])]", "x[i[:0]]", "x[8]", "x[:8]", "x[0:0]", "x[::8]", "x[2:6, 1:3]",
    "jnp.take(x, i, axis=0)", "jnp.take(x, i, axis=1)", "jnp.take(x, i)", "jnp.take(x, 1, axis=0)", "jnp.take(x, i, axis=1, mode='clip')",
    "jnp.take_along_axis(x, q[:, :1], 1)", "jnp.take_along_axis(x, q[:1], 0)", "jnp.take_along_axis(x, q, 1)", "jnp.take_along_axis(x, jnp.argmax(x, 1, keepdims=True), 1)",
    "x.at[0].get(out_sharding=P())", "x.at[0].get(out_sharding=P('y'))", "x.at[i].get(out_sharding=P())", "x.at[i].get(out_sharding=P('y'))", "x.at[i].get(out_sharding=P(None, 'x'))",
    "x.at[:, i].get(out_sharding=P('x'))", "x.at[:4].get(out_sharding=P('x'))", "x.at[:2].get(out_sharding=P())", "x.at[i, i].get(out_sharding=P('y'))", "x.at[None, 0].get(out_sharding=P(None, 'x'))",
    "x.at[i[:, None], i].get(out_sharding=P('y'))", "x.at[0, i].get(out_sharding=P())", "x.at[i].get(out_sharding=P('x'))", "x.at[0].get(mode='fill')", "x.at[i].get(mode='fill')", "x.at[:3].get(out_sharding=P('x'))",
    "x.at[0].set(1.)", "x.at[0].set(r[0])", "x.at[0].set(x[0])", "x.at[:, 0].set(1.)", "x.at[:, 0].set(r[:, 0])", "x.at[:].set(r)", "x.at[...].set(x)", "x.at[:].set(1.)", "x.at[:4].set(1.)",
    "x.at[:, :2].set(r[:, :2])", "x.at[i].add(1.)", "x.at[i].add(r[:2])", "x.at[:, i].multiply(2.)", "x.at[:, i].max(r[:, :2])", "x.at[i, i].set(0.)", "x.at[i[0]].set(0.)", "x.at[:, i[0]].set(0.)",
    "x.at[0, 0].set(5.)", "x.at[None].set(r)", "x.at[:, ::2].set(1.)", "x.at[:, ::-1].set(r)", "x.at[:, 0].divide(2.)", "x.at[0].power(2.)", "x.at[1:3, i].add(1.)",
    "x.at[0].set(1., out_sharding=P('x', 'y'))", "x.at[0].set(r[0], out_sharding=P())", "x.at[i].add(1., out_sharding=P('x', 'y'))", "x.at[i].add(r[:2], out_sharding=P('y'))",
    "x.at[:4].set(1., out_sharding=P('x'))", "x.at[:3, i].multiply(2., out_sharding=P(None, 'x'))", "x.at[:, ::-2].set(3., out_sharding=P('y', None))", "x.at[i, i].min(0., out_sharding=P('x'))",
    "jnp.searchsorted(jnp.sort(r[:, 0]), x)", "jnp.isin(x, r[0])", "jnp.digitize(x, jnp.sort(r[0]))", "jnp.where(x > 0, x, 0.)", "jnp.unique(x, size=3)", "jnp.nonzero(x, size=3)", "jnp.flatnonzero(x, size=3)",
    "jnp.argwhere(x, size=2)", "jnp.cov(r)", "jnp.interp(r, r[:, 0], r[:, 1])", "x.argmax(0)", "x.sort(1)", "x.cumsum(0)", "x.mean()", "x.take(i, 1)",
]  # fmt: skip
