"""The house: how large its rooms may be, and which way its doors open."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
FUNCTION_LINES_MAX: Final = 70
FILE_LINES_MAX: Final = 800
CLASS_LINES_MAX: Final = 350
APART: Final = {
    "deploy": "manifests of `deploy/`, which no package holds",
    "examples": "plugins and configurations of `tests/examples/`, written as users write theirs",
}
"""Folders of unit tests that mirror no folder of the product -> why."""
LAZY_IMPORTS: Final = {
    "multisched.app": (1, "most programs review no quotas"),
    "multisched.cli.query_commands": (3, "every command is parsed at each start, and one is run"),
    "multisched.cli.commands": (29, "every command is parsed at each start, and one is run"),
    "multisched.cli.loans_command": (5, "every command is parsed at each start, and one is run"),
    "multisched.cli.cluster_options": (7, "every command is parsed at each start, and one is run"),
    "multisched.cli.driving": (7, "every command is parsed at each start, and one is run"),
    "multisched.plugins.gang.gang_scheduling": (1, "a view that nobody asks for is not loaded"),
    "multisched.plugins.quota.elastic_quota": (1, "a view that nobody asks for is not loaded"),
    "multisched.plugins": (1, "most programs share no quotas with other processes"),
    "multisched.plugins.args_readers": (
        2,
        "most programs have no limited loans, and share no quotas with other processes",
    ),
    "multisched.plugins.loans.loans": (5, "most programs have no limited loans"),
    "multisched.plugins.loans.parts": (1, "most programs have no loans between processes"),
    "multisched.cli.dump": (2, "who asks a server needs no sandbox"),
    "multisched.cli.explain": (2, "who asks a server needs no sandbox"),
    "multisched.cli.main": (3, "a start imports either typer or what run needs"),
    "multisched.cli.options": (2, "a command without configuration needs no YAML"),
    "multisched.cli.quota_commands": (10, "every command is parsed at each start, and one is run"),
    "multisched.cli.repair": (2, "who asks a server needs no sandbox"),
    "multisched.cli.server": (3, "most commands send no token of a kubeconfig"),
    "multisched.cli.views": (3, "who asks a server needs no sandbox"),
    "multisched.cluster.access.tokens": (1, "a cluster in process signs no token"),
    "multisched.cluster.api.verbs": (1, "bodies are JSON but for those of people"),
    "multisched.observe.certificates": (3, "a server without TLS needs no cryptography"),
    "multisched.observe.logging": (1, "a program that logs JSON needs no rich"),
    "multisched.observe.tables": (1, "most answers are tables"),
    "domains.gpu.tide.demand": (2, "only a tide with history learns"),
    "multisched.shell.audit.audited_kinds": (2, "the judge comes with the first audit"),
    "multisched.shell.page.overview": (1, "most programs have no page open"),
    "multisched.shell.program": (2, "most programs have no judge beside them"),
    "multisched.shell.workers.background_threads": (1, "most programs are never asked"),
    "multisched.shell.workers.plugin_process": (1, "a plugin of a cluster's own needs none of ours"),
    "multisched.whatif.explain_source": (8, "most programs are never asked"),
    "multisched.whatif.repair_source": (3, "most programs are never asked"),
    "domains.forecast.commands.answers": (11, "each command needs its own few"),
    "domains.forecast.commands.app": (7, "every command is parsed at each start, and one is run"),
    "domains.gpu.commands.answers": (1, "every command is parsed at each start, and one is run"),
    "domains.gpu.commands.app": (2, "every command is parsed at each start, and one is run"),
    "domains.gpu.gpu_share": (2, "most programs are never asked about their cards"),
    "domains.gpu.tide.gpu_tide": (3, "a view that nobody asks for is not loaded"),
    "domains.job.commands.app": (1, "every command is parsed at each start, and one is run"),
    "domains.job.deadlines.deadline_sort": (2, "a view that nobody asks for is not loaded"),
    "domains.job.providers.serverless_units": (2, "a view that nobody asks for is not loaded"),
    "domains.forecast.forecast": (9, "the start of a program waits for no views, repairs and learning"),
    "domains.forecast.learning.from_files": (4, "a forecast without files reads none"),
    "domains.forecast.settings.args": (4, "most forecasts neither learn nor repair"),
}
"""Modules that import something in their functions -> how often, and why that is not at the top."""


class Module(NamedTuple):
    """What the tests below need of a parsed file. Kept trees would make each garbage collection of the worker slow."""

    functions: tuple[tuple[str, int], ...]
    classes: tuple[tuple[str, int], ...]
    imported: tuple[tuple[str, str], ...]
    """Module and name, in functions and for types, too; the name is empty for `import module`."""
    lazy_imports: int
    """Import statements in functions."""


@cache
def modules() -> Mapping[str, Module]:
    """Name -> file, of the product."""
    found = {}
    for folder in ("multisched", "domains"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = read(path.read_text("utf-8"))
    return found


def read(source: str) -> Module:
    nodes = list(statements(ast.parse(source)))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    lazy = {one for node in functions for one in statements(node) if isinstance(one, ast.Import | ast.ImportFrom)}
    return Module(
        tuple((node.name, lines(node)) for node in functions),
        tuple((node.name, lines(node)) for node in nodes if isinstance(node, ast.ClassDef)),
        tuple(one for node in nodes for one in imports(node)),
        len(lazy),
    )


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """The node and all statements in it. Their expressions, which are most of a tree, hold none."""
    yield node
    for name in ("body", "orelse", "handlers", "finalbody", "cases"):
        for one in getattr(node, name, ()):
            yield from statements(one)


def lines(node: ast.stmt) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def imports(node: ast.AST) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.ImportFrom) and node.module:
        yield from ((node.module, one.name) for one in node.names)
    elif isinstance(node, ast.Import):
        yield from ((one.name, "") for one in node.names)


def test_length_of_functions_is_limited() -> None:
    sizes = [(f"{name}.{one}", size) for name, module in modules().items() for one, size in module.functions]
    assert len(sizes) > 5_000
    assert {name: size for name, size in sizes if size > FUNCTION_LINES_MAX} == {}


def test_length_of_files_is_limited() -> None:
    sizes = {
        path: len(path.read_text("utf-8").splitlines()) for path in ROOT.glob("*/**/*.py") if ".venv" not in str(path)
    }
    assert len(sizes) > 500
    assert {str(path): size for path, size in sizes.items() if size > FILE_LINES_MAX} == {}


def test_length_of_classes_is_limited() -> None:
    sizes = [(f"{name}.{one}", size) for name, module in modules().items() for one, size in module.classes]
    assert len(sizes) > 1_000
    assert {name: size for name, size in sizes if size > CLASS_LINES_MAX} == {}


def test_late_imports_are_listed_with_a_reason() -> None:
    found = {name: module.lazy_imports for name, module in modules().items()}
    assert {name: count for name, count in found.items() if count} == {
        name: count for name, (count, _) in LAZY_IMPORTS.items()
    }


def test_import_in_a_function_is_detected() -> None:
    source = """
        import a
        if TYPE_CHECKING:
            from b import c
        class C:
            import d
            async def f(self):
                def g():
                    import e, f
                from g import h
    """
    assert read(inspect.cleandoc(source)).lazy_imports == 2


def circles(known: Mapping[str, Module]) -> set[frozenset[str]]:
    """Sets of modules of which each imports each other, by some way."""
    edges = {
        name: {whole if (whole := f"{other}.{one}") in known else other for other, one in module.imported}
        & known.keys()
        for name, module in known.items()
    }

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


def test_no_modules_import_each_other() -> None:
    assert [sorted(one) for one in circles(modules()) if len(one) > 1] == []


def test_import_cycle_is_detected() -> None:
    known = {
        "a": read("def f():\n    from b import g"),
        "b": read("if TYPE_CHECKING:\n    from a import f"),
        "c": read("import a"),
    }
    assert circles(known) == {frozenset("ab")}


def strays(tests: Path, product: Path) -> list[str]:
    """Returns folders of `tests` that have Python files, and no package of that path in the product or the test kit."""
    packages = set()
    for start, root in (("multisched", product / "multisched"), ("domains", product), ("tests/kit", product / "tests")):
        packages |= {path.parent.relative_to(root) for path in (product / start).rglob("__init__.py")}
    folders = {path.parent.relative_to(tests) for path in tests.rglob("*.py")}
    return sorted(str(folder) for folder in folders - packages)


def test_folders_of_unit_tests_mirror_those_of_the_product() -> None:
    assert strays(ROOT / "tests" / "unit", ROOT) == list(APART)


def test_folder_that_mirrors_nothing_is_detected(tmp_path: Path) -> None:
    product = ("multisched", "multisched/shell", "domains/gpu", "docs")
    of_tests = ("", "shell", "domains/gpu", "docs", "gpu", "shell/audit")
    for file in (*(f"{one}/__init__.py" for one in product), *(f"tests/{one}/test_it.py" for one in of_tests)):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    assert strays(tmp_path / "tests", tmp_path) == ["docs", "gpu", "shell/audit"]
