"""What the examples' programs send on meshes of 8 to 4096 devices, against formulas written by hand.

By the usual algorithms, per rank: a sum over n ranks of b bytes receives 2 b (n-1)/n in 2 log2 n messages, a gather of blocks
of b bytes b (n-1) in log2 n, a scattered sum b (n-1)/n in log2 n, an all-to-all b (n-1)/n in n-1.
"""

from __future__ import annotations

import importlib.util
import math
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray import P
from mpiarray.types.mesh import AbstractMesh, AxisType

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SIZES = [8, 64, 512, 4096]
SQUARES = [4, 16, 64]  # along each of two axes
F32 = 4


@cache
def example(name: str) -> ModuleType:
    specification = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module  # where dataclasses look for it
    specification.loader.exec_module(module)
    return module


def mesh_of(**axes: int) -> AbstractMesh:
    return AbstractMesh(tuple(axes.values()), tuple(axes), (AxisType.Explicit,) * len(axes))


def struct(mesh: AbstractMesh, shape: tuple[int, ...], spec: P, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=jax.NamedSharding(mesh, spec))


def compiled(mesh: AbstractMesh, f: Any, *args: Any) -> Any:
    with jax.sharding.use_abstract_mesh(mesh):
        return (f if hasattr(f, "lower") else jax.jit(f)).lower(*args).compile()


def nbytes(shapes: Any) -> int:
    return sum(F32 * math.prod(s) for s in shapes)


class Transformer:
    """The example's step: its sizes, and its costs on n devices."""

    def __init__(self, name: str, n: int, *, scan: bool = False, layers: int = 2):
        module = example("train_transformer")
        self.n = n
        self.batch, length, width = 32 * n, 16, 96 * n if name == "fsdp" else 96
        heads = n if name == "tp" else 8
        width = heads * 4 if name == "tp" else width
        if name == "fsdp":  # every first dim is divided
            heads = n
            module.CHARACTERS, before = 96 * n, module.CHARACTERS
        self.model = module.Model(layers, width, heads, length, scan)
        self.way = module.WAYS[name]
        mesh = mesh_of(ranks=n)
        try:
            with jax.sharding.use_abstract_mesh(mesh):
                args = module.structs(self.model, self.way, mesh, self.batch)
                made = module.trainer(self.model, self.way, 1e-3).lower(*args).compile()
            self.layer = {k: shape(self.model) for k, shape in module.SHAPES.items()}
            self.others = {k: shape(self.model) for k, shape in module.OTHERS.items()}
        finally:
            if name == "fsdp":
                module.CHARACTERS = before
        self.cost, self.memory = made.cost_analysis(), made.memory_analysis()
        self.hidden = F32 * self.batch * length * width


@pytest.mark.parametrize("n", SIZES)
def test_data_parallel_sums_each_slope_once(n: int):
    step = Transformer("dp", n)
    table = nbytes([step.others["characters"]])  # summed for each of its two uses
    parameters = 2 * nbytes(step.layer.values()) + nbytes(step.others.values()) + table
    loss = F32
    assert step.cost["communication bytes"] == pytest.approx(2 * (parameters + loss) * (n - 1) / n)
    assert step.cost["communication bytes"] == step.cost["communication bytes all-reduce"]
    # sums that do not wait for each other go together: their number depends on the program, not on the mesh
    rounds = step.cost["communication messages"] / (2 * math.log2(n))
    assert rounds == Transformer("dp", 8).cost["communication messages"] / (2 * math.log2(8))


@pytest.mark.parametrize("n", SIZES)
def test_data_parallel_work_per_device_does_not_grow(n: int):
    """The batch grows with the mesh, so that each device has the same to do."""
    first, step = Transformer("dp", 8), Transformer("dp", n)
    assert step.cost["flops"] == first.cost["flops"]
    assert step.memory.peak_memory_in_bytes == first.memory.peak_memory_in_bytes


@pytest.mark.parametrize("n", [8, 64])
@pytest.mark.parametrize("scan", [False, True], ids=["unrolled", "scan"])
def test_fully_sharded_gathers_twice_and_scatters_once(n: int, scan: bool):
    step = Transformer("fsdp", n, scan=scan)
    vectors = {"before", "between"}
    layer, others = nbytes(step.layer.values()), nbytes(step.others.values())
    small = nbytes(step.layer[k] for k in vectors)
    gathered = 2 * 2 * layer + others  # a layer's parameters forward and, by remat, on the way back; the others once
    assert step.cost["communication bytes all-gather"] == pytest.approx(gathered * (n - 1) / n)
    scattered = 2 * (layer - small)
    assert step.cost["communication bytes reduce-scatter"] >= scattered * (n - 1) / n * 0.999
    table = nbytes([step.others["characters"]])  # summed for each of its two uses
    everything = gathered + scattered + 2 * (2 * small + others + table + F32)
    assert step.cost["communication bytes"] <= everything * (n - 1) / n * 1.001


@pytest.mark.parametrize("n", SIZES)
def test_tensor_parallel_sums_activations(n: int):
    """Two sums of what goes from layer to layer forward, and their transposes: those of what goes back."""
    step = Transformer("tp", n)
    sums = 2 * step.model.layers  # forward
    back = 2 * step.model.layers  # one for both branches' inputs: the query, key and value parts are added before
    b = step.hidden
    least, most = (sums + back) * 2 * b * (n - 1) / n, (sums + 4 * step.model.layers) * 2 * b * (n - 1) / n
    assert least <= step.cost["communication bytes all-reduce"] <= most * 1.001
    assert step.cost["communication bytes"] == step.cost["communication bytes all-reduce"]


@pytest.mark.parametrize("n", SQUARES)
def test_heat_gathers_edges(n: int):
    heat = example("heat")
    mesh = mesh_of(x=n, y=n)
    rows, columns = 64, 32
    grid, held = (struct(mesh, (n, rows, n, columns), heat.BLOCKS, d) for d in ("float32", "bool"))
    cost = compiled(mesh, heat.advance, grid, held, grid).cost_analysis()
    edges = 2 * (rows + columns) * F32  # both sides
    assert cost["communication bytes"] == heat.STEPS_PER_CALL * edges * (n - 1)
    assert cost["communication messages"] == heat.STEPS_PER_CALL * 4 * math.log2(n)


@pytest.mark.parametrize("n", SQUARES)
def test_conjugate_gradients_send_edges_and_two_numbers(n: int):
    cg = example("cg_poisson")
    mesh = mesh_of(x=n, y=n)
    rows, columns = 64, 32
    grid, number = struct(mesh, (n * rows, n * columns), cg.BLOCKS), struct(mesh, (), P())
    cost = compiled(mesh, cg.advance, (grid, grid, grid, number), number).cost_analysis()
    assert cost["communication bytes collective-permute"] == 2 * (rows + columns) * F32
    assert cost["communication bytes all-reduce"] == 2 * 2 * F32 * (n * n - 1) / n**2
    assert cost["communication messages"] == 4 + 2 * 2 * math.log2(n * n)


@pytest.mark.parametrize("n", SIZES)
def test_ring_attention_hands_keys_and_values_on(n: int):
    ring = example("ring_attention")
    mesh = mesh_of(i=n)
    heads, positions, d = 4, 8, 16
    x = struct(mesh, (heads, positions * n, d), ring.SPREAD)
    block = heads * positions * d * F32
    made = compiled(mesh, ring.differentiated("ring", True), x, x, x, x)
    cost = made.cost_analysis()
    assert cost["communication bytes collective-permute"] == n * 2 * block * 2  # keys and values, there and back
    gathered = compiled(mesh, ring.differentiated("gathered", True), x, x, x, x)
    cost = gathered.cost_analysis()
    assert cost["communication bytes all-gather"] == 2 * block * (n - 1)
    assert cost["communication bytes reduce-scatter"] == 2 * block * n * (n - 1) / n
    if n >= 64:
        assert made.memory_analysis().temp_size_in_bytes < 0.6 * gathered.memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("n", SIZES)
def test_fourier_transforms_swap_dims_twice(n: int):
    mesh = mesh_of(i=n)
    x = struct(mesh, (n, 2 * n), P("i", None), "complex64")
    cost = compiled(mesh, jnp.fft.fft2, x).cost_analysis()
    block = 2 * n * 8
    assert cost["communication bytes all-to-all"] == 2 * block * (n - 1) / n
    assert cost["communication messages"] == 2 * (n - 1)
    assert cost["flops"] == pytest.approx(5 * 2 * n * (math.log2(n) + math.log2(2 * n)))
