"""Keys: making, splitting and folding, and the old raw form.

A key is all the state there is.  Keys are equal on all ranks (they are made from equal seeds), and deriving keys from
keys sends nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mpiarray.core.value import Value, aval_of, literal
from mpiarray.numpy.promotion import cast
from mpiarray.ops import random as ops
from mpiarray.random.arguments import IMPL, check_impl, item, key_array, shape_of, single_key
from mpiarray.types import dtypes

_UINT32 = np.dtype(np.uint32)


def key(seed: Any, *, impl: Any = None, dtype: Any = None) -> Any:
    """A random key, of type `key<fry>[]`.

    seed: an integer; only its low 32 bits count unless 64-bit types are enabled.  The same on all ranks.
    impl: None or 'threefry2x32'.
    Raises TypeError for seeds that are no single integer, OverflowError beyond 64 bits.  No communication.
    """
    check_impl(impl, dtype)
    return ops.random_seed(_seed("key", seed), impl="fry")


def PRNGKey(seed: Any, *, impl: Any = None) -> Any:
    """A raw key: the two words of `key(seed)` as `uint32[2]`.  All functions take either."""
    check_impl(impl)
    return ops.random_unwrap(ops.random_seed(_seed("PRNGKey", seed), impl="fry"))


def _seed(name: str, seed: Any) -> Any:
    if isinstance(seed, (bool, np.bool_)):
        seed = int(seed)
    if isinstance(seed, int) and not isinstance(seed, np.generic):
        if not -(2**63) <= seed < 2**63:
            raise OverflowError(
                f"{name}: Python int too large to convert to C long: seed {seed} does not fit in 64 bits"
            )
        seed = np.int64(seed)
    if not isinstance(seed, (Value, np.ndarray, np.generic)):
        raise TypeError(f"{name}: PRNG key seed must be an integer; got {seed!r} of type {type(seed)}")
    aval = aval_of(seed)
    if not dtypes.is_int(aval.dtype):
        raise TypeError(f"{name}: PRNG key seed must be an integer; got {aval.str_short()}")
    if aval.ndim:
        raise TypeError(
            f"{name} accepts a scalar seed, but was given an array of shape {aval.shape} != (). "
            "Use jax.vmap for batching."
        )
    if isinstance(seed, Value):
        return seed
    # 64-bit numbers keep their low bits where there are no 64-bit types
    return literal(np.asarray(seed).astype(aval.dtype), aval.dtype)


def split(key: Any, num: int | tuple[int, ...] = 2) -> Any:
    """New keys: `num` of them, or an array of the shape `num`.  Raw keys give raw keys.

    Raises ValueError for an array of keys (use vmap).
    """
    typed, raw = single_key("split", key)
    keys = ops.random_split(typed, shape=shape_of("split", num))
    return ops.random_unwrap(keys) if raw else keys


def subkeys(key: Any, count: int) -> list[Any]:
    """The keys of `split(key, count)` one by one, for a typed key."""
    keys = ops.random_split(key, shape=(count,))
    return [item(keys, i) for i in range(count)]


def fold_in(key: Any, data: Any) -> Any:
    """A new key from a key and a number, of which the low 32 bits count.

    For one stream per step, per layer, or per device (`fold_in(key, lax.axis_index('i'))` in shard_map).
    Raises ValueError for an array of keys, TypeError for an array of numbers (use vmap), OverflowError for Python
    integers outside of [0, 2**32).
    """
    typed, raw = single_key("fold_in", key)
    if np.ndim(data) if not isinstance(data, Value) else data.aval.ndim:
        raise TypeError(
            f"fold_in accepts a scalar, but was given an array of shape {aval_of(data).shape} != (). "
            "Use jax.vmap for batching."
        )
    if isinstance(data, (np.ndarray, np.generic)) and np.asarray(data).dtype.kind in "iu":
        number: Any = literal(np.asarray(data).astype(np.uint32), _UINT32)
    else:
        number = cast(data, _UINT32)
    new = ops.random_fold_in(typed, number)
    return ops.random_unwrap(new) if raw else new


def key_data(keys: Any) -> Any:
    """The words of keys: `uint32` of shape `keys.shape + (2,)`."""
    typed, raw = key_array("key_data", keys)
    return keys if raw else ops.random_unwrap(typed)


def wrap_key_data(key_bits_array: Any, *, impl: Any = None, dtype: Any = None) -> Any:
    """Keys from their words: an array of `uint32` whose last dim has size 2."""
    check_impl(impl, dtype)
    if not isinstance(key_bits_array, (Value, np.ndarray)):
        raise TypeError(
            f"wrap_key_data: expected an array of uint32, got {key_bits_array!r} of type {type(key_bits_array)}"
        )
    return ops.random_wrap(key_bits_array, impl="fry")


def key_impl(keys: Any) -> str:
    """The name of the keys' implementation, for the `impl=` of `key` and `wrap_key_data`."""
    key_array("key_impl", keys)
    return IMPL


def key_dtype(impl_spec: Any = None) -> Any:
    """The dtype of keys: `key<fry>`."""
    check_impl(impl_spec)
    return dtypes.key_dtype


def clone(key: Any) -> Any:
    """The same key once more, where using it twice is meant."""
    typed, raw = key_array("clone", key)
    new = ops.random_clone(typed)
    return ops.random_unwrap(new) if raw else new
