"""`equivalents.yaml` names functions and lines of the program as it is."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache

from tests.mutation.mutants import ROOT
from tests.mutation.run import named_equivalents


def test_every_named_mutant_changes_lines_that_are_there() -> None:
    listed = named_equivalents()

    stale = [f"{function}: {was}" for function, was, _ in listed if was not in lines_of(function)]

    assert listed
    assert not stale, "the code has changed: rename the entry, or delete it"


def lines_of(function: str) -> str:
    """Joined as `Mutant.changed` joins them; empty for a function that is not there."""
    module, name = function.split(":")
    return functions_of(module).get(name, "")


@cache
def functions_of(module: str) -> Mapping[str, str]:
    """`Class.method` -> its lines; empty for a module that is not there."""
    path = ROOT / module.replace(".", "/")
    file = next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)
    if file is None:
        return {}
    text = file.read_text()
    lines = [line.strip() for line in text.splitlines()]
    return {name: " ".join(lines[first - 1 : last]) for name, first, last in _spans(ast.parse(text))}


def _spans(tree: ast.Module) -> Iterator[tuple[str, int, int]]:
    """(name, first line, last line) of functions of a module and methods of its classes."""
    for node in tree.body:
        owner, body = (f"{node.name}.", node.body) if isinstance(node, ast.ClassDef) else ("", [node])
        for inner in body:
            if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{owner}{inner.name}", inner.lineno, inner.end_lineno or inner.lineno
