"""The text of jaxprs: whole texts as JAX 0.10.2 prints them, and the grammar's corners (spec transforms.md 2)."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray import lax
from mpiarray.core.printer import literal_text, names, param_text
from mpiarray.types.mesh import AbstractMesh, AxisType


def struct(*shape: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def text(f, *args) -> str:
    return str(jax.make_jaxpr(f)(*args))


RECORDED = [
    (lambda x: x, [struct(4)], "{ lambda ; a:f32[4]. let  in (a,) }"),
    (lambda x: x + 1, [struct(4)], "{ lambda ; a:f32[4]. let b:f32[4] = add a 1.0:f32[] in (b,) }"),
    (
        lambda x, y: jnp.sin(x) * y + 2.0,
        [struct(3), struct(3)],
        """{ lambda ; a:f32[3] b:f32[3]. let
    c:f32[3] = sin a
    d:f32[3] = mul c b
    e:f32[3] = add d 2.0:f32[]
  in (e,) }""",
    ),
    (
        lambda a: a.sum(0),
        [struct(3, 4)],
        """{ lambda ; a:f32[3,4]. let
    b:f32[4] = reduce_sum[axes=(0,) out_sharding=None] a
  in (b,) }""",
    ),
    (lambda a: a.max(), [struct(3, 4)], "{ lambda ; a:f32[3,4]. let b:f32[] = reduce_max[axes=(0, 1)] a in (b,) }"),
    (
        lambda a: a.reshape(12),
        [struct(3, 4)],
        """{ lambda ; a:f32[3,4]. let
    b:f32[12] = reshape[dimensions=None new_sizes=(12,) sharding=None] a
  in (b,) }""",
    ),
    (
        lambda a: jnp.broadcast_to(a, (2, 4)),
        [struct(4)],
        """{ lambda ; a:f32[4]. let
    b:f32[2,4] = broadcast_in_dim[broadcast_dimensions=(1,)] a
  in (b,) }""",
    ),
    (
        lambda a: a[1],
        [struct(3, 4)],
        """{ lambda ; a:f32[3,4]. let
    b:f32[1,4] = slice[limit_indices=(2, 4) start_indices=(1, 0) strides=None] a
    c:f32[4] = squeeze[dimensions=(0,)] b
  in (c,) }""",
    ),
    (
        lambda a: a.astype(jnp.int32),
        [struct(4)],
        """{ lambda ; a:f32[4]. let
    b:i32[4] = convert_element_type[new_dtype=int32 weak_type=False] a
  in (b,) }""",
    ),
    (
        lambda: jnp.arange(4),
        [],
        "{ lambda ; . let\n    a:i32[4] = iota[dimension=0 dtype=int32 shape=(4,) sharding=None] \n  in (a,) }",
    ),
    (
        lambda a, b: a @ b,
        [struct(3, 4), struct(4)],
        """{ lambda ; a:f32[3,4] b:f32[4]. let
    c:f32[3] = dot_general[
      dimension_numbers=(([1], [0]), ([], []))
      preferred_element_type=float32
    ] a b
  in (c,) }""",
    ),
    (
        lambda a: (a > 0, a == 1.0),
        [struct(3)],
        """{ lambda ; a:f32[3]. let
    b:bool[3] = gt a 0.0:f32[]
    c:bool[3] = eq a 1.0:f32[]
  in (b, c) }""",
    ),
    (lambda a: (a, 1.0, 3), [struct(3)], "{ lambda ; a:f32[3]. let  in (a, 1.0:f32[], 3:i32[]) }"),
    (
        lambda a: a + np.arange(3, dtype=np.float32),
        [struct(3)],
        "{ lambda a:f32[3]; b:f32[3]. let c:f32[3] = add b a in (c,) }",
    ),
    (
        lambda a: lax.top_k(a, 2)[0],
        [struct(5)],
        "{ lambda ; a:f32[5]. let b:f32[2] _:i32[2] = top_k[axis=0 k=2] a in (b,) }",
    ),
    (lambda: jnp.zeros((2, 3)), [], "{ lambda ; . let a:f32[2,3] = broadcast_in_dim 0.0:f32[] in (a,) }"),
    (
        lambda a, i: lax.dynamic_slice(a, (i,), (2,)),
        [struct(5), struct(dtype="int32")],
        """{ lambda ; a:f32[5] b:i32[]. let
    c:bool[] = lt b 0:i32[]
    d:i32[] = add b 5:i32[]
    e:i32[] = select_n c b d
    f:f32[2] = dynamic_slice[slice_sizes=(2,)] a e
  in (f,) }""",
    ),
    (
        lambda a: lax.pad(a, 0.0, [(1, 2, 0)]),
        [struct(5)],
        """{ lambda ; a:f32[5]. let
    b:f32[8] = pad[padding_config=((1, 2, 0),)] a 0.0:f32[]
  in (b,) }""",
    ),
]


@pytest.mark.parametrize(("f", "args", "want"), RECORDED, ids=range(len(RECORDED)))
def test_whole_texts(f, args, want):
    assert text(f, *args) == want


@pytest.mark.parametrize(
    ("value", "dtype", "want"),
    [
        (1.0, "float32", "1.0"),
        (-2.5, "float32", "-2.5"),
        (1e-7, "float32", "1.0000000116860974e-07"),
        (1e-7, "float64", "1e-07"),
        (np.inf, "float32", "inf"),
        (-np.inf, "float32", "-inf"),
        (np.nan, "float32", "nan"),
        (0.1, "float16", "0.0999755859375"),
        (3, "int32", "3"),
        (True, "bool", "True"),
        (1j, "complex64", "1j"),
    ],
)
def test_literals(value, dtype, want):
    assert literal_text(np.dtype(dtype).type(value)) == want


def test_inner_jaxprs():
    """One line where it fits in 80 columns, else one line for each equation."""
    short = jax.jit(lambda y: y)
    assert text(lambda x: short(x), struct(3)).splitlines()[1] == (
        "    c:f32[3] = jit[name=<lambda> jaxpr={ lambda ; b:f32[3]. let  in (b,) }] a"
    )

    @jax.jit
    def inner(x):
        return jnp.sin(x) * 2

    assert (
        text(lambda x: inner(x) + 1, struct(3))
        == """{ lambda ; a:f32[3]. let
    e:f32[3] = jit[
      name=inner
      jaxpr={ lambda ; b:f32[3]. let
          c:f32[3] = sin b
          d:f32[3] = mul c 2.0:f32[]
        in (d,) }
    ] a
    f:f32[3] = add e 1.0:f32[]
  in (f,) }"""
    )


def test_every_equation_of_a_long_jaxpr_has_a_line():
    f = jax.jit(lambda x: jnp.cos(jnp.sin(jnp.exp(x))) + jnp.sin(x))
    lines = text(lambda x: f(f(x)), struct(3)).splitlines()
    assert sum("sin" in line for line in lines) == 4
    assert all(line.count(" = ") <= 1 for line in lines)


def test_sharded_types():
    mesh = AbstractMesh((4, 2), ("x", "y"), (AxisType.Explicit,) * 2)
    x = jax.ShapeDtypeStruct((8, 4), "float32", sharding=jax.NamedSharding(mesh, jax.P("x", "y")))
    out = text(lambda v: jnp.sin(v).T, x)
    assert "a:f32[8@x,4@y]" in out
    assert "c:f32[4@y,8@x] = transpose[permutation=(1, 0)] b" in out


def test_reading_order_of_names():
    found = list(itertools.islice(names(), 28 + 26 * 26))
    assert found[:3] == ["a", "b", "c"]
    assert found[25:28] == ["z", "aa", "ab"]
    assert found[26 + 26 * 26] == "aaa"
    assert len(set(found)) == len(found)


def test_parameters():
    assert param_text(frozenset({"y", "x"})) == "frozenset({'x', 'y'})"
    assert param_text(np.dtype("float32")) == "float32"
    assert param_text((((1,), (0,)), ((), ()))) == "(([1], [0]), ([], []))"
    assert param_text((1, 2)) == "(1, 2)"
    assert param_text(None) == "None"
    assert param_text(text) == "text"


def test_one_equation_alone():
    jaxpr = jax.make_jaxpr(lambda x, y: x + y)(struct(2), struct(2))
    assert str(jaxpr.eqns[0]) == "c:f32[2] = add a b"


def test_texts_do_not_depend_on_the_print():
    jaxpr = jax.make_jaxpr(lambda x: jnp.sin(x) + 1)(struct(2))
    assert str(jaxpr) == str(jaxpr) == str(jaxpr.jaxpr) == repr(jaxpr)
