"""Rows of the benchmark about `shard_map`: collectives in an eager body beside the raw MPI call, and a training step.

A collective is timed inside the body, call by call, so that what is compared is the call and not the mapping.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray import comm, lax

KB, MB = 2**10, 2**20
SIZES = ((KB, "1 KB"), (MB, "1 MB"), (64 * MB, "64 MB"))
LAYERS, BATCH = (784, 512, 512, 512, 10), 256

Row = tuple[str, float, float]


def collective_rows(n: int, seconds: float) -> Iterator[Row]:
    """(name, seconds of ours, seconds by hand) for each collective and size."""
    for nbytes, label in SIZES:
        for name in ("psum", "all_gather", "psum_scatter", "all_to_all", "ppermute"):
            yield f"{name} in an eager body, {label}", *_collective(name, nbytes, n, seconds)


def _ours(name: str, n: int) -> Callable[[Any], Any]:
    ring = [(k, (k + 1) % n) for k in range(n)]
    return {
        "psum": lambda b: lax.psum(b, "x"),
        "all_gather": lambda b: lax.all_gather(b, "x", tiled=True),
        "psum_scatter": lambda b: lax.psum_scatter(b, "x", tiled=True),
        "all_to_all": lambda b: lax.all_to_all(b, "x", 0, 0, tiled=True),
        "ppermute": lambda b: lax.ppermute(b, "x", ring),
    }[name]


def _hand(name: str, n: int) -> Callable[[np.ndarray], np.ndarray]:
    """The raw call into a new buffer, as our call gives one."""
    raw = comm.world().comm
    rank = comm.rank()

    def psum(b: np.ndarray) -> np.ndarray:
        out = np.empty_like(b)
        raw.Allreduce(b, out)
        return out

    def all_gather(b: np.ndarray) -> np.ndarray:
        out = np.empty((n * b.shape[0],), b.dtype)
        raw.Allgather(b, out)
        return out

    def psum_scatter(b: np.ndarray) -> np.ndarray:
        out = np.empty((b.shape[0] // n,), b.dtype)
        raw.Reduce_scatter_block(b, out)
        return out

    def all_to_all(b: np.ndarray) -> np.ndarray:
        out = np.empty_like(b)
        raw.Alltoall(b, out)
        return out

    def ppermute(b: np.ndarray) -> np.ndarray:
        out = np.empty_like(b)
        raw.Sendrecv(b, (rank + 1) % n, 0, out, (rank - 1) % n, 0)
        return out

    return {f.__name__: f for f in (psum, all_gather, psum_scatter, all_to_all, ppermute)}[name]


def _collective(name: str, nbytes: int, n: int, seconds: float) -> tuple[float, float]:
    # the block is the larger side of each collective
    items = nbytes // 4 // (n if name == "all_gather" else 1)
    items -= items % n
    x = jax.device_put(np.arange(items * n, dtype=np.float32), jax.P("x"))
    ours, hand = _ours(name, n), _hand(name, n)
    block = np.asarray(x.addressable_data(0)).copy()
    repeats = max(5, min(200, int(seconds * 2e8 / max(nbytes, 1e5))))
    found: list[tuple[float, float]] = []

    def body(b: Any) -> Any:
        first = ours(b)
        if not np.allclose(first.block, hand(block)):
            raise AssertionError(f"bench: {name} differs from the raw call")
        for _ in range(repeats):
            found.append((_timed(lambda: ours(b)), _timed(lambda: hand(block))))
        return b

    jax.shard_map(body, in_specs=jax.P("x"), out_specs=jax.P("x"))(x)
    mine = statistics.median(a for a, _ in found), statistics.median(b for _, b in found)
    told = comm.agree(comm.world_group(), mine)
    return max(t[0] for t in told), max(t[1] for t in told)


def _timed(f: Callable[[], Any]) -> float:
    comm.barrier(comm.world_group())
    start = time.perf_counter()
    f()
    return time.perf_counter() - start


# -- a data-parallel training step ---------------------------------------------------------------------------------


def data_parallel_step(n: int) -> tuple[str, Callable[[], Any], Callable[[], Any]]:
    """One step of stochastic gradient descent on an MLP: jitted `value_and_grad` over shards of the batch, and numpy by hand."""
    rng = np.random.default_rng(0)
    weights = [
        rng.standard_normal((a, b)).astype(np.float32) / np.float32(a**0.5) for a, b in itertools.pairwise(LAYERS)
    ]
    params = [(w, np.zeros(w.shape[1], np.float32)) for w in weights]
    inputs, targets = rng.standard_normal((BATCH, LAYERS[0])), rng.standard_normal((BATCH, LAYERS[-1]))
    batch = (inputs.astype(np.float32), targets.astype(np.float32))
    placed = jax.device_put(params, jax.P())
    split = jax.device_put(batch, jax.P("x"))

    @jax.shard_map(out_specs=jax.P())
    def loss(params: Any, batch: Any) -> Any:
        x, y = batch
        for k, (w, b) in enumerate(params):
            x = jnp.dot(x, w) + b
            x = jax.nn.relu(x) if k < len(params) - 1 else x
        return lax.pmean(jnp.mean(jnp.sum((x - y) ** 2, axis=-1)), "x")

    @jax.jit
    def step(params: Any, batch: Any) -> Any:
        value, slope = jax.value_and_grad(loss)(params, batch)
        return value, jax.tree.map(lambda p, g: p - 1e-3 * g, params, slope)

    hand = hand_written_step(params, tuple(np.asarray(v.addressable_data(0)) for v in split), n)
    if not np.allclose(float(step(placed, split)[0]), hand(), rtol=1e-4):
        raise AssertionError("bench: the jitted step's loss differs from the hand-written one")
    return f"data-parallel step of {list(LAYERS)}, batch {BATCH}", lambda: step(placed, split), hand


def hand_written_step(params: Any, batch: Any, n: int) -> Callable[[], float]:
    """numpy forward and backward, all gradients packed into one reused buffer, one Allreduce, updates into reused buffers."""
    raw = comm.world().comm
    x, y = batch
    sizes = [(w.size, b.size) for w, b in params]
    flat = np.empty(sum(a + b for a, b in sizes) + 1, np.float32)
    total = np.empty_like(flat)
    updated = [(np.empty_like(w), np.empty_like(b)) for w, b in params]

    def run() -> float:
        acts, a = [x], x
        for k, (w, b) in enumerate(params):
            z = a @ w
            z += b
            if k < len(params) - 1:
                np.maximum(z, 0, out=z)
            acts.append(z)
            a = z
        diff = a - y
        flat[-1] = np.einsum("ij,ij->", diff, diff) / len(x)
        delta = diff * np.float32(2 / len(x) / n)
        end = len(flat) - 1
        for k in range(len(params) - 1, -1, -1):
            w, b = params[k]
            gb = flat[end - b.size : end]
            np.sum(delta, axis=0, out=gb)
            end -= b.size
            gw = flat[end - w.size : end].reshape(w.shape)
            np.matmul(acts[k].T, delta, out=gw)
            end -= w.size
            if k:
                delta = delta @ w.T
                delta *= acts[k] > 0
        raw.Allreduce(flat, total)
        end = len(flat) - 1
        for k in range(len(params) - 1, -1, -1):
            for p, out in ((params[k][1], updated[k][1]), (params[k][0], updated[k][0])):
                np.multiply(total[end - p.size : end].reshape(p.shape), np.float32(-1e-3), out=out)
                out += p
                end -= p.size
        return float(total[-1] / n)

    return run
