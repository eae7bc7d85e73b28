"""Reductions over windows: reduce_window_sum, _max, _min, and what the derivatives of the latter two need.

    out[j] = reduction over k of x[j s + k r - p],  k in the window, where x is dilated and padded with the identity

The sum is linear, and its transpose is a sum over windows of the cotangent dilated by the stride.  Maxima take the
tangent of the element that was chosen (`select_and_gather_add`), whose transpose adds the cotangent there
(`select_and_scatter_add`): the first of equals, so that each window's cotangent arrives once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpiarray.core.op import Linear, Op, Out, Undefined, Zero, define, pass_through
from mpiarray.core.plan import Dims, LocalContext, Plan, dims_of, spec_from
from mpiarray.core.value import aval_of, literal
from mpiarray.errors import ShardingTypeError
from mpiarray.ops.boxes import blocks_of, changed_dims, padded, slices_of, whole
from mpiarray.ops.common import BatchAxis, check_kind
from mpiarray.ops.linear import batch_to, linear_jvp, tangent_aval
from mpiarray.ops.windows import dilated, fetch, spread, window_blocks, window_count
from mpiarray.types import dtypes
from mpiarray.types.aval import ShapedArray

Pads = tuple[tuple[int, int], ...]
_FIELDS = ("window_dimensions", "window_strides", "padding", "base_dilation", "window_dilation")


def window_shape(x: ShapedArray, params: dict[str, Any]) -> tuple[int, ...]:
    """The number of windows per dim."""
    sizes, strides, pads, base, dilation = (params[k] for k in _FIELDS)
    return tuple(map(window_count, x.shape, sizes, strides, pads, base, dilation))


def _check(name: str, x: ShapedArray, params: dict[str, Any]) -> None:
    for field in _FIELDS:
        values = params[field]
        if len(values) != x.ndim:
            raise TypeError(f"{name}: {field} must have one entry per dim of {x.str_short()}, got {values}")
        if field != "padding" and min(values, default=1) < 1:
            raise TypeError(f"{name}: {field} must be at least 1 in every dim, got {values} for {x.str_short()}")


def _untouched(x: ShapedArray, params: dict[str, Any]) -> list[bool]:
    """Per dim, whether every window is one element, in its place."""
    sizes, strides, pads, base, _ = (params[k] for k in _FIELDS)
    return [(k, s, d, *p) == (1, 1, 1, 0, 0) for k, s, p, d in zip(sizes, strides, pads, base)]


def _mapped_params(d: int, params: dict[str, Any]) -> dict[str, Any]:
    """The parameters with a dim put in at d that windows leave alone."""

    def put(values: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
        return (*values[:d], value, *values[d:])

    return params | {k: put(params[k], (0, 0) if k == "padding" else 1) for k in _FIELDS}


# -- reduce_window ---------------------------------------------------------------------------------


def identity_of(kind: str, dtype: Any) -> Any:
    """What changes nothing: 0 for sums, the smallest value for maxima, the largest for minima."""
    if kind == "sum":
        return 0
    if dtypes.is_bool(dtype):
        return kind == "min"
    if dtypes.is_int(dtype):
        info = dtypes.iinfo(dtype)
        return info.min if kind == "max" else info.max
    return -math.inf if kind == "max" else math.inf


def _window_type(name: str, kinds: str) -> Callable[..., Out]:
    def rule(x: ShapedArray, **params: Any) -> Out:
        check_kind(name, x.dtype, kinds)
        _check(name, x, params)
        return Out(window_shape(x, params), x.dtype, x.weak_type)

    return rule


def _window_plan(name: str, kind: str) -> Callable[..., Plan]:
    def plan(avals: tuple[ShapedArray, ...], **params: Any) -> Plan:
        (x,) = avals
        dims = dims_of(x)
        outs = changed_dims(name, x.sharding.mesh, x.shape, window_shape(x, params), dims, f"{name} on sharded dims")
        moving = [bool(axes) and not same for axes, same in zip(outs, _untouched(x, params))]
        # a dim whose axes are dropped is brought together first
        specs = (spec_from(outs),), (spec_from(outs),)
        if not any(moving):
            return Plan(*specs)
        return Plan(*specs, local=_WindowHalo(name, kind, outs, tuple(moving)))

    return plan


@dataclass(frozen=True)
class _WindowHalo:
    """Each rank fetches what its windows see, padded with the identity, and reduces it without padding."""

    name: str
    kind: str
    dims: Dims
    moving: tuple[bool, ...]

    def __call__(self, ctx: LocalContext, x: Any, **params: Any) -> Any:
        sizes, strides, pads, base, dilation = (list(params[k]) for k in _FIELDS)
        shape, count = ctx.ins[0].shape, ctx.outs[0].shape
        source = blocks_of(ctx.mesh, shape, self.dims)
        target, runs = list(source), [(whole(n),) for n in shape]
        for d, axes in enumerate(self.dims):
            if self.moving[d]:
                parts = ctx.size(axes)
                mine, window = count[d] // parts, (sizes[d], strides[d], pads[d], base[d], dilation[d])
                target[d], run = window_blocks(axes, shape[d], mine, parts, *window)
                runs[d], pads[d], base[d] = (run,), (0, 0), 1
        fill = literal(identity_of(self.kind, aval_of(x).dtype), aval_of(x).dtype)
        x = fetch(x, fill, source, target, runs)
        return REDUCERS[self.kind](x, **params | {"padding": tuple(pads), "base_dilation": tuple(base)})


_UFUNC = {"sum": np.add, "max": np.maximum, "min": np.minimum}


def _window_impl(kind: str) -> Callable[..., np.ndarray]:
    def impl(x: Any, **params: Any) -> np.ndarray:
        sizes, strides, pads, base, dilation = (params[k] for k in _FIELDS)
        dtype = x.dtype
        if dtypes.is_float(dtype) and dtype.itemsize < 4:
            x = x.astype(np.float32)
        out = spread(x, pads, base, identity_of(kind, dtype))
        for d in range(x.ndim):  # windows are boxes: one dim after the other
            out = _along(_UFUNC[kind], out, d, sizes[d], strides[d], dilation[d], identity_of(kind, dtype))
        return out.astype(dtype, copy=False)

    return impl


def _along(ufunc: np.ufunc, x: np.ndarray, d: int, size: int, stride: int, dilation: int, identity: Any) -> np.ndarray:
    if size == 1 and stride == 1:
        return x
    count = window_count(x.shape[d], size, stride, (0, 0), 1, dilation)
    shape = (*x.shape[:d], count, *x.shape[d + 1 :])
    if not count:
        return np.full(shape, identity, x.dtype)
    out = None
    for k in range(size):
        start = k * dilation
        part = x[(slice(None),) * d + (slice(start, start + (count - 1) * stride + 1, stride),)]
        if out is None:
            out = np.array(part)
        else:
            ufunc(out, part, out=out)
    return out  # type: ignore[return-value]


def _sum_transpose(op: Op, ct: Any, x: Linear, **params: Any) -> list[Any]:
    sizes, strides, pads, base, dilation = (params[k] for k in _FIELDS)
    padding = []
    for n, count, k, s, p, d, r in zip(x.aval.shape, aval_of(ct).shape, sizes, strides, pads, base, dilation):
        low = (k - 1) * r - p[0]
        padding.append((low, (n - 1) * d + (k - 1) * r + 1 - low - dilated(count, s)))
    backward = {"window_strides": base, "padding": tuple(padding), "base_dilation": strides}
    return [op(ct, **params | backward)]


def _window_batch(op: Op, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int], **params: Any) -> tuple[Any, int]:
    return op(args[0], **_mapped_params(dims[0], params)), dims[0]


reduce_window_sum = define(
    "reduce_window_sum",
    type_rule=_window_type("reduce_window_sum", "ifc"),
    plan=_window_plan("reduce_window_sum", "sum"),
    impl=_window_impl("sum"),
    jvp=linear_jvp,
    transpose=_sum_transpose,
    batch=_window_batch,
    partial_sums=pass_through,
    hlo_name="reduce-window",
)

# -- the chosen element of each window ---------------------------------------------------------------


def _taps(x: np.ndarray, params: dict[str, Any]) -> Iterator[np.ndarray]:
    """For each place within a window, in order, a view of that element of all windows."""
    sizes, strides, _, _, dilation = (params[k] for k in _FIELDS)
    counts = [window_count(n, k, s, (0, 0), 1, r) for n, k, s, r in zip(x.shape, sizes, strides, dilation)]
    for place in np.ndindex(*sizes):
        starts = [k * r for k, r in zip(place, dilation)]
        yield x[tuple(slice(a, a + (m - 1) * s + 1 if m else a, s) for a, m, s in zip(starts, counts, strides))]


def _chosen(x: np.ndarray, select: str, params: dict[str, Any]) -> np.ndarray:
    """The number, within each window, of its first maximum ('ge') or minimum ('le')."""
    kind = "max" if select == "ge" else "min"
    better = np.greater if select == "ge" else np.less
    x = spread(x, params["padding"], params["base_dilation"], identity_of(kind, x.dtype))
    best = number = None
    for k, part in enumerate(_taps(x, params)):
        if best is None:
            best, number = np.array(part), np.zeros(part.shape, np.int32)
            continue
        found = better(part, best)
        np.copyto(best, part, where=found)
        np.copyto(number, k, where=found)  # type: ignore[arg-type]
    return number  # type: ignore[return-value]


def _select_type(name: str, x: ShapedArray, other: ShapedArray, shape: tuple[int, ...], params: dict[str, Any]) -> None:
    _check(name, x, params)
    check_kind(name, x.dtype, "if")
    if params["select_prim"] not in ("ge", "le"):
        raise ValueError(f"{name}: select_prim must be 'ge' or 'le', got {params['select_prim']!r}")
    if other.shape != shape or other.dtype != x.dtype:
        raise TypeError(
            f"{name}: needs an array of shape {shape} and dtype {x.dtype}, got {other.str_short()} for operand "
            f"{x.str_short()}"
        )


def _gather_type(tangents: ShapedArray, x: ShapedArray, **params: Any) -> Out:
    _select_type("select_and_gather_add", x, tangents, x.shape, params)
    return Out(window_shape(x, params), tangents.dtype)


def _scatter_type(source: ShapedArray, x: ShapedArray, **params: Any) -> Out:
    _check("select_and_scatter_add", x, params)
    _select_type("select_and_scatter_add", x, source, window_shape(x, params), params)
    return Out(x.shape, source.dtype)


def _whole_windows(x: ShapedArray, params: dict[str, Any]) -> Dims:
    """The axes of the dims that windows leave alone; the other dims are brought together."""
    return tuple(axes if same else () for axes, same in zip(dims_of(x), _untouched(x, params)))


def _gather_plan(avals: tuple[ShapedArray, ...], **params: Any) -> Plan:
    tangents, x = avals
    if dims_of(tangents) != dims_of(x):
        raise ShardingTypeError(
            f"select_and_gather_add tangents and operand shardings must match, got {tangents.short()} and {x.short()}"
        )
    name = "select_and_gather_add"
    outs = changed_dims(name, x.sharding.mesh, x.shape, window_shape(x, params), dims_of(x), f"{name} on sharded dims")
    spec = spec_from(_whole_windows(x, params))
    return Plan((spec, spec), (spec,), (), (spec_from(outs),))


def _scatter_plan(avals: tuple[ShapedArray, ...], **params: Any) -> Plan:
    spec = spec_from(_whole_windows(avals[1], params))
    return Plan((spec, spec), (spec,), (), (spec_from(dims_of(avals[1])),))


def _gather_impl(tangents: Any, x: Any, *, select_prim: str, **params: Any) -> np.ndarray:
    number = _chosen(x, select_prim, params)
    out = np.zeros(number.shape, tangents.dtype)
    for k, part in enumerate(_taps(spread(tangents, params["padding"], params["base_dilation"], 0), params)):
        np.copyto(out, part, where=number == k)
    return out


def _scatter_impl(source: Any, x: Any, *, select_prim: str, **params: Any) -> np.ndarray:
    number = _chosen(x, select_prim, params)
    compute = np.float32 if dtypes.is_float(source.dtype) and source.dtype.itemsize < 4 else source.dtype
    pads, base = params["padding"], params["base_dilation"]
    shape = [max(0, dilated(n, d) + sum(p)) for n, d, p in zip(x.shape, base, pads)]
    wide = np.zeros(shape, compute)
    for k, part in enumerate(_taps(wide, params)):
        np.add(part, source, out=part, where=number == k, casting="same_kind")
    runs = [padded(n, p[0], d - 1, m) for n, m, p, d in zip(x.shape, shape, pads, base)]
    out = np.zeros(x.shape, source.dtype)
    if all(r.size for r in runs):
        mine, there = slices_of(runs)
        out[mine] = wide[there]
    return out


def _by_values(op: Op, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    """Linear in the values; which ones are chosen does not change for small changes of the operand."""
    out = op(*primals, **params)
    if isinstance(tangents[0], Zero):
        return out, Zero(tangent_aval(out.aval))
    return out, op(tangents[0], primals[1], **params)


def _pair_batch(
    op: Op, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None], **params: Any
) -> tuple[Any, int]:
    to = next(d for d in dims if d is not None)
    moved = [batch_to(x, axis, d, to) for x, d in zip(args, dims)]
    return op(*moved, **_mapped_params(to, params)), to


# tangents of the elements that reduce_window_max ('ge') or _min ('le') choose
select_and_gather_add: Op = define(
    "select_and_gather_add",
    type_rule=_gather_type,
    plan=_gather_plan,
    impl=_gather_impl,
    jvp=_by_values,
    transpose=lambda op, ct, t, x, **params: [select_and_scatter_add(ct, x, **params), None],
    batch=_pair_batch,
    hlo_name="select-and-gather",
)

# cotangents added to the elements that were chosen
select_and_scatter_add: Op = define(
    "select_and_scatter_add",
    type_rule=_scatter_type,
    plan=_scatter_plan,
    impl=_scatter_impl,
    jvp=_by_values,
    transpose=lambda op, ct, s, x, **params: [select_and_gather_add(ct, x, **params), None],
    batch=_pair_batch,
    hlo_name="select-and-scatter",
)


def _extreme_jvp(select: str) -> Callable[..., Any]:
    def jvp(op: Op, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        out = op(*primals, **params)
        if isinstance(tangents[0], Zero):
            return out, Zero(tangent_aval(out.aval))
        return out, select_and_gather_add(tangents[0], primals[0], select_prim=select, **params)

    return jvp


reduce_window_max, reduce_window_min = (
    define(
        f"reduce_window_{kind}",
        type_rule=_window_type(f"reduce_window_{kind}", "bif"),
        plan=_window_plan(f"reduce_window_{kind}", kind),
        impl=_window_impl(kind),
        jvp=_extreme_jvp(select),
        transpose=Undefined("it is not linear"),
        batch=_window_batch,
        hlo_name="reduce-window",
    )
    for kind, select in (("max", "ge"), ("min", "le"))
)

REDUCERS = {"sum": reduce_window_sum, "max": reduce_window_max, "min": reduce_window_min}
