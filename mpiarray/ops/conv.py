"""conv_general_dilated: convolution as one matrix product per block of examples.

With x dilated by d and padded by p, and the kernel w dilated by r, in every spatial dim

    out[n, o, j] = sum over i, k of x[n, i, (j s + k r - p) / d] * w[o, i, k]

where s is the stride and a term counts if the division is exact.  Its transposes in x and in w are convolutions
again, with s and d, or s and r, exchanged, so derivatives of any order exist.

Along sharded spatial dims each rank fetches the part of its neighbours' blocks that its outputs see (`ops.boxes`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from mpiarray.core.op import NONE, Linear, Op, Out, PartialSums, define, refuse
from mpiarray.core.plan import Dims, LocalContext, Pending, Plan, axes_size, dims_of, mesh_order, spec_from
from mpiarray.core.value import aval_of, literal
from mpiarray.errors import ShardingTypeError
from mpiarray.ops.boxes import blocks_of, changed_dims, explicit_axes, whole
from mpiarray.ops.collectives import total
from mpiarray.ops.common import BatchAxis
from mpiarray.ops.conv_kernel import convolve
from mpiarray.ops.linear import batch_to, by_argument, convert_element_type, move_dim, reshape, sharding_of, transpose
from mpiarray.ops.shape import rev
from mpiarray.ops.windows import dilated, fetch, spread, window_blocks, window_count
from mpiarray.types import dtypes
from mpiarray.types.aval import ShapedArray
from mpiarray.types.sharding import NamedSharding

_WINDOW = ("window_strides", "padding", "lhs_dilation", "rhs_dilation")


class ConvDimensionNumbers(NamedTuple):
    """Which dims are what: (batch, feature, spatial...) of operand and result; of the kernel (out, in, spatial...)."""

    lhs_spec: tuple[int, ...]
    rhs_spec: tuple[int, ...]
    out_spec: tuple[int, ...]


def conv_dimension_numbers(ndim: int, dimension_numbers: Any) -> ConvDimensionNumbers:
    """Dimension numbers from strings such as ('NCHW', 'OIHW', 'NCHW'); None: batch and features first.

    Raises ValueError/TypeError where the strings do not name each dim once.
    """
    if isinstance(dimension_numbers, ConvDimensionNumbers):
        return dimension_numbers
    if dimension_numbers is None:
        return ConvDimensionNumbers(*(tuple(range(ndim)),) * 3)
    if not isinstance(dimension_numbers, (tuple, list)) or len(dimension_numbers) != 3:
        raise TypeError(
            f"conv_general_dilated: dimension_numbers must be a tuple/list or ConvDimensionNumbers, got "
            f"{dimension_numbers!r}"
        )
    texts = [str(t) for t in dimension_numbers]
    for text, first in zip(texts, ("NC", "OI", "NC")):
        if len(text) != ndim or len(set(text)) != ndim or not set(first) <= set(text):
            raise ValueError(
                f"conv_general_dilated dimension_numbers[...]: {text!r} must have {ndim} distinct characters, among "
                f"them {first[0]!r} and {first[1]!r}, got {tuple(texts)}"
            )
    spatial = [c for c in texts[1] if c not in "OI"]
    if any({c for c in t if c not in "NC"} != set(spatial) for t in (texts[0], texts[2])):
        raise ValueError(
            f"conv_general_dilated: dimension_numbers {tuple(texts)} must have the same spatial characters"
        )
    find = lambda text, heads: tuple(text.index(c) for c in (*heads, *spatial))
    return ConvDimensionNumbers(find(texts[0], "NC"), find(texts[1], "OI"), find(texts[2], "NC"))


# -- the type --------------------------------------------------------------------------------------


def conv_type(
    x: ShapedArray,
    w: ShapedArray,
    *,
    window_strides: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
    lhs_dilation: tuple[int, ...],
    rhs_dilation: tuple[int, ...],
    dimension_numbers: ConvDimensionNumbers,
    feature_group_count: int,
    batch_group_count: int,
    precision: Any,
    preferred_element_type: Any,
    out_sharding: NamedSharding | None,
) -> Out:
    shown = f"lhs {x.str_short()} and rhs {w.str_short()}"
    if x.ndim != w.ndim or x.ndim < 2:
        raise ValueError(
            f"conv_general_dilated lhs and rhs must have the same number of dimensions, at least 2, got {shown}"
        )
    if x.dtype != w.dtype:
        raise TypeError(
            f"lax.conv_general_dilated requires arguments to have equal dtypes, got {x.dtype}, {w.dtype} ({shown})"
        )
    spatial = x.ndim - 2
    for name, values in (
        ("window_strides", window_strides),
        ("padding", padding),
        ("lhs_dilation", lhs_dilation),
        ("rhs_dilation", rhs_dilation),
    ):
        if len(values) != spatial:
            raise TypeError(
                f"conv_general_dilated: {name} must have one entry per spatial dim ({spatial}), got {values} "
                f"for {shown}"
            )
    if min((*window_strides, *lhs_dilation, *rhs_dilation), default=1) < 1:
        raise TypeError(
            f"conv_general_dilated: strides and dilations must be at least 1, got window_strides={window_strides}, "
            f"lhs_dilation={lhs_dilation}, rhs_dilation={rhs_dilation}"
        )
    (n, c, *sizes), (o, i, *windows) = ([a.shape[d] for d in spec] for a, spec in zip((x, w), dimension_numbers))
    if feature_group_count < 1 or batch_group_count < 1 or (feature_group_count > 1 and batch_group_count > 1):
        raise ValueError(
            f"conv_general_dilated: at most one of feature_group_count ({feature_group_count}) and batch_group_count "
            f"({batch_group_count}) can be more than 1, and neither less"
        )
    if c != i * feature_group_count:
        raise ValueError(
            f"conv_general_dilated lhs feature dimension size ({c}) divided by feature_group_count "
            f"({feature_group_count}) must equal the rhs input feature dimension size ({i}), got {shown}"
        )
    if o % feature_group_count or o % batch_group_count or n % batch_group_count:
        raise ValueError(
            f"conv_general_dilated rhs output feature dimension size ({o}) must be a multiple of feature_group_count "
            f"({feature_group_count}) and of batch_group_count ({batch_group_count}), and the batch size ({n}) of "
            "the latter"
        )
    counts = map(window_count, sizes, windows, window_strides, padding, lhs_dilation, rhs_dilation)
    shape = [0] * x.ndim
    for d, m in zip(dimension_numbers.out_spec, (n // batch_group_count, o, *counts)):
        shape[d] = m
    return Out(tuple(shape), x.dtype if preferred_element_type is None else preferred_element_type)


# -- the plan --------------------------------------------------------------------------------------


class _Roles(NamedTuple):
    """Axes or sizes by role, whatever the order of dims."""

    batch: Any
    feature: Any
    spatial: tuple[Any, ...]

    @classmethod
    def of(cls, values: Sequence[Any], spec: Sequence[int]) -> _Roles:
        b, f, *s = (values[d] for d in spec)
        return cls(b, f, tuple(s))

    def placed(self, spec: Sequence[int]) -> list[Any]:
        out: list[Any] = [None] * len(spec)
        for d, v in zip(spec, (self.batch, self.feature, *self.spatial)):
            out[d] = v
        return out


def _conv_plan(avals: tuple[ShapedArray, ...], **params: Any) -> Plan:
    x, w = avals
    numbers: ConvDimensionNumbers = params["dimension_numbers"]
    out_sharding: NamedSharding | None = params["out_sharding"]
    mesh = x.sharding.mesh if out_sharding is None else out_sharding.mesh
    shape = _Roles.of(conv_type(x, w, **params).shape, numbers.out_spec)
    sizes = _Roles.of(x.shape, numbers.lhs_spec)
    lhs, rhs = _Roles.of(dims_of(x), numbers.lhs_spec), _Roles.of(dims_of(w), numbers.rhs_spec)
    if out_sharding is None:
        result = _conv_result(mesh, x, w, lhs, sizes, shape)
        wanted = _Roles((), (), ((),) * len(shape.spatial))
    else:
        result = wanted = _Roles.of(out_sharding.spec.padded(x.ndim).dims, numbers.out_spec)
    used: set[str] = set()

    def give(n: int, *wishes: tuple[str, ...]) -> tuple[str, ...]:
        for axes in wishes:
            if axes and not used & set(axes) and n % axes_size(mesh, axes) == 0:
                used.update(axes)
                return axes
        return ()

    groups, batch_groups = params["feature_group_count"], params["batch_group_count"]
    batch = give(sizes.batch, lhs.batch, wanted.batch) if batch_groups == 1 else ()
    spatial = tuple(map(give, shape.spatial, lhs.spatial, wanted.spatial))
    summed: tuple[str, ...] = ()
    grouped: tuple[str, ...] = ()
    outer: tuple[str, ...] = ()
    if groups > 1:
        grouped = give(groups, lhs.feature, rhs.batch, wanted.feature)
    else:
        summed = give(sizes.feature, lhs.feature)
        outer = give(shape.feature, rhs.batch, wanted.feature) if batch_groups == 1 else ()
    ins = _Roles(batch, grouped or summed, spatial), _Roles(grouped or outer, summed, ((),) * len(spatial))
    outs = spec_from(_Roles(batch, grouped or outer, spatial).placed(numbers.out_spec))
    specs = spec_from(ins[0].placed(numbers.lhs_spec)), spec_from(ins[1].placed(numbers.rhs_spec))
    typed = (spec_from(result.placed(numbers.out_spec)) if out_sharding is None else out_sharding.spec.padded(x.ndim),)
    local = {"feature_group_count": groups // axes_size(mesh, grouped), "out_sharding": None}
    if not any(spatial):
        pending = (Pending("sum", mesh_order(mesh, summed)),) if summed else ()
        return Plan(specs, (outs,), pending, typed, local)
    return Plan(
        specs, (outs,), (), typed, local=_Halo(specs[0].dims, spatial, mesh_order(mesh, summed), tuple(local.items()))
    )


def _conv_result(mesh: Any, x: ShapedArray, w: ShapedArray, lhs: _Roles, sizes: _Roles, shape: _Roles) -> _Roles:
    """The operand's axes, where the kernel is replicated and the input features are whole."""
    if any(explicit_axes(mesh, axes) for axes in dims_of(w)) or explicit_axes(mesh, lhs.feature):
        raise ShardingTypeError(
            "conv_general_dilated: Please specify the output sharding via `out_sharding` parameter: the kernel must be "
            f"fully replicated and the input feature dim unsharded, got lhs {x.short()} and rhs {w.short()}. Use "
            "`jax.reshard`, or wrap the call in `jax.sharding.auto_axes`."
        )
    old, new = (sizes.batch, *sizes.spatial), (shape.batch, *shape.spatial)
    message = "conv_general_dilated on sharded dims"
    batch, *spatial = changed_dims("conv_general_dilated", mesh, old, new, (lhs.batch, *lhs.spatial), message)
    return _Roles(batch, (), tuple(spatial))


@dataclass(frozen=True)
class _Halo:
    """Each rank fetches the padded and dilated part of the operand that its outputs see, and convolves it as it is."""

    dims: Dims
    spatial: Dims
    summed: tuple[str, ...]
    params: tuple[tuple[str, Any], ...]

    def __call__(self, ctx: LocalContext, x: Any, w: Any, **params: Any) -> Any:
        numbers: ConvDimensionNumbers = params["dimension_numbers"]
        strides, pads, base, dilation = (list(params[k]) for k in _WINDOW)
        shape = ctx.ins[0].shape
        source = blocks_of(ctx.mesh, shape, self.dims)
        target, runs = list(source), [(whole(n),) for n in shape]
        for k, axes in enumerate(self.spatial):
            if not axes:
                continue
            d, window = numbers.lhs_spec[k + 2], ctx.ins[1].shape[numbers.rhs_spec[k + 2]]
            mine = ctx.outs[0].shape[numbers.out_spec[k + 2]] // ctx.size(axes)
            halo, run = window_blocks(
                axes, shape[d], mine, ctx.size(axes), window, strides[k], pads[k], base[k], dilation[k]
            )
            target[d], runs[d] = halo, (run,)
            pads[k], base[k] = (0, 0), 1
        x = fetch(x, literal(0, aval_of(x).dtype), source, target, runs)
        local = params | {"padding": tuple(pads), "lhs_dilation": tuple(base)} | dict(self.params)
        return total(conv_general_dilated(x, w, **local), self.summed)


# -- the block algorithm ------------------------------------------------------------------------------


def _conv_impl(
    x: Any,
    w: Any,
    *,
    window_strides: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
    lhs_dilation: tuple[int, ...],
    rhs_dilation: tuple[int, ...],
    dimension_numbers: ConvDimensionNumbers,
    feature_group_count: int,
    batch_group_count: int,
    preferred_element_type: Any,
    **_: Any,
) -> np.ndarray:
    result = x.dtype if preferred_element_type is None else preferred_element_type
    compute = np.float32 if dtypes.is_float(x.dtype) and x.dtype.itemsize < 4 else np.promote_types(x.dtype, result)
    x = np.transpose(x, dimension_numbers.lhs_spec).astype(compute, copy=False)
    w = np.transpose(w, dimension_numbers.rhs_spec).astype(compute, copy=False)
    x = spread(x, [(0, 0), (0, 0), *padding], [1, 1, *lhs_dilation], 0)
    out = convolve(x, w, window_strides, rhs_dilation, feature_group_count, batch_group_count)
    return out.astype(result, copy=False).transpose(np.argsort(dimension_numbers.out_spec))


# -- derivatives -----------------------------------------------------------------------------------


def _by_lhs(t: Any, out: Any, x: Any, w: Any, **params: Any) -> Any:
    return conv_general_dilated(t, w, **params)


def _by_rhs(t: Any, out: Any, x: Any, w: Any, **params: Any) -> Any:
    return conv_general_dilated(x, t, **params)


def _conv_transpose(op: Op, ct: Any, x: Any, w: Any, **params: Any) -> list[Any]:
    if isinstance(x, Linear):
        return [_lhs_cotangent(ct, x.aval, w, params), None]
    return [None, _rhs_cotangent(ct, x, w.aval, params)]


def _adjoint_pad(n: int, count: int, k: int, stride: int, pad: int, base: int, dilation: int) -> tuple[int, int]:
    """The padding of the windows' cotangents, dilated by the stride, from which windows give the operand's."""
    low = (k - 1) * dilation - pad
    return low, (n - 1) * base + (k - 1) * dilation + 1 - low - dilated(count, stride)


def _lhs_cotangent(ct: Any, x: ShapedArray, w: Any, params: dict[str, Any]) -> Any:
    lhs, rhs, out = params["dimension_numbers"]
    groups, batch_groups = params["feature_group_count"], params["batch_group_count"]
    sizes, counts = [x.shape[d] for d in lhs[2:]], [aval_of(ct).shape[d] for d in out[2:]]
    windows = [aval_of(w).shape[d] for d in rhs[2:]]
    strides, pads, base, dilation = (params[k] for k in _WINDOW)
    padding = tuple(map(_adjoint_pad, sizes, counts, windows, strides, [p[0] for p in pads], base, dilation))
    w = rev(_as_dtype(w, aval_of(ct).dtype), dimensions=tuple(sorted(rhs[2:])))
    if groups * batch_groups > 1:  # (group, out; in) -> (group, in; out): the features of each group trade places
        w = _exchange_groups(w, rhs, groups * batch_groups)
    else:
        rhs = (rhs[1], rhs[0], *rhs[2:])
    backward = params | {
        "window_strides": base,
        "padding": padding,
        "lhs_dilation": strides,
        "dimension_numbers": ConvDimensionNumbers(out, rhs, lhs),
        "feature_group_count": groups * batch_groups,
        "batch_group_count": 1,
        "preferred_element_type": x.dtype,
    }
    if batch_groups == 1:
        return conv_general_dilated(ct, w, **backward | {"out_sharding": sharding_of(x)})
    # the groups come out as features and belong to the batch
    grouped = conv_general_dilated(ct, w, **backward | {"out_sharding": None})
    return _features_to_batch(grouped, lhs, batch_groups, x)


def _rhs_cotangent(ct: Any, x: Any, w: ShapedArray, params: dict[str, Any]) -> Any:
    """A convolution in which batch and features change roles, and the windows' cotangents are the kernel."""
    lhs, rhs, out = params["dimension_numbers"]
    strides, pads, base, dilation = (params[k] for k in _WINDOW)
    padding = []
    for k, (lo, _) in enumerate(pads):
        n, count, window = aval_of(x).shape[lhs[k + 2]], aval_of(ct).shape[out[k + 2]], w.shape[rhs[k + 2]]
        seen = (window - 1) * dilation[k] + dilated(count, strides[k])
        padding.append((lo, seen - lo - dilated(n, base[k])))
    swap = lambda spec: (spec[1], spec[0], *spec[2:])
    backward = params | {
        "window_strides": dilation,
        "padding": tuple(padding),
        "rhs_dilation": strides,
        "dimension_numbers": ConvDimensionNumbers(swap(lhs), swap(out), swap(rhs)),
        "feature_group_count": params["batch_group_count"],
        "batch_group_count": params["feature_group_count"],
        "preferred_element_type": w.dtype,
        "out_sharding": sharding_of(w),
    }
    return conv_general_dilated(_as_dtype(x, aval_of(ct).dtype), ct, **backward)


def _as_dtype(x: Any, dtype: Any) -> Any:
    return x if aval_of(x).dtype == dtype else convert_element_type(x, new_dtype=dtype, weak_type=False)


def _exchange_groups(w: Any, rhs: tuple[int, ...], groups: int) -> Any:
    """A kernel of (group out, in) features as one of (group in, out) features, in the same dims."""
    w = unfold(w, rhs[0], groups, True)  # the groups are a dim of their own, before the out features
    after = lambda d: d + (d >= rhs[0])
    order = list(range(aval_of(w).ndim))
    out_dim, in_dim = rhs[0] + 1, after(rhs[1])
    order[out_dim], order[in_dim] = order[in_dim], order[out_dim]
    return fold(transpose(w, permutation=tuple(order)), rhs[0], rhs[0], True)


def _features_to_batch(x: Any, spec: tuple[int, ...], groups: int, like: ShapedArray) -> Any:
    x = unfold(x, spec[1], groups, True)
    sharding = sharding_of(like)
    batch = spec[0] + (spec[0] > spec[1])
    order = [d for d in range(aval_of(x).ndim) if d != spec[1]]
    order.insert(order.index(batch), spec[1])
    return reshape(transpose(x, permutation=tuple(order)), new_sizes=like.shape, dimensions=None, sharding=sharding)


# -- batching --------------------------------------------------------------------------------------


def fold(x: Any, d: int, at: int, outer: bool) -> Any:
    """Merge dim d into what is dim `at` without it, as the more (`outer`) or the less significant part."""
    x = move_dim(x, d, at if outer else at + 1)
    shape = aval_of(x).shape
    merged = (*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :])
    return reshape(x, new_sizes=merged, dimensions=None, sharding=None)


def unfold(x: Any, at: int, size: int, outer: bool, spec: tuple[str, ...] = ()) -> Any:
    """The reverse: dim `at` as two dims, the one of `size` (sharded over `spec`) before or after the other."""
    aval = aval_of(x)
    rest = aval.shape[at] // size
    shape = (*aval.shape[:at], *((size, rest) if outer else (rest, size)), *aval.shape[at + 1 :])
    sharding = None
    if not aval.sharding.mesh.empty:
        dims = dims_of(aval)
        other = dims[at][len(spec) :]
        pair = (spec, other) if outer else (other, spec)
        if axes_size(aval.sharding.mesh, other) <= rest and rest % axes_size(aval.sharding.mesh, other) == 0:
            sharding = NamedSharding(aval.sharding.mesh, spec_from([*dims[:at], *pair, *dims[at + 1 :]]))
    return reshape(x, new_sizes=shape, dimensions=None, sharding=sharding)


def _conv_batch(
    op: Op, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None], **params: Any
) -> tuple[Any, int]:
    (x, w), (dx, dw) = args, dims
    lhs, rhs, out = params["dimension_numbers"]
    groups, batch_groups = params["feature_group_count"], params["batch_group_count"]
    if dw is None and dx is not None:  # more examples
        outer = bool(axis.spec) and batch_groups == 1
        x = fold(x, dx, lhs[0], outer)
        return _mapped(op, axis, x, w, out[0], outer, params)
    if dw is not None and dx is None and not (axis.spec and groups * batch_groups > 1):  # more kernels
        outer = bool(axis.spec)
        w = fold(w, dw, rhs[0], outer)
        return _mapped(op, axis, x, w, out[1], outer, params)
    # an example and a kernel of each: one group for each
    x, w = batch_to(x, axis, dx, 0), fold(batch_to(w, axis, dw, 0), 0, rhs[0], True)
    if batch_groups > 1:
        x = fold(x, 0, lhs[0], True)
        return _mapped(op, axis, x, w, out[1], True, params | {"batch_group_count": batch_groups * axis.size})
    x = fold(x, 0, lhs[1], True)
    return _mapped(op, axis, x, w, out[1], True, params | {"feature_group_count": groups * axis.size})


def _mapped(op: Op, axis: BatchAxis, x: Any, w: Any, at: int, outer: bool, params: dict[str, Any]) -> tuple[Any, int]:
    """Convolve with the mapped dim folded into the result's dim `at`, and take it out again."""
    sharding = params["out_sharding"]
    if sharding is not None:
        dims = list(sharding.spec.dims)
        dims[at] = (*axis.spec, *dims[at])
        sharding = NamedSharding(sharding.mesh, spec_from(dims))
    elif axis.spec and at == params["dimension_numbers"].out_spec[1]:
        mesh = next(m for m in (aval_of(a).sharding.mesh for a in (w, x)) if not m.empty)
        lhs = _Roles.of(dims_of(aval_of(x)), params["dimension_numbers"].lhs_spec)
        placed = _Roles(lhs.batch, axis.spec, lhs.spatial).placed(params["dimension_numbers"].out_spec)
        sharding = NamedSharding(mesh, spec_from(placed))
    out = op(x, w, **params | {"out_sharding": sharding})
    return unfold(out, at, axis.size, outer, axis.spec), at if outer else at + 1


def _conv_sums(op: Op, sums: list[PartialSums], avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> PartialSums:
    """Operands that are reduced are plain ones to a product, as in dot_general."""
    if any(u for u, _ in sums):
        return refuse(op, sums, avals, params)
    return NONE


conv_general_dilated = define(
    "conv_general_dilated",
    type_rule=conv_type,
    plan=_conv_plan,
    impl=_conv_impl,
    jvp=by_argument(_by_lhs, _by_rhs),
    transpose=_conv_transpose,
    batch=_conv_batch,
    partial_sums=_conv_sums,
    hlo_name="convolution",
)
