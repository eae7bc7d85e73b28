"""The table of ops: operands and parameters of every op that programs of users contain, and what numpy says of them.

A new op needs a row here; `test_op_completeness` walks `OPS` and fails where there is none. Ops that only compiled
programs contain (`COMPILED_ONLY`) and those that need a shard_map body (`COLLECTIVES`) have no rows: the test looks for
the former in the compiled programs of the rows, the latter are run on a mesh of threads.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import mpiarray
import mpiarray.ops
from mpiarray.core.op import OPS, Out
from mpiarray.ops.conv import conv_dimension_numbers
from mpiarray.ops.fft import FftType
from mpiarray.ops.halves import HALVES
from mpiarray.types import dtypes
from mpiarray.types.layout import Layout

for _module in pkgutil.iter_modules(mpiarray.ops.__path__):
    importlib.import_module(f"mpiarray.ops.{_module.name}")

F32, F64, I32, C64 = np.dtype("float32"), np.dtype("float64"), np.dtype("int32"), np.dtype("complex64")
KEY = dtypes.KeyDtype() if callable(dtypes.KeyDtype) else dtypes.KeyDtype


@dataclass(frozen=True)
class Row:
    """One example of an op.

    args    operands: numpy arrays and scalars
    params  parameters
    want    what numpy gives for them (None: only that shards agree with the whole is checked)
    diff    operands in which the op is differentiable at this point
    linear  sets of operands in which the op is linear together
    keys    operands that are keys (stored as uint64)
    space   brings a direction into the space of operands that the op is for (symmetric matrices)
    tol     relative tolerance between blocks and whole
    """

    args: tuple[Any, ...]
    params: dict[str, Any] = field(default_factory=dict)
    want: Callable[..., Any] | None = None
    diff: tuple[int, ...] = ()
    linear: tuple[tuple[int, ...], ...] = ()
    keys: tuple[int, ...] = ()
    space: Callable[..., Any] = np.asarray
    batch: bool = True
    tol: float = 1e-5


TABLE: dict[str, list[Row]] = {}


def row(
    name: str,
    *args: Any,
    want: Any = None,
    diff: Any = (),
    linear: Any = (),
    keys: Any = (),
    space: Any = np.asarray,
    batch: bool = True,
    tol: float = 1e-5,
    **params: Any,
) -> None:
    """Add an example; `diff` is implied where the op is linear."""
    diff = tuple(diff) or tuple(sorted({i for group in linear for i in group}))
    TABLE.setdefault(name, []).append(Row(args, params, want, diff, tuple(linear), tuple(keys), space, batch, tol))


def values(*shape: int, low: float = -2.0, high: float = 2.0, seed: int = 0) -> np.ndarray:
    """Different numbers in each place, well apart, none near an integer or zero."""
    n = int(np.prod(shape))
    order = np.random.default_rng(seed + n).permutation(n)
    x = low + (high - low) * (order + 0.37) / n
    return x.reshape(shape).astype(F32)


def whole(*shape: int, high: int = 50, seed: int = 0, dtype: Any = I32) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, high, shape).astype(dtype)


A, B = values(8, 16), values(8, 16, seed=1) + F32.type(0.01)
UP = values(8, 16, low=0.2, high=3.0)
IN = values(8, 16, low=-0.9, high=0.9)
N, M = whole(8, 16), whole(8, 16, high=7, seed=1) + I32.type(1)
YES, NO = N > 20, M > 3
CUBE = values(8, 4, 16)
Z = (values(8, 16) + 1j * values(8, 16, seed=2)).astype(C64)
SQUARES = values(8, 3, 3) + 3 * np.eye(3, dtype=F32)
SPD = (np.einsum("bij,bkj->bik", SQUARES, SQUARES) + np.eye(3)).astype(F32)

# -- element by element ----------------------------------------------------------------------------

for _name, _want, _x in (
    ("neg", np.negative, A),
    ("exp", np.exp, A),
    ("exp2", np.exp2, A),
    ("expm1", np.expm1, A),
    ("log", np.log, UP),
    ("log1p", np.log1p, UP),
    ("sqrt", np.sqrt, UP),
    ("rsqrt", lambda x: 1 / np.sqrt(x), UP),
    ("cbrt", np.cbrt, UP),
    ("sin", np.sin, A),
    ("cos", np.cos, A),
    ("tan", np.tan, IN),
    ("asin", np.arcsin, IN),
    ("acos", np.arccos, IN),
    ("atan", np.arctan, A),
    ("sinh", np.sinh, A),
    ("cosh", np.cosh, A),
    ("tanh", np.tanh, A),
    ("asinh", np.arcsinh, A),
    ("acosh", np.arccosh, UP + 1),
    ("atanh", np.arctanh, IN),
    ("abs", np.abs, A),
    ("sign", np.sign, A),
    ("square", np.square, A),
    ("logistic", lambda x: 1 / (1 + np.exp(-x)), A),
):
    row(_name, _x, want=_want, diff=(0,), linear=((0,),) if _name == "neg" else ())
for _name, _x in (
    ("erf", A),
    ("erfc", A),
    ("erf_inv", IN),
    ("lgamma", UP),
    ("digamma", UP),
    ("bessel_i0e", A),
    ("bessel_i1e", A),
):
    row(_name, _x, diff=(0,))
row("floor", A, want=np.floor, diff=(0,))
row("ceil", A, want=np.ceil, diff=(0,))
row("round", A, want=np.round, rounding_method=1, diff=(0,))
row("is_finite", A, want=np.isfinite)
row("not", YES, want=np.logical_not)
row("population_count", N, want=lambda x: np.vectorize(lambda v: bin(v).count("1"))(x))
row("clz", N, want=lambda x: np.vectorize(lambda v: 32 - int(v).bit_length())(x))
row("integer_pow", A, want=lambda x: x**3, diff=(0,), y=3)
row("stop_gradient", A, want=lambda x: x)
row("copy", A, want=lambda x: x, linear=((0,),))
TABLE["name"] = [Row((A,), {"name": "a"}, lambda x: x, (0,), ((0,),))]
row(
    "reduce_precision",
    A,
    linear=(),
    exponent_bits=8,
    mantissa_bits=7,
    want=lambda x: x.astype(dtypes.as_dtype("bfloat16")).astype(F32),
)
row("convert_element_type", A, want=lambda x: x.astype(I32), new_dtype=I32, weak_type=False)
row("convert_element_type", A, want=lambda x: x.astype(F64), linear=((0,),), new_dtype=F64, weak_type=False)
row("bitcast_convert_type", A, want=lambda x: x.view(I32), new_dtype=I32)
row("optimization_barrier", A, N, want=lambda x, y: (x, y))
row("layout_constraint", A, want=lambda x: x, linear=((0,),), layout=Layout((1, 0)))
for _name, _want, _x, _y in (
    ("add", np.add, A, B),
    ("sub", np.subtract, A, B),
    ("mul", np.multiply, A, B),
    ("div", np.divide, A, UP),
    ("rem", np.fmod, A, UP),
    ("max", np.maximum, A, B),
    ("min", np.minimum, A, B),
    ("pow", np.power, UP, B),
    ("atan2", np.arctan2, A, B),
):
    _linear = {"add": ((0, 1), (0,)), "sub": ((0, 1), (1,)), "mul": ((0,), (1,)), "div": ((0,),)}.get(_name, ())
    row(_name, _x, _y, want=_want, diff=(0, 1), linear=_linear)
    row(_name, _x, _y[:1], want=_want, diff=(0, 1), linear=_linear)
    row(_name, F32.type(1.3), _y, want=_want, diff=(0, 1), linear=_linear)
row("add_any", A, B, want=np.add, linear=((0, 1),))
row("nextafter", A, B, want=np.nextafter)
for _name, _want in (
    ("eq", np.equal),
    ("ne", np.not_equal),
    ("lt", np.less),
    ("le", np.less_equal),
    ("gt", np.greater),
    ("ge", np.greater_equal),
):
    row(_name, N, M, want=_want)
    row(_name, A, B[:, :1], want=_want)
for _name, _want in (
    ("and", np.bitwise_and),
    ("or", np.bitwise_or),
    ("xor", np.bitwise_xor),
    ("gcd", np.gcd),
    ("lcm", np.lcm),
):
    row(_name, N, M, want=_want)
for _name, _want in (
    ("shift_left", np.left_shift),
    ("shift_right_arithmetic", np.right_shift),
    ("shift_right_logical", np.right_shift),
):
    row(_name, N, M, want=_want)
row("complex", A, B, want=lambda x, y: x + 1j * y, linear=((0, 1),))
row("real", Z, want=np.real, batch=True)
row("imag", Z, want=np.imag)
row("conj", Z, want=np.conj, input_dtype=C64)
row("clamp", F32.type(-0.5), A, F32.type(0.7), want=lambda a, x, b: np.clip(x, a, b), diff=(0, 1, 2))
row("clamp", A - 1, B, A + 1, want=lambda a, x, b: np.clip(x, a, b), diff=(0, 1, 2))
row("select_n", YES, A, B, want=lambda w, a, b: np.where(w, b, a), linear=((1, 2), (2,)))
row("select_n", np.bool_(True), A, B, want=lambda w, a, b: b, linear=((1, 2),))
for _name in ("igamma", "igammac"):
    row(_name, UP + 0.3, UP[::-1].copy(), diff=(0, 1))
row("igamma_grad_a", UP + 0.3, UP[::-1].copy())
row("polygamma", np.full((8, 16), 2, F32), UP, diff=(1,), tol=1e-4)
row("zeta", UP + 1.3, UP, diff=(1,), tol=1e-4)
row("regularized_incomplete_beta", UP, UP[::-1].copy(), abs(IN), diff=(2,), tol=1e-4)

# -- shapes ----------------------------------------------------------------------------------------

row(
    "broadcast_in_dim",
    A,
    want=lambda x: np.broadcast_to(x[:, None], (8, 4, 16)),
    linear=((0,),),
    shape=(8, 4, 16),
    broadcast_dimensions=(0, 2),
    sharding=None,
)
row(
    "broadcast_in_dim",
    F32.type(2),
    want=lambda x: np.full((8, 4), x),
    linear=((0,),),
    shape=(8, 4),
    broadcast_dimensions=(),
    sharding=None,
)
row(
    "reshape", A, want=lambda x: x.reshape(8, 4, 4), linear=((0,),), new_sizes=(8, 4, 4), dimensions=None, sharding=None
)
row(
    "reshape",
    CUBE,
    want=lambda x: x.reshape(32, 16),
    linear=((0,),),
    new_sizes=(32, 16),
    dimensions=None,
    sharding=None,
)
row("squeeze", A[:, None], want=lambda x: x[:, 0], linear=((0,),), dimensions=(1,))
row("transpose", CUBE, want=lambda x: x.transpose(2, 0, 1), linear=((0,),), permutation=(2, 0, 1))
row("rev", A, want=lambda x: x[::-1, ::-1], linear=((0,),), dimensions=(0, 1))
row("roll", A, want=lambda x: np.roll(x, (3, -5), (0, 1)), linear=((0,),), shift=(3, -5), axis=(0, 1))
row("concatenate", A, B, want=lambda *xs: np.concatenate(xs, 0), linear=((0, 1), (1,)), dimension=0)
row("concatenate", A, B, A, B, want=lambda *xs: np.concatenate(xs, 1), linear=((0, 1, 2, 3),), dimension=1)
row("split", A, want=lambda x: np.split(x, 2, 1), linear=((0,),), sizes=(8, 8), axis=1)
row("slice", A, want=lambda x: x[:, 4:12], linear=((0,),), start_indices=(0, 4), limit_indices=(8, 12), strides=None)
row(
    "slice",
    A,
    want=lambda x: x[0:8:2, 0:16:2],
    linear=((0,),),
    start_indices=(0, 0),
    limit_indices=(8, 16),
    strides=(2, 2),
)
row(
    "pad",
    A,
    F32.type(7),
    want=lambda x, v: np.pad(x, ((0, 8), (4, 4)), constant_values=v),
    linear=((0, 1), (0,)),
    padding_config=((0, 8, 0), (4, 4, 0)),
)
row("pad", A, F32.type(7), linear=((0,),), padding_config=((0, 1, 1), (-2, 2, 0)))
row("dynamic_slice", A, I32.type(2), I32.type(5), want=lambda x, i, j: x[2:6, 5:13], linear=((0,),), slice_sizes=(4, 8))
row("dynamic_update_slice", A, B[:4, :8], I32.type(2), I32.type(5), linear=((0, 1), (0,), (1,)))
row(
    "iota",
    want=lambda: np.broadcast_to(np.arange(16, dtype=I32), (8, 16)),
    dtype=I32,
    shape=(8, 16),
    dimension=1,
    sharding=None,
    batch=False,
)
row("window_indices", whole(8, high=4), want=lambda s: s[:, None] + np.arange(4, dtype=I32), size=8, count=4)

# -- sums and other reductions -----------------------------------------------------------------------

for _axes in ((0,), (1,), (0, 1), ()):
    row("reduce_sum", A, want=lambda x, a=_axes: x.sum(a), linear=((0,),), axes=_axes, out_sharding=None, tol=1e-4)
    for _name, _want in (("reduce_max", np.max), ("reduce_min", np.min), ("reduce_prod", np.prod)):
        row(_name, A, want=lambda x, a=_axes, f=_want: f(x, axis=a), diff=(0,), axes=_axes, tol=1e-4)
    for _name, _want in (("reduce_and", np.all), ("reduce_or", np.any)):
        row(_name, YES, want=lambda x, a=_axes, f=_want: f(x, axis=a), axes=_axes)
row("reduce_xor", N, want=lambda x: np.bitwise_xor.reduce(x, 1), axes=(1,))
row("argmax", A, want=lambda x: x.argmax(1), axes=(1,), index_dtype=I32)
row("argmin", N, want=lambda x: x.argmin(0), axes=(0,), index_dtype=I32)
row("cumsum", A, want=lambda x: x.cumsum(1), linear=((0,),), axis=1, reverse=False, tol=1e-4)
row("cumprod", A, want=lambda x: x.cumprod(0), diff=(0,), axis=0, reverse=False, tol=1e-4)
row("cummax", A, want=lambda x: np.maximum.accumulate(x, 1), diff=(0,), axis=1, reverse=False)
row("cummin", A, want=lambda x: np.minimum.accumulate(x[:, ::-1], 1)[:, ::-1], diff=(0,), axis=1, reverse=True)
row("cumlogsumexp", A, want=lambda x: np.logaddexp.accumulate(x, 0), diff=(0,), axis=0, reverse=False, tol=1e-4)
row("sort", A, want=lambda x: [np.sort(x, 1)], diff=(0,), dimension=1, is_stable=True, num_keys=1)
row(
    "sort",
    M,
    A,
    want=lambda k, x: [np.sort(k, 0), np.take_along_axis(x, np.argsort(k, 0, "stable"), 0)],
    diff=(1,),
    dimension=0,
    is_stable=True,
    num_keys=1,
)
row("sort_order", A, want=lambda x: np.argsort(x, 1), dimension=1)
row("top_k", A, want=lambda x: [-np.sort(-x, 1)[:, :4], np.argsort(-x, 1)[:, :4]], diff=(0,), axis=1, k=4)
row(
    "take_along",
    A,
    np.argsort(B, 1).astype(I32),
    want=lambda x, i: np.take_along_axis(x, i, 1),
    linear=((0,),),
    dimension=1,
)
row("add_along", A, np.argsort(B, 1).astype(I32), linear=((0,),), dimension=1, size=16)
row("searchsorted", np.sort(A[0]), B, want=np.searchsorted, side="left", dtype=I32, batch_dims=0)

# -- products ----------------------------------------------------------------------------------------

_DOT = {"precision": None, "preferred_element_type": None, "out_sharding": None}
row(
    "dot_general",
    A,
    B.T.copy(),
    want=np.matmul,
    linear=((0,), (1,)),
    dimension_numbers=(((1,), (0,)), ((), ())),
    tol=1e-4,
    **_DOT,
)
row(
    "dot_general",
    CUBE,
    CUBE[:, ::-1].copy(),
    want=lambda x, y: np.einsum("bik,bjk->bij", x, y),
    linear=((0,), (1,)),
    dimension_numbers=(((2,), (2,)), ((0,), (0,))),
    tol=1e-4,
    **_DOT,
)
row(
    "dot_general",
    A[0],
    B[0],
    want=np.dot,
    linear=((0,), (1,)),
    dimension_numbers=(((0,), (0,)), ((), ())),
    tol=1e-4,
    **_DOT,
)
row("convolve", A[0], B[1, :4], want=lambda x, y: np.convolve(x, y), linear=((0,), (1,)), tol=1e-4)
_CONV = {
    "window_strides": (1,),
    "padding": ((1, 1),),
    "lhs_dilation": (1,),
    "rhs_dilation": (1,),
    "dimension_numbers": conv_dimension_numbers(3, None),
    "feature_group_count": 1,
    "batch_group_count": 1,
    **_DOT,
}
row("conv_general_dilated", CUBE, values(8, 4, 3, seed=3), linear=((0,), (1,)), tol=1e-4, **_CONV)
_WINDOW = {
    "window_dimensions": (1, 3),
    "window_strides": (1, 1),
    "padding": ((0, 0), (1, 1)),
    "base_dilation": (1, 1),
    "window_dilation": (1, 1),
}


def _windows(x: np.ndarray, fill: float) -> np.ndarray:
    framed = np.pad(x, ((0, 0), (1, 1)), constant_values=fill)
    return np.stack([framed[:, k : k + x.shape[1]] for k in range(3)])


row("reduce_window_sum", A, want=lambda x: _windows(x, 0).sum(0), linear=((0,),), tol=1e-4, **_WINDOW)
row("reduce_window_max", A, want=lambda x: _windows(x, -np.inf).max(0), diff=(0,), **_WINDOW)
row("reduce_window_min", A, want=lambda x: _windows(x, np.inf).min(0), diff=(0,), **_WINDOW)
row("select_and_gather_add", B, A, linear=((0,),), select_prim="ge", **_WINDOW)
row("select_and_scatter_add", B, A, linear=((0,),), select_prim="ge", **_WINDOW)

# -- elements by number --------------------------------------------------------------------------------

_AT = {"dims": (0,), "batch_dims": 0, "mode": "clip", "out_sharding": None}
IDS = whole(4, high=8, seed=5)
row("gather", A, IDS, want=lambda x, i: x[i], linear=((0,),), fill_value=None, **_AT)
row("scatter", A, B[:4], IDS, want=lambda x, u, i: _added(x, u, i), linear=((0, 1), (0,), (1,)), combine="add", **_AT)
row("scatter", UP, B[:4], np.array([1, 6, 0, 3], I32), diff=(0, 1), combine="mul", **_AT)
row("scatter", A, B[:4], np.array([1, 6, 0, 3], I32), linear=((0, 1), (0,), (1,)), combine="set", **_AT)
row("last_writers", IDS, sizes=(8,), batch_dims=0, mode="clip")
row("scatter_factors", UP, UP[:4], IDS, dims=(0,), batch_dims=0, mode="clip", batch=False)


def _added(x: np.ndarray, u: np.ndarray, i: np.ndarray) -> np.ndarray:
    out = x.copy()
    np.add.at(out, i, u)
    return out


# -- linear algebra and Fourier transforms ---------------------------------------------------------------


def symmetric(x: Any) -> np.ndarray:
    return np.asarray(x + np.swapaxes(x, -1, -2)) / 2


row("cholesky", SPD, want=np.linalg.cholesky, diff=(0,), space=symmetric, tol=1e-3)
row("det", SQUARES, want=np.linalg.det, diff=(0,), tol=1e-4)
row("slogdet", SQUARES, want=lambda x: tuple(np.linalg.slogdet(x)), diff=(0,), tol=1e-4)
row("adjugate", SQUARES, want=lambda x: np.linalg.inv(x) * np.linalg.det(x)[:, None, None], diff=(0,), tol=1e-3)
row("lu", SQUARES, diff=(0,), tol=1e-4)
row("lu_pivots_to_permutation", np.array([[1, 2, 2], [0, 1, 2]] * 4, I32), size=3)
row("qr", SQUARES, diff=(0,), full_matrices=False, tol=1e-4)
row("eigh", SPD, diff=(0,), space=symmetric, lower=True, tol=1e-3)
row("eig", SQUARES, tol=1e-3)
row("eigvals", SQUARES, tol=1e-3)
row("svd", SQUARES, diff=(0,), full_matrices=False, tol=1e-3)
row("svdvals", SQUARES, want=lambda x: np.linalg.svd(x, compute_uv=False), diff=(0,), tol=1e-3)
row("pinv", SQUARES, np.full(8, 1e-6, F32), want=lambda x, r: np.linalg.pinv(x), diff=(0,), tol=1e-3)
row("linear_solve", SQUARES, values(8, 3, 4), want=np.linalg.solve, diff=(0, 1), linear=((1,),), tol=1e-3)
row(
    "triangular_solve",
    SPD,
    values(8, 3, 4),
    diff=(0, 1),
    linear=((1,),),
    left_side=True,
    lower=True,
    transpose_a=False,
    conjugate_a=False,
    unit_diagonal=False,
    tol=1e-3,
)
row("expm", SQUARES / 8, diff=(0,), max_squarings=16, tol=1e-4)
row("expm_frechet", SQUARES / 8, values(8, 3, 3, seed=4), diff=(0, 1), linear=((1,),), max_squarings=16, tol=1e-4)
row("fft", Z, want=lambda x: np.fft.fft(x), linear=((0,),), fft_type=FftType.FFT, fft_lengths=(16,), tol=1e-4)
row("fft", A, want=lambda x: np.fft.rfft(x), linear=((0,),), fft_type=FftType.RFFT, fft_lengths=(16,), tol=1e-4)
row("fft", Z, want=np.fft.ifft2, linear=((0,),), fft_type=FftType.IFFT, fft_lengths=(8, 16), tol=1e-4)

# -- keys and random bits ----------------------------------------------------------------------------------

KEYS = np.random.default_rng(0).integers(0, 2**63, 8).astype(np.uint64)
row("random_seed", N[:, 0], impl="fry")
row("random_wrap", whole(8, 2, dtype=np.uint32), impl="fry")
row("random_unwrap", KEYS, want=lambda k: k.view(np.uint32).reshape(8, 2), keys=(0,))
row("random_clone", KEYS, want=lambda k: k, keys=(0,))
row("random_split", KEYS, shape=(2,), keys=(0,))
row("random_fold_in", KEYS, np.arange(8, dtype=np.uint32), keys=(0,))
row("random_bits", KEYS[0], bit_width=32, shape=(8, 16), sharding=None, block=None, keys=(0,), batch=False)
row("random_gamma", KEYS, UP[:, 0].copy(), log_space=False, block=None, keys=(0,), batch=False)
row("random_trips", KEYS, UP[:, 0].copy(), distribution="poisson", block=None, keys=(0,), batch=False)
row("random_gamma_grad", UP[:, 0].copy(), UP[:, 1].copy(), log_space=False)

# -- host functions --------------------------------------------------------------------------------------------

_RESULT = (Out((8, 16), F32),)
row("pure_callback", A, want=lambda x: [x * 2], callback=lambda x: [x * 2], result_types=_RESULT, batch=False)
row("io_callback", A, want=lambda x: [x * 2], callback=lambda x: [x * 2], result_types=_RESULT, batch=False)

COMPILED_ONLY = {
    "fusion_update",
    "fusion",
    "update_inside",
    "update_inside_in_place",
    "after_others",
    "dynamic_update_slice_in_place",
    "exchange",
    "extreme_of_pairs",
    "extreme_pair",
    "fetch_rows",
    "fft_along",
    "moments",
    "moments_sum",
    "moved_fft",
    "iota_block",
    "mask_replicas",
    "masked",
    "move_blocks",
    "move_boxes",
    "move_boxes_at",
    "owned_gather",
    "owned_scatter",
    "reduce_part",
    "scatter_in_place",
    "send_rows",
    "squares_about",
    "shard_slice",
    "sort_blocks",
    "shard_widen",
}
"""Steps of local programs: the partition pass or local programs of other ops make them."""

COLLECTIVES = {
    "all_gather",
    "all_gather_invariant",
    "all_gather_reduced",
    "all_to_all",
    "axis_index",
    "own_part",
    "pbroadcast",
    "pmax",
    "pmin",
    "ppermute",
    "preduce_and",
    "preduce_or",
    "preduce_prod",
    "preduce_xor",
    "preduced",
    "psum",
    "psum_many",
    "gather_many",
    "scatter_many",
    "psum_invariant",
    "psum_update",
    "pvary",
    "reduce_scatter",
    "reduced_vary_cast_p",
    "unreduced_psum",
    "unreduced_reduce_scatter",
    "vary_unreduced_cast_p",
}
"""Ops of shard_map bodies."""

COLLECTIVES |= {f"{op.name}_{half}" for op in HALVES for half in ("start", "done")}

ELSEWHERE = {
    "jit": "carries a jaxpr: tests/higher_order",
    "shard_map": "carries a jaxpr: tests/higher_order",
    "scan": "carries a jaxpr: tests/higher_order/test_control_flow",
    "while": "carries jaxprs: tests/higher_order/test_control_flow",
    "cond": "carries jaxprs: tests/higher_order/test_control_flow",
    "custom_jvp_call": "carries a jaxpr: tests/transforms/test_custom_derivatives",
    "custom_vjp_call": "carries a jaxpr: tests/transforms/test_custom_derivatives",
    "custom_lin": "stands for tangents until they are transposed: tests/transforms/test_custom_derivatives",
    "remat2": "carries a jaxpr: tests/transforms/test_checkpoint",
    "reduce": "carries a jaxpr: tests/ops/test_along_dims",
    "reshard": "its parameter is a sharding: tests/compiler/test_partition",
    "sharding_constraint": "its parameter is a sharding: tests/compiler/test_propagate",
    "debug_callback": "has no result: tests/runtime/test_debug",
    "random_sample": "takes the trips of random_trips: tests/random",
}


def impl_of(name: str, args: Sequence[Any], params: dict[str, Any]) -> list[np.ndarray]:
    """The results of `impl` on whole operands."""
    op = OPS[name]
    with np.errstate(all="ignore"):
        out = op.impl(*args, **params)
    return [np.asarray(o) for o in (out if op.multiple_results else [out])]
