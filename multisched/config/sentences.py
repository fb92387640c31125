"""Descriptions of settings for `config default` and `config schema`: the docstrings below fields, read from the source.

pydantic could collect them when it builds the models. That would add 5 percent of CPU time to each start, although only
printing needs them.
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
    """Returns field -> its description, including fields of base sections."""
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
