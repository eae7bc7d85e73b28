"""A neural network learns handwritten digits in five parallel ways: the same seed, the same losses, other messages.

    launch/run -n 8 examples/train_digits.py [--parallel dp|fsdp|tp|fsdp_tp|pp] [--epochs 20] [--output FOLDER]

The network has dense layers and relu; the loss is the mean squared distance to the digit's one-hot vector. The ways
differ in where parameters and images are, and in `predict`, which says by hand (shard_map) what is sent:

- dp       data parallel: parameters everywhere, images split. Sends gradients: one sum over the ranks.
- fsdp     parameters are split too; each layer is gathered just before its use, and again on the way back (remat);
           its gradient is summed and split at once. No rank ever holds all parameters.
- tp       tensor parallel: features are split, images are not. Each layer's partial products are summed and split.
- fsdp_tp  both, on a mesh of two axes: features over one, images and what is left of the parameters over the other.
- pp       pipeline: each stage has some of the inner layers, and microbatches of images go from stage to stage. With
           more ranks than there are stages, several pipelines share the images.

The derivative of each is `jax.value_and_grad` of the loss: the backward pass and what it sends follow from the forward
one. Rank 0 repeats the first steps with numpy alone, backward pass by hand, and compares every loss.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import gcd
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray.sharding import PartitionSpec as P

PIXELS, WIDTH, INNER, OUTPUTS = 64, 128, 4, 16  # 10 digits; the outputs beyond are never asked for
TESTED = 320  # images that are kept apart
MOMENTUM = 0.9
MICROBATCHES = 2  # for each stage of the pipeline
COMPARED = 40  # steps that rank 0 repeats with numpy alone
AGREEMENT = 1e-4  # relative difference of their losses that rounding explains

Layer = tuple[jax.Array, jax.Array]  # weights f32[in,out], biases f32[out]


@dataclass(frozen=True)
class Way:
    """One way to train: the mesh, specs that place things on it, the prediction, and what sizes it asks for."""

    mesh_shape: tuple[int, ...]
    axis_names: tuple[str, ...]
    parameters: Any  # specs, or one for all
    images: P  # of inputs and targets: f32[n,features]
    predict: Callable[[Any, jax.Array], jax.Array]
    arrange: Callable[[list[Layer]], Any] = list  # the layers as this way keeps them


def say(*words: object) -> None:
    """Print once, not on every rank. The words must be known without communication."""
    if jax.process_index() == 0:
        print(*words, flush=True)


def dense(inputs: jax.Array, weights: jax.Array, biases: jax.Array) -> jax.Array:
    """f32[n,in] and a layer -> f32[n,out]."""
    return jnp.dot(inputs, weights) + biases


def network(layer: Callable[..., jax.Array], parameters: list[Layer], inputs: jax.Array) -> jax.Array:
    """The layers one after the other, with relu between them."""
    for weights, biases in parameters[:-1]:
        inputs = jax.nn.relu(layer(inputs, weights, biases))
    return layer(inputs, *parameters[-1])


def data_parallel(ranks: int) -> Way:
    """Each rank has all parameters and a share of the images."""

    @jax.shard_map(in_specs=(P(), P("batch")), out_specs=P("batch"))
    def predict(parameters: list[Layer], inputs: jax.Array) -> jax.Array:
        return network(dense, parameters, inputs)  # the gradients' sum over the ranks is the derivative of using P()

    return Way((ranks,), ("batch",), P(), P("batch"), predict)


def fully_sharded(ranks: int) -> Way:
    """Each rank keeps a share of each layer's rows, and borrows the rest for as long as the layer takes."""

    @jax.remat  # on the way back the layer is gathered again: nobody keeps it
    def layer(inputs: jax.Array, weights: jax.Array, biases: jax.Array) -> jax.Array:
        weights = jax.lax.all_gather(weights, "batch", tiled=True)
        return dense(inputs, weights, jax.lax.all_gather(biases, "batch", tiled=True))

    @jax.shard_map(in_specs=(P("batch"), P("batch")), out_specs=P("batch"))
    def predict(parameters: list[Layer], inputs: jax.Array) -> jax.Array:
        return network(layer, parameters, inputs)

    return Way((ranks,), ("batch",), P("batch"), P("batch"), predict)


def tensor_parallel(ranks: int) -> Way:
    """Each rank has some features of all images: its product with its rows of the weights is a part of every output."""

    def layer(inputs: jax.Array, weights: jax.Array, biases: jax.Array) -> jax.Array:
        part = jnp.dot(inputs, weights)
        return jax.lax.psum_scatter(part, "features", scatter_dimension=1, tiled=True) + biases

    @jax.shard_map(in_specs=(P("features"), P(None, "features")), out_specs=P(None, "features"))
    def predict(parameters: list[Layer], inputs: jax.Array) -> jax.Array:
        return network(layer, parameters, inputs)

    return Way((ranks,), ("features",), P("features"), P(None, "features"), predict)


def sharded_tensor_parallel(ranks: int) -> Way:
    """Both: features over one mesh axis; images, and each rank's rows of the weights once more, over the other."""
    columns = 2 if ranks % 2 == 0 else 1

    @jax.remat
    def layer(inputs: jax.Array, weights: jax.Array, biases: jax.Array) -> jax.Array:
        weights, biases = (jax.lax.all_gather(part, "batch", tiled=True) for part in (weights, biases))
        part = jnp.dot(inputs, weights)
        return jax.lax.psum_scatter(part, "features", scatter_dimension=1, tiled=True) + biases

    @jax.shard_map(in_specs=(P(("features", "batch")), P("batch", "features")), out_specs=P("batch", "features"))
    def predict(parameters: list[Layer], inputs: jax.Array) -> jax.Array:
        return network(layer, parameters, inputs)

    mesh_shape = (ranks // columns, columns)
    return Way(mesh_shape, ("batch", "features"), P(("features", "batch")), P("batch", "features"), predict)


def pipeline(stages: int, layers: Layer, inputs: jax.Array) -> jax.Array:
    """What the inner layers make of the microbatches `inputs`, f32[m,b,width]: this stage's share before and after.

    `layers` are this stage's. At each tick every layer of every stage is at work, each on another microbatch, and hands
    it to the next. Microbatches move towards stage 0, where they enter, as those before them are used up; the results
    move away from the last stage in the same manner, and are home when the last one has left it.
    """
    stage = jax.lax.axis_index("stages")
    own, held = len(layers[0]), len(inputs)  # layers of this stage, microbatches on each
    depth, total = own * stages, held * stages
    following = [(number, (number + 1) % stages) for number in range(stages)]

    def handed_on(block: jax.Array) -> jax.Array:
        return jax.lax.ppermute(block, "stages", following)

    work = jax.vmap(lambda layer, inputs: jax.nn.relu(dense(inputs, *layer)))
    outputs = jnp.zeros_like(inputs)
    state = jnp.zeros_like(inputs, shape=(own, *inputs.shape[1:]))  # what each layer works on
    for tick in range(total + depth - 1):
        state = state.at[0].set(jnp.where(stage == 0, inputs[tick % held], state[0]))
        state = work(layers, state)
        ready = (tick - depth + 1) % held  # where the microbatch that now leaves the last layer belongs
        outputs = outputs.at[ready].set(jnp.where(stage == stages - 1, state[-1], outputs[ready]))
        state = jnp.concatenate([handed_on(state[-1])[None], state[:-1]])
        if tick % held == held - 1:
            inputs = handed_on(inputs)
        if ready == held - 1:
            outputs = handed_on(outputs)
    return handed_on(outputs)


def pipelined(ranks: int) -> Way:
    """The inner layers are spread over stages, the images over all ranks; the outer layers are everywhere."""
    stages = gcd(ranks, INNER)
    first, inner, last = P(), P("stages"), P()

    @jax.shard_map(in_specs=((first, inner, last), P(("batch", "stages"))), out_specs=P(("batch", "stages")))
    def predict(parameters: tuple[Layer, Layer, Layer], inputs: jax.Array) -> jax.Array:
        first, inner, last = parameters
        hidden = jax.nn.relu(dense(inputs, *first))
        hidden = pipeline(stages, inner, hidden.reshape(MICROBATCHES, -1, WIDTH))
        return dense(hidden.reshape(-1, WIDTH), *last)

    def arrange(layers: list[Layer]) -> tuple[Layer, Layer, Layer]:
        weights, biases = zip(*layers[1:-1])
        return layers[0], (jnp.stack(weights), jnp.stack(biases)), layers[-1]

    mesh_shape = (ranks // stages, stages)
    specs = P(("batch", "stages"))
    return Way(mesh_shape, ("batch", "stages"), (first, inner, last), specs, predict, arrange)


WAYS = {
    "dp": data_parallel,
    "fsdp": fully_sharded,
    "tp": tensor_parallel,
    "fsdp_tp": sharded_tensor_parallel,
    "pp": pipelined,
}


def trouble(name: str, ranks: int, batch: int) -> str | None:
    """Why this way cannot be gone with so many ranks and images a step; None when it can."""
    if name in ("dp", "fsdp", "fsdp_tp") and (batch % ranks or TESTED % ranks):
        return f"images are spread evenly: {ranks} ranks must divide --batch {batch} and the {TESTED} test images"
    if name in ("fsdp", "tp", "fsdp_tp") and (PIXELS % ranks or WIDTH % ranks or OUTPUTS % ranks):
        return f"features are spread evenly: {ranks} ranks must divide the layers' sizes {PIXELS}, {WIDTH}, {OUTPUTS}"
    if name == "pp" and (batch % (ranks * MICROBATCHES) or TESTED % (ranks * MICROBATCHES)):
        each = f"{ranks} ranks with {MICROBATCHES} microbatches each"
        return f"{each} must divide --batch {batch} and the {TESTED} test images"
    return None


def initial(seed: int) -> list[Layer]:
    """Random weights that keep the size of what passes through, and biases of zero: alike for every way and mesh."""
    sizes = [PIXELS, *[WIDTH] * (INNER + 1), OUTPUTS]
    keys = jax.random.split(jax.random.key(seed), len(sizes) - 1)
    return [
        (jax.random.normal(key, (rows, columns)) * (2 / rows) ** 0.5, jnp.zeros(columns))
        for key, rows, columns in zip(keys, sizes, sizes[1:])
    ]


def images_and_labels() -> tuple[np.ndarray, np.ndarray]:
    """All images, mixed: f32[1797,64] with values from -1 to 1, and their digits."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.data))
    return (digits.data[order] / 8 - 1).astype(np.float32), digits.target[order]


def batches(images: np.ndarray, targets: np.ndarray, size: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The images in a random order, the same on every rank, `size` at a time; what is left over waits for next time."""
    order = np.random.default_rng(seed).permutation(len(images))
    for start in range(0, len(order) - size + 1, size):
        chosen = order[start : start + size]
        yield images[chosen], targets[chosen]


def numpy_losses(layers: list[Any], steps: list[tuple[np.ndarray, np.ndarray]], rate: float) -> list[float]:
    """The loss of each step, with numpy alone in double precision: forward, backward, update, all by hand."""
    layers = [(weights.astype(np.float64), biases.astype(np.float64)) for weights, biases in layers]
    speeds = [(np.zeros_like(weights), np.zeros_like(biases)) for weights, biases in layers]
    losses = []
    for images, targets in steps:
        inputs = [images.astype(np.float64)]
        for number, (weights, biases) in enumerate(layers):
            outputs = inputs[-1] @ weights + biases
            inputs.append(np.maximum(outputs, 0) if number < len(layers) - 1 else outputs)
        difference = inputs.pop() - targets
        losses.append(float((difference**2).sum(axis=1).mean()))
        slope = 2 * difference / len(images)
        for number in reversed(range(len(layers))):
            (weights, biases), (fast, quick) = layers[number], speeds[number]
            fast, quick = MOMENTUM * fast + inputs[number].T @ slope, MOMENTUM * quick + slope.sum(axis=0)
            slope = (slope @ weights.T) * (inputs[number] > 0)
            speeds[number] = fast, quick
            layers[number] = weights - rate * fast, biases - rate * quick
    return losses


def draw(path: Path, losses: np.ndarray, accuracies: list[float], title: str) -> None:
    """Loss of each step, and accuracy after each epoch."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    left.semilogy(losses, linewidth=0.8)
    left.set(title=title, xlabel="step", ylabel="loss")
    right.plot(range(1, len(accuracies) + 1), accuracies, marker=".")
    right.set(xlabel="epoch", ylabel="accuracy on the test images", ylim=(min(0.8, *accuracies), 1))
    figure.savefig(path, dpi=110)
    plt.close(figure)


def parsed() -> argparse.Namespace:
    """The options, checked against the number of ranks."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parallel", choices=WAYS, default="fsdp_tp", help="the way (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=20, help="how often every image is seen (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=64, help="images of one step, all ranks (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=0.01, help="learning rate (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the initial weights and the order of images")
    parser.add_argument("--target", type=float, default=0.95, help="accuracy to reach, or fail (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "output", help="folder for the results")
    options = parser.parse_args()
    if options.epochs < 1 or not 0 < options.batch <= 1797 - TESTED:
        parser.error(f"--epochs must be at least 1, and --batch from 1 to {1797 - TESTED}")
    reason = trouble(options.parallel, jax.device_count(), options.batch)
    if reason is not None:
        parser.error(f"--parallel {options.parallel}: {reason}")
    return options


def main() -> None:
    """Place, train, tell, compare, draw."""
    options = parsed()
    way = WAYS[options.parallel](jax.device_count())
    jax.set_mesh(jax.make_mesh(way.mesh_shape, way.axis_names))

    def loss(parameters: Any, images: jax.Array, targets: jax.Array) -> jax.Array:
        difference = way.predict(parameters, images) - targets
        return (difference * difference).sum(axis=1).mean()

    @jax.jit
    def step(parameters: Any, speeds: Any, images: jax.Array, targets: jax.Array) -> tuple[Any, Any, jax.Array]:
        """Stochastic gradient descent with momentum; a parameter's gradient and speed are where the parameter is."""
        value, slopes = jax.value_and_grad(loss)(parameters, images, targets)
        speeds = jax.tree.map(lambda speed, slope: MOMENTUM * speed + slope, speeds, slopes)
        parameters = jax.tree.map(lambda parameter, speed: parameter - options.rate * speed, parameters, speeds)
        return parameters, speeds, value

    predict = jax.jit(way.predict)

    def accuracy(parameters: Any) -> float:
        outputs = np.asarray(predict(parameters, test_images))  # read by all ranks together
        return float((outputs.argmax(axis=1) == labels[-TESTED:]).mean())

    images, labels = images_and_labels()
    targets = np.eye(OUTPUTS, dtype=np.float32)[labels]
    test_images = jax.device_put(images[-TESTED:], way.images)
    layers = initial(options.seed)
    start = [(np.asarray(weights), np.asarray(biases)) for weights, biases in layers]
    parameters = jax.device_put(way.arrange(layers), way.parameters)
    speeds = jax.tree.map(jnp.zeros_like, parameters)
    leaves = jax.tree.leaves(parameters)
    count = sum(leaf.size for leaf in leaves)
    own = sum(leaf.addressable_shards[0].data.size for leaf in leaves)
    mesh = " x ".join(f"{size} {name}" for size, name in zip(way.mesh_shape, way.axis_names))
    say(f"{options.parallel} on a mesh of {mesh}: {count} parameters, {own} of them on a rank")
    for name, parameter in zip(("weights", "biases"), leaves[2:4]):
        say(f"second layer, {name}: {jax.typeof(parameter)}")

    losses: list[float] = []
    accuracies: list[float] = []
    seen: list[tuple[np.ndarray, np.ndarray]] = []  # the batches that rank 0 will see again
    for epoch in range(1, options.epochs + 1):
        begun, values = time.perf_counter(), []
        for batch in batches(images[:-TESTED], targets[:-TESTED], options.batch, options.seed + epoch):
            parameters, speeds, value = step(parameters, speeds, *jax.device_put(batch, way.images))
            values.append(value)
            seen += [batch] * (len(seen) < COMPARED)
        losses += [float(value) for value in values]  # waits for the last step
        rate = len(values) * options.batch / (time.perf_counter() - begun)
        accuracies.append(accuracy(parameters))
        mean = np.mean(losses[-len(values) :])
        say(f"epoch {epoch:3}: loss {mean:.5f}, accuracy {accuracies[-1]:.1%}, {rate:.0f} samples/s")

    if jax.process_index() == 0:
        finish(options, np.array(losses), accuracies, numpy_losses(start, seen, options.rate))


def finish(options: argparse.Namespace, losses: np.ndarray, accuracies: list[float], expected: list[float]) -> None:
    """On rank 0: compare, save, and fail when the network has not learned what it should have."""
    difference = np.abs(losses[: len(expected)] / expected - 1).max()
    print(f"numpy alone: losses of the first {len(expected)} steps differ by {difference:.1e} (relative)")
    if not difference < AGREEMENT:
        raise SystemExit("the losses differ from numpy's")
    options.output.mkdir(parents=True, exist_ok=True)
    file = options.output / f"train_digits_{options.parallel}.txt"
    np.savetxt(file, losses, header="loss of each step")
    draw(file.with_suffix(".png"), losses, accuracies, options.parallel)
    print(f"losses: {file}, picture: {file.with_suffix('.png')}")
    if accuracies[-1] < options.target:
        raise SystemExit(f"the accuracy is {accuracies[-1]:.1%}, not {options.target:.1%}")


if __name__ == "__main__":
    main()
