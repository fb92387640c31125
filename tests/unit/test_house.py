"""The house: how large its rooms may be, and which way its doors open. What is still too large is named, and may only shrink."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
FUNCTION_LINES_MAX: Final = 70
FILE_LINES_MAX: Final = 800
CLASS_LINES_MAX: Final = 350

STILL_TOO_LARGE: Final = frozenset({
    "multisched.shell.program.Program",
    "multisched.testing.bind_checker.BindChecker",
    "multisched.testing.scenario.Run",
    "multisched.testing.process_checker.ProcessChecker",
    "multisched.testing.world.World",
})  # fmt: skip
"""Classes: who makes one of them smaller than CLASS_LINES_MAX takes it out here."""


STILL_IN_A_CIRCLE: Final = (
    "multisched.testing.disruptions.",
    "multisched.testing.questions",
    "multisched.testing.scenario",
    "multisched.testing.setting",
    "multisched.testing.fault_schedule",
)
"""A run makes a storm of disruptions, and each of them is given the run."""


@cache
def modules() -> Mapping[str, ast.Module]:
    """Name -> parsed source, of the product."""
    found = {}
    for folder in ("multisched", "domains"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = ast.parse(path.read_text("utf-8"))
    return found


def lines(node: ast.stmt) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def named(kind: type[ast.ClassDef] | type[ast.FunctionDef] | type[ast.AsyncFunctionDef]) -> Iterator[tuple[str, int]]:
    for module, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, kind):
                yield f"{module}.{node.name}", lines(node)


def test_functions_fit_a_screen() -> None:
    sizes = (*named(ast.FunctionDef), *named(ast.AsyncFunctionDef))
    assert len(sizes) > 5_000
    assert {name: size for name, size in sizes if size > FUNCTION_LINES_MAX} == {}


def test_files_can_be_read_in_one_sitting() -> None:
    sizes = {
        path: len(path.read_text("utf-8").splitlines()) for path in ROOT.glob("*/**/*.py") if ".venv" not in str(path)
    }
    assert len(sizes) > 500
    assert {str(path): size for path, size in sizes.items() if size > FILE_LINES_MAX} == {}


def test_classes_are_small_but_for_those_that_are_named() -> None:
    assert {name for name, size in named(ast.ClassDef) if size > CLASS_LINES_MAX} == STILL_TOO_LARGE


def imported(tree: ast.Module, known: Mapping[str, ast.Module]) -> Iterator[str]:
    """Modules that are imported anywhere in this one: lazily and for types, too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for name in node.names:
                whole = f"{node.module}.{name.name}"
                yield whole if whole in known else node.module
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


def circles(known: Mapping[str, ast.Module]) -> set[frozenset[str]]:
    """Sets of modules of which each imports each other, by some way."""
    edges = {name: {other for other in imported(tree, known) if other in known} for name, tree in known.items()}

    def reached(start: str) -> set[str]:
        found: set[str] = set()
        waiting = [start]
        while waiting:
            for other in edges[waiting.pop()] - found:
                found.add(other)
                waiting.append(other)
        return found

    beyond = {name: reached(name) for name in edges}
    return {
        frozenset(other for other in beyond[name] if name in beyond[other]) for name in edges if name in beyond[name]
    }


def test_no_modules_import_each_other_but_the_simulation_and_its_disruptions() -> None:
    found = [one for one in circles(modules()) if len(one) > 1]
    assert {name for one in found for name in one if not name.startswith(STILL_IN_A_CIRCLE)} == set()
    assert len(found) == 1, "who breaks the last circle takes it out here"


def test_a_circle_would_be_seen() -> None:
    known = {
        "a": ast.parse("def f():\n    from b import g"),
        "b": ast.parse("if TYPE_CHECKING:\n    from a import f"),
        "c": ast.parse("import a"),
    }
    assert circles(known) == {frozenset("ab")}
