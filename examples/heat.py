"""Heat that spreads on a plate: a stencil on a grid that is spread over a mesh in both directions.

    launch/run -n 8 examples/heat.py [--size 1024] [--steps 400] [--output FOLDER]      (or any other number of ranks)

du/dt = laplace(u) in finite differences, with explicit steps of time: each cell moves towards the mean of its four
neighbours. Some cells are held hot, and the rim is held cold.

The grid is an array of blocks, f32[X@x,n,Y@y,m]: block (i, j) has n x m cells and lives on the rank at (i, j) of the
mesh. Shifting the grid by one cell is then plain slicing inside the blocks, but for their edges, which come from the
neighbouring block. Moving them is said explicitly: the edges alone, one cell wide, are made whole along their mesh
axis, rolled by one block, and spread again. The types show it, and no other data moves.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray.sharding import AxisType, reshard
from mpiarray.sharding import PartitionSpec as P

BLOCKS = P("x", None, "y", None)
RATE = 0.2  # of the difference to the neighbours that a step takes away; stable up to 1/4
STEPS_PER_CALL = 10
COMPARED = 40  # steps that rank 0 repeats with numpy alone


def say(*words: object) -> None:
    """Print once, not on every rank."""
    if jax.process_index() == 0:
        print(*words, flush=True)


def shifted(grid: jax.Array, direction: int, dim: int) -> jax.Array:
    """The grid moved by one cell along `dim` (0 or 1) of the plate; what leaves at one end comes in at the other."""
    block_dim, cell_dim = 2 * dim, 2 * dim + 1
    cells = grid.shape[cell_dim]
    leaving, staying = (
        (slice(cells - 1, cells), slice(0, cells - 1)) if direction > 0 else (slice(0, 1), slice(1, cells))
    )

    def cut(part: slice) -> jax.Array:
        return jax.lax.slice_in_dim(grid, part.start, part.stop, axis=cell_dim)

    whole = P(None, None, "y", None) if dim == 0 else P("x", None, None, None)
    edge = reshard(jnp.roll(reshard(cut(leaving), whole), direction, axis=block_dim), BLOCKS)
    parts = [edge, cut(staying)] if direction > 0 else [cut(staying), edge]
    return jnp.concatenate(parts, axis=cell_dim)


@jax.jit
def advance(grid: jax.Array, held: jax.Array, values: jax.Array) -> jax.Array:
    """Some steps of time; cells where `held` is true keep their `values`."""
    for _ in range(STEPS_PER_CALL):
        around = shifted(grid, 1, 0) + shifted(grid, -1, 0) + shifted(grid, 1, 1) + shifted(grid, -1, 1)
        grid = jnp.where(held, values, grid + RATE * (around - 4 * grid))
    return grid


def numpy_advance(grid: np.ndarray, held: np.ndarray, values: np.ndarray, steps: int) -> np.ndarray:
    """The same with numpy alone, on the whole plate."""
    for _ in range(steps):
        around = np.roll(grid, 1, 0) + np.roll(grid, -1, 0) + np.roll(grid, 1, 1) + np.roll(grid, -1, 1)
        grid = np.where(held, values, grid + np.float32(RATE) * (around - 4 * grid))
    return grid


def plate(rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """(held, values): a ring and a bar held hot, the rim held cold."""
    y, x = np.mgrid[0:rows, 0:columns] / np.array([rows, columns]).reshape(2, 1, 1)
    ring = np.abs(np.hypot(x - 0.35, y - 0.4) - 0.2) < 0.012
    bar = (np.abs(x - 0.78) < 0.02) & (np.abs(y - 0.6) < 0.25)
    rim = np.zeros((rows, columns), bool)
    rim[[0, -1]] = rim[:, [0, -1]] = True
    values = np.where(ring, 1.0, 0.0) + np.where(bar, 0.7, 0.0)
    return ring | bar | rim, np.where(rim, 0.0, values).astype(np.float32)


def draw(path: Path, grid: np.ndarray, mesh_shape: tuple[int, int], steps: int) -> None:
    """The plate, with the borders of the blocks."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 7), layout="constrained")
    image = axes.imshow(grid, cmap="inferno", vmin=0, vmax=1)
    for number in range(1, mesh_shape[0]):
        axes.axhline(number * grid.shape[0] / mesh_shape[0] - 0.5, color="white", linewidth=0.4)
    for number in range(1, mesh_shape[1]):
        axes.axvline(number * grid.shape[1] / mesh_shape[1] - 0.5, color="white", linewidth=0.4)
    axes.set(title=f"temperature after {steps} steps, {mesh_shape[0]} x {mesh_shape[1]} blocks", xticks=[], yticks=[])
    figure.colorbar(image)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    """Make the plate, let time pass, compare, draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", type=int, default=1024, help="cells along each side (rounded to the mesh)")
    parser.add_argument("--steps", type=int, default=400, help=f"steps of time (rounded up to {STEPS_PER_CALL}s)")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "output", help="folder for the picture")
    options = parser.parse_args()

    ranks = jax.device_count()
    down = next(n for n in range(int(ranks**0.5) + 1, 0, -1) if ranks % n == 0)
    mesh_shape = (max(down, ranks // down), min(down, ranks // down))
    if options.size < 2 * mesh_shape[0]:
        parser.error(f"--size {options.size}: at least {2 * mesh_shape[0]} for {ranks} ranks")
    jax.set_mesh(jax.make_mesh(mesh_shape, ("x", "y"), axis_types=(AxisType.Explicit,) * 2))

    n, m = (options.size // number for number in mesh_shape)
    rows, columns = n * mesh_shape[0], m * mesh_shape[1]
    held, values = plate(rows, columns)
    block_shape = (mesh_shape[0], n, mesh_shape[1], m)
    fixed = jax.device_put(held.reshape(block_shape), BLOCKS)
    warm = jax.device_put(values.reshape(block_shape), BLOCKS)
    say(f"{rows} x {columns} cells on a {mesh_shape[0]} x {mesh_shape[1]} mesh:", jax.typeof(warm))

    calls = -(-options.steps // STEPS_PER_CALL)
    grid, early, begun = warm, (0, warm), time.perf_counter()
    for call in range(1, calls + 1):
        grid = advance(grid, fixed, warm)
        if call * STEPS_PER_CALL <= COMPARED:
            early = call * STEPS_PER_CALL, grid
        if call % max(1, calls // 5) == 0:
            mean = float(grid.mean())  # a reduction over all ranks: not inside say(), which rank 0 alone acts on
            say(f"step {call * STEPS_PER_CALL:5}: mean temperature {mean:.5f}")
    seconds = time.perf_counter() - begun
    steps = calls * STEPS_PER_CALL
    say(f"{steps} steps in {seconds:.1f} s: {steps * rows * columns / seconds / 1e6:.0f} million cells a second")

    # reading is done by all ranks together; what follows is rank 0's alone
    result, compared = np.asarray(grid).reshape(rows, columns), np.asarray(early[1]).reshape(rows, columns)
    if jax.process_index() == 0:
        error = np.abs(numpy_advance(values, held, values, early[0]) - compared).max()
        print(f"numpy alone: largest difference after {early[0]} steps is {error:.1e}")
        if error > 1e-5:
            raise SystemExit("the plate differs from numpy's")
        draw(options.output / "heat.png", result, mesh_shape, steps)
        print(f"picture: {options.output / 'heat.png'}")


if __name__ == "__main__":
    main()
