"""Names in backticks, in docstrings and comments: whatever can only be one of ours must be there."""

from __future__ import annotations

import ast
import builtins
import inspect
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PRODUCT: Final = ("multisched", "domains")
QUOTED: Final = re.compile(r"`([^`\n]+)`")
DOTTED: Final = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
CLASS: Final = re.compile(r"_?[A-Z][a-z0-9]+(?:[A-Z][A-Za-z0-9]*)+")
"""A word of two humps or more; one hump may be any word."""
FILE: Final = re.compile(r"[\w./-]+\.py")
FOREIGN: Final = frozenset({"ClusterIP", "OutOfcpu", "PartialObjectMetadata", "PartialObjectMetadataList"})
"""Kubernetes' words that no code of ours has."""
GROUPS: Final = frozenset({"multisched.commands"})
"""Groups of entry points."""
VARIABLES: Final = frozenset({"cycle", "state", "history"})
"""Folders that share their name with arguments: `cycle.state` is an attribute of one."""


class Names:
    """What the code defines, by module and by class."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        """Module -> source."""
        self.of_modules: dict[str, set[str]] = {}
        self.of_classes: dict[str, set[str]] = defaultdict(set)
        self.bases: dict[str, set[str]] = defaultdict(set)
        self.known = {*FOREIGN, *vars(builtins)}
        for module, source in sources.items():
            nodes = list(ast.walk(ast.parse(source)))
            self.of_modules[module] = {name for node in nodes for name in bound(node)}
            self.known |= self.of_modules[module]
            for node in nodes:
                if isinstance(node, ast.ClassDef):
                    self.of_classes[node.name] |= {name for part in ast.walk(node) for name in bound(part)}
                    self.bases[node.name] |= {ast.unparse(base).partition("[")[0] for base in node.bases}
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    self.known.add(node.value)  # a kind, a reason, a plugin
        self._folders = {part for module in self.of_modules for part in module.split(".")[:-1]} - VARIABLES

    def is_missing(self, name: str) -> bool:
        """True for a name that can only be one of ours, and is not there."""
        if CLASS.fullmatch(name):
            return name not in self.known
        if not DOTTED.fullmatch(name) or name in GROUPS:
            return False
        first, *rest = name.split(".")
        if first in self.of_classes:
            return not self._has(first, rest[0])
        is_of_a_folder = first in self._folders
        is_a_class_of_ours = len(rest) == 1 and rest[0] in self.of_classes
        return (is_of_a_folder or is_a_class_of_ours) and not self._is_there(name)

    def _is_there(self, name: str) -> bool:
        """A module by the end of its path, or what one defines, or an attribute of that."""
        parts = name.split(".")
        for count in range(1, len(parts) + 1):
            path, inside = ".".join(parts[:count]), parts[count:]
            for module in self.of_modules:
                if module != path and not module.endswith(f".{path}"):
                    continue
                if not inside or inside[0] in self.of_modules[module]:
                    return len(inside) < 2 or inside[0] not in self.of_classes or self._has(inside[0], inside[1])
        return False

    def _has(self, owner: str, name: str) -> bool:
        """True also where a base is nobody's of ours: what that has is not known here."""
        if name in self.of_classes[owner]:
            return True
        bases = self.bases[owner] - {"Protocol", "Generic"}
        return any(base not in self.of_classes or self._has(base, name) for base in bases)


def bound(node: ast.AST) -> Iterator[str]:
    """The names that a node gives to something, attributes of `self` among them."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield node.attr
    elif isinstance(node, ast.alias):
        yield (node.asname or node.name).partition(".")[0]


def prose(source: str) -> Iterator[str]:
    """Docstrings, of names too, and comments."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


@cache
def sources() -> Mapping[Path, str]:
    paths = [path for folder in (*PRODUCT, "tests") for path in sorted((ROOT / folder).rglob("*.py"))]
    return {path: path.read_text("utf-8") for path in paths}


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def wrong(source: str, names: Names, folder: Path) -> list[str]:
    """Names in backticks of a source in `folder` that lead nowhere."""
    quoted = [one.removesuffix("()") for text in prose(source) for one in QUOTED.findall(text)]
    roots = (folder, *folder.parents, ROOT / "multisched", ROOT / "tests")
    return [
        one
        for one in quoted
        if (not any((root / one).exists() for root in roots) if FILE.fullmatch(one) else names.is_missing(one))
    ]


def test_every_name_in_a_docstring_or_comment_is_there() -> None:
    names = Names({module_of(path): source for path, source in sources().items()})
    of_product = {path: source for path, source in sources().items() if path.relative_to(ROOT).parts[0] in PRODUCT}
    assert len(of_product) > 700
    found = {str(path.relative_to(ROOT)): wrong(source, names, path.parent) for path, source in of_product.items()}
    assert {path: one for path, one in found.items() if one} == {}


def test_a_name_that_is_gone_would_be_seen() -> None:
    code = {
        "multisched.shell.domain": "class DomainWorker(Worker):\n    place = 1\n    def run(self):\n        self.queue = 2",
        "multisched.shell.workers": "class Worker(Protocol):\n    name: str\nclass Mine(Thread):\n    pass\nLIMIT = 1",
    }
    source = '''
        """`DomainWorker`, `DomainWorkers`; `DomainWorker.run()` `.name` `DomainWorker.queue` `DomainWorker.gone`."""
        a = 1  # `shell.workers.LIMIT`, `workers.Mine`, `Mine.start`: of Thread. `shell.gone` `shell.workers.GONE`
        b = 2
        """`domain.DomainWorker` `plugin.DomainWorker` `core.v1.DomainWorker` `random.Random` `cycle.state` `web.run`
        `test_docstrings.py` `unit/test_house.py` `gone.py` `ValueError` `spec.nodeName` `ClusterIP` `DomainWorker.name`"""
    '''
    assert sorted(wrong(inspect.cleandoc(source), Names(code), Path(__file__).parent)) == [
        "DomainWorker.gone",
        "DomainWorkers",
        "gone.py",
        "plugin.DomainWorker",
        "shell.gone",
        "shell.workers.GONE",
    ]
