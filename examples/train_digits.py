"""A neural network learns handwritten digits in five parallel ways: the same seed, the same losses, other messages.

    launch/run -n 8 examples/train_digits.py [--parallel dp|fsdp|tp|fsdp_tp|pp] [--double] [--output FOLDER]

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
one. Rank 0 repeats the steps with numpy alone, backward pass by hand, and compares the losses: those of the first steps,
since rounding may tip a relu sooner or later, and from there on the ways differ more; with --double those of all steps.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Iterator
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
COMPARED = 40  # steps whose losses are compared with numpy's in single precision
AGREEMENT = {np.float32: 1e-4, np.float64: 1e-9}  # relative difference that rounding explains

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
    """Random weights, the smaller the more there are for an output, and biases of zero: alike for every way and mesh."""
    sizes = [PIXELS, *[WIDTH] * (INNER + 1), OUTPUTS]
    keys = jax.random.split(jax.random.key(seed), len(sizes) - 1)
    return [
        (jax.random.normal(key, (rows, columns)) / rows**0.5, jnp.zeros(columns))
        for key, rows, columns in zip(keys, sizes, sizes[1:])
    ]


class Digits:
    """The images, mixed, with values from 0 to 1, and their digits: f[1797,64] and f[1797,16]; the last are for tests."""

    def __init__(self, number: type[np.floating]) -> None:
        digits = load_digits()
        order = np.random.default_rng(0).permutation(len(digits.data))
        self.images = (digits.data[order] / 16).astype(number)
        self.labels = digits.target[order]
        self.targets = np.eye(OUTPUTS, dtype=number)[self.labels]

    def batches(self, size: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Images and targets in a random order, the same on every rank, `size` at a time; the rest is left out."""
        order = np.random.default_rng(seed).permutation(len(self.images) - TESTED)
        for start in range(0, len(order) - size + 1, size):
            chosen = order[start : start + size]
            yield self.images[chosen], self.targets[chosen]


def trainer(way: Way, rate: float) -> Callable[..., tuple[Any, Any, jax.Array]]:
    """One step of stochastic gradient descent with momentum: (parameters, speeds, images, targets) -> new ones, loss."""

    def loss(parameters: Any, images: jax.Array, targets: jax.Array) -> jax.Array:
        difference = way.predict(parameters, images) - targets
        return (difference * difference).sum(axis=1).mean()

    @jax.jit
    def step(parameters: Any, speeds: Any, images: jax.Array, targets: jax.Array) -> tuple[Any, Any, jax.Array]:
        value, slopes = jax.value_and_grad(loss)(parameters, images, targets)  # a slope is where its parameter is
        speeds = jax.tree.map(lambda speed, slope: MOMENTUM * speed + slope, speeds, slopes)
        parameters = jax.tree.map(lambda parameter, speed: parameter - rate * speed, parameters, speeds)
        return parameters, speeds, value

    return step


@dataclass(frozen=True)
class Course:
    """How a training went: the loss of each step, the accuracy after each epoch, and images a second at best."""

    losses: np.ndarray
    accuracies: list[float]
    speed: float


def train(name: str, digits: Digits, layers: list[Layer], options: argparse.Namespace) -> Course:
    """Place things, train, and tell after each epoch."""
    way = WAYS[name](jax.device_count())
    jax.set_mesh(jax.make_mesh(way.mesh_shape, way.axis_names))
    parameters = jax.device_put(way.arrange(layers), way.parameters)
    speeds = jax.tree.map(jnp.zeros_like, parameters)
    test_images = jax.device_put(digits.images[-TESTED:], way.images)
    step, predict = trainer(way, options.rate), jax.jit(way.predict)

    leaves = jax.tree.leaves(parameters)
    count = sum(leaf.size for leaf in leaves)
    own = sum(leaf.addressable_shards[0].data.size for leaf in leaves)
    mesh = " x ".join(f"{size} {name}" for size, name in zip(way.mesh_shape, way.axis_names))
    say(f"{name:7} mesh of {mesh}: {count} parameters, {own} of them on a rank")
    say(f"{name:7} second layer: weights {jax.typeof(leaves[2])}, biases {jax.typeof(leaves[3])}")

    losses: list[float] = []
    accuracies: list[float] = []
    best = 0.0
    for epoch in range(1, options.epochs + 1):
        begun, values = time.perf_counter(), []
        for batch in digits.batches(options.batch, options.seed + epoch):
            parameters, speeds, value = step(parameters, speeds, *jax.device_put(batch, way.images))
            values.append(value)
        losses += [float(value) for value in values]  # waits for the last step
        speed = len(values) * options.batch / (time.perf_counter() - begun)
        outputs = np.asarray(predict(parameters, test_images))  # read by all ranks together
        accuracies.append(float((outputs.argmax(axis=1) == digits.labels[-TESTED:]).mean()))
        mean, best = np.mean(losses[-len(values) :]), max(best, speed)
        say(f"{name:7} epoch {epoch:3}: loss {mean:.5f}, accuracy {accuracies[-1]:.1%}, {speed:.0f} samples/s")
    return Course(np.array(losses), accuracies, best)


def numpy_losses(layers: list[Any], steps: Iterable[tuple[np.ndarray, np.ndarray]], rate: float) -> list[float]:
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


def draw(path: Path, courses: dict[str, Course]) -> None:
    """Loss of each step, and accuracy after each epoch."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    for name, course in courses.items():
        left.semilogy(course.losses, linewidth=0.8, label=name)
        right.plot(range(1, len(course.accuracies) + 1), course.accuracies, marker=".", label=name)
    left.set(xlabel="step", ylabel="loss")
    right.set(xlabel="epoch", ylabel="accuracy on the test images")
    left.legend()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def finish(options: argparse.Namespace, courses: dict[str, Course], expected: np.ndarray, most: float) -> None:
    """On rank 0: compare with numpy's losses, save, and fail when something is not as it should be."""
    options.output.mkdir(parents=True, exist_ok=True)
    failures = []
    say(f"way      last loss  accuracy  samples/s  largest difference to numpy alone in {len(expected)} steps")
    for name, course in courses.items():
        difference = np.abs(course.losses[: len(expected)] / expected - 1).max()
        accuracy = course.accuracies[-1]
        say(f"{name:7} {course.losses[-1]:10.5f} {accuracy:9.1%} {course.speed:10.0f}  {difference:.1e} (relative)")
        np.savetxt(options.output / f"train_digits_{name}.txt", course.losses, header="loss of each step")
        if not difference < most:
            failures.append(f"{name}: the losses differ from numpy's")
        if accuracy < options.target:
            failures.append(f"{name}: the accuracy is {accuracy:.1%}, below {options.target:.1%}")
    draw(options.output / "train_digits.png", courses)
    say(f"losses and picture: {options.output}")
    if failures:
        raise SystemExit("\n".join(failures))


def parsed() -> argparse.Namespace:
    """The options, checked against the number of ranks."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parallel", choices=WAYS, help="one way (default: all, one after the other)")
    parser.add_argument("--epochs", type=int, default=10, help="how often every image is seen (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=64, help="images of one step, all ranks (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=0.02, help="learning rate (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the initial weights and the order of images")
    parser.add_argument("--double", action="store_true", help="double precision")
    parser.add_argument("--target", type=float, default=0.95, help="accuracy to reach, or fail (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "output", help="folder for the results")
    options = parser.parse_args()
    if options.epochs < 1 or not 0 < options.batch <= 1797 - TESTED:
        parser.error(f"--epochs must be at least 1, and --batch from 1 to {1797 - TESTED}")
    options.ways = [options.parallel] if options.parallel else list(WAYS)
    for name in options.ways:
        reason = trouble(name, jax.device_count(), options.batch)
        if reason is not None:
            parser.error(f"--parallel {name}: {reason}")
    return options


def main() -> None:
    """Train in each way, compare, draw."""
    options = parsed()
    jax.config.update("jax_enable_x64", options.double)
    number = np.float64 if options.double else np.float32
    digits = Digits(number)
    layers = initial(options.seed)
    courses = {name: train(name, digits, layers, options) for name in options.ways}
    start = [tuple(np.asarray(part) for part in layer) for layer in layers]
    if jax.process_index() == 0:
        seeds = range(options.seed + 1, options.seed + options.epochs + 1)
        steps = [batch for seed in seeds for batch in digits.batches(options.batch, seed)]
        expected = numpy_losses(start, steps if options.double else steps[:COMPARED], options.rate)
        finish(options, courses, np.array(expected), AGREEMENT[number])


if __name__ == "__main__":
    main()
