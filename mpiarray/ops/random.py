"""The ops of random numbers: keys, bits, and the samplers that are loops.

Random bits are a function of the key and of an element's index in the global draw (`ops.threefry`), so each rank makes
its own block and nothing is sent, whatever the sharding.  On global types `shape` is that of the draw and
`sharding` says where it goes; on blocks `shape` is the block's and `block` tells the draw's shape and the mesh axes
of each dim, from which a rank finds where its block starts.

An array of keys makes one draw a key: results have the keys' dims first.  The Poisson and binomial samplers need
one number about the whole draw first, the trips round their loops (`ops.samplers`); its maximum over the
blocks is their only communication.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpiarray.core.device import DeviceContext
from mpiarray.core.op import Op, Out, Undefined, Zero, define
from mpiarray.core.plan import (
    Dims,
    Pending,
    Plan,
    dims_of,
    has_duplicates,
    local_shape,
    mesh_of,
    mesh_order,
    require_unsharded,
    spec_from,
)
from mpiarray.core.value import aval_of
from mpiarray.errors import DuplicateSpecError
from mpiarray.ops import samplers, threefry
from mpiarray.ops.arithmetic import mul
from mpiarray.ops.common import BatchAxis, broadcast_shape, check_kind, join_plan, same_dtype, same_plan
from mpiarray.ops.gamma_slope import gamma_slope
from mpiarray.ops.linear import batch_to, move_dim, nary_batch, zero_jvp
from mpiarray.types import dtypes
from mpiarray.types.aval import ShapedArray

Block = tuple[tuple[int, ...], Dims] | None

_U32 = np.dtype(np.uint32)
_NOT_LINEAR = Undefined("random numbers are not a linear function of a key")


def _place(ctx: DeviceContext, block: Block, shape: Sequence[int]) -> samplers.Place:
    """Where this rank's block of shape `shape` stands in its draw."""
    if block is None:
        return samplers.Place(tuple(shape), (0,) * len(shape))
    global_shape, axes = block
    return samplers.Place(global_shape, tuple(ctx.index(a) * n if a else 0 for a, n in zip(axes, shape, strict=True)))


def _key_array(name: str, key: ShapedArray) -> None:
    if not dtypes.is_key(key.dtype):
        raise TypeError(
            f"{name}: expected an array of random keys, got {key.str_short()}. Make keys with `jax.random.key`."
        )


def _first_dim_batch(
    op: Op, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int], **params: Any
) -> tuple[Any, int]:
    """One operand whose leading dims are carried along."""
    return op(move_dim(args[0], dims[0], 0), **params), 0


def _block_vma(avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> frozenset[str]:
    """Blocks differ along the axes that the draw is cut by."""
    out = frozenset().union(*(a.vma for a in avals if a.vma))
    return out | {x for axes in params["block"][1] for x in axes} if params["block"] else out


# -- keys ------------------------------------------------------------------------------------------


def _seed_type(seeds: ShapedArray, *, impl: str) -> Out:
    if not dtypes.is_int(seeds.dtype):
        raise TypeError(f"PRNG key seed must be an integer; got {seeds.str_short()}")
    return Out(seeds.shape, dtypes.key_dtype)


random_seed = define(
    "random_seed",
    type_rule=_seed_type,
    plan=same_plan,
    impl=lambda seeds, *, impl: threefry.seed(seeds),
    jvp=zero_jvp,
    transpose=_NOT_LINEAR,
    batch=nary_batch,
)


def _wrap_type(data: ShapedArray, *, impl: str) -> Out:
    if data.dtype != _U32:
        raise TypeError(f"invalid PRNG key data: expected key_data.dtype = uint32; got {data.str_short()}")
    if not data.ndim or data.shape[-1] != 2:
        raise TypeError(f"invalid PRNG key data: expected key_data.shape to end with (2,); got {data.str_short()}")
    return Out(data.shape[:-1], dtypes.key_dtype)


def _wrap_plan(avals: tuple[ShapedArray, ...], *, impl: str) -> Plan:
    (data,) = avals
    require_unsharded("wrap_key_data", data, [data.ndim - 1], "the two words of a key must be on one device")
    return Plan((spec_from(dims_of(data)),), (spec_from(dims_of(data)[:-1]),))


random_wrap = define(
    "random_wrap",
    type_rule=_wrap_type,
    plan=_wrap_plan,
    impl=lambda data, *, impl: threefry.pack_words(data[..., 0], data[..., 1]),
    jvp=zero_jvp,
    transpose=_NOT_LINEAR,
    batch=_first_dim_batch,
)


def _unwrap_type(keys: ShapedArray) -> Out:
    _key_array("key_data", keys)
    return Out((*keys.shape, 2), _U32)


random_unwrap = define(
    "random_unwrap",
    type_rule=_unwrap_type,
    plan=lambda avals: Plan((spec_from(dims_of(avals[0])),), (spec_from((*dims_of(avals[0]), ())),)),
    impl=lambda keys: np.stack(threefry.key_words(keys), axis=-1),
    jvp=zero_jvp,
    transpose=_NOT_LINEAR,
    batch=_first_dim_batch,
)


def _split_type(keys: ShapedArray, *, shape: tuple[int, ...]) -> Out:
    _key_array("split", keys)
    return Out((*keys.shape, *shape), keys.dtype)


def _split_plan(avals: tuple[ShapedArray, ...], *, shape: tuple[int, ...]) -> Plan:
    own = dims_of(avals[0])
    return Plan((spec_from(own),), (spec_from((*own, *((),) * len(shape))),))


random_split = define(
    "random_split",
    type_rule=_split_type,
    plan=_split_plan,
    impl=lambda keys, *, shape: threefry.split(np.asarray(keys), shape),
    jvp=zero_jvp,
    transpose=_NOT_LINEAR,
    batch=_first_dim_batch,
)


def _fold_type(keys: ShapedArray, data: ShapedArray) -> Out:
    _key_array("fold_in", keys)
    if data.dtype != _U32:
        raise TypeError(f"fold_in: expected data of type uint32, got {data.str_short()}")
    return Out(broadcast_shape("fold_in", (keys, data)), keys.dtype)


random_fold_in = define(
    "random_fold_in",
    type_rule=_fold_type,
    plan=join_plan("random_fold_in"),
    impl=threefry.fold_in,
    jvp=zero_jvp,
    transpose=_NOT_LINEAR,
    batch=nary_batch,
)


def _clone_type(keys: ShapedArray) -> Out:
    _key_array("clone", keys)
    return Out(keys.shape, keys.dtype)


random_clone = define(
    "random_clone",
    type_rule=_clone_type,
    plan=same_plan,
    impl=lambda keys: np.array(keys),
    jvp=zero_jvp,
    transpose=_NOT_LINEAR,
    batch=nary_batch,
)

# -- bits ------------------------------------------------------------------------------------------


def _bits_type(keys: ShapedArray, *, bit_width: int, shape: tuple[int, ...], sharding: Any, block: Block) -> Out:
    _key_array("bits", keys)
    return Out((*keys.shape, *shape), np.dtype(f"uint{bit_width}"))


def _draw_plan(name: str, keys: ShapedArray, element_dims: Dims) -> None:
    if has_duplicates((*dims_of(keys), *element_dims)):
        raise DuplicateSpecError(
            f"{name}: a mesh axis can shard one dimension only, but draws of {keys.short()} placed by "
            f"{spec_from(element_dims)} have duplicate entries. Leave the axes of the keys out of `out_sharding`."
        )


def _bits_plan(
    avals: tuple[ShapedArray, ...], *, bit_width: int, shape: tuple[int, ...], sharding: Any, block: Block
) -> Plan:
    (keys,) = avals
    dims = sharding.spec.dims if sharding is not None else ((),) * len(shape)
    _draw_plan("bits", keys, dims)
    mesh = keys.sharding.mesh if sharding is None else sharding.mesh
    local: dict[str, Any] = {"shape": local_shape(mesh, shape, dims), "sharding": None}
    if any(dims):
        local["block"] = (shape, dims)
    return Plan((spec_from(dims_of(keys)),), (spec_from((*dims_of(keys), *dims)),), params=local)


def _bits_build(
    ctx: DeviceContext, *, bit_width: int, shape: tuple[int, ...], sharding: Any, block: Block
) -> Callable[..., Any]:
    place = _place(ctx, block, shape)
    return lambda keys: threefry.random_bits_block(keys, place.global_shape, place.start, shape, bit_width)


random_bits = define(
    "random_bits",
    type_rule=_bits_type,
    plan=_bits_plan,
    build=_bits_build,
    jvp=zero_jvp,
    transpose=_NOT_LINEAR,
    batch=_first_dim_batch,
    vma=_block_vma,
    hlo_name="rng-bit-generator",
)

# -- samplers with a loop --------------------------------------------------------------------------
#
# Operands: keys of shape K, then parameters of shape K + S, all alike; the draw of each key has shape S.


def _check_parameters(name: str, keys: ShapedArray, params: Sequence[ShapedArray]) -> None:
    _key_array(name, keys)
    for a in params:
        alike = a.shape == params[0].shape and a.dtype == params[0].dtype
        if not alike or a.shape[: keys.ndim] != keys.shape or not dtypes.is_float(a.dtype):
            raise TypeError(
                f"{name}: parameters must be floats of one shape that starts with the keys' {keys.shape}, "
                f"got {', '.join(p.str_short() for p in params)}"
            )


def _parameter_dims(name: str, keys: ShapedArray, params: Sequence[ShapedArray]) -> Dims:
    """One sharding for keys and parameters: the first that says something of a dim decides."""
    key_dims = [*dims_of(keys), *((),) * (params[0].ndim - keys.ndim)]
    dims = tuple(next((d for d in candidates if d), ()) for candidates in zip(key_dims, *(dims_of(p) for p in params)))
    _draw_plan(name, keys, ())
    if has_duplicates(dims):
        raise DuplicateSpecError(
            f"{name}: keys {keys.short()} and {', '.join(p.short() for p in params)} have duplicate entries: "
            "a mesh axis can shard one dimension only"
        )
    return dims


def _sampler_plan(name: str, avals: tuple[ShapedArray, ...], count: int) -> tuple[Dims, Dims, dict[str, Any]]:
    """(dims of the keys, dims of the parameters, parameters of the local op)."""
    keys, params = avals[0], avals[1 : 1 + count]
    dims = _parameter_dims(name, keys, params)
    element_dims = dims[keys.ndim :]
    local = {"block": (params[0].shape[keys.ndim :], element_dims)} if any(element_dims) else {}
    return dims[: keys.ndim], dims, local


def _sampler_batch(
    op: Op, axis: BatchAxis, args: Sequence[Any], dims: Sequence[int | None], **params: Any
) -> tuple[Any, int]:
    return op(*(batch_to(x, axis, d, 0) for x, d in zip(args, dims)), **params), 0


def _gamma_type(keys: ShapedArray, a: ShapedArray, *, log_space: bool, block: Block) -> Out:
    _check_parameters("gamma", keys, [a])
    return Out(a.shape, a.dtype)


def _gamma_plan(avals: tuple[ShapedArray, ...], *, log_space: bool, block: Block) -> Plan:
    key_dims, dims, local = _sampler_plan("gamma", avals, 1)
    return Plan((spec_from(key_dims), spec_from(dims)), (spec_from(dims),), params=local)


def _gamma_build(ctx: DeviceContext, *, log_space: bool, block: Block) -> Callable[..., Any]:
    def run(keys: Any, a: np.ndarray) -> np.ndarray:
        place = _place(ctx, block, a.shape[np.ndim(keys) :])
        return samplers.gamma_block(np.asarray(keys), a, place, log_space=log_space)

    return run


def _slope_type(a: ShapedArray, sample: ShapedArray, *, log_space: bool) -> Out:
    dtype = same_dtype("random_gamma_grad", (a, sample))
    check_kind("random_gamma_grad", dtype, "f")
    return Out(broadcast_shape("random_gamma_grad", (a, sample)), dtype)


random_gamma_grad = define(
    "random_gamma_grad",
    type_rule=_slope_type,
    plan=join_plan("random_gamma_grad"),
    impl=lambda a, sample, *, log_space: gamma_slope(np.asarray(a), np.asarray(sample), log_space=log_space),
    jvp=Undefined("second derivatives of gamma samples are not implemented"),
    transpose=Undefined("it is not linear"),
    batch=nary_batch,
)


def _gamma_jvp(op: Op, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    out = op(*primals, **params)
    if isinstance(tangents[1], Zero):
        return out, Zero(out.aval)
    return out, mul(tangents[1], random_gamma_grad(primals[1], out, log_space=params["log_space"]))


random_gamma = define(
    "random_gamma",
    type_rule=_gamma_type,
    plan=_gamma_plan,
    build=_gamma_build,
    jvp=_gamma_jvp,
    transpose=_NOT_LINEAR,
    batch=_sampler_batch,
    vma=_block_vma,
)

_PARAMETERS = {"poisson": 1, "binomial": 2}
_TRIPS: dict[str, Callable[..., np.ndarray]] = {"poisson": samplers.poisson_trips, "binomial": samplers.binomial_trips}
_BLOCKS: dict[str, Callable[..., np.ndarray]] = {"poisson": samplers.poisson_block, "binomial": samplers.binomial_block}


def _trips_type(keys: ShapedArray, *parameters: ShapedArray, distribution: str, block: Block) -> Out:
    _check_parameters(distribution, keys, parameters)
    return Out(keys.shape, np.dtype(np.int32))


def _trips_plan(avals: tuple[ShapedArray, ...], *, distribution: str, block: Block) -> Plan:
    key_dims, dims, local = _sampler_plan(distribution, avals, _PARAMETERS[distribution])
    cut = mesh_order(mesh_of(avals), {x for axes in dims[len(key_dims) :] for x in axes})
    ins = (spec_from(key_dims), *(spec_from(dims),) * (len(avals) - 1))
    return Plan(ins, (spec_from(key_dims),), (Pending("max", cut),) if cut else (), params=local)


def _trips_build(ctx: DeviceContext, *, distribution: str, block: Block) -> Callable[..., Any]:
    def run(keys: Any, *parameters: np.ndarray) -> np.ndarray:
        place = _place(ctx, block, parameters[0].shape[np.ndim(keys) :])
        return _TRIPS[distribution](np.asarray(keys), *parameters, place)

    return run


random_trips = define(
    "random_trips",
    type_rule=_trips_type,
    plan=_trips_plan,
    build=_trips_build,
    jvp=zero_jvp,
    transpose=_NOT_LINEAR,
    batch=_sampler_batch,
    vma=_block_vma,
)


def _sample_type(
    keys: ShapedArray, trips: ShapedArray, *parameters: ShapedArray, distribution: str, block: Block
) -> Out:
    _check_parameters(distribution, keys, parameters)
    if trips.shape != keys.shape:
        raise TypeError(f"{distribution}: trips {trips.str_short()} must be one number a key of {keys.str_short()}")
    return Out(parameters[0].shape, parameters[0].dtype)


def _sample_plan(avals: tuple[ShapedArray, ...], *, distribution: str, block: Block) -> Plan:
    keys, _, *parameters = avals
    key_dims, dims, local = _sampler_plan(distribution, (keys, *parameters), len(parameters))
    ins = (spec_from(key_dims), spec_from(key_dims), *(spec_from(dims),) * len(parameters))
    return Plan(ins, (spec_from(dims),), params=local)


def _sample_build(ctx: DeviceContext, *, distribution: str, block: Block) -> Callable[..., Any]:
    def run(keys: Any, trips: Any, *parameters: np.ndarray) -> np.ndarray:
        place = _place(ctx, block, parameters[0].shape[np.ndim(keys) :])
        return _BLOCKS[distribution](np.asarray(keys), *parameters, trips, place)

    return run


random_sample = define(
    "random_sample",
    type_rule=_sample_type,
    plan=_sample_plan,
    build=_sample_build,
    jvp=zero_jvp,
    transpose=_NOT_LINEAR,
    batch=_sampler_batch,
    vma=_block_vma,
)


def draw_by_rejection(distribution: str, key: Any, *parameters: Any) -> Any:
    """Poisson or binomial variates, as floats, for parameters of the draw's shape and sharding."""
    trips = random_trips(key, *parameters, distribution=distribution, block=None)
    return random_sample(key, trips, *parameters, distribution=distribution, block=None)


def draw_bits(key: Any, shape: Sequence[int], bit_width: int, sharding: Any = None) -> Any:
    """Random bits of a global shape for every key; `sharding` (or None) places the draw's dims, not the keys'."""
    return random_bits(key, bit_width=bit_width, shape=tuple(shape), sharding=sharding, block=None)


def is_key_array(x: Any) -> bool:
    """Whether `x` is an array of new-style keys."""
    return dtypes.is_key(aval_of(x).dtype)
