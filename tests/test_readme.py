"""What the README shows is true: its snippets run, print what it says, and its table's two columns do the same.

The `python` blocks are one script, in order, in one job on 8 ranks. A comment behind a `print` is what it prints: up to
a semicolon, or up to three dots when only the beginning is given. A `text` block is what the last `print` before it
prints. In the tables from mpi4py to mpiarray both sides of each row run, and must give every rank the same.
"""

from __future__ import annotations

import inspect
import json
import re
import tokenize
from dataclasses import dataclass
from io import StringIO

import pytest

from mpiarray.config import Config
from mpiarray.tools import environment
from tests.failures.jobs import ROOT, Outcome, run_job

RANKS = 8
LIMIT = 100.0  # seconds for a job: eight ranks may have to share a core
README = ROOT / "README.md"
TEXT = README.read_text()

pytestmark = [
    pytest.mark.jobs,
    pytest.mark.limit(LIMIT + 40),
    pytest.mark.skipif(not environment.find_all(), reason="no MPI here"),
]

# Arguments: the README's path and [[first line, text of the block], ...]. Prints [line, what a print there says] as JSON.
SNIPPETS = """
import ast, builtins, io, json, sys

def record(*args, **kwargs):
    text = io.StringIO()
    builtins.print(*args, file=text, **kwargs)
    builtins.print(json.dumps([sys._getframe(1).f_lineno, text.getvalue().rstrip('\\n')]), flush=True)

namespace = {'__name__': '__main__', 'print': record}
for line, text in json.loads(sys.argv[2]):
    tree = ast.increment_lineno(ast.parse(text), line - 1)
    exec(compile(tree, sys.argv[1], 'exec'), namespace)
"""

# Argument: [[left, right, whether inside shard_map], ...]. Prints [row, left's result, right's result] as JSON.
TABLES = """
import json, sys
import numpy as np
from mpi4py import MPI
import mpiarray as jax
from mpiarray.experimental import multihost_utils as mh
from mpiarray.sharding import PartitionSpec as P

comm = MPI.COMM_WORLD.Dup()
rank, size = comm.rank, comm.size
whole = np.random.default_rng(7).integers(0, 1000, (size * size, 2 * size)).astype(np.float32)
block = whole[rank * size:(rank + 1) * size]
meshes = {axes: jax.make_mesh(shape, axes) for shape, axes in (((8,), ('i',)), ((4, 2), ('x', 'y')))}

def inside(right):
    axes = ('x', 'y') if '"y"' in right else ('i',)
    with jax.set_mesh(meshes[axes]):
        placed, found = jax.device_put(whole, P(axes)), {}

        def body(x):
            found['plain'] = eval(right, globals() | {'x': x})
            return jax.numpy.asarray(found['plain'])[None]

        result = jax.shard_map(body, out_specs=P(axes))(placed)
        assert isinstance(found['plain'], int) or isinstance(found['plain'], jax.Array)
        return np.asarray(result.addressable_shards[0].data)[0]

def outside(right):
    with jax.set_mesh(meshes['i',]):
        result = eval(right, globals() | {'a': jax.device_put(whole, P('i'))})
        return np.asarray(result.addressable_shards[0].data if isinstance(result, jax.Array) else result)

for row, (left, right, manual) in enumerate(json.loads(sys.argv[1])):
    theirs = (inside if manual else outside)(right)
    if theirs.dtype == object:
        theirs = None
    x = block.copy()
    out = None if theirs is None else np.full(theirs.shape, -1, theirs.dtype)
    value = eval(left, globals() | {'x': x, 'out': out})
    if 'out' in left:
        ours = out
    else:
        ours = x if 'Bcast' in left else value
    print(json.dumps([row, np.asarray(ours).tolist(), None if theirs is None else theirs.tolist()]), flush=True)
"""


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the number of its first line in the README, its text."""

    language: str
    line: int
    text: str


def blocks() -> list[Block]:
    """All fenced blocks, in order."""
    found = re.finditer(r"^```(\w+)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    return [Block(m[1], TEXT.count("\n", 0, m.start(2)) + 1, m[2]) for m in found]


def claims() -> tuple[dict[int, str], list[int]]:
    """(line of each `print` -> what the README says it prints, lines of prints of which it says nothing)."""
    said: dict[int, str] = {}
    silent: list[int] = []
    for block in blocks():
        if block.language == "text":
            said[silent.pop()] = block.text.rstrip("\n")
        elif block.language == "python":
            tokens = list(tokenize.generate_tokens(StringIO(block.text).readline))
            comments = {t.start[0]: t.string[1:].strip() for t in tokens if t.type == tokenize.COMMENT}
            for token in tokens:
                if (
                    token.type == tokenize.NAME
                    and token.string == "print"
                    and not token.line[: token.start[1]].endswith(".")
                ):
                    number = token.start[0]
                    if number in comments:
                        said[block.line + number - 1] = comments[number].split("; ")[0]
                    else:
                        silent.append(block.line + number - 1)
    return said, silent


def rows() -> list[tuple[str, str, bool]]:
    """Rows of the two tables: (mpi4py's code, ours, whether it is for the inside of a shard_map)."""
    section = TEXT.split("## From mpi4py to mpiarray\n")[1].split("\n## ")[0]
    tables = section.split("| mpi4py | mpiarray |\n|---|---|\n")[1:]
    assert len(tables) == 2
    found = []
    for number, table in enumerate(tables):
        for line in table.split("\n\n")[0].splitlines():
            match = re.fullmatch(r"\| `([^`]+)` \| `([^`]+)`( \([^)]+\))? \|", line)
            assert match, f"not a row of two pieces of code: {line}"
            found.append((match[1], match[2], number == 0))
    return found


def finished(done: Outcome) -> list[list[list]]:
    """What each rank has printed as JSON lines; the job must have ended well."""
    assert not done.timed_out and done.status == 0, str(done)
    return [[json.loads(line) for line in text.splitlines() if line.startswith("[")] for text in done.stdout]


def test_every_print_says_what_it_prints():
    said, silent = claims()
    assert len(said) > 15 and not silent, f"no claim for the prints in lines {silent}"


def test_snippets_run_and_print_what_they_say():
    python = [[block.line, block.text] for block in blocks() if block.language == "python"]
    said, _ = claims()
    printed = finished(run_job(SNIPPETS, RANKS, str(README), json.dumps(python), limit=LIMIT))
    assert {line for line, _ in printed[0]} == set(said), "prints that never ran, or that nothing is said about"
    different = {
        f"README.md:{line}: says {said[line]!r}, rank {rank} prints {text!r}"
        for rank, lines in enumerate(printed)
        for line, text in lines
        if not agrees(said[line], text)
    }
    assert not different, "\n".join(sorted(different))


def agrees(claim: str, text: str) -> bool:
    """Whether what was printed is what was said."""
    return text.startswith(claim.removesuffix("...").rstrip()) if claim.endswith("...") else text == claim


def test_both_columns_of_the_table_do_the_same():
    table = rows()
    printed = finished(run_job(TABLES, RANKS, json.dumps(table), limit=LIMIT))
    assert all([row for row, _, _ in lines] == list(range(len(table))) for lines in printed)
    for rank, lines in enumerate(printed):
        for row, left, right in lines:
            assert flat(left) == flat(right), (
                f"rank {rank}: {table[row][0]} gives {left}, {table[row][1]} gives {right}"
            )
    results = [str([lines[row][2] for lines in printed]) for row in range(len(table))]
    assert len(set(results)) > len(table) / 2  # the data tell the rows apart


def flat(value: object) -> list:
    """Elements in order: MPI's buffers have no shape of their own."""
    return [element for part in value for element in flat(part)] if isinstance(value, list) else [value]


def test_the_layout_names_what_there_is():
    layout = TEXT.split("## Layout\n")[1].split("\n## ")[0]
    for name in re.findall(r"^    ([\w./]+)", layout, re.MULTILINE):
        assert (ROOT / name).exists(), name
    examples = {path.name for path in (ROOT / "examples").glob("*.py")}
    assert set(re.findall(r"^      (\w+\.py)  ", layout, re.MULTILINE)) == examples
    folders = set(re.findall(r"(\w+)/", layout))
    packages = {path.parent.name for path in (ROOT / "mpiarray").glob("*/__init__.py")}
    assert packages <= folders, packages - folders


def test_every_variable_is_explained():
    variables = set(re.findall(r"\b(MPIARRAY_[A-Z_]+)", inspect.getmodule(Config).__doc__)) - {"MPIARRAY_"}
    assert len(variables) > 4
    assert variables <= set(re.findall(r"^\| `(\w+)` \|", TEXT, re.MULTILINE))
