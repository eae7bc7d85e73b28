"""Types of results: one mesh for all operands, no axis twice, sums that are still pending, and the cache."""

from __future__ import annotations

import numpy as np
import pytest

import mpiarray.runtime.eager  # noqa: F401 - defines all ops
from mpiarray.core import infer as module
from mpiarray.core.infer import infer
from mpiarray.core.op import OPS
from mpiarray.core.trace import abstract_mesh
from mpiarray.errors import DuplicateSpecError, ShardingTypeError
from mpiarray.types.aval import ShapedArray
from mpiarray.types.mesh import AbstractMesh, AxisType
from mpiarray.types.partition_spec import PartitionSpec as P
from mpiarray.types.sharding import NamedSharding
from tests.ops.pretended_mesh import mesh_of

F32 = np.dtype("float32")
MESH = mesh_of(("x", 4), ("y", 2))
OTHER = mesh_of(("a", 4), ("b", 2))
AUTO = mesh_of(("x", 4), ("y", 2), kind=AxisType.Auto)
OTHER_AUTO = mesh_of(("a", 8), kind=AxisType.Auto)


def typed(shape: tuple[int, ...], spec: P = P(), mesh: AbstractMesh = MESH) -> ShapedArray:  # noqa: B008
    return ShapedArray(shape, F32, False, NamedSharding(mesh, spec.padded(len(shape))))


def of(name: str, *avals: ShapedArray, **params: object) -> str:
    return ", ".join(a.str_short() for a in infer(OPS[name], avals, params))


DOT = {
    "dimension_numbers": (((1,), (0,)), ((), ())),
    "precision": None,
    "preferred_element_type": None,
    "out_sharding": None,
}


def test_operands_without_a_mesh_count_as_replicated():
    plain = ShapedArray((8, 4), F32)
    assert of("add", typed((8, 4), P("x", "y")), plain) == "float32[8@x,4@y]"
    assert of("add", plain, typed((8, 4), P("x", "y"))) == "float32[8@x,4@y]"
    assert of("add", plain, plain) == "float32[8,4]"
    with abstract_mesh(MESH):
        (out,) = infer(OPS["add"], (plain, plain), {})
        assert out.sharding.mesh is MESH


def test_the_context_mesh_must_be_the_operands():
    x = typed((8, 4), P("a"), OTHER)
    with (
        abstract_mesh(MESH),
        pytest.raises(ValueError, match=r"For primitive sin, context mesh .* should match the aval mesh") as e,
    ):
        infer(OPS["sin"], (x,), {})
    assert "float32[8@a,4]" in str(e.value)


def test_all_operands_are_on_one_mesh():
    with pytest.raises(ShardingTypeError, match="Mesh for all inputs should be equal"):
        infer(OPS["add"], (typed((8, 4), P("x")), typed((8, 4), P("a"), OTHER)), {})


def test_a_mesh_is_the_same_whatever_describes_its_devices():
    described = MESH.update(abstract_device=None)
    assert of("add", typed((8, 4), P("x")), typed((8, 4), P("x"), described)) == "float32[8@x,4]"


def test_different_auto_meshes_do_not_meet_but_do_not_err():
    x, y = typed((8, 4), P(), AUTO), typed((8, 4), P(), OTHER_AUTO)
    (out,) = infer(OPS["add"], (x, y), {})
    assert out.sharding.mesh.empty
    with abstract_mesh(AUTO):
        (out,) = infer(OPS["sin"], (y,), {})
    assert out.shape == (8, 4)


def test_axes_are_used_once():
    x, y = typed((8, 4), P("x", None)), typed((4, 8), P(None, "x"))
    with pytest.raises(ShardingTypeError, match=r"f32\[8@x,8@x\]") as e:
        infer(OPS["dot_general"], (x, y), DOT)
    assert "f32[8@x,4]" in str(e.value)
    assert "out_sharding" in str(e.value)


def test_several_results_are_checked_too():
    class Several:
        multiple_results = True
        name = "several"

    spec = P.from_dims((("x",), ("x",)))
    with pytest.raises(DuplicateSpecError, match="several"):
        module._check_duplicates(Several, [], [OPS["sin"].type_rule(typed((8, 8)))], [spec], MESH)


@pytest.mark.parametrize(
    ("name", "left", "right", "want"),
    [
        ("add", P("x", unreduced={"y"}), P("x", unreduced={"y"}), "float32[8@x,4]{U:y}"),
        ("sub", P(unreduced={"y"}), P(unreduced={"y"}), "float32[8,4]{U:y}"),
        ("mul", P(unreduced={"y"}), P(reduced={"y"}), "float32[8,4]{U:y}"),
        ("mul", P(reduced={"y"}), P(unreduced={"y"}), "float32[8,4]{U:y}"),
        ("add", P(reduced={"y"}), P(reduced={"y"}), "float32[8,4]{R:y}"),
        ("add", P(unreduced={"y"}), P(), ShardingTypeError),
        ("add", P(unreduced={"y"}), P(unreduced={"x"}), ShardingTypeError),
        ("mul", P(unreduced={"y"}), P(unreduced={"y"}), ShardingTypeError),
        ("mul", P(unreduced={"y"}), P(), ShardingTypeError),
        ("add", P(reduced={"y"}), P(), ShardingTypeError),
        ("max", P(unreduced={"y"}), P(unreduced={"y"}), NotImplementedError),
    ],
    ids=str,
)
def test_sums_that_are_pending(name, left, right, want):
    avals = (typed((8, 4), left), typed((8, 4), right))
    if isinstance(want, str):
        assert of(name, *avals) == want
        return
    with pytest.raises(want, match=name):
        infer(OPS[name], avals, {})


def test_ops_that_are_not_linear_refuse_pending_sums():
    for name in ("sin", "exp", "sqrt"):
        with pytest.raises(NotImplementedError, match="unreduced"):
            infer(OPS[name], (typed((8,), P(unreduced={"x"})),), {})
    assert of("neg", typed((8,), P("y", unreduced={"x"}))) == "float32[8@y]{U:x}"


def test_parameters_that_cannot_be_hashed_are_named():
    with pytest.raises(TypeError, match=r"reduce_sum: parameters \['axes'\] are not hashable"):
        infer(OPS["reduce_sum"], (typed((8, 4)),), {"axes": [0], "out_sharding": None})


def test_results_are_kept():
    aval = typed((8, 4), P("x"))
    module._cache.clear()
    first = infer(OPS["sin"], (aval,), {})
    assert infer(OPS["sin"], (aval,), {}) is first
    with abstract_mesh(MESH):
        assert infer(OPS["sin"], (aval,), {}) is not first
    assert len(module._cache) == 2


def test_the_cache_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "_CACHE_SIZE", 8)
    module._cache.clear()
    for n in range(1, 40):
        assert of("neg", ShapedArray((n,), F32)) == f"float32[{n}]"
        assert len(module._cache) <= 8


def test_what_is_wrong_is_not_kept():
    aval = typed((8,), P(unreduced={"x"}))
    module._cache.clear()
    for _ in range(2):
        with pytest.raises(NotImplementedError):
            infer(OPS["sin"], (aval,), {})
    assert not module._cache
