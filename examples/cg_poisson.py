"""Electric charges on a plate: Poisson's equation by conjugate gradients, on a grid that is spread in both directions.

    launch/run -n 8 examples/cg_poisson.py [--size 512] [--tolerance 1e-10] [--output FOLDER]  (any number of ranks)

-laplace(u) = f on the unit square, u = 0 on its rim; f is given by some charges, u is the potential. With N x N inner
points and finite differences this is a linear system A u = f, where A is never made: only applied.

Each rank has a block of the grid. To apply A it needs the edges of the four blocks beside its own (their halo): four
`ppermute`s, each along one mesh axis. A block at the rim has no neighbour there and gets zeros, which is just what the
boundary condition asks for. The two scalar products of a step are sums over all ranks. A whole batch of steps is one
compiled loop, so Python's only work is to tell how far it has come.

Rank 0 then applies A to the result with numpy, for the true residual, and solves the system in another way (by sine
transforms, which make A diagonal), for the true error.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import numpy as np

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray.sharding import PartitionSpec as P

BLOCKS = P("x", "y")
STEPS_PER_CALL = 50
CHARGES = ((0.3, 0.35, 1.0), (0.7, 0.6, -1.0), (0.25, 0.75, 0.6), (0.75, 0.2, -0.4))  # (y, x, charge)
CHARGE_WIDTH = 0.04

State = tuple[jax.Array, jax.Array, jax.Array, jax.Array]  # u, residual, direction, squared norm of the residual


def say(*words: object) -> None:
    """Print once, not on every rank."""
    if jax.process_index() == 0:
        print(*words, flush=True)


def neighbour_edge(block: jax.Array, axis_name: str, dim: int, direction: int) -> jax.Array:
    """The edge, one point wide, that the neighbour at `direction` (1: before, -1: behind) has next to this block."""
    ranks, points = jax.lax.axis_size(axis_name), block.shape[dim]
    start = points - 1 if direction > 0 else 0
    edge = jax.lax.slice_in_dim(block, start, start + 1, axis=dim)
    pairs = [(rank, rank + direction) for rank in range(ranks) if 0 <= rank + direction < ranks]
    return jax.lax.ppermute(edge, axis_name, pairs)  # zeros where nobody sends


def with_neighbours(block: jax.Array, axis_name: str, dim: int) -> jax.Array:
    """The sum of the two neighbours of each point along `dim`: f64[n,m] -> f64[n,m]."""
    before, behind = (neighbour_edge(block, axis_name, dim, direction) for direction in (1, -1))
    wide = jnp.concatenate([before, block, behind], axis=dim)
    points = block.shape[dim]
    return jax.lax.slice_in_dim(wide, 0, points, axis=dim) + jax.lax.slice_in_dim(wide, 2, points + 2, axis=dim)


def apply(block: jax.Array) -> jax.Array:
    """A times the grid of which this is a block, in units of 1/h^2."""
    return 4 * block - with_neighbours(block, "x", 0) - with_neighbours(block, "y", 1)


def product(a: jax.Array, b: jax.Array) -> jax.Array:
    """Scalar product over all ranks."""
    return jax.lax.psum((a * b).sum(), ("x", "y"))


@jax.jit
@jax.shard_map(in_specs=((BLOCKS, BLOCKS, BLOCKS, P()), P()), out_specs=((BLOCKS, BLOCKS, BLOCKS, P()), P()))
def advance(state: State, enough: jax.Array) -> tuple[State, jax.Array]:
    """Steps of conjugate gradients until the squared residual is `enough`, or a batch is done; and how many."""

    def going(loop: tuple[State, jax.Array]) -> jax.Array:
        (*_, squared), steps = loop
        return (squared > enough) & (steps < STEPS_PER_CALL)

    def step(loop: tuple[State, jax.Array]) -> tuple[State, jax.Array]:
        (u, residual, direction, squared), steps = loop
        applied = apply(direction)
        length = squared / product(direction, applied)
        u, residual = u + length * direction, residual - length * applied
        smaller = product(residual, residual)
        return (u, residual, residual + smaller / squared * direction, smaller), steps + 1

    return jax.lax.while_loop(going, step, (state, jnp.int32(0)))


def charge_density(size: int) -> np.ndarray:
    """f times h^2 on the inner points: f64[size,size]."""
    places = np.arange(1, size + 1) / (size + 1)
    y, x = places[:, None], places[None, :]
    bells = [q * np.exp(-((y - b) ** 2 + (x - a) ** 2) / (2 * CHARGE_WIDTH**2)) for b, a, q in CHARGES]
    return np.sum(bells, axis=0) / (2 * np.pi * CHARGE_WIDTH**2) / (size + 1) ** 2


def numpy_apply(u: np.ndarray) -> np.ndarray:
    """A times u, with numpy alone."""
    wide = np.pad(u, 1)
    return 4 * u - wide[:-2, 1:-1] - wide[2:, 1:-1] - wide[1:-1, :-2] - wide[1:-1, 2:]


def numpy_solve(right: np.ndarray) -> np.ndarray:
    """The solution, with numpy alone: A's eigenvectors are products of sines, so it is diagonal in their basis."""
    waves = np.pi * np.arange(1, len(right) + 1) / (len(right) + 1)
    sines = np.sqrt(2 / (len(right) + 1)) * np.sin(np.outer(waves, np.arange(1, len(right) + 1)))  # its own inverse
    values = 2 - 2 * np.cos(waves)
    return sines @ ((sines @ right @ sines) / (values[:, None] + values)) @ sines


def draw(path: Path, u: np.ndarray, history: list[tuple[int, float]], mesh_shape: tuple[int, int]) -> None:
    """The potential with the borders of the blocks, and how the residual fell."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 5), layout="constrained")
    most = np.abs(u).max()
    image = left.imshow(u, cmap="RdBu_r", vmin=-most, vmax=most)
    left.contour(u, levels=15, colors="black", linewidths=0.4)
    for number in range(1, mesh_shape[0]):
        left.axhline(number * len(u) / mesh_shape[0] - 0.5, color="grey", linewidth=0.6)
    for number in range(1, mesh_shape[1]):
        left.axvline(number * len(u) / mesh_shape[1] - 0.5, color="grey", linewidth=0.6)
    left.set(title=f"potential, {mesh_shape[0]} x {mesh_shape[1]} blocks", xticks=[], yticks=[])
    figure.colorbar(image, ax=left)
    right.semilogy(*zip(*history), marker=".")
    right.set(xlabel="step", ylabel="relative residual")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def parsed() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", type=int, default=512, help="inner points along each side (rounded to the mesh)")
    parser.add_argument("--tolerance", type=float, default=1e-10, help="relative residual (default: %(default)s)")
    parser.add_argument("--most", type=int, default=5000, help="give up after so many steps (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "output", help="folder for the picture")
    options = parser.parse_args()
    if options.size < 2 * jax.device_count():
        parser.error(f"--size {options.size}: at least {2 * jax.device_count()} for {jax.device_count()} ranks")
    if not 1e-13 <= options.tolerance < 1:
        parser.error(f"--tolerance {options.tolerance:g}: double precision allows 1e-13 to 1")
    return options


def main() -> None:
    """Place the charges, solve, check, draw."""
    jax.config.update("jax_enable_x64", True)  # so many steps need double precision
    options = parsed()
    ranks = jax.device_count()
    down = next(number for number in range(int(ranks**0.5), 0, -1) if ranks % number == 0)
    mesh_shape = (ranks // down, down)
    jax.set_mesh(jax.make_mesh(mesh_shape, ("x", "y")))
    even = math.lcm(*mesh_shape)
    size = options.size // even * even
    density = charge_density(size)
    right = jax.device_put(density, BLOCKS)
    say(f"{size} x {size} points on a {mesh_shape[0]} x {mesh_shape[1]} mesh:", jax.typeof(right))

    scale = (right * right).sum()
    enough = options.tolerance**2 * scale
    state: State = (jnp.zeros_like(right), right, right, scale)
    history, total, begun = [(0, 1.0)], 0, time.perf_counter()
    while history[-1][1] > options.tolerance and total < options.most:
        state, steps = advance(state, enough)
        total += int(steps)
        history.append((total, float(jnp.sqrt(state[3] / scale))))  # the same on every rank, so all stop together
        say(f"step {total:5}: relative residual {history[-1][1]:.2e}")
    seconds = time.perf_counter() - begun
    say(f"{total} steps in {seconds:.1f} s: {1e3 * seconds / total:.2f} ms each")

    u = np.asarray(state[0])  # read by all ranks together; what follows is rank 0's alone
    if jax.process_index() == 0:
        residual = np.linalg.norm(density - numpy_apply(u)) / np.linalg.norm(density)
        expected = numpy_solve(density)
        error = np.linalg.norm(u - expected) / np.linalg.norm(expected)
        print(f"numpy alone: relative residual {residual:.2e}, error against sine transforms {error:.2e}")
        draw(options.output / "cg_poisson.png", u, history, mesh_shape)
        print(f"picture: {options.output / 'cg_poisson.png'}")
        if not residual <= 2 * options.tolerance:
            raise SystemExit(f"the residual is not below {options.tolerance:g}")
        if not error <= 1e3 * options.tolerance:
            raise SystemExit("the solution differs from numpy's")


if __name__ == "__main__":
    main()
