"""Who writes a class: the folder `cycle/classes`, and nobody else."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import multisched
from multisched.cycle.classes.equivalence_class import EquivalenceClass

ROOT = Path(multisched.__file__).parent
OWNER = ROOT / "cycle" / "classes"
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


def holders(function: FunctionNode) -> set[str]:
    """Parameters that are a class."""
    arguments = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    found = {
        a.arg for a in arguments if a.annotation is not None and EquivalenceClass.__name__ in ast.unparse(a.annotation)
    }
    return found | {"pod_class"}


def root_of(target: ast.expr) -> str:
    """`a` of `a.b.c[d]`; empty for a plain name."""
    inner = target
    while isinstance(inner, ast.Attribute | ast.Subscript):
        inner = inner.value
    return inner.id if isinstance(inner, ast.Name) and inner is not target else ""


def writes(tree: ast.AST) -> Iterator[str]:
    for function in ast.walk(tree):
        if not isinstance(function, FunctionNode):
            continue
        known = holders(function)
        for node in ast.walk(function):
            targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else [getattr(node, "target", None)]
            for target in targets:
                for one in target.elts if isinstance(target, ast.Tuple) else [target]:
                    if isinstance(one, ast.expr) and root_of(one) in known:
                        yield f"{function.name}: {ast.unparse(one)}"


def test_classes_are_written_only_inside_the_folder() -> None:
    texts = {path: path.read_text("utf-8") for path in ROOT.rglob("*.py")}
    named = {path: text for path, text in texts.items() if EquivalenceClass.__name__ in text or "pod_class" in text}
    found = {path: list(writes(ast.parse(text))) for path, text in named.items()}
    assert any(written for path, written in found.items() if path.is_relative_to(OWNER))
    assert {str(p): w for p, w in found.items() if w and not p.is_relative_to(OWNER)} == {}
