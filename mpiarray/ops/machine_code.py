"""Functions of elements as machine code: numpy ufuncs that are written here as LLVM's assembly and compiled by llvmlite.

llvmlite is the extra `llvm`; it is imported when the first function is compiled, and nowhere else.  A function takes some
5 to 20 ms to compile, since nothing is left to find out: the text has the vectors, the loop and the order of operations.

Floats of 16 bits are held as float32 that have such a value: each operation is followed by rounding (of bfloat16 by
integers), as in numpy and ml_dtypes, but takes vectors there too.

Results are numpy's to the last bit.  Each operation rounds by itself (no flags that allow more, so nothing is contracted or
reordered), constants are read from memory (so nothing is folded), and where C and numpy leave something open the code does what
numpy's loops on x86 do: of two zeros a maximum is the second (of float16 the first), of NaN the first.  Only which of two
NaNs an operation passes on is open, as in numpy, where the ends of arrays differ from their middles; and NaNs that signal do
not stay so in 16 bits.  Elsewhere than on x86 nothing is compiled (`available`), since numpy's loops differ there and nobody
has compared.

A function is an ordinary ufunc: strides, broadcasting, `out=` and overlapping memory are numpy's business.  numpy calls the
loop for one dim.  If all steps in it are one element, or none (an operand that is broadcast, which is spread over a vector
first), it runs on vectors in place; else, and at its end, elements are gathered into vectors.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import platform
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from mpiarray.types import dtypes

_VECTOR = 64  # bytes of the widest operands of one pass of the loop
_BOOL, _F16, _F32, _F64 = (np.dtype(t) for t in (np.bool_, np.float16, np.float32, np.float64))
_U32 = np.dtype(np.uint32)
_BF16 = np.dtype(dtypes.bfloat16)
NARROW = (_F16, _BF16)  # computed as float32
_IN_MEMORY = {
    np.dtype(name): text
    for text, names in {
        "i8": "bool int8 uint8", "i16": "int16 uint16", "i32": "int32 uint32", "i64": "int64 uint64",
        "half": "float16", "float": "float32", "double": "float64",
    }.items()
    for name in names.split()
} | {np.dtype(dtypes.bfloat16): "i16"}  # fmt: skip


class Declined(Exception):
    """There is no code for an operation on these dtypes that does what numpy does."""


class Value(NamedTuple):
    """What an operation reads or makes: its name in the text, and the dtype of its elements."""

    name: str
    dtype: Any


def _is_float(dtype: Any) -> bool:
    return dtype.kind == "f" or dtype == _BF16


def _held(dtype: Any) -> Any:
    """The dtype that elements have in registers."""
    return _F32 if dtype in NARROW else dtype


def has_code(dtype: Any) -> bool:
    """Whether elements of a dtype can be operands and results."""
    return dtype in _IN_MEMORY and (dtype != _F16 or _converts_halves())


class Code:
    """The operations on vectors: each method writes a line or some, and gives the name of what they make.

    Operands are `Value`s of one dtype, except where a method says otherwise.
    """

    def __init__(self, lanes: int, text: Text):
        self.lanes = lanes
        self.text = text

    # -- arithmetic

    def add(self, x: Value, y: Value) -> Value:
        return self._binary("add", "fadd", x, y)

    def sub(self, x: Value, y: Value) -> Value:
        return self._binary("sub", "fsub", x, y)

    def mul(self, x: Value, y: Value) -> Value:
        return self._binary("mul", "fmul", x, y)

    def div(self, x: Value, y: Value) -> Value:
        """Of floats."""
        return self._binary(None, "fdiv", x, y)

    def neg(self, x: Value) -> Value:
        if _is_float(x.dtype):
            return self._line(x.dtype, f"fneg {self.type(x)} {x.name}")
        return self.sub(self.constant(0, x.dtype), x)

    def abs(self, x: Value) -> Value:
        return self.call("fabs", x) if _is_float(x.dtype) else self.select(self.compare("lt", x), x, self.neg(x))

    def sign(self, x: Value) -> Value:
        """-1, 0 or 1; zeros of floats and NaN stay as they are."""
        one, zero = self.constant(1, x.dtype), self.constant(0, x.dtype)
        if _is_float(x.dtype):
            return self.select(self._compare("fcmp", "ueq", x, zero), self.call("copysign", one, x), x)
        found = self.select(self.compare("gt", x), zero, one)
        return found if x.dtype.kind == "u" else self.select(self.compare("lt", x), found, self.neg(one))

    def square(self, x: Value) -> Value:
        x = self.abs(x) if x.dtype == _BF16 else x  # there no NaN has a sign
        return self.mul(x, x)

    def sqrt(self, x: Value) -> Value:
        return self.call("sqrt", x)

    def max(self, x: Value, y: Value) -> Value:
        return self._extreme("gt", x, y)

    def min(self, x: Value, y: Value) -> Value:
        return self._extreme("lt", x, y)

    def _extreme(self, order: str, x: Value, y: Value) -> Value:
        if x.dtype == _BOOL:
            return self.bits("or" if order == "gt" else "and", x, y)
        order = {"gt": "ge", "lt": "le"}[order] if x.dtype == _F16 else order
        found = self.select(self.compare(order, x, y), y, x)
        return self.select(self._compare("fcmp", "uno", x, x), found, x) if _is_float(x.dtype) else found

    # -- bits, comparisons, choices

    def bits(self, name: str, x: Value, y: Value) -> Value:
        """`and`, `or` or `xor` of integers or bools, `shl` or `lshr` of unsigned integers by less than their width."""
        return self._binary(name, None, x, y)

    def invert(self, x: Value) -> Value:
        """All bits of integers, or bools, the other way."""
        return self.bits("xor", x, self.constant(True if x.dtype == _BOOL else -1, x.dtype))

    def compare(self, order: str, x: Value, y: Value | None = None) -> Value:
        """Bools: eq, ne, lt, le, gt, ge, of x and y (or 0); NaN is unequal to all."""
        y = self.constant(0, x.dtype) if y is None else y
        if _is_float(x.dtype):
            return self._compare("fcmp", ("u" if order == "ne" else "o") + order, x, y)
        signed = "s" if x.dtype.kind == "i" else "u"
        return self._compare("icmp", order if order in ("eq", "ne") else signed + order, x, y)

    def is_finite(self, x: Value) -> Value:
        return self.compare("lt", self.call("fabs", x), self.constant(np.inf, x.dtype))

    def select(self, mask: Value, no: Value, yes: Value) -> Value:
        """`yes` where the mask, of bools, is True."""
        kind = self.type(yes)
        return self._line(yes.dtype, f"select {self.type(mask)} {mask.name}, {kind} {yes.name}, {kind} {no.name}")

    # -- other dtypes

    def cast(self, x: Value, dtype: Any) -> Value:
        """As `types.dtypes.cast`."""
        if not has_code(dtype):
            raise Declined
        if dtype == x.dtype:
            return x
        if dtype == _BOOL:
            return self.compare("ne", x)
        if x.dtype in NARROW:
            return self.cast(Value(x.name, _F32), dtype)
        if dtype in NARROW:
            if x.dtype == _F64:
                raise Declined
            return self._rounded(Value(self.cast(x, _F32).name, dtype))
        if x.dtype.kind == "f" and dtype.kind != "f":
            return self._to_integer(x, dtype)
        wider = dtype.itemsize > x.dtype.itemsize
        if dtype.kind == "f":
            if x.dtype.kind == "f":
                return self._convert("fpext" if wider else "fptrunc", x, dtype)
            return self._convert("sitofp" if x.dtype.kind == "i" else "uitofp", x, dtype)
        if x.dtype == _BOOL:
            return self._convert("zext", x, dtype)
        if dtype.itemsize == x.dtype.itemsize:
            return Value(x.name, dtype)
        return self._convert(("sext" if x.dtype.kind == "i" else "zext") if wider else "trunc", x, dtype)

    def wide(self, x: Value) -> Value:
        """Floats of 16 bits as float32, for what is rounded only once."""
        return self.cast(x, _held(x.dtype))

    def _rounded(self, x: Value) -> Value:
        """float32 that is to be a float of 16 bits: to nearest, ties to even."""
        if x.dtype not in NARROW:
            return x
        if x.dtype == _F16:
            half = f"<{self.lanes} x half>"
            narrow = self.text.named(f"fptrunc {self.type(x)} {x.name} to {half}")
            return self._line(x.dtype, f"fpext {half} {narrow} to {self.type(x)}")
        number = lambda n: self.constant(n, _U32)
        whole = self._line(_U32, f"bitcast {self.type(x)} {x.name} to <{self.lanes} x i32>")
        last = self.bits("and", self.bits("lshr", whole, number(16)), number(1))
        near = self.add(self.add(whole, number(0x7FFF)), last)
        nan = self.bits("or", self.bits("and", whole, number(0x80000000)), number(0x7FC00000))
        near = self.select(self._compare("fcmp", "uno", x, x), near, nan)
        near = self.bits("and", near, number(0xFFFF0000))
        return self._line(x.dtype, f"bitcast <{self.lanes} x i32> {near.name} to {self.type(x)}")

    def _to_integer(self, x: Value, dtype: Any) -> Value:
        """Towards zero; what is beyond the limits becomes the limit, and NaN 0."""
        info = np.iinfo(dtype)
        low, high = int(info.min), int(info.max)
        found = self._convert(
            "fptosi" if dtype.kind == "i" else "fptoui", x, dtype
        )  # meaningless where it is not chosen
        zero = self.constant(0, dtype)
        found = self.select(self._compare("fcmp", "uno", x, x), found, zero)
        below = self.compare("lt", x, self.constant(low, x.dtype))
        found = self.select(below, found, self.constant(low, dtype) if low else zero)
        above = self.compare("ge", x, self.constant(high + 1, x.dtype))
        return self.select(above, found, self.constant(high, dtype))

    # -- the text

    def constant(self, number: Any, dtype: Any) -> Value:
        held = _held(dtype)
        name = self.text.constant(np.asarray(number).astype(dtype).astype(held), self.lanes)
        found = self._loaded(self._line(held, f"load {self._memory_type(held)}, ptr {name}"))
        return Value(found.name, dtype)

    def type(self, x: Value) -> str:
        return f"<{self.lanes} x {'i1' if x.dtype == _BOOL else _IN_MEMORY[_held(x.dtype)]}>"

    def load(self, place: str, dtype: Any) -> Value:
        return self._loaded(self._line(dtype, f"load {self._memory_type(dtype)}, ptr {place}, align 1"))

    def store(self, x: Value, place: str, how: str = "align 1") -> None:
        kind = self._memory_type(x.dtype)
        name = x.name
        if x.dtype == _BOOL:
            name = self.text.named(f"zext {self.type(x)} {x.name} to {kind}")
        elif x.dtype == _F16:
            name = self.text.named(f"fptrunc {self.type(x)} {x.name} to {kind}")
        elif x.dtype == _BF16:
            wide = f"<{self.lanes} x i32>"
            whole = self.text.named(f"bitcast {self.type(x)} {x.name} to {wide}")
            high = self.bits("lshr", Value(whole, _U32), self.constant(16, _U32))
            name = self.text.named(f"trunc {wide} {high.name} to {kind}")
        self.text.line(f"store {kind} {name}, ptr {place}, {how}")

    def spread(self, place: str, dtype: Any, target: str) -> None:
        """One element, in all places of a vector."""
        kind = self._memory_type(dtype)
        element = self.text.named(f"load {_IN_MEMORY[dtype]}, ptr {place}, align 1")
        first = self.text.named(f"insertelement {kind} poison, {_IN_MEMORY[dtype]} {element}, i64 0")
        zeros = f"<{self.lanes} x i32> zeroinitializer"
        vector = self.text.named(f"shufflevector {kind} {first}, {kind} poison, {zeros}")
        self.text.line(f"store {kind} {vector}, ptr {target}")

    def call(self, name: str, *operands: Value) -> Value:
        """One of LLVM's own functions of floats."""
        x = operands[0]
        if not _is_float(x.dtype):
            raise Declined
        kind = self.type(x)
        full = f"@llvm.{name}.v{self.lanes}f{8 * _held(x.dtype).itemsize}"
        self.text.declare(f"declare {kind} {full}({', '.join([kind] * len(operands))})")
        out = self._line(x.dtype, f"call {kind} {full}({', '.join(f'{kind} {v.name}' for v in operands)})")
        return out if name in ("fabs", "copysign") else self._rounded(out)

    def _memory_type(self, dtype: Any) -> str:
        return f"<{self.lanes} x {_IN_MEMORY[dtype]}>"

    def _loaded(self, x: Value) -> Value:
        """What was loaded, as it is held."""
        if x.dtype == _BOOL:
            return self._line(_BOOL, f"icmp ne {self._memory_type(_BOOL)} {x.name}, zeroinitializer")
        if x.dtype == _F16:
            return self._line(_F16, f"fpext {self._memory_type(_F16)} {x.name} to {self.type(x)}")
        if x.dtype == _BF16:
            wide = f"<{self.lanes} x i32>"
            low = self.text.named(f"zext {self._memory_type(_BF16)} {x.name} to {wide}")
            high = self.bits("shl", Value(low, _U32), self.constant(16, _U32))
            return self._line(_BF16, f"bitcast {wide} {high.name} to {self.type(x)}")
        return x

    def _binary(self, integers: str | None, floats: str | None, x: Value, y: Value) -> Value:
        name = floats if _is_float(x.dtype) else integers
        if name is None or y.dtype != x.dtype or (x.dtype == _BOOL and name not in ("and", "or", "xor")):
            raise Declined
        out = self._line(x.dtype, f"{name} {self.type(x)} {x.name}, {y.name}")
        return self._rounded(out) if _is_float(x.dtype) else out

    def _compare(self, name: str, order: str, x: Value, y: Value) -> Value:
        return self._line(_BOOL, f"{name} {order} {self.type(x)} {x.name}, {y.name}")

    def _convert(self, name: str, x: Value, dtype: Any) -> Value:
        return self._line(dtype, f"{name} {self.type(x)} {x.name} to {self.type(Value('', dtype))}")

    def _line(self, dtype: Any, text: str) -> Value:
        return Value(self.text.named(text), dtype)


class Text:
    """The text of a module: one function's lines, and what it mentions."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.declarations: dict[str, None] = {}
        self.constants: dict[tuple[Any, bytes], str] = {}
        self.count = 0

    def line(self, text: str) -> None:
        self.lines.append(text)

    def named(self, text: str) -> str:
        name = f"%v{self.count}"
        self.count += 1
        self.lines.append(f"{name} = {text}")
        return name

    def declare(self, text: str) -> None:
        self.declarations[text] = None

    def constant(self, number: np.ndarray, lanes: int) -> str:
        """A variable, which nobody writes, but the compiler does not know it."""
        key = (number.dtype, number.tobytes())
        if key not in self.constants:
            name = self.constants[key] = f"@c{len(self.constants)}"
            bits = f"i{8 * number.dtype.itemsize}"
            value = int.from_bytes(number.tobytes(), "little")
            self.declare(f"{name} = global <{lanes} x {bits}> <{', '.join([f'{bits} {value}'] * lanes)}>")
        return self.constants[key]

    def whole(self) -> str:
        return "\n".join([*self.declarations, *self.lines, ""])


Body = Callable[[Code, Sequence[Value]], Value]


def text_of(operands: Sequence[Any], result: Any, body: Body, streamed_from: int = 0) -> str:
    """The text of the loop of a ufunc: of operands of these dtypes, `body` writes the result.

    Results of `streamed_from` bytes and more (0: none) in one part are written past the caches if they are aligned.
    """
    kinds = [*operands, result]
    lanes = _VECTOR // max(d.itemsize for d in kinds)
    streams = streamed_from > 0 and lanes * result.itemsize == _VECTOR
    text = Text()
    code = Code(lanes, text)
    line = text.line
    count = len(operands)
    line("define void @loop(ptr %args, ptr %dims, ptr %steps, ptr %data) {")
    line("entry:")
    line("%n = load i64, ptr %dims")
    for k, dtype in enumerate(kinds):
        line(f"%b{k} = alloca <{lanes} x {_IN_MEMORY[dtype]}>")
        line(f"%pa{k} = getelementptr ptr, ptr %args, i64 {k}")
        line(f"%a{k} = load ptr, ptr %pa{k}")
        line(f"%ps{k} = getelementptr i64, ptr %steps, i64 {k}")
        line(f"%s{k} = load i64, ptr %ps{k}")
        line(f"%unit{k} = icmp eq i64 %s{k}, {dtype.itemsize}")
        line(f"%zero{k} = icmp eq i64 %s{k}, {0 if k < count else dtype.itemsize}")
        line(f"%good{k} = or i1 %unit{k}, %zero{k}")
        line(f"%all{k} = and i1 %good{k}, {f'%all{k - 1}' if k else 'true'}")
    line(f"%long = icmp uge i64 %n, {lanes}")
    line(f"%able = and i1 %long, %all{count}")
    line("br i1 %able, label %spread, label %parts")
    line("spread:")
    for k, dtype in enumerate(operands):
        code.spread(f"%a{k}", dtype, f"%b{k}")
        line(f"%p{k} = select i1 %zero{k}, ptr %b{k}, ptr %a{k}")
        line(f"%t{k} = select i1 %zero{k}, i64 0, i64 {lanes * dtype.itemsize}")
    if streams:
        line(f"%few = icmp ult i64 %n, {-(-streamed_from // result.itemsize)}")
        line(f"%place = ptrtoint ptr %a{count} to i64")
        line(f"%off = and i64 %place, {_VECTOR - 1}")
        line("%crosses = icmp ne i64 %off, 0")
        line("%no0 = or i1 %few, %crosses")
        for k in range(count):
            line(f"%same{k} = icmp eq ptr %a{k}, %a{count}")
            line(f"%no{k + 1} = or i1 %no{k}, %same{k}")
        line(f"br i1 %no{count}, label %vectors, label %streamed")
        _in_place(code, operands, result, body, "streamed", "fenced", f"align {_VECTOR}, !nontemporal !{{i32 1}}")
        line("fenced:")
        text.declare("declare void @llvm.x86.sse.sfence()")
        line("call void @llvm.x86.sse.sfence()")
        line("br label %parts")
    else:
        line("br label %vectors")
    _in_place(code, operands, result, body, "vectors", "parts", "align 1")
    _gathered(code, operands, result, body, "[%streamed.dn, %fenced], " if streams else "")
    line("}")
    return text.whole()


def _in_place(code: Code, operands: Sequence[Any], result: Any, body: Body, label: str, after: str, how: str) -> None:
    """The loop over whole vectors, which lie one behind the other, or are the same one."""
    line, lanes, count = code.text.line, code.lanes, len(operands)
    line(f"{label}:")
    line(f"%{label}.d = phi i64 [0, %spread], [%{label}.dn, %{label}]")
    for k in range(count + 1):
        line(f"%{label}.q{k} = phi ptr [%{'p' if k < count else 'a'}{k}, %spread], [%{label}.qn{k}, %{label}]")
    values = [code.load(f"%{label}.q{k}", d) for k, d in enumerate(operands)]
    code.store(body(code, values), f"%{label}.q{count}", how)
    for k in range(count + 1):
        step = f"%t{k}" if k < count else lanes * result.itemsize
        line(f"%{label}.qn{k} = getelementptr i8, ptr %{label}.q{k}, i64 {step}")
    line(f"%{label}.dn = add i64 %{label}.d, {lanes}")
    line(f"%{label}.end = add i64 %{label}.dn, {lanes}")
    line(f"%{label}.more = icmp ule i64 %{label}.end, %n")
    line(f"br i1 %{label}.more, label %{label}, label %{after}")


def _gathered(code: Code, operands: Sequence[Any], result: Any, body: Body, others: str) -> None:
    """From element `%g` on: a vector at a time from and to buffers, in the last of which the first element may be repeated."""
    line, lanes, count = code.text.line, code.lanes, len(operands)
    line("parts:")
    line(f"%g = phi i64 [0, %entry], [%vectors.dn, %vectors], {others}[%gn, %scattered]")
    line("%left = sub i64 %n, %g")
    line("%any = icmp ugt i64 %left, 0")
    line("br i1 %any, label %part, label %end")
    line("part:")
    line(f"%short = icmp ult i64 %left, {lanes}")
    line(f"%m = select i1 %short, i64 %left, i64 {lanes}")
    for k in range(count + 1):
        line(f"%o{k} = mul i64 %g, %s{k}")
        line(f"%h{k} = getelementptr i8, ptr %a{k}, i64 %o{k}")
    for k, dtype in enumerate(operands):
        code.spread(f"%h{k}", dtype, f"%b{k}")
    line("br label %gather")
    line("gather:")
    line("%j = phi i64 [0, %part], [%jn, %gather]")
    for k, dtype in enumerate(operands):
        kind = _IN_MEMORY[dtype]
        line(f"%w{k} = mul i64 %j, %s{k}")
        line(f"%x{k} = getelementptr i8, ptr %h{k}, i64 %w{k}")
        line(f"%y{k} = load {kind}, ptr %x{k}, align 1")
        line(f"%z{k} = getelementptr {kind}, ptr %b{k}, i64 %j")
        line(f"store {kind} %y{k}, ptr %z{k}")
    line("%jn = add i64 %j, 1")
    line("%missing = icmp ult i64 %jn, %m")
    line("br i1 %missing, label %gather, label %compute")
    line("compute:")
    code.store(body(code, [code.load(f"%b{k}", d) for k, d in enumerate(operands)]), f"%b{count}")
    line("br label %scatter")
    line("scatter:")
    line("%l = phi i64 [0, %compute], [%ln, %scatter]")
    kind = _IN_MEMORY[result]
    line(f"%u = getelementptr {kind}, ptr %b{count}, i64 %l")
    line(f"%r = load {kind}, ptr %u")
    line(f"%wo = mul i64 %l, %s{count}")
    line(f"%xo = getelementptr i8, ptr %h{count}, i64 %wo")
    line(f"store {kind} %r, ptr %xo, align 1")
    line("%ln = add i64 %l, 1")
    line("%rest = icmp ult i64 %ln, %m")
    line("br i1 %rest, label %scatter, label %scattered")
    line("scattered:")
    line("%gn = add i64 %g, %m")
    line("br label %parts")
    line("end:")
    line("ret void")


# -- compiling ------------------------------------------------------------------------------------------------


@cache
def available() -> str:
    """Empty if functions can be compiled here, which is tried; else what is missing."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return f"machine code is made for x86-64 only, and this machine is {platform.machine()}"
    if importlib.util.find_spec("llvmlite") is None:
        return "llvmlite is not installed for this Python: pip install llvmlite (the extra mpiarray[llvm])"
    try:  # another version's language, or memory that must not hold code
        twice = compiled(text_of([_F32], _F32, lambda b, v: b.add(*v, *v)), (_F32,), _F32)(np.ones(17, _F32))
    except Exception as error:
        return f"llvmlite is installed, but does not work here ({type(error).__name__}: {error})"
    return "" if (twice == 2).all() else "llvmlite is installed, but its code does not work here"


@cache
def _compiler() -> tuple[Any, Any]:
    """llvmlite, and what it compiles for: the processor that this process runs on."""
    binding = importlib.import_module("llvmlite.binding")
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(), features=binding.get_host_cpu_features().flatten(), opt=3
    )
    return binding, machine


@cache
def _converts_halves() -> bool:
    """Whether the processor has instructions for float16; else LLVM would look for a library's functions."""
    binding, _ = _compiler()
    return bool(binding.get_host_cpu_features().get("f16c"))


@cache
def _numpys() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """numpy's C functions `PyUFunc_FromFuncAndData` and `PyUFunc_RegisterLoopForType`."""
    try:
        core = importlib.import_module("numpy._core._multiarray_umath")
    except ImportError:  # numpy 1
        core = importlib.import_module("numpy.core._multiarray_umath")
    pointer, number = ctypes.c_void_p, ctypes.c_int
    address_in = ctypes.PYFUNCTYPE(pointer, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    table = ctypes.cast(address_in(core._UFUNC_API, None), ctypes.POINTER(pointer))
    shape = ctypes.PYFUNCTYPE(ctypes.py_object, pointer, pointer, pointer, *[number] * 4, pointer, pointer, number)
    add = ctypes.PYFUNCTYPE(number, ctypes.py_object, number, pointer, pointer, pointer)
    return shape(table[1]), add(table[2])


_kept: list[Any] = []  # what ufuncs point to: they live as long as the process


@cache
def ufunc(text: str, operands: tuple[Any, ...], result: Any) -> np.ufunc:
    """The ufunc whose loop a text is; one for equal texts.  Raises ImportError, saying what to do, where it cannot be made."""
    missing = available()
    if missing:
        raise ImportError(missing)
    return compiled(text, operands, result)


def compiled(text: str, operands: tuple[Any, ...], result: Any) -> np.ufunc:
    """A new ufunc."""
    binding, machine = _compiler()
    module = binding.parse_assembly(text)
    module.verify()
    engine = binding.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    address, numbers = engine.get_function_address("loop"), [np.dtype(d).num for d in (*operands, result)]
    known = max(numbers) < 256  # else there are dtypes that others have defined, for which a loop is added
    loops, data = (ctypes.c_void_p * 1)(address), (ctypes.c_void_p * 1)(None)
    kinds = (ctypes.c_ubyte * len(numbers))(*(numbers if known else ()))
    name, words = ctypes.create_string_buffer(b"chain"), ctypes.create_string_buffer(b"Several operations in one.")
    _kept.append((engine, machine, loops, data, kinds, name, words))
    make, add = _numpys()
    at, identity = ctypes.addressof, -1  # none
    made = make(at(loops), at(data), at(kinds), int(known), len(operands), 1, identity, at(name), at(words), 0)
    if not known:
        all_kinds = (ctypes.c_int * len(numbers))(*numbers)
        add(made, max(numbers), address, at(all_kinds), None)
    return made
