"""Ahead of time: `jit(f).trace(...)`, `.lower(...)`, `.compile()`, `make_jaxpr`, `eval_shape`.

Arguments may be arrays or ShapeDtypeStructs, whose shardings may be on an AbstractMesh larger than the job: texts, costs
and memory are then told, and only calling is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mpiarray import comm
from mpiarray.compiler.cost import Memory, program_cost, program_memory
from mpiarray.compiler.pipeline import explain, lower
from mpiarray.compiler.program import Program
from mpiarray.compiler.text import program_text
from mpiarray.core.jaxpr import ClosedJaxpr
from mpiarray.core.plan import replicated
from mpiarray.core.trace import meshes, state
from mpiarray.higher_order import shardings as jit_shardings
from mpiarray.higher_order.arguments import StaticSplit, flatten_call, split_static
from mpiarray.higher_order.jit_function import (
    UNSPECIFIED,
    JitFunction,
    Ready,
    Staged,
    called,
    context_key,
    donated_leaves,
    execute,
    fun_name,
    make_ready,
)  # fmt: skip
from mpiarray.higher_order.layouts import auto_result_orders, input_orders, row_major
from mpiarray.runtime.array import ArrayImpl
from mpiarray.runtime.eager import concrete_mesh, program_mesh
from mpiarray.runtime.transfer import move
from mpiarray.types import tree
from mpiarray.types.aval import ShapedArray, ShapeDtypeStruct
from mpiarray.types.layout import Format, Layout
from mpiarray.types.mesh import EMPTY_ABSTRACT_MESH, EMPTY_MESH, AbstractMesh, Device
from mpiarray.types.partition_spec import PartitionSpec as P
from mpiarray.types.sharding import NamedSharding, Sharding, SingleDeviceSharding

_MOST_CHOSEN = 16  # programs that a function with AUTO arguments keeps for one type


class ArgInfo:
    """What is known of an argument: `shape`, `dtype`, `donated`."""

    __slots__ = ("_aval", "donated")

    def __init__(self, aval: ShapedArray, donated: bool):
        self._aval, self.donated = aval, donated

    @property
    def shape(self) -> tuple[int, ...]:
        return self._aval.shape

    @property
    def dtype(self) -> Any:
        return self._aval.dtype

    def __repr__(self) -> str:
        return f"ArgInfo(_aval={self._aval!r}, donated={self.donated})"


def struct_of(aval: ShapedArray, sharding: Any = None) -> ShapeDtypeStruct:
    """A type as users see it in `eval_shape` and `out_info`."""
    shown = sharding if sharding is not None else None if aval.mesh.empty else aval.sharding
    return ShapeDtypeStruct(aval.shape, aval.dtype, sharding=shown, weak_type=aval.weak_type)


class AotJitFunction(JitFunction):
    """A jitted function: callable, and `trace`, `lower`, `eval_shape`."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._chosen: dict[Any, list[Compiled]] = {}

    def trace(self, *args: Any, **kwargs: Any) -> Traced:
        """Stage for these arguments (arrays or ShapeDtypeStructs).  No communication."""
        fixed, dynamic, named = split_static(args, kwargs, self._static)
        leaves, structure = flatten_call(self._name, dynamic, named)
        wanted = jit_shardings.argument_targets(self, dynamic, named)
        device = None if state.mesh.empty else jit_shardings.one_device(self, leaves)
        if device is not None:
            with meshes(EMPTY_ABSTRACT_MESH, EMPTY_MESH):
                leaves = [_on_one(x, device) for x in leaves]
                return self._traced(fixed, leaves, wanted, structure)
        return self._traced(fixed, leaves, wanted, structure)

    def _traced(self, fixed: Any, leaves: list[Any], wanted: list[Any], structure: Any) -> Traced:
        avals = [jit_shardings.traced_aval(x) for x in leaves]
        staged = self.stage(fixed, avals, structure)
        return Traced(self, staged, leaves, wanted, structure)

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """Stage and compile to a local program.  No communication."""
        return self.trace(*args, **kwargs).lower()

    def _call_chosen(self, args: Any, kwargs: Any, fixed: Any, leaves: list[Any], structure: Any) -> Any:
        """Committed arguments stay where they are; a program that was chosen for others of their types, and takes them as
        they lie, is used again."""
        key = (structure, fixed, tuple((x.shape, x.dtype, x.aval.weak_type) for x in leaves), context_key())
        known = self._chosen.setdefault(key, [])
        compiled = next((c for c in known if c._takes(leaves)), None)
        if compiled is None:
            compiled = self.lower(*args, **kwargs).compile()
            known.append(compiled)
            del known[:-_MOST_CHOSEN]
        return compiled(*args, **kwargs)

    def clear_cache(self) -> None:
        super().clear_cache()
        self._chosen.clear()

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """The result's tree of ShapeDtypeStructs.  No communication."""
        return self.trace(*args, **kwargs).out_info


def _on_one(x: Any, device: int) -> Any:
    """An argument as it lies on the one device that a call runs on."""
    if not isinstance(x, ArrayImpl):
        return x
    where = jit_shardings.on_one(x._placed, device)
    return x if where is x._placed else ArrayImpl(where, x._block if where.member else None)


class _Stage:
    """What all stages tell of a function's arguments and results."""

    def __init__(
        self, function: JitFunction, staged: Staged, leaves: Sequence[Any], wanted: Sequence[Any], structure: Any
    ):
        self._function, self._staged, self._leaves, self._wanted = function, staged, leaves, wanted
        self.in_tree, self.out_tree = structure, staged.out_tree
        self.fun_name = staged.name
        self._meshes = state.abstract_mesh, state.mesh  # later stages go on under the same ones

    @property
    def in_avals(self) -> tuple[ShapedArray, ...]:
        return self._staged.in_avals

    @property
    def out_avals(self) -> tuple[ShapedArray, ...]:
        return self._staged.out_avals

    @property
    def out_info(self) -> Any:
        """The result's tree of ShapeDtypeStructs."""
        return tree.unflatten(self.out_tree, [struct_of(a) for a in self.out_avals])

    @property
    def args_info(self) -> Any:
        donated = set(_donated(self._function, self.in_tree))
        infos = [ArgInfo(a, i in donated) for i, a in enumerate(self.in_avals)]
        return tree.unflatten(self.in_tree, infos)

    @property
    def donate_argnums(self) -> tuple[int, ...]:
        return tuple(sorted(self._function._donate.nums))


def _donated(function: JitFunction, structure: Any) -> list[int]:
    from_leaves = function._donate
    if not from_leaves:
        return []
    dynamic, named = tree.unflatten(structure, range(structure.num_leaves))
    return [i for n, a in enumerate(dynamic) if n in from_leaves.nums for i in tree.leaves(a)] + [
        i for k, a in named.items() if k in from_leaves.names for i in tree.leaves(a)
    ]


class Traced(_Stage):
    """A staged function."""

    @property
    def jaxpr(self) -> ClosedJaxpr:
        return self._staged.jaxpr

    def lower(self) -> Lowered:
        with meshes(*self._meshes):
            return Lowered(self._function, self._staged, self._leaves, self._wanted, self.in_tree)


class Lowered(_Stage):
    """A function as a program of blocks."""

    def __init__(self, *parts: Any):
        super().__init__(*parts)
        self._program = self._lower()

    def _lower(self) -> Program:
        staged = self._staged
        jaxpr = called(staged)
        consts = [c._placed for c in staged.consts]
        mesh = program_mesh(jaxpr, consts)
        mesh = self._mesh_of_arguments() if mesh.empty else mesh
        specs = [p.spec for p in consts] + [
            _spec(x, t, a) for x, t, a in zip(self._leaves, self._wanted, staged.in_avals)
        ]
        out_specs = jit_shardings.result_specs(self._function, staged)
        free = [len(consts) + k for k, (x, t) in enumerate(zip(self._leaves, self._wanted)) if t.auto and not _fixed(x)]
        if free and not mesh.auto_axes:
            raise ValueError(
                f"jit in_shardings: AUTO lets the compiler choose on Auto axes, but {staged.name} is compiled for "
                f"{mesh if not mesh.empty else 'no mesh'}. Set a mesh whose axes are Auto with `jax.set_mesh`."
            )
        ties = _ties(self._function, staged, self.in_tree, len(consts)) if free else ()
        return lower(staged.name, jaxpr, specs, out_specs, mesh, max(mesh.size, 1), open=free, ties=ties)

    def _mesh_of_arguments(self) -> AbstractMesh:
        for x in self._leaves:
            if isinstance(x.sharding, NamedSharding):
                return x.sharding.mesh.abstract_mesh
        return AbstractMesh((), ())

    def as_text(self, dialect: str | None = None) -> str:
        """The jaxpr."""
        return str(self._staged.jaxpr)

    def cost_analysis(self) -> dict[str, float]:
        return program_cost(self._program).as_dict()

    def compile(self, compiler_options: Any = None) -> Compiled:
        with meshes(*self._meshes):
            return Compiled(self._function, self._staged, self._leaves, self._wanted, self.in_tree, self._program)


def _fixed(x: Any) -> bool:
    """Whether an argument lies somewhere already: what is AUTO else is ours to choose."""
    return x.committed if isinstance(x, ArrayImpl) else isinstance(x.sharding, NamedSharding)


def _ties(function: JitFunction, staged: Staged, structure: Any, first: int) -> list[tuple[int, int]]:
    """(result, input) pairs: a donated argument and the first result of its type that no other has. Such a result lies
    where the argument does, so that it can be the next call's."""
    waiting: dict[Any, list[int]] = {}
    for k, aval in enumerate(staged.out_avals):
        waiting.setdefault((aval.shape, aval.dtype), []).append(k)
    ties = []
    for i in sorted(donated_leaves(function, structure)):
        aval = staged.in_avals[i]
        found = waiting.get((aval.shape, aval.dtype))
        if found:
            ties.append((found.pop(0), first + i))
    return ties


def _spec(x: Any, target: Any, aval: ShapedArray) -> P:
    if isinstance(x, ArrayImpl) and x.committed:
        return x._placed.spec
    sharding = target.sharding if isinstance(target.sharding, NamedSharding) else x.sharding
    if isinstance(sharding, NamedSharding) and not (
        isinstance(target.sharding, NamedSharding) and sharding.mesh.are_all_axes_explicit
    ):
        return sharding.spec.padded(aval.ndim)
    return aval.sharding.spec if not aval.mesh.empty else replicated(aval.ndim)


class Compiled(_Stage):
    """A compiled function: accepts just the types it was compiled for."""

    def __init__(
        self, function: JitFunction, staged: Staged, leaves: Any, wanted: Any, structure: Any, program: Program
    ):
        super().__init__(function, staged, leaves, wanted, structure)
        self._program = program
        self._ready: dict[Any, Ready] = {}
        self._in_formats = self._make_input_formats()

    def as_text(self) -> str:
        """One line per step, collectives in HLO's spelling."""
        return program_text(self._program)

    def explain(self) -> str:
        """What was decided on Auto axes, and why: modelled times of what was chosen and of the next best ways."""
        return explain(self._program)

    def cost_analysis(self) -> dict[str, float]:
        """Per rank: 'flops', 'bytes accessed', 'communication bytes', 'communication messages', and bytes per kind and axes."""
        return program_cost(self._program).as_dict()

    def memory_analysis(self) -> Memory:
        """Bytes per rank: arguments, results, temporaries."""
        return program_memory(self._program)

    def _shardings_of(self, specs: Sequence[P], avals: Sequence[ShapedArray]) -> list[Sharding]:
        mesh = self._program.mesh
        if mesh.empty:
            return [SingleDeviceSharding(Device(0))] * len(avals)
        return [
            NamedSharding(self._concrete(a.sharding.mesh if not a.sharding.mesh.empty else mesh), s)
            for a, s in zip(avals, specs)
        ]

    def _concrete(self, mesh: Any) -> Any:
        context = self._meshes[1]
        if not context.empty and context.size == mesh.size:
            return concrete_mesh(mesh, context.flat_ids)
        for x in (*self._leaves, *self._staged.consts):
            if (
                isinstance(x.sharding, NamedSharding)
                and hasattr(x.sharding.mesh, "flat_ids")
                and x.sharding.mesh.size == mesh.size
            ):
                return concrete_mesh(mesh, x.sharding.mesh.flat_ids)
        return mesh

    def _make_input_formats(self) -> list[Format]:
        skip = len(self._staged.consts)
        shardings = self._shardings_of(self._program.in_specs[skip:], self.in_avals)
        open_ones = [skip + k for k, t in enumerate(self._wanted) if t.layout is Layout.AUTO]
        preferred = input_orders(called(self._staged).jaxpr, open_ones)
        out = []
        for k, (x, t, s, aval) in enumerate(zip(self._leaves, self._wanted, shardings, self.in_avals)):
            if t.layout is Layout.AUTO:
                order = preferred[skip + k]
            elif t.layout is not None:
                order = tuple(t.layout.major_to_minor)
            else:
                order = x._placed.order if isinstance(x, ArrayImpl) else row_major(aval.ndim)
            shown = t.sharding or (
                x.sharding if getattr(x, "sharding", None) is not None and getattr(x, "committed", True) else s
            )
            out.append(Format(Layout(order), shown))
        return out

    @property
    def input_formats(self) -> tuple[Any, Any]:
        args, kwargs = tree.unflatten(self.in_tree, self._in_formats)
        return tuple(args), kwargs

    @property
    def input_shardings(self) -> tuple[Any, Any]:
        args, kwargs = tree.unflatten(self.in_tree, [f.sharding for f in self._in_formats])
        return tuple(args), kwargs

    @property
    def output_formats(self) -> Any:
        shardings = self._shardings_of([s for s in self._program.out_specs if s is not None], self.out_avals)
        wanted = jit_shardings.result_targets(self._function, self.out_tree)
        preferred = auto_result_orders(self._staged.jaxpr.jaxpr, jit_shardings.open_layouts(wanted))
        found = []
        for k, (t, s, aval) in enumerate(zip(wanted, shardings, self.out_avals)):
            order = row_major(aval.ndim)
            if t.layout is Layout.AUTO:
                order = preferred[k]
            elif t.layout is not None:
                order = tuple(t.layout.major_to_minor)
            found.append(Format(Layout(order), t.sharding or s))
        return tree.unflatten(self.out_tree, found)

    @property
    def output_shardings(self) -> Any:
        return tree.map(lambda f: f.sharding, self.output_formats, is_leaf=lambda f: isinstance(f, Format))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        _, dynamic, named = split_static(args, kwargs, self._function._static)
        leaves, structure = flatten_call(self.fun_name, dynamic, named)
        if structure != self.in_tree:
            raise TypeError(
                f"Function compiled with input pytree does not match the input pytree it was called with: {self.in_tree} against {structure}"
            )
        self._check_types(leaves)
        self._check_layouts(leaves)
        leaves = [
            self._placed_argument(x, f, aval, k)
            for k, (x, f, aval) in enumerate(zip(leaves, self._in_formats, self.in_avals))
        ]
        mesh = self._program.mesh
        if not mesh.empty and self._meshes[1].empty and not all(hasattr(c, "_placed") for c in leaves):
            raise ValueError(
                f"{self.fun_name} was compiled for {mesh}, which has no devices here: it can be examined, not called"
            )
        if mesh.size > comm.size():
            raise ValueError(
                f"{self.fun_name} was compiled for {mesh} of {mesh.size} devices; this job has {comm.size()} ranks: it can be examined, not called"
            )
        key = tuple([x._placed for x in leaves])
        ready = self._ready.get(key)
        if ready is None:
            with meshes(*self._meshes):
                program = self._program if any(t.auto for t in self._wanted) else None
                ready = self._ready[key] = make_ready(self._function, self._staged, key, structure, program)
        return execute(ready, leaves)

    def _check_types(self, leaves: Sequence[ArrayImpl]) -> None:
        paths = [tree.keystr(p) for p, _ in tree.leaves_with_path(tree.unflatten(self.in_tree, range(len(leaves))))]
        wrong = []
        for path, x, aval in zip(paths, leaves, self.in_avals):
            if x.shape != aval.shape or x.dtype != aval.dtype:
                wrong.append(f"Argument {path!r} compiled with {aval.str_short()} and called with {x.aval.str_short()}")
        if wrong:
            raise TypeError(
                f"Argument types differ from the types for which this computation was compiled. The mismatches are: {'; '.join(wrong)}"
            )

    def _check_layouts(self, leaves: Sequence[ArrayImpl]) -> None:
        for k, (x, f) in enumerate(zip(leaves, self._in_formats)):
            if (
                jit_shardings.pinned(x)
                and isinstance(f.layout, Layout)
                and x._placed.order != tuple(f.layout.major_to_minor)
            ):
                raise ValueError(
                    f"Argument {k} of {self.fun_name}, of shape {x.shape}: layout {x.format.layout} does not match the layout {f.layout} the computation was "
                    "compiled for. Use `jax.device_put` with one of `input_formats`."
                )

    def _takes(self, leaves: Sequence[ArrayImpl]) -> bool:
        """Whether all arguments that lie somewhere lie as this program wants them."""
        return all(
            not x.committed or (f.sharding is not None and x.sharding.is_equivalent_to(f.sharding, x.ndim))
            for x, f in zip(leaves, self._in_formats)
        )

    def _placed_argument(self, x: ArrayImpl, f: Format, aval: ShapedArray, k: int) -> ArrayImpl:
        sharding: Any = f.sharding
        if not x.committed:
            return move(x, sharding) if self._wanted[k].auto else x
        if x.sharding.is_equivalent_to(sharding, x.ndim):
            return x
        single = isinstance(x.sharding, SingleDeviceSharding)
        if single and isinstance(sharding, NamedSharding) and sharding.is_fully_replicated:
            return move(x, sharding)
        if single and isinstance(sharding, SingleDeviceSharding) and self._program.mesh.empty:
            return x
        if isinstance(sharding, SingleDeviceSharding) and jit_shardings.is_spread_copy(x._placed):
            device = jit_shardings.device_id(sharding)
            if device in (x._placed.ids or ()):
                return _on_one(x, device)
        raise ValueError(
            f"Compiled object called with input sharding(s) that does not match the sharding(s) the computation was compiled with. Argument {k} of "
            f"{self.fun_name} has sharding {x.sharding}, and was compiled for {sharding}, type {aval.str_short()}. Use `jax.device_put` first."
        )


# -- jaxprs and types of plain functions ---------------------------------------------------------------


def make_jaxpr(
    fun: Callable[..., Any], static_argnums: Any = (), return_shape: bool = False, **unused: Any
) -> Callable[..., Any]:
    """A function that gives the jaxpr of `fun` for its arguments.  No communication.

    print(jax.make_jaxpr(lambda x: jnp.sin(x) + 1)(x))
    """
    if not callable(fun):
        raise TypeError(f"make_jaxpr: expected a callable value, got {fun!r}")

    def traced(*args: Any, **kwargs: Any) -> Any:
        found = _plain(fun, static_argnums).trace(*args, **kwargs)
        return (found.jaxpr, found.out_info) if return_shape else found.jaxpr

    traced.__name__ = f"make_jaxpr({fun_name(fun)})"
    return traced


def eval_shape(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The tree of ShapeDtypeStructs that `fun` would return.  Nothing is computed, nothing is sent."""
    return _plain(fun, ()).trace(*args, **kwargs).out_info


def _plain(fun: Callable[..., Any], static_argnums: Any) -> AotJitFunction:
    if isinstance(fun, AotJitFunction) and not static_argnums:
        inner: Any = fun.__call__
        wrapped = lambda *args, **kwargs: inner(*args, **kwargs)
        wrapped.__name__ = fun._name
        fun = wrapped
    none = StaticSplit(fun, (), (), "make_jaxpr")
    return AotJitFunction(
        fun, in_shardings=UNSPECIFIED, out_shardings=UNSPECIFIED, static=StaticSplit(fun, static_argnums, (), "make_jaxpr"), donate=none,
        inline=False, keep_unused=True,
    )  # fmt: skip


def typeof(x: Any) -> ShapedArray:
    """The type of an array, tracer, numpy array, number or ShapeDtypeStruct.  Never communicates.

    print(jax.typeof(x))  # float32[8@x,4]
    """
    return jit_shardings.traced_aval(x)
