"""Keys: values recorded from JAX, types, raw keys, and what is refused."""

import numpy as np
import pytest

import mpiarray.runtime.eager  # noqa: F401 - evaluation
from mpiarray import numpy as jnp
from mpiarray import random
from mpiarray.config import config
from mpiarray.errors import DuplicateSpecError, ShardingTypeError
from mpiarray.ops import random as ops
from mpiarray.types import dtypes
from mpiarray.types.sharding import NamedSharding
from tests.ops.pretended_mesh import P, mesh_of, run


def words(key):
    return np.asarray(random.key_data(key)).tolist()


@pytest.fixture
def wide():
    config.update("jax_enable_x64", True)
    yield
    config.update("jax_enable_x64", False)


def test_seeds():
    assert [words(random.key(s)) for s in (0, 1, 42, 2**31 - 1, -1, 2**32, 2**40 + 3, -(2**63))] == [
        [0, 0], [0, 1], [0, 42], [0, 2147483647], [0, 4294967295], [0, 0], [0, 3], [0, 0],
    ]  # fmt: skip
    assert words(random.key(np.uint32(2**32 - 1))) == [0, 2**32 - 1]
    assert words(random.key(np.int64(2**40 + 3))) == [0, 3]
    assert words(random.key(True)) == [0, 1]
    assert words(random.key(random.bits(random.key(0)))) == [0, 4070199207]
    raw = random.PRNGKey(7)
    assert raw.aval.short() == "u32[2]" and np.asarray(raw).tolist() == [0, 7]


def test_wide_seeds(wide):
    assert [words(random.key(s)) for s in (-1, 2**32, 2**40 + 3, -(2**31), 2**63 - 1)] == [
        [4294967295, 4294967295], [1, 0], [256, 3], [4294967295, 2147483648], [2147483647, 4294967295],
    ]  # fmt: skip
    assert words(random.key(np.int32(-1))) == [0, 4294967295]


def test_wide_draws(wide):
    k = random.key(5)
    assert np.asarray(random.bits(k, (2,))).tolist() == [11701519018614622474, 870020224683618988]
    assert random.uniform(k, (3,)).dtype == np.float64
    got = np.asarray(random.randint(k, (4,), 0, 10**12))
    assert got.dtype == np.int64 and (got < 10**12).all() and (got > 2**32).any()


def test_split_and_fold_in():
    k = random.key(0)
    pair = random.split(k)
    assert pair.aval.short() == "key<fry>[2]"
    assert words(pair) == [[1797259609, 2579123966], [928981903, 3453687069]]
    assert random.split(k, (2, 3)).shape == (2, 3) and random.split(k, 0).shape == (0,)
    assert [words(random.fold_in(k, i)) for i in (0, 7, 2**20)] == [
        [1797259609, 2579123966], [2716826189, 292468403], [2652788359, 1597282999],
    ]  # fmt: skip
    k = random.key(33)
    assert words(random.fold_in(k, 2**32 - 1)) == words(random.fold_in(k, np.int32(-1))) == [4223440880, 4163675327]
    assert words(random.fold_in(k, np.int64(2**33 + 5))) == words(random.fold_in(k, 5)) == [829174820, 4180645003]
    assert words(random.fold_in(k, random.bits(k))) == words(random.fold_in(k, int(random.bits(k))))


def test_raw_keys():
    raw, typed = random.PRNGKey(3), random.key(3)
    assert words(random.split(typed, 3)) == np.asarray(random.split(raw, 3)).tolist()
    assert words(random.fold_in(typed, 9)) == np.asarray(random.fold_in(raw, 9)).tolist()
    assert random.key_data(raw) is raw
    assert random.clone(raw).aval.short() == "u32[2]"
    assert words(random.wrap_key_data(np.array([0, 3], np.uint32))) == words(typed)
    assert np.array_equal(random.bits(np.array([0, 3], np.uint32), (4,)), random.bits(typed, (4,)))


def test_types_and_implementation():
    k = random.key(0)
    assert k.aval.short() == "key<fry>[]" and dtypes.issubdtype(k.dtype, dtypes.prng_key)
    assert random.key_impl(k) == random.key_impl(random.PRNGKey(0)) == "threefry2x32"
    assert words(random.key(4, impl=random.key_impl(k))) == [0, 4]
    assert words(random.key(4, dtype=k.dtype)) == [0, 4] and random.key_dtype() is k.dtype
    assert words(random.clone(k)) == words(k)
    wrapped = random.wrap_key_data(np.arange(12, dtype=np.uint32).reshape(2, 3, 2))
    assert wrapped.aval.short() == "key<fry>[2,3]"
    assert np.array_equal(random.key_data(wrapped), np.arange(12).reshape(2, 3, 2))


@pytest.mark.parametrize(
    "call, kind, message",
    [
        (lambda r: r.key("a"), TypeError, "seed must be an integer"),
        (lambda r: r.key(1.5), TypeError, "seed must be an integer"),
        (lambda r: r.key(np.arange(3)), TypeError, r"scalar seed, but was given an array of shape \(3,\)"),
        (lambda r: r.PRNGKey(np.arange(3)), TypeError, "PRNGKey accepts a scalar seed"),
        (lambda r: r.key(2**63), OverflowError, "Python int too large"),
        (lambda r: r.key(0, impl="rbg"), ValueError, "not available"),
        (lambda r: r.key(0, impl="foo"), ValueError, "unrecognized PRNG implementation 'foo'"),
        (lambda r: r.uniform(3, (2,)), TypeError, "key"),
        (lambda r: r.uniform(None), TypeError, "unexpected PRNG key type"),
        (lambda r: r.uniform("k"), TypeError, "unexpected PRNG key type"),
        (lambda r: r.normal(np.arange(3.0), (2,)), TypeError, "key_data.dtype = uint32"),
        (lambda r: r.normal(np.arange(3, dtype=np.uint32)), TypeError, r"key_data.shape to end with \(2,\)"),
        (lambda r: r.uniform(r.split(r.key(0))), ValueError, r"uniform accepts a single key, .* \(2,\) != \(\)"),
        (lambda r: r.uniform(np.zeros((1, 2), np.uint32)), ValueError, r"key array of shape \(1, 2\)"),
        (lambda r: r.split(r.split(r.key(0))), ValueError, "split accepts a single key"),
        (lambda r: r.fold_in(r.split(r.key(0)), 1), ValueError, "fold_in accepts a single key"),
        (lambda r: r.fold_in(r.key(0), np.arange(3)), TypeError, "fold_in accepts a scalar"),
        (lambda r: r.fold_in(r.key(0), -1), OverflowError, "-1 out of bounds for uint32"),
        (lambda r: r.fold_in(r.key(0), 2**32), OverflowError, "out of bounds"),
        (lambda r: r.split(r.key(0), -1), ValueError, "cannot be negative"),
        (lambda r: r.split(r.key(0), 2.5), TypeError, "integer type"),
        (lambda r: r.wrap_key_data(np.zeros(3, np.uint32)), TypeError, r"end with \(2,\)"),
        (lambda r: r.wrap_key_data(np.zeros(2, np.float32)), TypeError, "uint32"),
        (lambda r: r.wrap_key_data([0, 1]), TypeError, "uint32"),
        (lambda r: r.key_data(np.zeros(2)), TypeError, "uint32"),
        (lambda r: r.uniform(r.key(0), (-1,)), ValueError, "negative"),
        (lambda r: r.uniform(r.key(0), (2.0,)), TypeError, "Shapes must be 1D sequences"),
        (lambda r: r.uniform(r.key(0), (2,), "int32"), ValueError, "dtype argument to `uniform` must be a float dtype"),
        (lambda r: r.uniform(r.key(0), (4,), minval=np.zeros(3)), ValueError, "Incompatible shapes for broadcasting"),
        (lambda r: r.bits(r.key(0), (2,), "int32"), ValueError, "must be an unsigned int dtype"),
        (lambda r: r.normal(r.key(0), (2,), "int32"), ValueError, "must be a float or complex dtype"),
        (lambda r: r.randint(r.key(0), (2,), 0, 9, "float32"), TypeError, "only accepts integer dtypes"),
        (lambda r: r.randint(r.key(0), (3,), np.arange(4), 9), ValueError, "Incompatible shapes"),
        (lambda r: r.bernoulli(r.key(0), 1), TypeError, "must have a floating dtype"),
        (lambda r: r.bernoulli(r.key(0), 0.5, mode="mid"), ValueError, "mode"),
        (lambda r: r.gumbel(r.key(0), mode="mid"), ValueError, "mode"),
        (lambda r: r.choice(r.key(0), 3, (5,), replace=False), ValueError, "Cannot take a larger sample"),
        (lambda r: r.choice(r.key(0), 0), ValueError, "greater than 0"),
        (lambda r: r.choice(r.key(0), 5, (2,), p=np.ones(3)), ValueError, "same size as a.shape"),
        (lambda r: r.choice(r.key(0), [1, 2]), TypeError, "list"),
        (lambda r: r.permutation(r.key(0), [1, 2]), TypeError, "list"),
        (lambda r: r.permutation(r.key(0), 3.5), TypeError, "must be an integer"),
        (lambda r: r.permutation(r.key(0), np.zeros((2, 2)), axis=2), ValueError, "out of bounds"),
        (lambda r: r.categorical(r.key(0), np.zeros((2, 3)), shape=(5, 3)), ValueError, "Incompatible shapes"),
        (
            lambda r: r.categorical(r.key(0), np.zeros(3), shape=(4,), replace=False),
            ValueError,
            "cannot exceed number of categories",
        ),
        (lambda r: r.gamma(r.key(0), np.ones(3), (4,)), ValueError, "Incompatible shapes"),
        (lambda r: r.poisson(r.key(0), 3.0, dtype="float32"), ValueError, "int dtype"),
        (lambda r: r.dirichlet(r.key(0), 1.0), ValueError, "alpha.ndim >= 1"),
        (lambda r: r.multinomial(r.key(0), 5, np.ones(3), shape=(4,)), ValueError, "number of categories"),
        (lambda r: r.ball(r.key(0), 2.5), TypeError, "integer type"),
        (lambda r: r.normal(r.key(0), (8,), out_sharding="x"), TypeError, "out_sharding"),
        (lambda r: r.normal(r.key(0), (8,), out_sharding=P("x")), ValueError, "mesh"),
    ],
)
def test_what_is_refused(call, kind, message):
    with pytest.raises(kind, match=message):
        call(random)


MESH = mesh_of(("x", 4), ("y", 2))


@pytest.mark.parametrize(
    "shape, spec, kind, message",
    [
        ((6,), P("x"), ValueError, "divi"),
        ((8,), P("z"), ValueError, "z"),
        ((8,), P("x", "y"), ValueError, "rank"),
        ((8, 8), P("x", "x"), DuplicateSpecError, "x"),
    ],
)
def test_bad_placements(shape, spec, kind, message):
    def draw(words):
        return [random.normal(random.wrap_key_data(words), shape, out_sharding=spec)]

    with pytest.raises(kind, match=message):
        run(draw, [np.zeros(2, np.uint32)], [P()], MESH)


def test_axes_of_keys_are_not_free_for_their_draws():
    def draw(words):
        keys = ops.random_wrap(words, impl="fry")
        return [ops.draw_bits(keys, (4,), 32, NamedSharding(MESH, P("x")))]

    with pytest.raises(DuplicateSpecError, match="duplicate"):
        run(draw, [np.zeros((8, 2), np.uint32)], [P("x")], MESH)


def test_words_of_a_key_stay_together():
    with pytest.raises(ShardingTypeError, match="two words"):
        run(lambda w: [ops.random_wrap(w, impl="fry")], [np.zeros((8, 2), np.uint32)], [P(None, "y")], MESH)


def test_arrays_of_keys():
    keys = random.split(random.key(13), 4)
    assert len(keys) == 4 and [words(k) for k in keys] == words(keys)
    assert words(keys[1:3]) == words(keys)[1:3] and words(keys.reshape(2, 2)[1]) == words(keys)[2:]
    assert words(jnp.stack([keys[3], keys[0]])) == [words(keys)[3], words(keys)[0]]
    assert np.asarray(keys == keys[1]).tolist() == [False, True, False, False]
    first, second = random.split(random.key(0))
    assert bool(first != second) and bool(first == first)


@pytest.mark.parametrize(
    "use",
    [
        lambda k: k + 1,
        lambda k: 2.0 * k,
        lambda k: k + k,
        lambda k: -k,
        lambda k: k < k,
        lambda k: k == 1,
        lambda k: jnp.sin(k),
        lambda k: k.astype("uint32"),
        float,
        int,
        bool,
        lambda k: k.item(),
        lambda k: k.tolist(),
        np.asarray,
    ],
)
def test_keys_are_no_numbers(use):
    with pytest.raises(TypeError, match=r"(?i)key"):
        use(random.key(0))
