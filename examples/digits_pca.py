"""Handwritten digits: principal components and k-means on arrays that are spread over a (4, 2) mesh.

    launch/run -n 8 examples/digits_pca.py [--output FOLDER]      (or any other number of ranks)

The data are scikit-learn's digits: 1797 images of 8 x 8 pixels, with labels. Images are split over the mesh axis `x`,
pixels over `y`. Where an array is, and so what is sent, is in the types, which the program prints as it goes:

1. centre the pixels: a mean over the images, which are spread over `x` (one reduction);
2. covariance of the pixels: a matrix product that contracts a spread dimension, so the result's sharding is said;
3. eigenvectors, on every rank, of the small matrix made whole;
4. projection on the first components: contracts the pixels, which are spread over `y`;
5. k-means: each step gives every image to the nearest centre and moves the centres to the mean of their images.

Rank 0 then does the same with numpy alone and compares, tells how well the clusters fit the labels, and draws them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray.sharding import AxisType, reshard
from mpiarray.sharding import PartitionSpec as P

COMPONENTS = 16
CLUSTERS = 10
STARTS = 8
MOST_STEPS = 60
MOVED = 1e-4  # k-means has settled when the loss falls by less than this part of it


def say(*words: object) -> None:
    """Print once, not on every rank. The words must be known without communication."""
    if jax.process_index() == 0:
        print(*words, flush=True)


def principal_components(images: jax.Array, count: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(centred images, variances, components): f32[n@x,p@y], f32[count], f32[p,count], largest variance first."""
    centred = images - images.mean(axis=0)
    # both factors are split over x, which is contracted; and only one of them can keep y
    covariance = jnp.matmul(centred.T, reshard(centred, P("x", None)), out_sharding=P("y", None)) / (len(images) - 1)
    say("covariance   ", jax.typeof(covariance))
    variances, vectors = jnp.linalg.eigh(reshard(covariance, P(None, None)))
    return centred, variances[::-1][:count], vectors[:, ::-1][:, :count]


@jax.jit
def nearest(points: jax.Array, centres: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(number of the nearest centre, squared distance to it) for each point: i32[n@x], f32[n@x]."""
    products = jnp.matmul(points, centres.T, out_sharding=P("x", None))
    distances = (points * points).sum(axis=1)[:, None] - 2 * products + (centres * centres).sum(axis=1)
    return distances.argmin(axis=1), distances.min(axis=1)


@jax.jit
def moved(points: jax.Array, centres: jax.Array) -> tuple[jax.Array, jax.Array]:
    """One step of k-means: (new centres, loss with the old ones). A centre without points stays where it is."""
    numbers, distances = nearest(points, centres)
    member = (numbers[:, None] == jnp.arange(len(centres), dtype=numbers.dtype)).astype(points.dtype)
    sums = jnp.matmul(member.T, points, out_sharding=P(None, None))  # contracts x: a sum over the ranks
    sizes = member.sum(axis=0)[:, None]
    return jnp.where(sizes > 0, sums / jnp.maximum(sizes, 1), centres), distances.mean()


def k_means(points: jax.Array, first: np.ndarray) -> tuple[jax.Array, list[float]]:
    """Centres found from the `first` ones, and the loss of each step."""
    centres, losses = jnp.asarray(first), [float("inf")]
    for _ in range(MOST_STEPS):
        centres, loss = moved(points, centres)
        losses.append(float(loss))  # the same number on every rank, so all of them stop together
        if losses[-2] - losses[-1] <= MOVED * losses[-1]:
            break
    return centres, losses[1:]


def starting_points(points: jax.Array, start: int) -> np.ndarray:
    """The coordinates of some points, drawn alike on every rank."""
    chosen = jax.random.choice(jax.random.key(start), len(points), (CLUSTERS,), replace=False)
    return np.asarray(points.at[chosen].get(out_sharding=P(None, None)))


def numpy_k_means(points: np.ndarray, centres: np.ndarray, steps: int) -> np.ndarray:
    """The same steps with numpy alone: the number of the nearest centre for each point."""

    def numbers() -> np.ndarray:
        return ((points[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)

    for _ in range(steps):
        own = numbers()
        means = [points[own == k].mean(axis=0) if (own == k).any() else centres[k] for k in range(len(centres))]
        centres = np.stack(means)
    return numbers()


def accuracy(clusters: np.ndarray, labels: np.ndarray) -> float:
    """Part of the images whose label is the commonest one of their cluster."""
    right = sum(np.bincount(labels[clusters == k]).max() for k in range(CLUSTERS) if (clusters == k).any())
    return right / len(labels)


def compare(images: np.ndarray, variances: np.ndarray, points: np.ndarray, first: np.ndarray, steps: int) -> np.ndarray:
    """Do it all with numpy on one rank; raise when it differs; return numpy's clusters."""
    centred = images - images.mean(axis=0, dtype=np.float64)
    values, vectors = np.linalg.eigh(centred.T @ centred / (len(images) - 1))
    error = np.abs(variances / values[::-1][:COMPONENTS] - 1).max()
    expected = centred @ vectors[:, ::-1][:, :COMPONENTS]
    signs = np.sign((expected * points).sum(axis=0))  # an eigenvector's sign is free
    distance = np.abs(expected * signs - points).max() / np.abs(expected).max()
    print(f"numpy alone   variances differ by {error:.1e}, projections by {distance:.1e} (relative)")
    if error > 1e-4 or distance > 1e-3:
        raise SystemExit("the principal components differ from numpy's")
    return numpy_k_means(points.astype(np.float64), first.astype(np.float64), steps)


def draw(path: Path, points: np.ndarray, clusters: np.ndarray, labels: np.ndarray, components: np.ndarray) -> None:
    """Clusters and labels on the first two components, and the components as images."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure = plt.figure(figsize=(12, 8), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=(3, 1))
    for axes, colours, title in zip(above.subplots(1, 2), (clusters, labels), ("clusters", "labels")):
        axes.scatter(points[:, 0], points[:, 1], c=colours, cmap="tab10", s=6)
        axes.set(title=title, xlabel="first component", ylabel="second component")
    for number, axes in enumerate(below.subplots(1, 8)):
        axes.imshow(components[:, number].reshape(8, 8), cmap="RdBu")
        axes.set(title=f"component {number + 1}", xticks=[], yticks=[])
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    """Load, calculate, compare, draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "output", help="folder for the picture")
    output = parser.parse_args().output

    ranks = jax.device_count()
    columns = 2 if ranks % 2 == 0 else 1
    rows = ranks // columns
    jax.set_mesh(jax.make_mesh((rows, columns), ("x", "y"), axis_types=(AxisType.Explicit,) * 2))

    digits = load_digits()
    count = len(digits.data) // rows * rows  # each row of ranks gets the same number of images
    host, labels = digits.data[:count].astype(np.float32), digits.target[:count]
    images = jax.device_put(host, P("x", "y"))
    say(f"{count} images of {host.shape[1]} pixels on a {rows} x {columns} mesh")
    say("images       ", jax.typeof(images))

    centred, variances, components = principal_components(images, COMPONENTS)
    points = jnp.matmul(centred, components, out_sharding=P("x", None))  # contracts the pixels, over y
    say("projections  ", jax.typeof(points))
    share = float(variances.sum() / (centred * centred).sum() * (count - 1))
    say(f"the first {COMPONENTS} of {host.shape[1]} components have {share:.1%} of the variance")

    best: tuple[float, jax.Array, np.ndarray, int] | None = None
    for start in range(STARTS):
        first = starting_points(points, start)
        centres, losses = k_means(points, first)
        say(f"k-means, start {start}: loss {losses[0]:.1f} -> {losses[-1]:.1f} in {len(losses)} steps")
        if best is None or losses[-1] < best[0]:
            best = losses[-1], centres, first, len(losses)
    assert best is not None, "there is at least one start"
    _, centres, first, steps = best
    # reading is done by all ranks together; what follows is rank 0's alone
    clusters = np.asarray(nearest(points, centres)[0])
    found, values, vectors = np.asarray(points), np.asarray(variances), np.asarray(components)
    if jax.process_index() == 0:
        expected = compare(host, values, found, first, steps)
        same = (clusters == expected).mean()
        print(f"numpy alone   {same:.2%} of the images are in the same cluster")
        print(f"accuracy      {accuracy(clusters, labels):.1%} of the images have the commonest label of their cluster")
        if same < 0.99:
            raise SystemExit("the clusters differ from numpy's")
        draw(output / "digits_pca.png", found, clusters, labels, vectors)
        print(f"picture       {output / 'digits_pca.png'}")


if __name__ == "__main__":
    main()
