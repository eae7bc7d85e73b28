"""What `jax.jit` returns: stage a function once per input types, compile it once per placement, run it on blocks.

    fun --trace--> jaxpr (per types, static values, context mesh) --compile--> executable (per placement of the arguments)

Calling a jitted function under a trace stages a `jit` equation instead.
"""

from __future__ import annotations

import functools
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from mpiarray.compiler import observe
from mpiarray.compiler.program import Program
from mpiarray.config import config
from mpiarray.core.jaxpr import ClosedJaxpr
from mpiarray.core.op import Undefined, define
from mpiarray.core.trace import Tracer, meshes, state
from mpiarray.core.value import Value, aval_of
from mpiarray.higher_order import shardings as jit_shardings
from mpiarray.higher_order.arguments import StaticSplit, flatten_call, join_static, split_static
from mpiarray.runtime.alone import take
from mpiarray.runtime.array import ArrayImpl, from_host
from mpiarray.runtime.eager import common_devices, compile_for
from mpiarray.runtime.nans import check_nans
from mpiarray.runtime.placed import Placed, devices_of, row_major
from mpiarray.transforms.batching import call_batch
from mpiarray.transforms.calls import call_jvp, call_transpose
from mpiarray.transforms.evaluate import eval_jaxpr
from mpiarray.transforms.partial_eval import call_partial_eval
from mpiarray.transforms.stage import trace_to_jaxpr
from mpiarray.types import tree
from mpiarray.types.aval import ShapedArray
from mpiarray.types.mesh import EMPTY_ABSTRACT_MESH, EMPTY_MESH
from mpiarray.types.treedef import builder, opener

UNSPECIFIED = jit_shardings.UNSPECIFIED
_ARRAYS = {ArrayImpl}
_ONE = tree.structure(0)  # the structure of a result that is one array

jit_op = define(
    "jit",
    type_rule=Undefined("its types are those of its jaxpr"),
    infer=lambda avals, mesh, *, name, jaxpr: jaxpr.out_avals,
    plan=Undefined("the compiler inlines it"),
    jvp=call_jvp(),
    transpose=call_transpose(),
    partial_eval=call_partial_eval(),
    batch=call_batch(),
    multiple_results=True,
    inlines=True,
    aligns=False,
)


class Staged:
    """A traced function: its jaxpr with constants as first inputs, and how results are put together."""

    def __init__(self, name: str, jaxpr: ClosedJaxpr, in_tree: Any, out_tree: Any, in_avals: tuple[ShapedArray, ...]):
        self.name, self.jaxpr, self.in_tree, self.out_tree, self.in_avals = name, jaxpr, in_tree, out_tree, in_avals
        self.consts: tuple[Any, ...] = tuple(c if isinstance(c, Value) else from_host(c) for c in jaxpr.consts)

    @property
    def out_avals(self) -> tuple[ShapedArray, ...]:
        return self.jaxpr.out_avals


class Ready:
    """A compiled call: what runs it on this rank, and its results' metadata."""

    __slots__ = ("build", "donated", "out_tree", "outs", "plain", "run", "staged", "unusable")

    def __init__(
        self,
        staged: Staged,
        run: Callable[..., Any] | None,
        outs: tuple[Placed, ...],
        donated: tuple[int, ...],
        unusable: tuple[int, ...],
    ):
        self.staged, self.run, self.outs, self.donated, self.unusable = staged, run, outs, donated, unusable
        self.out_tree = staged.out_tree
        self.build = builder(staged.out_tree)
        self.plain = all(p.order == row_major(p.aval.ndim) for p in outs)  # no result's block is in another order


def context_key() -> Any:
    return state.abstract_mesh, state.mesh, config.jax_enable_x64, state.mapped, state.check_vma


class JitFunction:
    """What `jit` returns."""

    def __init__(
        self,
        fun: Callable[..., Any],
        *,
        in_shardings: Any,
        out_shardings: Any,
        static: StaticSplit,
        donate: StaticSplit,
        inline: bool,
        keep_unused: bool,
    ):
        observe.keep(self, "_ready", "_direct")
        functools.update_wrapper(self, fun, updated=())
        self._fun = fun
        self._name = fun_name(fun)
        self._in, self._out = in_shardings, out_shardings
        self._static, self._donate = static, donate
        self._inline, self._keep_unused = inline, keep_unused
        self._auto = in_shardings is not UNSPECIFIED and jit_shardings.has_auto(in_shardings)
        self._staged: dict[Any, Staged] = {}
        self._ready: dict[Any, Ready] = {}
        # calls with arrays alone, by what they are: such a call does no work on trees
        self._direct: dict[Any, Callable[[tuple[Any, ...]], Any]] = {}
        self._open: Callable[[Any], tuple[Any, ...] | None] | None = (
            None  # takes apart arguments like the latest trees of arrays
        )
        self._generation = config.generation

    def __repr__(self) -> str:
        return f"<jit of {self._name}>"

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def _cache_size(self) -> int:
        """How many types the function was traced for."""
        return len(self._staged)

    def clear_cache(self) -> None:
        self._staged.clear()
        self._ready.clear()
        self._direct.clear()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not kwargs:
            try:
                if len(args) == 1:  # most calls that take microseconds
                    run = self._direct[args[0]._placed, state.abstract_mesh, state.mesh, config.generation]
                else:
                    run = self._direct[(*[a._placed for a in args], state.abstract_mesh, state.mesh, config.generation)]
            except (AttributeError, KeyError, TypeError):  # not all arrays, or new ones
                found = self._opened(args)
            else:
                found = run, args
            if found is not None and state.trace is None:
                run, leaves = found
                return run(leaves)
        return self._general_call(args, kwargs)

    def _opened(self, args: tuple[Any, ...]) -> Any:
        """What runs a call with trees of arrays like the latest ones, and the arrays; None for other calls."""
        if self._open is None or (leaves := self._open(args)) is None:
            return None
        try:
            placed = [x._placed for x in leaves]
            return self._direct[(self._open, *placed, state.abstract_mesh, state.mesh, config.generation)], leaves
        except (AttributeError, KeyError, TypeError):
            return None

    def _general_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if config.jax_disable_jit:
            return self._fun(*args, **kwargs)
        fixed, dynamic, named = split_static(args, kwargs, self._static)
        leaves, structure = flatten_call(self._name, dynamic, named)
        arrays = set(map(type, leaves)) <= _ARRAYS
        if state.trace is not None or (not arrays and any(isinstance(x, Tracer) for x in leaves)):
            return self._bind(fixed, leaves, structure)
        if self._auto:
            return self._call_chosen(args, kwargs, fixed, leaves, structure)
        if self._in is not UNSPECIFIED:
            leaves = jit_shardings.place_arguments(self, leaves, dynamic, named)
        key = (
            structure,
            fixed,
            tuple([x._placed for x in leaves]),
            state.abstract_mesh,
            state.mesh,
            config.jax_enable_x64,
        )
        ready = self._ready.get(key)
        if ready is None or any(c.is_deleted() for c in ready.staged.consts):
            for x in leaves:
                x._check_alive()
            ready = self._ready[key] = self._compile(fixed, leaves, structure)
        if self._in is UNSPECIFIED and not kwargs and not fixed:
            if all(type(a) is ArrayImpl for a in args):
                self._remember(key[2], ready)
            elif (opened := opener(structure.kids[0])) is not None:
                self._open = opened
                self._remember((opened, *key[2]), ready)
        return execute(ready, leaves)

    def _remember(self, where: tuple[Any, ...], ready: Ready) -> None:
        """Let such calls take the short way from now on, as long as no setting changes."""
        run = direct_call(ready)
        if run is not None:
            if self._generation != config.generation:
                self._direct.clear()
                self._generation = config.generation
            self._direct[(*where, state.abstract_mesh, state.mesh, config.generation)] = run

    def _call_chosen(self, args: Any, kwargs: Any, fixed: Any, leaves: list[Any], structure: Any) -> Any:
        """A call with arguments whose shardings the compiler chooses: they belong to the compiled program."""
        raise NotImplementedError(f"{self._name}: only a function that can be lowered chooses shardings")

    def _bind(self, fixed: Any, leaves: list[Any], structure: Any) -> Any:
        """Under a trace: an equation that calls this function's jaxpr."""
        staged = self.stage(fixed, [aval_of(x) for x in leaves], structure)
        if self._inline:
            outs = eval_jaxpr(staged.jaxpr.jaxpr, staged.consts, leaves)
        else:
            outs = jit_op(*staged.consts, *leaves, name=self._name, jaxpr=called(staged))
        return tree.unflatten(staged.out_tree, outs)

    def stage(self, fixed: Any, avals: Sequence[ShapedArray], structure: Any) -> Staged:
        """The traced function for these types; traces it the first time."""
        key = (structure, fixed, tuple(avals), context_key())
        staged = self._staged.get(key)
        if staged is None or any(
            isinstance(c, Tracer) or (isinstance(c, ArrayImpl) and c.is_deleted()) for c in staged.consts
        ):
            staged = self._trace(fixed, avals, structure)
            self._staged[key] = staged
        return staged

    def _trace(self, fixed: Any, avals: Sequence[ShapedArray], structure: Any) -> Staged:
        found: list[Any] = []

        def flat(*tracers: Any) -> list[Any]:
            dynamic, named = tree.unflatten(structure, tracers)
            args, kwargs = join_static(fixed, dynamic, named)
            out = self._fun(*args, **kwargs)
            outs, out_tree = flatten_result(self._name, out)
            found.append(out_tree)
            return jit_shardings.place_results(self, outs, out_tree)

        jaxpr = trace_to_jaxpr(flat, avals, name=self._name)
        return Staged(self._name, jaxpr, structure, found[0], tuple(avals))

    def _compile(self, fixed: Any, leaves: list[ArrayImpl], structure: Any) -> Ready:
        args = [x._placed for x in leaves]
        device = None if state.mesh.empty else jit_shardings.one_device(self, leaves)
        if device is not None:
            with meshes(EMPTY_ABSTRACT_MESH, EMPTY_MESH):
                return self._compile_for(fixed, [jit_shardings.on_one(p, device) for p in args], structure)
        return self._compile_for(fixed, args, structure)

    def _compile_for(self, fixed: Any, args: Sequence[Placed], structure: Any) -> Ready:
        staged = self.stage(fixed, [p.aval for p in args], structure)
        return make_ready(self, staged, args, structure)


def called(staged: Staged) -> ClosedJaxpr:
    """The jaxpr with its constants as operands; one object per trace, so that equal calls share it."""
    found = getattr(staged, "called", None)
    if found is None:
        inner = staged.jaxpr.jaxpr
        found = ClosedJaxpr(inner.replace(constvars=(), invars=(*inner.constvars, *inner.invars)))
        staged.called = found  # type: ignore[attr-defined]
    return found


def make_ready(
    function: JitFunction, staged: Staged, args: Sequence[Placed], structure: Any, program: Program | None = None
) -> Ready:
    """Compile a traced function for arguments placed so (or make ready what is compiled).  Raises RuntimeError where an array
    that it closes over is deleted."""
    for c in staged.consts:
        c._check_alive()
    all_args = [*(c._placed for c in staged.consts), *args]
    ids = jit_shardings.devices_for(staged.name, function, staged.out_tree, all_args, common_devices)
    ids = devices_of(staged.out_avals) if ids is None else ids
    out_specs = jit_shardings.result_specs(function, staged)

    def given(outs: tuple[Placed, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return donation(function, args, jit_shardings.shown_results(function, staged, outs), structure)

    def owned(outs: tuple[Placed, ...]) -> list[int]:
        return [len(staged.consts) + i for i in given(outs)[0]]

    run, outs = compile_for(staged.name, called(staged), all_args, out_specs, ids, program, owned)
    run = observe.program(run, staged.name)
    donated, unusable = given(outs)
    return Ready(staged, run, jit_shardings.shown_results(function, staged, outs), donated, unusable)


def execute(ready: Ready, leaves: Sequence[ArrayImpl]) -> Any:
    """Run a compiled call on concrete arguments.  Donated ones are gone when it starts, also if it raises."""
    blocks = [c._block for c in ready.staged.consts] + [x._block for x in leaves]
    if ready.donated or ready.unusable:
        _donate(ready, leaves, blocks)
    if ready.run is None:
        results: list[Any] = [ArrayImpl(p, None) for p in ready.outs]
    else:
        found = ready.run(*blocks)
        if not ready.plain:
            found = [jit_shardings.in_order(b, p) for p, b in zip(ready.outs, found)]
        results = [ArrayImpl(p, b) for p, b in zip(ready.outs, found)]
        if config.jax_debug_nans:
            check_nans(ready.staged.name, results)
    return ready.build(results)


def direct_call(ready: Ready) -> Callable[[tuple[Any, ...]], Any] | None:
    """What runs a call whose arguments are arrays, without looking at anything but their blocks; None where more is to be done."""
    run, outs, out_tree, build = ready.run, ready.outs, ready.out_tree, ready.build
    special = ready.unusable or ready.staged.consts or config.jax_debug_nans
    if run is None or special or not ready.plain:
        return None
    if ready.donated:
        return _direct_call_donated(ready)
    if len(outs) == 1 and out_tree == _ONE:
        (p,) = outs
        if len(ready.staged.in_avals) == 1:
            return _direct_call_one(run, p)
        return lambda args: ArrayImpl(p, run(*[x._block for x in args])[0])
    return lambda args: build([ArrayImpl(p, b) for p, b in zip(outs, run(*[x._block for x in args]))])


def _direct_call_one(run: Callable[..., Any], where: Placed) -> Callable[[tuple[Any, ...]], Any]:
    """From one array to one array, with as few objects as can be: after a long message none of them are in cache."""
    new, aval = object.__new__, where.aval

    def call(args: tuple[Any, ...]) -> Any:
        out = new(ArrayImpl)
        out._placed, out.aval, out._host = where, aval, None
        (out._block,) = run(args[0]._block)
        return out

    return call


def _direct_call_donated(ready: Ready) -> Callable[[tuple[Any, ...]], Any]:
    run, outs, build = ready.run, ready.outs, ready.build
    assert run is not None, "this rank runs it"

    def call(args: tuple[Any, ...]) -> Any:
        blocks = [x._block for x in args]
        _donate(ready, args, blocks)
        return build([ArrayImpl(p, b) for p, b in zip(outs, run(*blocks))])

    return call


def donation(
    function: JitFunction, args: Sequence[Placed], outs: Sequence[Placed], structure: Any
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Indices of donated leaves whose buffer a result could take, and of those that fit none."""
    if not function._donate:
        return (), ()
    marked = donated_leaves(function, structure)
    free = Counter((p.aval.shape, p.aval.dtype, p.spec) for p in outs)
    usable, unusable = [], []
    for i in marked:
        if not args[i].committed:
            continue
        mine = (args[i].aval.shape, args[i].aval.dtype, args[i].spec)
        if free[mine]:
            free[mine] -= 1
            usable.append(i)
        else:
            unusable.append(i)
    return tuple(usable), tuple(unusable)


def donated_leaves(function: JitFunction, structure: Any) -> list[int]:
    """Which leaves belong to donated arguments."""
    count = structure.num_leaves
    dynamic, named = tree.unflatten(structure, range(count))
    kept = [n for n in range(len(dynamic) + len(function._static.nums)) if n not in function._static.nums]
    out = [i for n, a in zip(kept, dynamic) if n in function._donate.nums for i in tree.leaves(a)]
    return out + [i for k, a in named.items() if k in function._donate.names for i in tree.leaves(a)]


def _donate(ready: Ready, leaves: Sequence[ArrayImpl], blocks: list[Any]) -> None:
    """Delete the donated arrays; the program may write over their blocks, or over copies where somebody else sees these."""
    first = len(ready.staged.consts)
    for i in ready.donated:
        leaves[i].delete()
    if ready.run is not None:
        for i in ready.donated:
            take(blocks, first + i)
    if ready.unusable:
        types = ", ".join(leaves[i].aval.str_short() for i in ready.unusable)
        warnings.warn(
            f"Some donated buffers were not usable: {types}. No result has their type; the arguments stay alive.",
            UserWarning,
            stacklevel=4,
        )


def flatten_result(name: str, out: Any) -> tuple[list[Any], Any]:
    """A function's result as values; TypeError for what is no array."""
    leaves, structure = tree.flatten(out)
    for x in leaves:
        try:
            aval_of(x)
        except TypeError:
            raise TypeError(
                f"function {name} returned a value of type {type(x)}, which is not a valid JAX type: {x!r}"
            ) from None
    return leaves, structure


def fun_name(fun: Callable[..., Any]) -> str:
    while isinstance(fun, functools.partial):
        fun = fun.func
    return getattr(fun, "__name__", type(fun).__name__)
