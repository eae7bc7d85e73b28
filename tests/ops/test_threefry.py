"""Threefry against the published test vectors, against recorded draws of JAX 0.10, and blocks against slices."""

import itertools

import numpy as np
import pytest

from mpiarray.ops import threefry as tf
from tests.peak import peak_of

# Random123's known answers for threefry2x32 with 20 rounds: key words, counter words, result words.
KNOWN_ANSWERS = [
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
]


def key(number):
    return tf.seed(np.asarray(number, np.int32 if number < 2**31 else np.uint32))


def words(keys):
    return np.stack(tf.key_words(keys), -1).tolist()


def draw(k, shape, width=32):
    return tf.random_bits_block(k, shape, (0,) * len(shape), shape, width)


def reference(k, shape, width=32):
    """The whole draw from the block function alone, with all counters spelled out."""
    k = np.asarray(k)
    counters = np.arange(np.prod(shape, dtype=int), dtype=np.uint64).reshape(shape)
    k0, k1 = (w.reshape(k.shape + (1,) * len(shape)) for w in tf.key_words(k))
    y0, y1 = tf.threefry((k0, k1), counters >> 32, counters & 0xFFFFFFFF)
    if width == 64:
        return y0.astype(np.uint64) << 32 | y1
    return (y0 ^ y1).astype(f"uint{width}")


@pytest.mark.parametrize("key_words, counter, result", KNOWN_ANSWERS)
def test_published_vectors(key_words, counter, result):
    y0, y1 = tf.threefry(key_words, *counter)
    assert (int(y0), int(y1)) == result
    many0, many1 = tf.threefry(key_words, np.full((3, 4), counter[0], np.uint32), counter[1])
    assert many0.shape == (3, 4) and (many0 == result[0]).all() and (many1 == result[1]).all()
    assert tf._words_of(key_words[0] | key_words[1] << 32, *counter) == result


def test_seeds():
    assert words(key(0)) == [0, 0]
    assert words(key(42)) == [0, 42]
    assert words(tf.seed(np.array([-1, 2**31 - 1], np.int32))) == [[0, 4294967295], [0, 2147483647]]
    assert words(tf.seed(np.array([-1, 2**40 + 3, -(2**31)]))) == [
        [4294967295, 4294967295],
        [256, 3],
        [4294967295, 2147483648],
    ]
    assert words(tf.seed(np.array(2**63 - 1, np.uint64))) == [2147483647, 4294967295]
    assert words(tf.seed(np.uint8(7))) == [0, 7]


def test_split_and_fold_in():
    assert words(tf.split(key(0))) == [[1797259609, 2579123966], [928981903, 3453687069]]
    assert words(tf.split(key(5), (2, 3))) == [
        [[2724472204, 3573582090], [202567368, 3886822060], [3594430910, 1784718894]],
        [[2939540675, 3076691462], [898128576, 3750995185], [972824557, 2491659272]],
    ]
    assert words(tf.fold_in(key(0), 7)) == [2716826189, 292468403]
    assert words(tf.fold_in(tf.fold_in(key(1), 2), 3)) == [2563710487, 186860909]
    numbers = np.array([0, 1, 7, 2**20] * 5).reshape(4, 5)
    folded = tf.fold_in(key(0), numbers)
    assert folded.shape == (4, 5)
    assert words(folded.reshape(-1)[:4]) == [
        [1797259609, 2579123966],
        [928981903, 3453687069],
        [2716826189, 292468403],
        [2652788359, 1597282999],
    ]
    assert np.array_equal(folded, [[tf.fold_in(key(0), n) for n in row] for row in numbers])
    assert tf.fold_in(key(3), -1) == tf.fold_in(key(3), 2**32 - 1)
    whole = tf.split(key(5), (6, 9))
    assert np.array_equal(tf.split_block(key(5), (6, 9), (2, 3), (4, 5)), whole[2:6, 3:8])
    many = tf.split(key(9), 4)
    assert np.array_equal(tf.split(many, 3), [tf.split(k, 3) for k in many])


def test_recorded_bits():
    assert draw(key(0), (3,)).tolist() == [4070199207, 4202968722, 1427181096]
    assert draw(key(5), (3, 5)).tolist() == [
        [2003086470, 3955154020, 3160280976, 408371909, 3927703089],
        [2910825445, 72334161, 232576969, 864238904, 1860255484],
        [3328039, 1662282497, 2931752282, 1912459521, 3620528288],
    ]
    assert draw(key(5), (3, 5), 8).tolist() == [
        [134, 100, 144, 197, 49],
        [229, 81, 201, 56, 252],
        [39, 1, 90, 1, 160],
    ]
    assert draw(key(5), (3, 5), 16).tolist() == [
        [44166, 56420, 3984, 17093, 65073],
        [44005, 47953, 55241, 15672, 16124],
        [51239, 27393, 64858, 53505, 57504],
    ]
    assert draw(key(5), (4,), 64).tolist() == [
        11701519018614622474,
        870020224683618988,
        15437963207966238254,
        12625231067463456262,
    ]
    big = draw(key(77), (70000,))
    assert big[[0, 1, 65535, 65536, 69999]].tolist() == [3059974120, 754984808, 2390097083, 1828637970, 3644382492]
    assert int(big.sum(dtype=np.uint64)) == 150412576278482


@pytest.mark.parametrize("width", [8, 16, 32, 64])
def test_few_and_many_elements_agree(width):
    whole = reference(key(8), (20,), width)
    for n in range(20):
        got = draw(key(8), (n,), width)
        assert got.dtype == whole.dtype and np.array_equal(got, whole[:n])
    assert draw(key(8), (), width) == whole[0]


@pytest.mark.parametrize("shape", [(24,), (4, 6), (2, 3, 4), (4, 1, 6), (1, 24), (24, 1), (2, 2, 3, 2), (3, 5, 1, 2)])
def test_every_block_is_a_slice(shape):
    whole = reference(key(3), shape)
    ranges = [[(s, n - s + 1 - e) for s in range(n) for e in range(1, n - s + 1)] for n in shape]
    for block in itertools.product(*(r[:: max(1, len(r) // 7)] for r in ranges)):
        start, size = tuple(s for s, _ in block), tuple(n for _, n in block)
        got = tf.random_bits_block(key(3), shape, start, size, 32)
        assert np.array_equal(got, whole[tuple(slice(s, s + n) for s, n in block)]), (shape, block)


@pytest.mark.parametrize(
    "shape, start, size",
    [
        ((200_000,), (70_000,), (130_000,)),
        ((3, 100_000), (1, 10), (2, 70_000)),
        ((3, 100_000), (1, 0), (2, 100_000)),
        ((50_000, 8), (7, 3), (40_000, 2)),
        ((50_000, 8), (7, 0), (40_000, 8)),
        ((60, 50, 40), (20, 0, 13), (40, 50, 20)),
        ((60, 50, 40), (20, 25, 0), (30, 25, 40)),
        ((7, 65_536), (2, 0), (3, 65_536)),
        ((9, 40_000), (1, 100), (5, 39_000)),
        ((8, 9, 10, 11, 12), (1, 0, 3, 0, 5), (7, 9, 6, 11, 7)),
    ],
)
def test_blocks_of_many_chunks(shape, start, size):
    got = tf.random_bits_block(key(4), shape, start, size, 32)
    assert np.array_equal(got, reference(key(4), shape)[tuple(slice(s, s + n) for s, n in zip(start, size))])


@pytest.mark.parametrize(
    "shape, start, size",
    [
        ((2**40,), (2**32 - 100,), (200,)),
        ((2**40,), (2**32 - 3,), (5,)),
        ((2**40,), (2**35 - 70_000,), (140_000,)),
        ((2**16, 2**20), (2**12 - 3, 5), (6, 100)),
        ((2**16, 2**20), (2**12 - 1, 2**20 - 9), (2, 9)),
        ((2**32, 2**32), (2**32 - 2, 2**32 - 70_000), (2, 70_000)),
        ((2**20, 2**10, 2**10), (2**12 - 2, 3, 1000), (5, 40, 24)),
    ],
)
def test_counters_beyond_32_bits(shape, start, size):
    index = np.zeros(size, np.uint64)
    stride = 1
    for d in reversed(range(len(shape))):
        along = np.array([((start[d] + i) * stride) % 2**64 for i in range(size[d])], np.uint64)
        index += along.reshape((-1,) + (1,) * (len(shape) - 1 - d))
        stride *= shape[d]
    y0, y1 = tf.threefry(tf.key_words(key(6)), index >> 32, index & 0xFFFFFFFF)
    assert np.array_equal(tf.random_bits_block(key(6), shape, start, size, 32), y0 ^ y1)


@pytest.mark.parametrize("width", [8, 16, 32, 64])
@pytest.mark.parametrize(
    "count, shape", [((2,), (2,)), ((7,), (3, 5)), ((3, 4), ()), ((900,), (100,)), ((3,), (5000,))]
)
def test_every_key_makes_its_own_draw(count, shape, width):
    keys = tf.split(key(12), count)
    got = draw(keys, shape, width)
    assert got.shape == count + shape
    for i in itertools.islice(np.ndindex(*count), 0, None, 37):
        assert np.array_equal(got[i], reference(keys[i], shape, width))
    assert np.array_equal(got.reshape(-1, *shape)[-1], reference(keys.reshape(-1)[-1], shape, width))


def test_blocks_of_many_keys():
    keys = tf.split(key(13), 50)
    got = tf.random_bits_block(keys, (6, 8), (1, 4), (3, 2), 32)
    assert np.array_equal(got, reference(keys, (6, 8))[:, 1:4, 4:6])


def test_nothing_to_make():
    assert draw(key(0), (0,)).shape == (0,)
    assert draw(key(0), (3, 0, 2), 64).shape == (3, 0, 2)
    assert draw(np.zeros((0,), np.uint64), (3,)).shape == (0, 3)
    assert tf.split(key(0), 0).shape == (0,)
    y0, y1 = tf.threefry((0, 0), np.zeros((0,), np.uint32), 0)
    assert y0.shape == y1.shape == (0,)


def test_memory_is_the_result_and_small_buffers():
    out, peak = peak_of(lambda: tf.random_bits_block(key(1), (1 << 14, 1 << 12), (0, 0), (1 << 12, 1 << 10), 32))
    assert peak < out.nbytes + 4 * 2**20


def test_keys_and_results_are_left_alone():
    keys = tf.split(key(2), 5)
    keys.flags.writeable = False
    before = keys.copy()
    draw(keys, (30,)), tf.fold_in(keys, 3), tf.split(keys)
    assert np.array_equal(keys, before)
    assert draw(keys[::2], (3,)).tolist() == [draw(k, (3,)).tolist() for k in keys[::2]]


def test_bad_arguments():
    with pytest.raises(TypeError, match="bit_width=24"):
        draw(key(0), (3,), 24)
    with pytest.raises(TypeError, match="uint64"):
        draw(np.zeros(3, np.uint32), (3,))
    with pytest.raises(ValueError, match="not inside a draw"):
        tf.random_bits_block(key(0), (8,), (6,), (3,), 32)
    with pytest.raises(ValueError, match="as many starts"):
        tf.random_bits_block(key(0), (8, 2), (6,), (2,), 32)
    with pytest.raises(ValueError, match="2\\*\\*64"):
        tf.random_bits_block(key(0), (2**33, 2**32), (0, 0), (1, 1), 32)
