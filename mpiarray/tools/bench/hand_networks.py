"""The hand-written training steps: numpy with `out=` everywhere, buffers that are kept, and as few messages as the method needs.

Each function takes this rank's blocks of the weights and the examples and gives a function that makes one step: the loss, then
the new weights and biases, layer by layer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpiarray import comm
from mpiarray.tools.bench.hand_arrays import mpi
from mpiarray.tools.bench.programs import RATE
from mpiarray.tools.bench.timing import Timed, better, buffer

Layers = Sequence[tuple[np.ndarray, np.ndarray]]
Examples = tuple[np.ndarray, np.ndarray]


class Flat:
    """Arrays of given shapes, one after the other in one buffer."""

    def __init__(self, shapes: Sequence[tuple[int, ...]]):
        sizes = [int(np.prod(shape)) for shape in shapes]
        ends = list(itertools.accumulate(sizes, initial=0))
        self.buffer = buffer(ends[-1], np.float32)
        self.parts = [self.buffer[i:j].reshape(shape) for i, j, shape in zip(ends, ends[1:], shapes)]


class Passes:
    """Forward and backward through dense layers, over buffers that are made once.

    weights  what is multiplied with, per layer (whole ones, or this rank's parts)
    """

    def __init__(self, weights: Layers, examples: Examples, scale: float):
        self.weights, (self.x, self.y) = weights, examples
        rows, self.last = len(self.x), len(weights) - 1
        self.scale = np.float32(scale)
        self.acts = [self.x, *(buffer((rows, w.shape[1]), np.float32) for w, _ in weights)]
        self.deltas = [buffer((rows, w.shape[1]), np.float32) for w, _ in weights]
        self.masks = [buffer((rows, w.shape[1]), bool) for w, _ in weights]

    def forward(self, k: int, summed: Callable[[np.ndarray], None] | None = None) -> None:
        w, b = self.weights[k]
        z = self.acts[k + 1]
        np.matmul(self.acts[k], w, out=z)
        if summed is not None:
            summed(z)
        np.add(z, b, out=z)
        if k < self.last:
            np.maximum(z, 0, out=z)

    def loss(self) -> float:
        """The sum of squares; the slope of the mean that `scale` stands for is left for `backward`."""
        delta = self.deltas[self.last]
        np.subtract(self.acts[-1], self.y, out=delta)
        found = float(np.vdot(delta, delta))
        np.multiply(delta, 2 * self.scale, out=delta)
        return found

    def slopes(self, k: int, of_weights: np.ndarray, of_biases: np.ndarray) -> None:
        np.sum(self.deltas[k], axis=0, out=of_biases)
        np.matmul(self.acts[k].T, self.deltas[k], out=of_weights)

    def backward(self, k: int, summed: Callable[[np.ndarray], None] | None = None) -> None:
        """From layer k to the one before it."""
        delta = self.deltas[k - 1]
        np.matmul(self.deltas[k], self.weights[k][0].T, out=delta)
        if summed is not None:
            summed(delta)
        np.greater(self.acts[k], 0, out=self.masks[k - 1])
        np.multiply(delta, self.masks[k - 1], out=delta)


def descend(params: Sequence[np.ndarray], slopes: Sequence[np.ndarray], new: Sequence[np.ndarray]) -> None:
    """new = params - rate * slopes."""
    for p, slope, out in zip(params, slopes, new):
        np.multiply(slope, np.float32(-RATE), out=out)
        np.add(out, p, out=out)


def step_of(kind: str, params: Layers, examples: Examples) -> Timed:
    """The best way known of a step of that kind ('dp', 'fsdp', 'tp')."""
    return {"dp": data_parallel, "fsdp": fully_sharded, "tp": tensor_parallel}[kind](params, examples)


def _results(loss: float, new: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [np.asarray(np.float32(loss)), *new]


def data_parallel(params: Layers, examples: Examples) -> Timed:
    """All slopes and the loss in one Allreduce, or each layer's as soon as it is there."""
    raw, n = comm.world().comm, comm.size()
    flat_params = [v for layer in params for v in layer]
    shapes = [(1,), *(v.shape for v in flat_params)]
    mine, total, new = Flat(shapes), Flat(shapes), Flat(shapes)
    run = Passes(params, examples, 1 / (len(examples[0]) * n))
    layers = range(len(params))

    def step(at_once: bool) -> list[np.ndarray]:
        requests: list[Any] = []
        for k in layers:
            run.forward(k)
        mine.parts[0][0] = run.loss() * run.scale
        for k in reversed(layers):
            run.slopes(k, mine.parts[1 + 2 * k], mine.parts[2 + 2 * k])
            if not at_once:
                start = 1 + 2 * k
                for part, out in zip(mine.parts[start : start + 2], total.parts[start : start + 2]):
                    requests.append(raw.Iallreduce(part, out))
            if k:
                run.backward(k)
        if at_once:
            raw.Allreduce(mine.buffer, total.buffer)
        else:
            raw.Allreduce(mine.parts[0], total.parts[0])
            for request in requests:
                request.Wait()
        descend(flat_params, total.parts[1:], new.parts[1:])
        return _results(total.parts[0][0], new.parts[1:])

    return better(lambda: step(True), lambda: step(False))


def fully_sharded(params: Layers, examples: Examples) -> Timed:
    """Weights are gathered once a step, by layer, or all ahead; slopes are summed and scattered layer by layer."""
    raw, n = comm.world().comm, comm.size()
    flat_params = [v for layer in params for v in layer]
    full = [(buffer((w.shape[0] * n, w.shape[1]), np.float32), buffer(len(b) * n, np.float32)) for w, b in params]
    slopes = [(buffer(w.shape, w.dtype), buffer(b.shape, b.dtype)) for w, b in full]
    shapes = [v.shape for v in flat_params]
    parts, new = Flat(shapes), Flat(shapes)
    run = Passes(full, examples, 1 / (len(examples[0]) * n))
    layers, loss, total = range(len(params)), np.empty(1), np.empty(1)

    def step(ahead: bool) -> list[np.ndarray]:
        pending: list[list[Any]] = []
        if ahead:
            pending = [[raw.Iallgather(v, whole) for v, whole in zip(params[k], full[k])] for k in layers]
        for k in layers:
            if ahead:
                for request in pending[k]:
                    request.Wait()
            else:
                for v, whole in zip(params[k], full[k]):
                    raw.Allgather(v, whole)
            run.forward(k)
        loss[0] = run.loss() * float(run.scale)
        last: list[Any] = []
        for k in reversed(layers):
            run.slopes(k, *slopes[k])
            for slope, part in zip(slopes[k], parts.parts[2 * k : 2 * k + 2]):
                if ahead:
                    last.append(raw.Ireduce_scatter_block(slope, part))
                else:
                    raw.Reduce_scatter_block(slope, part)
            if k:
                run.backward(k)
        raw.Allreduce(loss, total)
        for request in last:
            request.Wait()
        descend(flat_params, parts.parts, new.parts)
        return _results(total[0], new.parts)

    return better(lambda: step(False), lambda: step(True))


def tensor_parallel(params: Layers, examples: Examples) -> Timed:
    """Sums after every second layer on the way forward, before every second one on the way back; everything else is local."""
    raw = comm.world().comm
    flat_params = [v for layer in params for v in layer]
    shapes = [v.shape for v in flat_params]
    slopes, new = Flat(shapes), Flat(shapes)
    run = Passes(params, examples, 1 / len(examples[0]))
    layers = range(len(params))
    spare = {k: buffer(v.shape, v.dtype) for k, v in enumerate(run.acts) if k}
    spare_back = {k: buffer(v.shape, v.dtype) for k, v in enumerate(run.deltas)}

    def into(buffer: np.ndarray) -> Callable[[np.ndarray], None]:
        def summed(z: np.ndarray) -> None:
            raw.Allreduce(z, buffer)
            np.copyto(z, buffer)

        return summed

    def in_place(z: np.ndarray) -> None:
        raw.Allreduce(mpi().IN_PLACE, z)

    def step(way: Callable[[dict[int, np.ndarray], int], Callable[[np.ndarray], None]]) -> list[np.ndarray]:
        for k in layers:
            run.forward(k, way(spare, k + 1) if k % 2 else None)
        loss = run.loss() * float(run.scale)
        for k in reversed(layers):
            run.slopes(k, *slopes.parts[2 * k : 2 * k + 2])
            if k:
                run.backward(k, None if k % 2 else way(spare_back, k - 1))
        descend(flat_params, slopes.parts, new.parts)
        return _results(loss, new.parts)

    return better(lambda: step(lambda buffers, k: in_place), lambda: step(lambda buffers, k: into(buffers[k])))
