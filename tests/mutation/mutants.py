"""Mutants of the program: mutmut's operators say what may change, and one change at a time goes into a running process.

Owns no state. A mutant differs from the program in one function (mutmut leaves decorated ones alone). It is put in by giving
that function the code compiled from the changed file, so that a process which has imported everything need not begin anew.
"""

from __future__ import annotations

import ast
import difflib
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final

import libcst as cst
from mutmut.configuration import config
from mutmut.mutation.file_mutation import Mutation, create_mutations, deep_replace

ROOT: Final = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Mutant:
    """One change in one function."""

    name: str
    file: str
    """Relative to the root."""
    function: str
    """`multisched.state.change_log:ChangeLog.note`."""
    source: str
    """The changed file."""
    difference: str
    lines: range
    """The lines of the statement that changed: who executes none of them cannot tell."""
    coroutine: range
    """Of the coroutine that it is in: CPython 3.11 traces no lines of one that an exception was thrown into, as a timeout is."""

    def put_in(self) -> None:
        """Changes this process, for good."""
        function = _live(*self.function.split(":"))
        compiled = compile(self.source, function.__code__.co_filename, "exec", dont_inherit=True)
        function.__code__ = _code_of(compiled, function.__code__)
        arguments = _arguments(ast.parse(self.source), function.__code__)
        space: dict[str, Any] = function.__globals__
        if function.__defaults__:
            function.__defaults__ = tuple(_value(default, space) for default in arguments.defaults)
        if function.__kwdefaults__:
            named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
            function.__kwdefaults__ = {one.arg: _value(default, space) for one, default in named if default is not None}


class Place:
    """A mutant that could be made. Keeps the whole tree of its file: to be let go of before any fork."""

    def __init__(self, file: Path, function: str, number: int, parsed: cst.Module, mutation: Mutation) -> None:
        self._file = str(file)
        self._function = f"{'.'.join(file.with_suffix('').parts).removesuffix('.__init__')}:{function}"
        self.name = f"{self._function}:{number}"
        self._parsed = parsed
        self._mutation = mutation

    def mutant(self) -> Mutant:
        changed = deep_replace(self._parsed, self._mutation.original_node, self._mutation.mutated_node)
        assert isinstance(changed, cst.Module)
        code, source = self._parsed.code, changed.code
        before, after = code.splitlines(), source.splitlines()
        difference = "\n".join(difflib.unified_diff(before, after, self._file, self._file, lineterm="", n=2))
        same = next((at for at, (old, new) in enumerate(zip(before, after, strict=False)) if old != new), len(after))
        tree = ast.parse(code)
        lines, coroutine = _statement_at(tree, same + 1), _coroutine_at(tree, same + 1)
        return Mutant(self.name, self._file, self._function, source, difference, lines, coroutine)


def places_of(file: Path) -> Iterator[Place]:
    """All of one file, relative to the root."""
    parsed, mutations, _, _ = create_mutations(str(file), (ROOT / file).read_text())
    names = _function_names(parsed)
    numbers: dict[str, int] = {}
    for mutation in mutations:
        name = names.get(id(mutation.contained_by_top_level_function))
        if name is not None:
            numbers[name] = numbers.get(name, 0) + 1
            yield Place(file, name, numbers[name], parsed, mutation)


def all_places() -> Iterator[Place]:
    """Those of every file that `pyproject.toml` names (`tool.mutmut`); the process stands in the root."""
    for folder in config().source_paths:
        for file in sorted(folder.rglob("*.py")):
            if config().should_mutate(file):
                yield from places_of(file)


def _function_names(parsed: cst.Module) -> dict[int, str]:
    """Identity of a function's node -> its name. Only functions of a module and methods of its classes."""
    names: dict[int, str] = {}
    for statement in parsed.body:
        if isinstance(statement, cst.FunctionDef):
            names[id(statement)] = statement.name.value
        elif isinstance(statement, cst.ClassDef):
            for inner in statement.body.body:
                if isinstance(inner, cst.FunctionDef):
                    names[id(inner)] = f"{statement.name.value}.{inner.name.value}"
    return names


def _statement_at(tree: ast.Module, line: int) -> range:
    """The innermost statement there; of a compound one its head; of a function's head all of it, which runs on import."""
    found: ast.stmt | None = None
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or line):
            found = node  # breadth first: what comes later is further in
    assert found is not None
    body = getattr(found, "body", None) or getattr(found, "cases", None)
    if not body or isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef):
        return range(found.lineno, (found.end_lineno or line) + 1)
    first = body[0].pattern if isinstance(body[0], ast.match_case) else body[0]
    if line < first.lineno or isinstance(found, ast.Match):
        return range(found.lineno, max(first.lineno, found.lineno + 1))
    return range(line, line + 1)


def _coroutine_at(tree: ast.Module, line: int) -> range:
    """The outermost coroutine there; empty if there is none."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AsyncFunctionDef) and node.lineno <= line <= (node.end_lineno or line):
            return range(node.lineno, (node.end_lineno or line) + 1)
    return range(0)


def _live(module: str, function: str) -> FunctionType:
    found: Any = importlib.import_module(module)
    for name in function.split("."):
        found = vars(found)[name]
    found = getattr(found, "__func__", found)  # of a class method
    if not isinstance(found, FunctionType):
        raise TypeError(f"{module}.{function} is no plain function")
    return found


def _code_of(compiled: CodeType, wanted: CodeType) -> CodeType:
    for constant in compiled.co_consts:
        if isinstance(constant, CodeType):
            if (constant.co_qualname, constant.co_firstlineno) == (wanted.co_qualname, wanted.co_firstlineno):
                return constant
            if wanted.co_qualname.startswith(f"{constant.co_qualname}."):
                return _code_of(constant, wanted)
    raise LookupError(f"{wanted.co_qualname} is not in its file's code")


def _arguments(tree: ast.Module, code: CodeType) -> ast.arguments:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first == code.co_firstlineno:
                return node.args
    raise LookupError(f"{code.co_qualname} is not in its file")


def _value(default: ast.expr, space: dict[str, Any]) -> Any:
    return eval(compile(ast.Expression(default), "<default>", "eval"), space)
