"""Functions written as text: straight-line code that runs prepared steps.

A list of steps run by a loop pays for looking each one up; the same steps as statements of one Python function do not.
Values that the text mentions (steps, constants) are its globals.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from types import CodeType
from typing import Any

_LONG = 2000  # characters of a text that is not kept
_FOLDER = os.path.dirname(__file__)  # in tracebacks such functions are the package's, not the user's


class Source:
    """The text of one function, line by line."""

    def __init__(self, name: str, parameters: Sequence[str]):
        self.name = name
        self.lines = [f"def {name}({', '.join(parameters)}):"]
        self.values: dict[str, Any] = {}
        self._known: dict[int, str] = {}
        self._indent = 1

    def value(self, x: Any) -> str:
        """The name under which the text mentions an object; one object has one name."""
        found = self._known.get(id(x))
        if found is None:
            found = self._known[id(x)] = f"k{len(self.values)}"
            self.values[found] = x
        return found

    def parameter(self, text: str) -> None:
        """One more parameter, after the others."""
        self.lines[0] = f"{self.lines[0].removesuffix('):')}{'' if self.lines[0].endswith('():') else ', '}{text}):"

    def line(self, text: str) -> None:
        self.lines.append("    " * self._indent + text)

    def indent(self, by: int = 1) -> None:
        self._indent += by

    def function(self) -> Callable[..., Any]:
        """The function."""
        if len(self.lines) == 1:
            self.line("pass")
        scope = {"__name__": __name__, **self.values}
        text = "\n".join(self.lines)
        exec((_short if len(text) < _LONG else compiled)(text, self.name), scope)
        return scope[self.name]


def compiled(text: str, name: str) -> CodeType:
    """Code whose frames count as the package's."""
    return compile(text, os.path.join(_FOLDER, f"<{name}>"), "exec")


_short = lru_cache(maxsize=4096)(compiled)  # eager operations have few texts
