"""Attention over a sequence that is spread over the ranks: keys and values travel around a ring, scores stay small.

    launch/run -n 8 examples/ring_attention.py [--length 2048] [--full] [--output FOLDER]      (any number of ranks)

Attention lets each position of a sequence look at all others: softmax(q k^T / sqrt(d)) v, a matrix of scores with a row
and a column for each position. Each rank has a block of positions. In the ring, a rank meets the other blocks one after
the other, and corrects what it has so far each time a larger score turns up (the largest score and the sum of the
weights are all it must remember). So it never holds more than a block of scores by a block, or any other rank's keys for
longer than a step. The plain way gathers all keys and values first.

The ring is a `scan`, and its derivative comes from `jax.value_and_grad`: keys and values travel once more, and their
gradients travel with them, to come home at the end. `remat` makes the scores anew there, in place of keeping them.

For some lengths the program measures both ways, forward and backward together: time, and memory for intermediate
results as the compiler plans it. Rank 0 compares results and gradients of the longest with numpy's, by hand.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray.experimental.multihost_utils import sync_global_devices
from mpiarray.sharding import PartitionSpec as P

SPREAD = P(None, "i", None)  # queries, keys, values, results: f32[heads,positions@i,d]
NEVER = -1e30  # the score of what must not be looked at
DIFFERENCE = 1e-4  # from numpy's result in double precision, relative, that single precision explains

Arrays = tuple[jax.Array, ...]


def say(*words: object) -> None:
    """Print once, not on every rank."""
    if jax.process_index() == 0:
        print(*words, flush=True)


def scores(q: jax.Array, k: jax.Array, first: jax.Array, other: jax.Array, causal: bool) -> jax.Array:
    """How much each query looks at each key: f32[heads,n,d], f32[heads,m,d] -> f32[heads,n,m].

    The first query has position `first`, the first key `other`: a causal query does not look at what is behind it.
    """
    found = q @ k.swapaxes(1, 2) / q.shape[-1] ** 0.5
    if not causal:
        return found
    behind = other + jnp.arange(k.shape[1])[None, :] > first + jnp.arange(q.shape[1])[:, None]
    return jnp.where(behind, NEVER, found)


def ring(q: jax.Array, k: jax.Array, v: jax.Array, causal: bool) -> jax.Array:
    """Attention of the block of queries to all keys: f32[heads,n,d] each."""
    ranks, own, n = jax.lax.axis_size("i"), jax.lax.axis_index("i"), q.shape[1]
    following = [(rank, (rank + 1) % ranks) for rank in range(ranks)]

    @jax.remat
    def look(known: Arrays, k: jax.Array, v: jax.Array, step: jax.Array) -> Arrays:
        """Take one block of keys into account. The own one comes first, so that every query finds something."""
        largest, weight, result = known
        found = scores(q, k, own * n, (own - step) % ranks * n, causal)
        # the result does not depend on what is subtracted, so neither does its derivative
        larger = jax.lax.stop_gradient(jnp.maximum(largest, found.max(axis=2, keepdims=True)))
        shares, correction = jnp.exp(found - larger), jnp.exp(largest - larger)
        return larger, weight * correction + shares.sum(axis=2, keepdims=True), result * correction + shares @ v

    def body(carry: Arrays, step: jax.Array) -> tuple[Arrays, None]:
        *known, k, v = carry
        known = look(tuple(known), k, v, step)
        return (*known, *jax.lax.ppermute((k, v), "i", following)), None

    nothing = jnp.full_like(q[:, :, :1], NEVER), jnp.zeros_like(q[:, :, :1]), jnp.zeros_like(q)
    (_, weight, result, _, _), _ = jax.lax.scan(body, (*nothing, k, v), jnp.arange(ranks))
    return result / weight


def gathered(q: jax.Array, k: jax.Array, v: jax.Array, causal: bool) -> jax.Array:
    """The same in the plain way."""
    own, n = jax.lax.axis_index("i"), q.shape[1]
    k, v = (jax.lax.all_gather(block, "i", axis=1, tiled=True) for block in (k, v))
    return jax.nn.softmax(scores(q, k, own * n, jnp.int32(0), causal), axis=2) @ v


WAYS = {"ring": ring, "gathered": gathered}


def differentiated(way: str, causal: bool) -> Any:
    """Jitted (q, k, v, slope) -> ((sum of slope * result, result), gradients of it for q, k and v)."""
    function = WAYS[way]

    @jax.shard_map(in_specs=(SPREAD, SPREAD, SPREAD), out_specs=SPREAD)
    def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return function(q, k, v, causal)

    def value(q: jax.Array, k: jax.Array, v: jax.Array, slope: jax.Array) -> tuple[jax.Array, jax.Array]:
        result = attention(q, k, v)
        return (slope * result).sum(), result

    return jax.jit(jax.value_and_grad(value, argnums=(0, 1, 2), has_aux=True))


def numpy_attention(arrays: list[np.ndarray], causal: bool) -> list[np.ndarray]:
    """Result and gradients for q, k and v, with numpy alone in double precision, one head at a time."""
    parts = []
    for one_q, one_k, one_v, one_slope in zip(*(x.astype(np.float64) for x in arrays)):
        found = one_q @ one_k.T / np.sqrt(one_q.shape[1])
        if causal:
            found[np.triu_indices(len(found), 1)] = -np.inf
        shares = np.exp(found - found.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        result = shares @ one_v
        back = one_slope @ one_v.T
        back = shares * (back - (one_slope * result).sum(axis=1, keepdims=True)) / np.sqrt(one_q.shape[1])
        parts.append((result, back @ one_k, back.T @ one_q, shares.T @ one_slope))
    return [np.stack(part) for part in zip(*parts)]


def measure(way: str, arrays: Arrays, causal: bool, repeats: int) -> tuple[float, float, Arrays]:
    """Milliseconds of the fastest of some calls, megabytes of intermediate results on a rank, and the results."""
    function = differentiated(way, causal)
    held = function.lower(*arrays).compile().memory_analysis().temp_size_in_bytes / 1e6
    (_, result), gradients = function(*arrays)
    times = []
    for _ in range(repeats):
        sync_global_devices("start")
        begun = time.perf_counter()
        jax.block_until_ready(function(*arrays))
        sync_global_devices("end")
        times.append(1e3 * (time.perf_counter() - begun))
    return min(times), held, (result, *gradients)


def draw(path: Path, table: dict[str, list[tuple[int, float, float]]], title: str) -> None:
    """Time and memory of both ways for each length."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    for way, rows in table.items():
        lengths, times, sizes = zip(*rows)
        axes[0].loglog(lengths, times, marker="o", label=way)
        axes[1].loglog(lengths, sizes, marker="o", label=way)
    for one, label in zip(axes, ("milliseconds, forward and backward", "megabytes of intermediate results on a rank")):
        one.set(title=title, xlabel="positions", ylabel=label)
        one.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def parsed() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--length", type=int, default=2048, help="positions (rounded to four times the ranks)")
    parser.add_argument("--heads", type=int, default=4, help="independent attentions (default: %(default)s)")
    parser.add_argument("--width", type=int, default=32, help="numbers for each position (default: %(default)s)")
    parser.add_argument("--full", action="store_true", help="let positions look at those behind them, too")
    parser.add_argument("--repeats", type=int, default=2, help="calls to take the fastest of (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "output", help="folder for the picture")
    options = parser.parse_args()
    if options.length < 4 * jax.device_count():
        parser.error(f"--length {options.length}: at least {4 * jax.device_count()} for {jax.device_count()} ranks")
    if min(options.heads, options.width, options.repeats) < 1:
        parser.error("--heads, --width and --repeats must be at least 1")
    return options


def main() -> None:
    """Make sequences, measure both ways, compare, draw."""
    options = parsed()
    ranks, causal = jax.device_count(), not options.full
    jax.set_mesh(jax.make_mesh((ranks,), ("i",)))
    longest = options.length // (4 * ranks) * 4 * ranks
    random = np.random.default_rng(0)  # the same numbers on every rank
    shape = options.heads, longest, options.width
    host = [random.standard_normal(shape, np.float32) for _ in range(4)]  # queries, keys, values, slope of the results
    title = f"{'causal' if causal else 'full'} attention, {options.heads} heads of {options.width}, {ranks} rank{'s' * (ranks > 1)}"
    say(title)
    say("positions  way             ms  MB held")

    table: dict[str, list[tuple[int, float, float]]] = {way: [] for way in WAYS}
    found: dict[str, Arrays] = {}
    for length in (longest // 4, longest // 2, longest):
        arrays = jax.device_put(tuple(x[:, :length] for x in host), SPREAD)
        for way in WAYS:
            milliseconds, held, found[way] = measure(way, arrays, causal, options.repeats)
            table[way].append((length, milliseconds, held))
            say(f"{length:9}  {way:10} {milliseconds:7.1f} {held:8.2f}")
    say("results   ", jax.typeof(found["ring"][0]))

    # reading is done by all ranks together; what follows is rank 0's alone
    read = {way: [np.asarray(array) for array in arrays] for way, arrays in found.items()}
    if jax.process_index() == 0:
        expected = numpy_attention(host, causal)
        worst = 0.0
        for way, arrays in read.items():
            differences = [np.abs(a - b).max() / np.abs(b).max() for a, b in zip(arrays, expected)]
            worst = max(worst, *differences)
            words = ", ".join(f"{name} {x:.1e}" for name, x in zip(("result", "dq", "dk", "dv"), differences))
            print(f"numpy alone: {way} differs by {words} (relative)")
        draw(options.output / "ring_attention.png", table, title)
        print(f"picture: {options.output / 'ring_attention.png'}")
        if not worst < DIFFERENCE:
            raise SystemExit("attention differs from numpy's")


if __name__ == "__main__":
    main()
