"""Products of jnp against numpy on global data, on one process and on a mesh; their types and errors."""

import itertools

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpiarray.errors import ShardingTypeError
from mpiarray.numpy import products as jnp
from mpiarray.numpy.einsum import einsum, einsum_path
from mpiarray.runtime import eager  # noqa: F401  (ops run at once)
from mpiarray.types.mesh import AxisType
from mpiarray.types.partition_spec import PartitionSpec as P
from tests.ops.pretended_mesh import draw_spec, mesh_of, run

EXPLICIT = mesh_of(("x", 4), ("y", 2))
AUTO = mesh_of(("x", 4), ("y", 2), kind=AxisType.Auto)


def ints(*shape, seed=0):
    """Small integers as float32, so that sums are exact in any order."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


def same(got, wanted):
    got, wanted = np.asarray(got), np.asarray(wanted)
    assert got.shape == wanted.shape
    np.testing.assert_array_equal(got, wanted)


MATMUL_SHAPES = [
    ((3,), (3,)),
    ((2, 3), (3,)),
    ((3,), (3, 4)),
    ((2, 3), (3, 4)),
    ((5, 2, 3), (3, 4)),
    ((2, 3), (5, 3, 4)),
    ((5, 2, 3), (5, 3, 4)),
    ((1, 2, 3), (5, 3, 4)),
    ((6, 1, 2, 3), (5, 3, 4)),
    ((5, 2, 3), (1, 3, 4)),
    ((1, 2, 3), (1, 3, 4)),
    ((5, 2, 3), (3,)),
    ((3,), (5, 3, 4)),
    ((0, 3), (3, 2)),
    ((2, 0), (0, 2)),
    ((6, 5, 2, 3), (1, 5, 3, 4)),
]


@pytest.mark.parametrize("shapes", MATMUL_SHAPES)
def test_matmul_and_dot(shapes):
    x, y = ints(*shapes[0]), ints(*shapes[1], seed=1)
    same(jnp.matmul(x, y), np.matmul(x, y))
    same(jnp.dot(x, y), np.dot(x, y))
    if x.ndim > 1 and y.ndim > 1:
        same(einsum("...ij,...jk->...ik", x, y), np.matmul(x, y))


def test_products_of_vectors_and_stacks():
    x, y = ints(5, 2, 3), ints(2, 3, seed=1)
    same(jnp.vecdot(x, y), np.vecdot(x, y))
    same(jnp.inner(x, y), np.inner(x, y))
    same(jnp.outer(x, y), np.outer(x, y))
    same(jnp.kron(x, y), np.kron(x, y))
    same(jnp.cross(x, y), np.cross(x, y))
    same(jnp.cross(x[..., :2], y), np.cross(np.pad(x[..., :2], ((0, 0), (0, 0), (0, 1))), y))
    same(jnp.matvec(ints(5, 2, 3), ints(5, 3)), np.einsum("bij,bj->bi", ints(5, 2, 3), ints(5, 3)))
    same(jnp.vecmat(ints(5, 2), ints(5, 2, 3)), np.einsum("bi,bij->bj", ints(5, 2), ints(5, 2, 3)))
    for axes in (0, 1, 2, ((1,), (0,)), ((0, 1), (0, 1)), (1, 1)):
        a, b = ints(3, 3), ints(3, 3, seed=1)
        same(jnp.tensordot(a, b, axes), np.tensordot(a, b, axes))


@pytest.mark.parametrize(("n", "m"), list(itertools.product((1, 2, 4, 5), repeat=2)))
@pytest.mark.parametrize("mode", ["full", "same", "valid"])
def test_convolutions(n, m, mode):
    x, y = ints(n), ints(m, seed=1)
    same(jnp.convolve(x, y, mode), np.convolve(x, y, mode))
    same(jnp.correlate(x, y, mode), np.correlate(x, y, mode))
    z = (x + 1j * x[::-1]).astype(np.complex64)
    same(jnp.correlate(y.astype(np.complex64), z, mode), np.correlate(y.astype(np.complex64), z, mode))


EINSUMS = [
    ("ij,jk->ik", [(3, 4), (4, 5)]),
    ("ij,jk", [(3, 4), (4, 5)]),
    ("bij,bjk->bki", [(2, 3, 4), (2, 4, 5)]),
    ("ij,kj,kl->il", [(3, 4), (5, 4), (5, 2)]),
    ("ii->i", [(4, 4)]),
    ("ii", [(4, 4)]),
    ("iij,jk->ki", [(3, 3, 4), (4, 5)]),
    ("...ij,...jk->...ik", [(2, 3, 4), (1, 4, 5)]),
    ("ij->", [(3, 4)]),
    ("ij,ij->i", [(3, 4), (3, 4)]),
    ("i,j,k,l->lkji", [(2,), (3,), (4,), (5,)]),
    ("ab,bc,cd,de,ef,fa->", [(2, 3), (3, 4), (4, 5), (5, 2), (2, 3), (3, 2)]),
    ("ij,jk->i", [(3, 4), (4, 5)]),
    ("ij,k->j", [(3, 4), (5,)]),
    ("bqhd,bkhd->bhqk", [(2, 3, 4, 5), (2, 6, 4, 5)]),
    ("ij->ji", [(3, 4)]),
    ("a,a->", [(3,), (3,)]),
    ("iijj->ij", [(2, 2, 3, 3)]),
    (" ij , jk -> ik ", [(3, 4), (4, 5)]),
]


@pytest.mark.parametrize(("text", "shapes"), EINSUMS)
@pytest.mark.parametrize("optimize", ["auto", False, True, "greedy", "optimal"])
def test_einsum(text, shapes, optimize):
    xs = [ints(*s, seed=k) for k, s in enumerate(shapes)]
    same(einsum(text, *xs, optimize=optimize), np.einsum(text, *xs))


def test_einsum_takes_numbers_for_letters_and_a_path():
    x, y, z = ints(3, 4), ints(4, 5, seed=1), ints(5, 2, seed=2)
    same(einsum(x, [0, 1], y, [1, 2], [0, 2]), x @ y)
    path, text = einsum_path("ij,jk,kl->il", x, y, z)
    assert path[0] == "einsum_path" and "Complete contraction" in text
    same(einsum("ij,jk,kl->il", x, y, z, optimize=path), x @ y @ z)


@pytest.mark.parametrize(
    ("text", "shapes", "message"),
    [
        ("ij,jk->ik", [(3, 4)], "number of einsum subscripts"),
        ("ijk->i", [(3, 4)], "does not contain the correct number of indices"),
        ("ij->k", [(3, 4)], "did not appear in the input"),
        ("ij->ii", [(3, 4)], "more than once"),
        ("ij,jk->ik", [(3, 4), (3, 4)], r"Size of label 'j' for operand 1 \(3\) does not match previous terms \(4\)"),
        ("i-j", [(3, 4)], "not valid in the subscripts"),
    ],
)
def test_einsum_errors(text, shapes, message):
    with pytest.raises(ValueError, match=message):
        einsum(text, *(ints(*s) for s in shapes))


def test_dtypes_of_results():
    b = ints(3, 3).astype(ml_dtypes.bfloat16)
    assert jnp.dot(b, b).dtype == ml_dtypes.bfloat16
    assert jnp.dot(b, b, preferred_element_type=np.float32).dtype == np.float32
    assert jnp.dot(ints(3), np.arange(3)).dtype == np.float32
    assert jnp.matmul(np.ones((2, 2), bool), np.ones((2, 2), bool)).dtype == np.bool_
    assert jnp.convolve(np.arange(3), np.arange(3)).dtype == np.float32
    assert jnp.dot(2.0, 3).aval.weak_type and not jnp.dot(ints(3), ints(3)).aval.weak_type
    z = (ints(3) + 1j * ints(3, seed=1)).astype(np.complex64)
    same(jnp.vdot(z, z), np.vdot(z, z))
    i = np.array([[2**31 - 1, 2**30]], np.int32)
    same(jnp.matmul(i, i.T), i @ i.T)


# -- on a mesh ------------------------------------------------------------------------------------------------


@settings(max_examples=80)
@given(st.data())
def test_einsum_on_a_mesh(data):
    text, shapes = data.draw(
        st.sampled_from(
            [
                ("ij,jk->ki", [(8, 4), (4, 8)]),
                ("bij,bjk->bik", [(4, 8, 2), (4, 2, 8)]),
                ("bqhd,bkhd->bhqk", [(4, 2, 4, 8), (4, 8, 4, 8)]),
                ("ij,jk,kl->il", [(8, 4), (4, 2), (2, 8)]),
                ("ij,ij->i", [(8, 4), (8, 4)]),
                ("i,j->ji", [(8,), (4,)]),
                ("ij->j", [(8, 4)]),
                ("ij,kj->i", [(8, 4), (8, 4)]),
            ]
        )
    )
    mesh = data.draw(st.sampled_from((EXPLICIT, AUTO)))
    xs = [ints(*s, seed=k) for k, s in enumerate(shapes)]
    specs = [draw_spec(data, mesh, s) for s in shapes]
    wanted = np.einsum(text, *xs)
    out = draw_spec(data, mesh, wanted.shape) if mesh is EXPLICIT and data.draw(st.booleans()) else None
    try:
        (got,), (aval,), _, _ = run(lambda *a: [einsum(text, *a, out_sharding=out)], xs, specs, mesh)
    except ShardingTypeError:
        assert mesh is EXPLICIT and (out is None or len(xs) > 2)
        return
    same(got, wanted)
    if out is not None:
        assert aval.dims == out.padded(wanted.ndim).dims


def test_matmul_gives_the_transposed_result_its_sharding():
    """A batch dim of one side only is a free dim of the product, and comes back to its place."""
    x, y = ints(4, 2), ints(4, 2, 8, seed=1)
    (got,), (aval,), _, world = run(
        lambda a, b: [jnp.matmul(a, b, out_sharding=P("x", None, "y"))], [x, y], [P(), P("x", None, "y")], EXPLICIT
    )
    same(got, x @ y)
    assert aval.short() == "f32[4@x,4,8@y]" and not world.calls
    with pytest.raises(
        ValueError, match=r"Incompatible types for matmul arguments: float32\[4,8,8\] and float32\[4@x,8,8\]"
    ):
        run(lambda a, b: [jnp.matmul(a, b)], [ints(4, 8, 8), ints(4, 8, 8)], [P(), P("x")], EXPLICIT)


def test_a_repeated_letter_needs_an_unsharded_operand():
    with pytest.raises(ShardingTypeError, match="repeated letter must be unsharded"):
        run(lambda a: [einsum("ii->i", a)], [ints(8, 8)], [P("x", None)], EXPLICIT)
    with pytest.raises(ShardingTypeError, match="must be unsharded"):
        run(lambda a: [jnp.convolve(a, a)], [ints(8)], [P("x")], EXPLICIT)
    (got,), _, _, _ = run(lambda a: [jnp.convolve(a, a)], [ints(8)], [P("x")], AUTO)
    same(got, np.convolve(ints(8), ints(8)))
