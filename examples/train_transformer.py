"""A causal language model learns to spell Python's own documentation, in four parallel ways: the same losses.

    launch/run -n 8 examples/train_transformer.py [--parallel dp|fsdp|tp|auto] [--layers 24] [--scan]

A decoder of the usual kind reads the characters of the standard library's docstrings and predicts the next one: learned
positions, layers of causal attention and of two dense products, each after a norm and added to what it was given; Adam.
Code is global and axes are Explicit, but for the last way: a way to train is a table of specs, and what is sent follows from
the types.

- dp    the text is split, every rank has all parameters. Gradients are summed, all of one size class in one message.
- fsdp  parameters and Adam's two averages are split as well; a layer is gathered just before its use, and again on the
        way back (remat); its gradient is summed and split at once.
- tp    heads and inner features are split, the text is not: two sums of activations per layer and direction.
- auto  axes are Auto and nothing is said: the compiler chooses where everything lies, by its cost model, and tells why.

Layers are unrolled, or stacked and run by `scan`, which compiles one layer only. `--compile-only N` says how long tracing
and compiling take and what a step costs for a mesh of N devices, which need not exist.
"""

from __future__ import annotations

import argparse
import inspect
import pkgutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

import mpiarray as jax
import mpiarray.numpy as jnp
from mpiarray.sharding import AUTO, AxisType
from mpiarray.sharding import PartitionSpec as P

CHARACTERS = 96  # printable ASCII, and the end of a line
AXIS = "ranks"
BETA1, BETA2, EPSILON = 0.9, 0.99, 1e-8
MODULES = ("argparse", "collections", "csv", "datetime", "decimal", "functools", "json", "logging", "pathlib", "random")

Parameters = dict[str, Any]
Step = Callable[..., tuple[Any, Any, Any, jax.Array]]


@dataclass(frozen=True)
class Model:
    """Sizes: `heads` divide `width`."""

    layers: int
    width: int
    heads: int
    length: int
    scan: bool = False

    @property
    def head(self) -> int:
        return self.width // self.heads


@dataclass(frozen=True)
class Way:
    """Where things are: specs of the text i32[batch,length], of a layer's parameters by name, and how they are used.

    hidden  of what goes from layer to layer, f32[batch,length,width]; None: the compiler's choice, and all else too
    others  of the parameters outside the layers
    borrow  whether a layer's parameters are gathered for its time
    """

    text: P
    hidden: P | None
    layer: dict[str, P]
    others: dict[str, P]
    borrow: bool = False


SHAPES: dict[str, Callable[[Model], tuple[int, ...]]] = {
    "before": lambda m: (m.width,),
    "query": lambda m: (m.width, m.heads, m.head),
    "key": lambda m: (m.width, m.heads, m.head),
    "value": lambda m: (m.width, m.heads, m.head),
    "out": lambda m: (m.heads, m.head, m.width),
    "between": lambda m: (m.width,),
    "up": lambda m: (m.width, 4 * m.width),
    "down": lambda m: (4 * m.width, m.width),
}
OTHERS: dict[str, Callable[[Model], tuple[int, ...]]] = {
    "characters": lambda m: (CHARACTERS, m.width),
    "positions": lambda m: (m.length, m.width),
    "last": lambda m: (m.width,),
}
PRODUCTS = {name for name in SHAPES if name not in ("before", "between")}
FIRST = {name: P(AXIS) for name in (*SHAPES, *OTHERS)}  # the first dim of each is divided
WHOLE = {name: P() for name in (*SHAPES, *OTHERS)}
TENSOR = WHOLE | {name: P(None, AXIS) for name in ("query", "key", "value", "up")} | {"out": P(AXIS), "down": P(AXIS)}

WAYS = {
    "dp": Way(P(AXIS), P(AXIS, None, None), WHOLE, WHOLE),
    "fsdp": Way(P(AXIS), P(AXIS, None, None), FIRST, FIRST | {"positions": P(None, AXIS)}, borrow=True),
    "tp": Way(P(), P(None, None, None), TENSOR, WHOLE),
    "auto": Way(P(), None, WHOLE, WHOLE),
}


def say(*words: object) -> None:
    """Print once, not on every rank. The words must be known without communication."""
    if jax.process_index() == 0:
        print(*words, flush=True)


# -- the model -------------------------------------------------------------------------------------------


def norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Root mean square norm over the features: f32[...,width]."""
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * scale


def attention(x: jax.Array, p: Parameters, way: Way) -> jax.Array:
    """Each character looks at those before it: f32[batch,length,width] -> the same."""
    query, key, value = (jnp.einsum("blw,whd->blhd", x, p[name]) for name in ("query", "key", "value"))
    scores = jnp.einsum("blhd,bmhd->bhlm", query, key) / query.shape[-1] ** 0.5
    past = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(past, scores, -1e9), axis=-1)
    mixed = jnp.einsum("bhlm,bmhd->blhd", weights, value)
    return jnp.einsum("blhd,hdw->blw", mixed, p["out"], out_sharding=way.hidden)


def borrowed(p: Parameters) -> Parameters:
    """Parameters gathered on every rank. Those of products are so for a while: their slopes stay a sum of the ranks' parts
    (`reduced` here makes them `unreduced` there), which is then summed and split at once."""
    return {name: jax.reshard(value, P(reduced={AXIS} if name in PRODUCTS else set())) for name, value in p.items()}


def layer(x: jax.Array, p: Parameters, way: Way) -> jax.Array:
    p = borrowed(p) if way.borrow else p
    x = x + attention(norm(x, p["before"]), p, way)
    inner = jax.nn.gelu(jnp.einsum("blw,wf->blf", norm(x, p["between"]), p["up"]))
    return x + jnp.einsum("blf,fw->blw", inner, p["down"], out_sharding=way.hidden)


def logits(parameters: Parameters, text: jax.Array, model: Model, way: Way) -> jax.Array:
    """i32[batch,length] -> f32[batch,length,CHARACTERS], the same table at both ends."""
    others = parameters["others"]
    others = borrowed(others) if way.borrow else others
    x = others["characters"].at[text].get(out_sharding=way.hidden) + others["positions"]
    one = (lambda x, p: layer(x, p, way)) if not way.borrow else jax.remat(lambda x, p: layer(x, p, way))
    if model.scan:
        x, _ = jax.lax.scan(lambda x, p: (one(x, p), None), x, parameters["layers"])
    else:
        for p in parameters["layers"]:
            x = one(x, p)
    return jnp.einsum("blw,cw->blc", norm(x, others["last"]), others["characters"])


def loss(parameters: Parameters, text: jax.Array, following: jax.Array, model: Model, way: Way) -> jax.Array:
    """Mean of the negative logarithm of what the model gives to the character that follows: nats per character."""
    found = jax.nn.log_softmax(logits(parameters, text, model, way))
    return -(found * jax.nn.one_hot(following, CHARACTERS)).sum(-1).mean()


def trainer(model: Model, way: Way, rate: float) -> Step:
    """One step of Adam: (parameters, averages, squares, number of the step, text, following) -> new ones, loss."""

    chosen = {"in_shardings": AUTO, "donate_argnums": (0, 1, 2)} if way.hidden is None else {}

    @partial(jax.jit, **chosen)
    def step(parameters: Any, averages: Any, squares: Any, number: Any, text: Any, following: Any) -> Any:
        value, slopes = jax.value_and_grad(loss)(parameters, text, following, model, way)
        averages = jax.tree.map(lambda a, g: BETA1 * a + (1 - BETA1) * g, averages, slopes)
        squares = jax.tree.map(lambda s, g: BETA2 * s + (1 - BETA2) * g * g, squares, slopes)
        size = rate * jnp.sqrt(1 - BETA2**number) / (1 - BETA1**number)
        parameters = jax.tree.map(lambda p, a, s: p - size * a / (jnp.sqrt(s) + EPSILON), parameters, averages, squares)
        return parameters, averages, squares, value

    return step


# -- parameters and text ---------------------------------------------------------------------------------


def spread(model: Model, way: Way) -> Parameters:
    """The tree of the parameters' specs."""
    if model.scan:
        layers: Any = {name: P(None, *way.layer[name]) for name in SHAPES}
    else:
        layers = [{name: way.layer[name] for name in SHAPES} for _ in range(model.layers)]
    return {"layers": layers, "others": {name: way.others[name] for name in OTHERS}}


def initial(model: Model, seed: int) -> Parameters:
    """Random numbers, the smaller the more there are for a result; ones for norms. The same for every way and mesh."""
    random = np.random.default_rng(seed)

    def make(shape: tuple[int, ...], fan: int) -> np.ndarray:
        return np.ones(shape, np.float32) if len(shape) == 1 else random.normal(0, fan**-0.5, shape).astype(np.float32)

    def fan(name: str) -> int:
        return {"down": 4 * model.width, "positions": model.width * 4}.get(name, model.width)

    layers = [{name: make(shape(model), fan(name)) for name, shape in SHAPES.items()} for _ in range(model.layers)]
    others = {name: make(shape(model), fan(name)) for name, shape in OTHERS.items()}
    if model.scan:
        return {"layers": {name: np.stack([p[name] for p in layers]) for name in SHAPES}, "others": others}
    return {"layers": layers, "others": others}


def corpus() -> np.ndarray:
    """The docstrings of some modules of the standard library as numbers of characters, i32[n]."""
    texts = []
    for name in MODULES:
        module = import_module(name)
        names = [f"{name}.{m.name}" for m in pkgutil.iter_modules(getattr(module, "__path__", ()))]
        for owner in [module, *(import_module(m) for m in names if not m.endswith(("__main__", "tool")))]:
            members = [
                owner,
                *(m for _, m in sorted(vars(owner).items()) if inspect.isclass(m) or inspect.isroutine(m)),
            ]
            texts += [inspect.getdoc(m) or "" for m in members]
    text = np.frombuffer("\n".join(texts).encode("ascii", "replace"), np.uint8).astype(np.int32)
    return np.where((text >= 32) & (text < 127), text - 31, 0)


def batch(text: np.ndarray, size: int, length: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Pieces of the text and what follows each character, i32[size,length]; every rank draws the same."""
    starts = random.integers(0, len(text) - length - 1, size)
    pieces = text[starts[:, None] + np.arange(length + 1)]
    return pieces[:, :-1], pieces[:, 1:]


# -- running ---------------------------------------------------------------------------------------------


def structs(model: Model, way: Way, mesh: Any, size: int) -> tuple[Any, ...]:
    """The types of a step's arguments on a mesh."""

    def struct(shape: tuple[int, ...], spec: P, dtype: str = "float32") -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=jax.NamedSharding(mesh, spec) if way.hidden else None)

    stack = (model.layers,) if model.scan else ()
    layer = {name: (*stack, *shape(model)) for name, shape in SHAPES.items()}
    others = {name: shape(model) for name, shape in OTHERS.items()}
    shapes = {"layers": layer if model.scan else [layer] * model.layers, "others": others}
    parameters = jax.tree.map(struct, shapes, spread(model, way), is_leaf=lambda x: isinstance(x, tuple))
    text = struct((size, model.length), way.text, "int32")
    return parameters, parameters, parameters, struct((), P()), text, text


def compile_only(options: argparse.Namespace, model: Model, way: Way) -> None:
    """Trace and compile the step for a mesh that may be larger than the job; tell times and costs."""
    mesh = jax.sharding.AbstractMesh((options.compile_only,), (AXIS,), axis_types(way))
    with jax.sharding.use_abstract_mesh(mesh):
        args = structs(model, way, mesh, options.batch)
        begun = time.perf_counter()
        traced = trainer(model, way, options.rate).trace(*args)
        staged = time.perf_counter()
        compiled = traced.lower().compile()
        done = time.perf_counter()
    say(f"tracing {staged - begun:.2f} s, compiling {done - staged:.2f} s: {len(traced.jaxpr.jaxpr.eqns)} equations")
    for name, value in compiled.cost_analysis().items():
        say(f"{name:45} {value:14.0f}")
    if way.hidden is None:
        say(compiled.explain())


def axis_types(way: Way) -> tuple[AxisType, ...]:
    return (AxisType.Explicit if way.hidden is not None else AxisType.Auto,)


def train(options: argparse.Namespace, model: Model, way: Way) -> None:
    """Place things, train, and tell losses; exit with an error unless they fell."""
    jax.set_mesh(jax.make_mesh((jax.device_count(),), (AXIS,), axis_types(way)))
    parameters = initial(model, options.seed)
    zeros = jax.tree.map(np.zeros_like, parameters)
    averages, squares = zeros, zeros
    if way.hidden is not None:
        parameters, averages, squares = (
            jax.tree.map(jax.device_put, tree, spread(model, way)) for tree in (parameters, zeros, zeros)
        )
    text, random = corpus(), np.random.default_rng(options.seed)
    step = trainer(model, way, options.rate)
    losses: list[float] = []
    begun = first = time.perf_counter()
    for number in range(1, options.steps + 1):
        pieces = batch(text, options.batch, model.length, random)
        pieces = jax.device_put(pieces, way.text) if way.hidden is not None else pieces
        parameters, averages, squares, value = step(parameters, averages, squares, np.float32(number), *pieces)
        losses.append(float(value))
        if number == 1:
            first = time.perf_counter()
            say(f"step    1: loss {losses[0]:.4f} (compiled and run in {first - begun:.1f} s)")
        elif number % options.every == 0:
            say(f"step {number:4}: loss {losses[-1]:.4f}")
    leaves = jax.tree.leaves(parameters)
    own = sum(leaf.addressable_shards[0].data.size for leaf in leaves)
    say(f"{options.parallel}: {sum(leaf.size for leaf in leaves)} parameters, {own} of them on a rank")
    each = (time.perf_counter() - first) / max(1, options.steps - 1)
    say(f"{1e3 * each:.1f} ms a step, {options.batch * model.length / each:.0f} characters a second")
    before, after = np.mean(losses[:5]), np.mean(losses[-5:])
    say(f"loss: {before:.3f} at first, {after:.3f} at last")
    if not after < before - 0.3:
        raise SystemExit("the model has not learned")


def trouble(options: argparse.Namespace, ranks: int) -> str | None:
    """Why these sizes cannot be divided by so many ranks; None when they can."""
    if options.width % options.heads:
        return f"--heads {options.heads} must divide --width {options.width}"
    if options.parallel in ("dp", "fsdp") and options.batch % ranks:
        return f"pieces of text are spread evenly: {ranks} ranks must divide --batch {options.batch}"
    if options.parallel == "tp" and options.heads % ranks:
        return f"heads are spread evenly: {ranks} ranks must divide --heads {options.heads}"
    if options.parallel == "fsdp" and any(n % ranks for n in (options.width, options.heads, CHARACTERS)):
        return f"{ranks} ranks must divide --width, --heads and the {CHARACTERS} characters"
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parallel", choices=WAYS, default="dp", help="how the work is divided (default dp)")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--length", type=int, default=32, help="characters that the model sees")
    parser.add_argument("--batch", type=int, default=16, help="pieces of text in a step")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--every", type=int, default=20, help="steps from one report to the next")
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scan", action="store_true", help="stack the layers and compile one")
    parser.add_argument("--compile-only", type=int, metavar="N", help="only compile, for a mesh of N devices")
    options = parser.parse_args()
    reason = trouble(options, options.compile_only or jax.device_count())
    if reason:
        parser.error(reason)
    model = Model(options.layers, options.width, options.heads, options.length, options.scan)
    (compile_only if options.compile_only else train)(options, model, WAYS[options.parallel])


if __name__ == "__main__":
    main()
