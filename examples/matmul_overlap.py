"""Matrix products while blocks travel: collectives cut in pieces that are sent around a ring, timed against plain ones.

    launch/run -n 8 examples/matmul_overlap.py [--size 1024] [--repeats 5] [--output FOLDER]  (any number of ranks)

Two products of spread matrices, each in three ways:

- gather:   C[n@i,m] = A[n@i,k] B[k@i,m]. Each rank needs all of B. Plain: all_gather B, then one product. Ring: each rank
            multiplies the block of B that it has with the columns of A that belong to it, while the block goes on to the
            next rank. Two ways: half of each block goes up the ring and half goes down, so both directions of the
            network are used.
- scatter:  C[n@i,m] = A[n,k@i] B[k@i,m]. Each rank's product is a part of every element of C. Plain: one product, then
            psum_scatter. Ring: parts of the sums travel, and each rank adds its own to what comes by. Two ways: as above.

A ring never holds all of B (or all parts of C) on a rank: it sends as much, in pieces, in between the work. Whether that
is faster depends on the network and on what MPI does while Python calculates; the table tells for this machine, with the
bytes that a rank sends as the compiler counts them. Each result is compared with numpy's.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray.experimental.multihost_utils import sync_global_devices
from mpiarray.sharding import PartitionSpec as P

ROWS, COLUMNS = P("i", None), P(None, "i")
DIFFERENCE = 1e-4  # from numpy's result in double precision, relative, that single precision explains


def say(*words: object) -> None:
    """Print once, not on every rank."""
    if jax.process_index() == 0:
        print(*words, flush=True)


def along_ring(block: jax.Array, direction: int) -> jax.Array:
    """The block of the rank before (direction 1) or behind (-1) on the ring."""
    ranks = jax.lax.axis_size("i")
    return jax.lax.ppermute(block, "i", [(rank, (rank + direction) % ranks) for rank in range(ranks)])


def piece(block: jax.Array, number: jax.Array, size: int, dim: int) -> jax.Array:
    """Piece `number` of the pieces of `size` rows or columns."""
    return jax.lax.dynamic_slice_in_dim(block, number * size, size, axis=dim)


def gather_plain(a: jax.Array, b: jax.Array) -> jax.Array:
    """a f32[n/i,k], b f32[k/i,m] -> f32[n/i,m]."""
    return a @ jax.lax.all_gather(b, "i", tiled=True)


def gather_ring(a: jax.Array, b: jax.Array) -> jax.Array:
    """The same: after t steps the block of the rank t places before is here."""
    ranks, own, size = jax.lax.axis_size("i"), jax.lax.axis_index("i"), len(b)
    result = piece(a, own, size, dim=1) @ b
    for step in range(1, ranks):
        b = along_ring(b, 1)
        result += piece(a, (own - step) % ranks, size, dim=1) @ b
    return result


def gather_both_ways(a: jax.Array, b: jax.Array) -> jax.Array:
    """The same: first halves go up the ring, second halves down."""
    ranks, own, half = jax.lax.axis_size("i"), jax.lax.axis_index("i"), len(b) // 2
    up, down = b[:half], b[half:]
    result = piece(a, own, 2 * half, dim=1) @ b
    for step in range(1, ranks):
        up, down = along_ring(up, 1), along_ring(down, -1)
        result += piece(a, 2 * ((own - step) % ranks), half, dim=1) @ up
        result += piece(a, 2 * ((own + step) % ranks) + 1, half, dim=1) @ down
    return result


def scatter_plain(a: jax.Array, b: jax.Array) -> jax.Array:
    """a f32[n,k/i], b f32[k/i,m] -> f32[n/i,m]."""
    return jax.lax.psum_scatter(a @ b, "i", tiled=True)


def scatter_ring(a: jax.Array, b: jax.Array) -> jax.Array:
    """The same: a sum starts at the rank behind its goal, goes down the ring, and each rank adds its part."""
    ranks, own, size = jax.lax.axis_size("i"), jax.lax.axis_index("i"), len(a) // jax.lax.axis_size("i")
    total = piece(a, (own + 1) % ranks, size, dim=0) @ b
    for step in range(1, ranks):
        total = along_ring(total, -1) + piece(a, (own + 1 + step) % ranks, size, dim=0) @ b
    return total


def scatter_both_ways(a: jax.Array, b: jax.Array) -> jax.Array:
    """The same: sums of first halves go up the ring, of second halves down."""
    ranks, own, half = jax.lax.axis_size("i"), jax.lax.axis_index("i"), len(a) // jax.lax.axis_size("i") // 2

    def parts(step: int) -> tuple[jax.Array, jax.Array]:
        first, second = 2 * ((own - 1 - step) % ranks), 2 * ((own + 1 + step) % ranks) + 1
        return piece(a, first, half, dim=0) @ b, piece(a, second, half, dim=0) @ b

    up, down = parts(0)
    for step in range(1, ranks):
        first, second = parts(step)
        up, down = along_ring(up, 1) + first, along_ring(down, -1) + second
    return jnp.concatenate([up, down])


KINDS = {
    "gather": (ROWS, {"plain": gather_plain, "ring": gather_ring, "two ways": gather_both_ways}),
    "scatter": (COLUMNS, {"plain": scatter_plain, "ring": scatter_ring, "two ways": scatter_both_ways}),
}


@dataclass(frozen=True)
class Row:
    """What was found for one way: milliseconds (the best of the repeats), megabytes sent and held, difference."""

    kind: str
    way: str
    time: float
    sent: float
    held: float
    difference: float


def best_time(product: Callable[..., jax.Array], a: jax.Array, b: jax.Array, repeats: int) -> float:
    """Milliseconds of the fastest of some calls, each from all ranks' start to the end of the last one."""
    times = []
    for _ in range(repeats):
        sync_global_devices("start")
        begun = time.perf_counter()
        jax.block_until_ready(product(a, b))
        sync_global_devices("end")
        times.append(1e3 * (time.perf_counter() - begun))
    return min(times)


def measure(kind: str, way: str, host: tuple[np.ndarray, np.ndarray], expected: np.ndarray, repeats: int) -> Row:
    """Compile one way, look at it, run it, compare it."""
    spec, ways = KINDS[kind]
    a, b = jax.device_put(host[0], spec), jax.device_put(host[1], ROWS)
    product = jax.jit(jax.shard_map(ways[way], in_specs=(spec, ROWS), out_specs=ROWS))
    compiled = product.lower(a, b).compile()
    result = np.asarray(product(a, b))  # read by all ranks together
    difference = float(np.abs(result - expected).max() / np.abs(expected).max())
    sent = compiled.cost_analysis()["communication bytes"] / 1e6
    held = compiled.memory_analysis().temp_size_in_bytes / 1e6
    return Row(kind, way, best_time(product, a, b, repeats), sent, held, difference)


def draw(path: Path, rows: list[Row], title: str) -> None:
    """The times, side by side."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    colours = {"plain": "tab:grey", "ring": "tab:blue", "two ways": "tab:green"}
    axes.bar(
        [f"{row.kind}\n{row.way}" for row in rows], [row.time for row in rows], color=[colours[row.way] for row in rows]
    )
    axes.set(title=title, ylabel="milliseconds")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    """Make matrices, measure every way, compare, draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", type=int, default=1024, help="rows and columns (rounded to twice the ranks)")
    parser.add_argument("--repeats", type=int, default=5, help="calls to take the fastest of (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "output", help="folder for the picture")
    options = parser.parse_args()
    ranks = jax.device_count()
    if options.size < 2 * ranks or options.repeats < 1:
        parser.error(f"--size must be at least {2 * ranks} for {ranks} ranks, and --repeats at least 1")
    jax.set_mesh(jax.make_mesh((ranks,), ("i",)))

    size = options.size // (2 * ranks) * 2 * ranks
    random = np.random.default_rng(0)  # the same numbers on every rank
    host = random.standard_normal((size, size), np.float32), random.standard_normal((size, size), np.float32)
    expected = host[0].astype(np.float64) @ host[1]
    title = f"{size} x {size} matrices on {ranks} rank{'s' * (ranks > 1)}"
    say(title)
    say("product  way           ms  Gflop/s  MB sent  MB held  difference")
    rows = []
    for kind, (_, ways) in KINDS.items():
        for way in ways:
            row = measure(kind, way, host, expected, options.repeats)
            speed = 2 * size**3 / row.time / 1e6
            numbers = f"{row.time:6.1f} {speed:8.1f} {row.sent:8.2f} {row.held:8.2f} {row.difference:11.1e}"
            say(f"{kind:8} {way:9} {numbers}")
            rows.append(row)
    worst = max(row.difference for row in rows)
    if worst > DIFFERENCE:
        raise SystemExit(f"a product differs from numpy's by {worst:.1e}")
    if jax.process_index() == 0:
        print(f"numpy alone: all products agree, the largest difference is {worst:.1e} (relative)")
        draw(options.output / "matmul_overlap.png", rows, title)
        print(f"picture: {options.output / 'matmul_overlap.png'}")


if __name__ == "__main__":
    main()
