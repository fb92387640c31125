"""The sentences below the settings of a section, as its source has them: what `config default` and `config schema` show.

pydantic can read them while it makes the models. That would cost each start a twentieth of its CPU, and nobody but who prints
needs them.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Mapping
from functools import cache
from itertools import pairwise

from pydantic import BaseModel


@cache
def sentences_of(model: type[BaseModel]) -> Mapping[str, str]:
    """Field -> its sentence, those of the sections that this one extends among them."""
    found: dict[str, str] = {}
    for section in reversed(model.__mro__):
        if issubclass(section, BaseModel) and section is not BaseModel:
            found |= _written_in(section)
    return found


def _written_in(section: type[BaseModel]) -> Mapping[str, str]:
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
