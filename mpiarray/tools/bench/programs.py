"""The programs that are timed, written once for whatever has JAX's names: this library, and JAX itself where it is installed.

Apart from the hand-written sides, which see numpy blocks and MPI.  Every builder takes the module (`jax`), so that both
libraries run the same lines.  Only numpy and the standard library are imported here: the file is also read by another Python.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

KB, MB = 2**10, 2**20
COLLECTIVES = ("psum", "all_gather", "psum_scatter", "all_to_all", "ppermute")
RATE = 1e-3
"""Step of the gradient descent of the networks."""


@dataclass(frozen=True)
class Sizes:
    """How large the workloads are.  `full` is the table of the README, `small` runs in seconds and tests the bench itself."""

    messages: tuple[tuple[int, str], ...]
    elements: int
    side: int
    matrix: int
    layers: tuple[int, ...]
    batch: int
    steps: int


SIZES = {
    "full": Sizes(((KB, "1 KB"), (MB, "1 MB"), (64 * MB, "64 MB")), 2**24, 4096, 2048, (784, 512, 512, 512, 10), 256, 20),
    "small": Sizes(((KB, "1 KB"), (64 * KB, "64 KB")), 2**14, 64, 64, (24, 16, 16, 16, 8), 32, 3),
}  # fmt: skip


@dataclass(frozen=True)
class Given:
    """An operand: its shape, the mesh axes of each dim, and how large its numbers are (uniform in +-scale)."""

    shape: tuple[int, ...]
    spec: tuple[str | None, ...] = ()
    scale: float = 2.0
    dtype: str = "float32"
    seed: int = 0

    def block(self, index: Sequence[slice]) -> np.ndarray:
        """The numbers of a part: they depend on their places alone, so that each rank makes just its own."""
        places: Any = np.array([self.seed * 2654435761 % 2**32], np.uint32)
        for size, cut in zip(self.shape, index):
            start, stop, _ = cut.indices(size)
            places = (places * np.uint32(size))[..., None] + np.arange(start, stop, dtype=np.uint32)
        mixed = _mixed(places[0])
        out = (mixed >> np.uint32(8)).astype(np.float32)
        out *= np.float32(self.scale / 2**23)
        out -= np.float32(self.scale)
        if self.dtype == "complex64":
            return out + np.complex64(1j) * out[..., ::-1]
        return out.astype(self.dtype, copy=False)


def _mixed(x: np.ndarray) -> np.ndarray:
    """A bijection of 32-bit numbers that looks random."""
    for shift, factor in ((16, 0x45D9F3B), (16, 0x45D9F3B), (16, 1)):
        x ^= x >> np.uint32(shift)
        x *= np.uint32(factor)
    return x


@dataclass(frozen=True)
class Program:
    """One row.

    how     "op": one eager operation; "jit": a compiled program; "body": an operation in the body of an eager shard_map
    inputs  a tree of `Given`
    build   from the module, the function of the placed inputs
    auto    on a mesh of Auto axes, where sharded dims may be cut as one likes
    """

    name: str
    how: str
    inputs: tuple[Any, ...]
    build: Callable[[Any], Callable[..., Any]]
    auto: bool = False
    facts: dict[str, Any] = field(default_factory=dict)


def mesh_of(jax: Any, n: int, auto: bool) -> Any:
    """A mesh of n devices in one line."""
    types = jax.sharding.AxisType
    return jax.make_mesh((n,), ("x",), axis_types=(types.Auto if auto else types.Explicit,))


def place(jax: Any, mesh: Any, inputs: Any) -> Any:
    """The inputs as arrays on the mesh."""

    def one(given: Given) -> Any:
        sharding = jax.sharding.NamedSharding(mesh, jax.P(*given.spec))
        return jax.make_array_from_callback(given.shape, sharding, given.block)

    return jax.tree.map(one, inputs)


def programs(n: int, sizes: Sizes) -> Iterator[Program]:
    """All rows for n devices, cheap ones first."""
    yield from tiny(n)
    yield from collectives(n, sizes)
    yield from arrays(n, sizes)
    yield from norms(n, sizes)
    yield from matrices(n, sizes)
    yield from networks(n, sizes)
    yield from grids(n, sizes)


def whole(size: int, n: int) -> int:
    """The next multiple of n."""
    return -(-size // n) * n


# -- tiny calls -----------------------------------------------------------------------------------------------------------


def tiny(n: int) -> Iterator[Program]:
    """What a call costs beside its work."""
    x = (Given((8 * n,), ("x",)),)
    yield Program("x + x of 8 elements, eager", "op", x, lambda jax: lambda x: x + x, facts={"kind": "add"})
    yield Program(
        "sin(x) * 2 of 8 elements, jitted",
        "jit",
        x,
        lambda jax: lambda x: jax.numpy.sin(x) * 2.0,
        facts={"kind": "sine"},
    )
    yield Program("psum of 8 elements, jitted", "jit", x, lambda jax: _mapped(jax, "psum", n), facts={"kind": "psum"})


# -- collectives ----------------------------------------------------------------------------------------------------------


def collectives(n: int, sizes: Sizes) -> Iterator[Program]:
    """Each collective in an eager body and in a compiled one; the block's larger side has the size that is named."""
    for nbytes, label in sizes.messages:
        for kind in COLLECTIVES:
            items = max(n, nbytes // 4 // (n if kind == "all_gather" else 1) // n * n)
            inputs = (Given((items * n,), ("x",)),)
            facts = {"kind": kind}
            yield Program(f"{kind} {label}, eager", "body", inputs, partial(_body, kind=kind, n=n), facts=facts)
            yield Program(f"{kind} {label}, jitted", "jit", inputs, partial(_mapped, kind=kind, n=n), facts=facts)


def _body(jax: Any, kind: str, n: int) -> Callable[[Any], Any]:
    lax = jax.lax
    ring = [(k, (k + 1) % n) for k in range(n)]
    return {
        "psum": lambda b: lax.psum(b, "x"),
        "all_gather": lambda b: lax.all_gather(b, "x", tiled=True),
        "psum_scatter": lambda b: lax.psum_scatter(b, "x", tiled=True),
        "all_to_all": lambda b: lax.all_to_all(b, "x", 0, 0, tiled=True),
        "ppermute": lambda b: lax.ppermute(b, "x", ring),
    }[kind]


def _mapped(jax: Any, kind: str, n: int) -> Callable[[Any], Any]:
    out = jax.P() if kind == "psum" else jax.P("x")
    return jax.shard_map(_body(jax, kind, n), in_specs=jax.P("x"), out_specs=out)


# -- arrays ---------------------------------------------------------------------------------------------------------------


def arrays(n: int, sizes: Sizes) -> Iterator[Program]:
    """Elementwise chains, reductions, orders, and moving data to another sharding."""
    x = (Given((whole(sizes.elements, n),), ("x",)),)
    count = f"{sizes.elements / 2**20:.0f} M" if sizes.elements >= 2**20 else str(sizes.elements)
    yield Program(f"x * x, {count}, eager", "op", x, lambda jax: lambda x: x * x, facts={"kind": "square"})
    yield Program(f"sin(x) exp(-x^2) + sqrt|x|, {count}, jitted", "jit", x, chain, facts={"kind": "chain"})
    yield Program(f"polynomial of 7 cheap ops, {count}, jitted", "jit", x, polynomial, facts={"kind": "polynomial"})
    yield Program(f"mean and variance, {count}, jitted", "jit", x, statistics, facts={"kind": "statistics"})
    yield Program(f"argmax, {count}, jitted", "jit", x, lambda jax: jax.numpy.argmax, facts={"kind": "argmax"})
    rows = (Given((n, whole(sizes.elements, n) // n), ("x", None)),)
    yield Program(f"sort of rows, {count}, jitted", "jit", rows, lambda jax: jax.numpy.sort, facts={"kind": "sort"})
    side = whole(sizes.side, n)
    grid = (Given((side, side), ("x", None)),)
    yield Program(f"sum over the sharded dim, {side}^2, eager", "op", grid, lambda jax: lambda x: x.sum(0), facts={"kind": "sum"})  # fmt: skip
    yield Program(f"reshard rows to columns, {side}^2", "op", grid, reshard, facts={"kind": "reshard"})


def chain(jax: Any) -> Callable[[Any], Any]:
    jnp = jax.numpy
    return lambda x: jnp.sin(x) * jnp.exp(-(x**2)) + jnp.sqrt(jnp.abs(x))


def polynomial(jax: Any) -> Callable[[Any], Any]:
    return lambda x: (((x * 0.5 + 1.0) * x - 3.0) * x + 0.25) * x


def statistics(jax: Any) -> Callable[[Any], Any]:
    return lambda x: (jax.numpy.mean(x), jax.numpy.var(x))


def reshard(jax: Any) -> Callable[[Any], Any]:
    return lambda x: jax.sharding.reshard(x, jax.P(None, "x"))


# -- softmax and norms ----------------------------------------------------------------------------------------------------


def norms(n: int, sizes: Sizes) -> Iterator[Program]:
    """Softmax and layer norm of rows, and the slopes of a weighted sum of them; rows are spread."""
    rows, columns = whole(sizes.side, n), sizes.side // 4
    x, w = Given((rows, columns), ("x", None)), Given((rows, columns), ("x", None), seed=1)
    gain, bias = Given((columns,), (), seed=2), Given((columns,), (), 0.1, seed=3)
    for kind, inputs, build in (
        ("softmax", (x,), softmax),
        ("softmax slope", (x, w), softmax_slope),
        ("layer norm", (x, gain, bias), layer_norm),
        ("layer norm slopes", (x, gain, bias, w), layer_norm_slopes),
    ):
        yield Program(f"{kind} of rows, [{rows}, {columns}], jitted", "jit", inputs, build, facts={"kind": kind})


def softmax(jax: Any) -> Callable[[Any], Any]:
    return lambda x: jax.nn.softmax(x, axis=-1)


def softmax_slope(jax: Any) -> Callable[..., Any]:
    return jax.grad(lambda x, w: jax.numpy.sum(w * jax.nn.softmax(x, axis=-1)))


def layer_norm(jax: Any) -> Callable[..., Any]:
    def norm(x: Any, gain: Any, bias: Any) -> Any:
        middle = jax.numpy.mean(x, axis=-1, keepdims=True)
        variance = jax.numpy.var(x, axis=-1, keepdims=True)
        return (x - middle) * jax.lax.rsqrt(variance + 1e-5) * gain + bias

    return norm


def layer_norm_slopes(jax: Any) -> Callable[..., Any]:
    norm = layer_norm(jax)
    return jax.grad(lambda x, gain, bias, w: jax.numpy.sum(w * norm(x, gain, bias)), argnums=(0, 1, 2))


# -- matrices -------------------------------------------------------------------------------------------------------------


def matrices(n: int, sizes: Sizes) -> Iterator[Program]:
    """Matrix products that need no communication, and a sum of one."""
    m = whole(sizes.matrix, n)
    rows = (Given((m, m), ("x", None)), Given((m, m), (), seed=1))
    yield Program(f"matmul {m}^3, rows sharded, jitted", "jit", rows, lambda jax: jax.numpy.matmul, facts={"kind": "rows"})  # fmt: skip
    inner = (Given((m, m), (None, "x")), Given((m, m), ("x", None), seed=1))
    yield Program(
        f"matmul {m}^3, contraction sharded, jitted", "jit", inner,
        lambda jax: lambda a, b: jax.numpy.matmul(a, b, out_sharding=jax.P(None, None)), facts={"kind": "contraction"},
    )  # fmt: skip


# -- training steps -------------------------------------------------------------------------------------------------------


def networks(n: int, sizes: Sizes) -> Iterator[Program]:
    """A step of gradient descent of a network of dense layers, in three ways; each gives the loss and the new weights."""
    widths = [whole(size, n) for size in sizes.layers]
    batch = whole(sizes.batch, n)
    label = f"[{', '.join(map(str, widths))}], batch {batch}"
    for name, kind, weights, biases, data, build in (
        ("data parallel", "dp", lambda k: (), lambda k: (), ("x", None), data_parallel),
        ("FSDP", "fsdp", lambda k: ("x", None), lambda k: ("x",), ("x", None), fully_sharded),
        ("TP", "tp", lambda k: ("x", None) if k % 2 else (None, "x"), lambda k: () if k % 2 else ("x",), (), tensor_parallel),
    ):  # fmt: skip
        params = [
            (Given((a, b), weights(k), 1.7 / math.sqrt(a), seed=k + 1), Given((b,), biases(k), 0.1, seed=k + 11))
            for k, (a, b) in enumerate(itertools.pairwise(widths))
        ]
        examples = (Given((batch, widths[0]), data, seed=21), Given((batch, widths[-1]), data, seed=22))
        facts = {"kind": kind, "layers": widths, "batch": batch}
        yield Program(f"{name} step of {label}, jitted", "jit", (params, examples), build, facts=facts)


def _squares(jnp: Any, x: Any, y: Any) -> Any:
    return jnp.mean(jnp.sum((x - y) ** 2, axis=-1))


def _trained(jax: Any, loss: Callable[..., Any]) -> Callable[..., Any]:
    def step(params: Any, examples: Any) -> Any:
        value, slopes = jax.value_and_grad(loss)(params, examples)
        return value, jax.tree.map(lambda p, slope: p - RATE * slope, params, slopes)

    return step


def data_parallel(jax: Any) -> Callable[..., Any]:
    """Every rank has all weights and its part of the batch."""

    def loss(params: Any, examples: Any) -> Any:
        x, y = examples
        for k, (w, b) in enumerate(params):
            x = jax.numpy.dot(x, w) + b
            x = jax.nn.relu(x) if k < len(params) - 1 else x
        return jax.lax.pmean(_squares(jax.numpy, x, y), "x")

    return _trained(jax, jax.shard_map(loss, in_specs=(jax.P(), jax.P("x")), out_specs=jax.P()))


def fully_sharded(jax: Any) -> Callable[..., Any]:
    """Weights are spread by rows, and made whole where they are used."""

    def loss(params: Any, examples: Any) -> Any:
        x, y = examples
        for k, (w, b) in enumerate(params):
            w, b = (jax.lax.all_gather(v, "x", tiled=True) for v in (w, b))
            x = jax.numpy.dot(x, w) + b
            x = jax.nn.relu(x) if k < len(params) - 1 else x
        return jax.lax.pmean(_squares(jax.numpy, x, y), "x")

    return _trained(jax, jax.shard_map(loss, in_specs=(jax.P("x"), jax.P("x")), out_specs=jax.P()))


def tensor_parallel(jax: Any) -> Callable[..., Any]:
    """Pairs of layers: the first one's columns are spread, then the second one's rows; a sum ends each pair."""

    def loss(params: Any, examples: Any) -> Any:
        x, y = examples
        for k, (w, b) in enumerate(params):
            x = jax.numpy.dot(x, w)
            x = (jax.lax.psum(x, "x") if k % 2 else x) + b
            x = jax.nn.relu(x) if k < len(params) - 1 else x
        return _squares(jax.numpy, x, y)

    def step(params: Any, examples: Any) -> Any:
        specs = [(jax.P("x", None), jax.P()) if k % 2 else (jax.P(None, "x"), jax.P("x")) for k in range(len(params))]
        mapped = jax.shard_map(loss, in_specs=(specs, jax.P()), out_specs=jax.P())
        return _trained(jax, mapped)(params, examples)

    return step


# -- grids ----------------------------------------------------------------------------------------------------------------


def grids(n: int, sizes: Sizes) -> Iterator[Program]:
    """Jacobi's iteration with neighbours from other ranks, written in three ways, and a Fourier transform."""
    side = whole(sizes.side, n)
    grid = (Given((side, side), ("x", None)),)
    text = f"{sizes.steps} Jacobi steps, {side}^2, "
    for name, build, auto, rim in (
        ("plain slices", slices, True, "held"),
        ("rolls", rolls, True, "periodic"),
        ("ppermute", permutes, False, "held"),
    ):
        facts = {"kind": "jacobi", "steps": sizes.steps, "rim": rim}
        yield Program(text + f"{name}, jitted", "jit", grid, partial(build, steps=sizes.steps, n=n), auto, facts)
    waves = (Given((side, side), ("x", None), dtype="complex64"),)
    yield Program(f"2-D FFT, {side}^2 complex64, jitted", "jit", waves, lambda jax: jax.numpy.fft.fft2, facts={"kind": "fft"})  # fmt: skip


def slices(jax: Any, steps: int, n: int) -> Callable[[Any], Any]:
    """As one writes it in numpy; the rim keeps its values.  The result lies as the operand, also where the inner rows do not divide."""

    def step(_: Any, u: Any) -> Any:
        around = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]
        return u.at[1:-1, 1:-1].set(0.25 * around)

    return lambda u: jax.lax.with_sharding_constraint(jax.lax.fori_loop(0, steps, step, u), jax.P("x", None))


def rolls(jax: Any, steps: int, n: int) -> Callable[[Any], Any]:
    """A torus: no rim."""
    roll = jax.numpy.roll

    def step(_: Any, u: Any) -> Any:
        return 0.25 * (roll(u, 1, 0) + roll(u, -1, 0) + roll(u, 1, 1) + roll(u, -1, 1))

    return lambda u: jax.lax.fori_loop(0, steps, step, u)


def permutes(jax: Any, steps: int, n: int) -> Callable[[Any], Any]:
    """Blocks of rows; the rows beside a block come by ppermute; the rim keeps its values."""
    lax, jnp = jax.lax, jax.numpy
    down, up = [(k, k + 1) for k in range(n - 1)], [(k + 1, k) for k in range(n - 1)]

    def body(u: Any) -> Any:
        me, rows = lax.axis_index("x"), u.shape[0]
        row = me * rows + jnp.arange(rows)
        inner = ((row > 0) & (row < n * rows - 1))[:, None]

        def step(_: Any, u: Any) -> Any:
            above, below = lax.ppermute(u[-1:], "x", down), lax.ppermute(u[:1], "x", up)
            tall = jnp.concatenate([above, u, below])
            new = 0.25 * (tall[:-2, 1:-1] + tall[2:, 1:-1] + u[:, :-2] + u[:, 2:])
            return u.at[:, 1:-1].set(jnp.where(inner, new, u[:, 1:-1]))

        return lax.fori_loop(0, steps, step, u)

    return jax.shard_map(body, in_specs=jax.P("x"), out_specs=jax.P("x"))
