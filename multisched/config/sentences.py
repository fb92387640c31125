"""Descriptions of settings for `config default` and `config schema`: the docstrings below fields, read from the source.

Only printing needs them, so that no other command reads the source.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Mapping
from functools import cache
from itertools import pairwise

from multisched.config.sections import Section


@cache
def sentences_of(model: type[Section]) -> Mapping[str, str]:
    """Returns field -> its description, including fields of base sections."""
    found: dict[str, str] = {}
    for section in reversed(model.__mro__):
        if issubclass(section, Section) and section is not Section:
            found |= _written_in(section)
    return found


def _written_in(section: type[Section]) -> Mapping[str, str]:
    tree = _source_of(section.__module__)
    (source,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == section.__name__)
    return {
        field.target.id: inspect.cleandoc(below.value.value)
        for field, below in pairwise(source.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
        and isinstance(below.value.value, str)
    }


@cache
def _source_of(module: str) -> ast.Module:
    return ast.parse(inspect.getsource(sys.modules[module]))
