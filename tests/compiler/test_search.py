"""The search over labels: exact on chains and trees, against all choices on small graphs; and the estimates it adds up."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from mpiarray.compiler.labels import layouts, move_seconds
from mpiarray.compiler.machine import Machine
from mpiarray.compiler.search import Edge, Graph, improved, search
from mpiarray.core import redistribution as rd
from mpiarray.types.aval import ShapedArray
from mpiarray.types.mesh import AbstractMesh, AxisType
from mpiarray.types.partition_spec import PartitionSpec as P


def graph_of(random: np.random.Generator, sizes: list[int], pairs: list[tuple[int, int]]) -> Graph:
    costs = [random.integers(0, 20, n).astype(float) for n in sizes]
    edges = [Edge(a, b, random.integers(0, 20, (sizes[a], sizes[b])).astype(float)) for a, b in pairs]
    return Graph(costs, edges)


def least(graph: Graph) -> float:
    return min(graph.total(x) for x in itertools.product(*(range(len(c)) for c in graph.costs)))


@pytest.mark.parametrize("seed", range(20))
def test_chains_and_trees_are_exact(seed: int):
    random = np.random.default_rng(seed)
    sizes = [int(n) for n in random.integers(1, 5, 7)]
    chain = [(k, k + 1) for k in range(6)]
    tree = [(int(random.integers(0, k)), k) for k in range(1, 7)]
    for pairs in (chain, tree, [(b, a) for a, b in tree]):  # edges may be given either way
        graph = graph_of(random, sizes, pairs)
        assert graph.total(search(graph, [[0] * 7])) == least(graph)


def test_graphs_with_circles_are_near():
    """Of many random graphs most are exact, and all better than any label changed alone."""
    exact = 0
    for seed in range(60):
        random = np.random.default_rng(seed)
        sizes = [int(n) for n in random.integers(2, 4, 7)]
        pairs = [(a, b) for a, b in itertools.combinations(range(7), 2) if random.random() < 0.4]
        graph = graph_of(random, sizes, pairs)
        found = search(graph, [[0] * 7])
        assert found == improved(graph, found)
        assert graph.total(found) <= 1.3 * least(graph)
        exact += graph.total(found) == least(graph)
    assert exact >= 48


def test_it_never_loses_to_where_it_starts():
    random = np.random.default_rng(5)
    graph = graph_of(random, [3] * 6, list(itertools.combinations(range(6), 2)))
    for start in itertools.product(range(3), repeat=6):
        assert graph.total(search(graph, [list(start)], rounds=1)) <= graph.total(start)


def test_the_earlier_label_wins_between_equals():
    graph = Graph([np.zeros(3), np.zeros(4)], [Edge(0, 1, np.zeros((3, 4)))])
    assert search(graph, [[2, 3]]) == [2, 3], "nothing is gained by a change"
    assert search(Graph([np.ones(3)], []), [[0]]) == [0]
    assert search(Graph([], []), [[]]) == []


MESH = AbstractMesh((4, 2), ("x", "y"), (AxisType.Auto,) * 2)


def test_estimates_of_moves_are_near_the_plans():
    """Bytes alone count on this machine; the planner's own figures are the measure."""
    bytes_only = Machine(flops=1e30, memory=1e30, bandwidth=1.0, latency=1e-30)
    for shape in ((16, 8), (8, 32), (8, 16, 8)):
        aval = ShapedArray(shape, np.dtype("float32"))
        for have, want in itertools.product(layouts(aval, MESH), repeat=2):
            estimate = move_seconds(bytes_only, shape, 4, MESH, have, want)
            planned = rd.plan(shape, 4, (MESH, have), (MESH, want)).bytes_moved
            assert (estimate < 1e-6) == (planned == 0), (have, want)
            assert 0.6 * planned <= estimate + 1e-9 <= 2.1 * planned + 1e-6, (have, want, estimate, planned)


@pytest.mark.parametrize(
    ("have", "want", "moved"),
    [
        (P.from_dims(((), ()), frozenset("x")), P(None, None), 2 * 512 * 3 / 4),  # a sum
        (P.from_dims(((), ()), frozenset("x")), P("x", None), 512 * 3 / 4),  # scattered
        (P.from_dims((("y",), ()), frozenset("x")), P("y", None), 2 * 256 * 3 / 4),
        (P.from_dims((("y",), ()), frozenset("x")), P(None, "x"), 256 * 3 / 4 + 64),  # and gathered over y
        (P("x", None), P(None, "x"), 128 * 3 / 4),
        (P("x", None), P(None, None), 128 * 3),
        (P(None, None), P("x", "y"), 0),
    ],
)
def test_estimates_by_hand(have: P, want: P, moved: float):
    bytes_only = Machine(flops=1e30, memory=1e30, bandwidth=1.0, latency=1e-30)
    assert move_seconds(bytes_only, (16, 8), 4, MESH, have, want) == pytest.approx(moved)
