"""The cheapest choice of one label per node of a graph whose edges have prices for pairs of labels.

Messages go along the nodes' order and back (sequential tree-reweighted message passing, Kolmogorov 2006): on a chain or
tree that is dynamic programming, exact; elsewhere it is repeated, and the best choice read off it is improved node by node
until nothing changes.  Linear in nodes and edges for a fixed number of rounds, and the same wherever it runs: the order
of additions is fixed, ties go to the earlier label.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Edge(NamedTuple):
    """`prices[i, j]`: what label i of node `source` and label j of node `target` cost together."""

    source: int
    target: int
    prices: np.ndarray


class Graph:
    """Nodes in order, each with the costs of its labels, and edges between them (from earlier nodes to later ones)."""

    def __init__(self, costs: Sequence[np.ndarray], edges: Sequence[Edge]):
        self.costs = [np.asarray(c, np.float64) for c in costs]
        self.edges = [e if e.source < e.target else Edge(e.target, e.source, e.prices.T) for e in edges]
        self.before: list[list[int]] = [[] for _ in costs]
        self.after: list[list[int]] = [[] for _ in costs]
        for k, e in enumerate(self.edges):
            self.after[e.source].append(k)
            self.before[e.target].append(k)

    def total(self, chosen: Sequence[int]) -> float:
        """What a choice costs."""
        own = sum(float(c[x]) for c, x in zip(self.costs, chosen))
        return own + sum(float(e.prices[chosen[e.source], chosen[e.target]]) for e in self.edges)

    def alternatives(self, node: int, chosen: Sequence[int]) -> np.ndarray:
        """What each label of a node costs with its edges, all other nodes being as chosen."""
        out = self.costs[node].copy()
        for k in self.before[node]:
            out += self.edges[k].prices[chosen[self.edges[k].source]]
        for k in self.after[node]:
            out += self.edges[k].prices[:, chosen[self.edges[k].target]]
        return out


_WORK = 100_000  # edges that messages pass: large programs get fewer rounds


def search(graph: Graph, starts: Sequence[Sequence[int]], rounds: int = 24) -> list[int]:
    """The best choice found: from messages, and from the choices given, each improved node by node."""
    rounds = max(3, min(rounds, _WORK // max(1, len(graph.edges))))
    found = [improved(graph, list(s)) for s in starts]
    passing = _Messages(graph)
    best = float("inf")
    stale = 0
    for _ in range(rounds):
        passing.round()
        for decoded in (passing.decoded(), passing.decoded(backward=True)):
            total = graph.total(decoded)
            if total < best * (1 - 1e-9):
                best, stale = total, -1
                found.append(decoded)
        stale += 1
        if stale >= 6:
            break
    tried = [improved(graph, x) for x in (*found[: len(starts)], *found[len(starts) :][-3:])]
    return min(tried, key=graph.total)


def improved(graph: Graph, chosen: list[int], sweeps: int = 8) -> list[int]:
    """Node by node to the best label for the others as they are, until nothing changes."""
    chosen = list(chosen)
    for sweep in range(sweeps):
        changed = False
        order = range(len(chosen)) if sweep % 2 == 0 else range(len(chosen) - 1, -1, -1)
        for node in order:
            costs = graph.alternatives(node, chosen)
            label = int(costs.argmin())
            if costs[label] < costs[chosen[node]]:
                chosen[node], changed = label, True
        if not changed:
            break
    return chosen


class _Messages:
    """What each node tells its neighbours: the least that its side of an edge costs, per label of the other."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.down = [np.zeros(e.prices.shape[1]) for e in graph.edges]  # to the target
        self.up = [np.zeros(e.prices.shape[0]) for e in graph.edges]  # to the source
        self.share = [1.0 / max(1, len(b), len(a)) for b, a in zip(graph.before, graph.after)]

    def belief(self, node: int) -> np.ndarray:
        out = self.graph.costs[node].copy()
        for k in self.graph.before[node]:
            out += self.down[k]
        for k in self.graph.after[node]:
            out += self.up[k]
        return out

    def round(self) -> None:
        graph = self.graph
        for node in range(len(graph.costs)):
            if graph.after[node]:
                belief = self.belief(node) * self.share[node]
                for k in graph.after[node]:
                    message = ((belief - self.up[k])[:, None] + graph.edges[k].prices).min(axis=0)
                    self.down[k] = message - message.min()
        for node in range(len(graph.costs) - 1, -1, -1):
            if graph.before[node]:
                belief = self.belief(node) * self.share[node]
                for k in graph.before[node]:
                    message = ((belief - self.down[k])[None, :] + graph.edges[k].prices).min(axis=1)
                    self.up[k] = message - message.min()

    def decoded(self, backward: bool = False) -> list[int]:
        """A choice, node by node: what is chosen already counts as it is, what is to come by its messages."""
        graph = self.graph
        chosen = [0] * len(graph.costs)
        near, far = (graph.after, graph.before) if backward else (graph.before, graph.after)
        for node in range(len(chosen) - 1, -1, -1) if backward else range(len(chosen)):
            costs = graph.costs[node].copy()
            for k in near[node]:
                e = graph.edges[k]
                costs += e.prices[:, chosen[e.target]] if backward else e.prices[chosen[e.source]]
            for k in far[node]:
                costs += self.down[k] if backward else self.up[k]
            chosen[node] = int(costs.argmin())
        return chosen
