"""The result of reading several quota objects together: a tree, or the problems of each object."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from multisched.model.quota_tree import PROBLEMS_MAX, QuotaTree, TreeProblem

Problems = Mapping[str, tuple[TreeProblem, ...]]
"""Key of an object -> its problems."""


class ReadQuotas(msgspec.Struct, frozen=True):
    """A tree without problems, or problems without a tree."""

    tree: QuotaTree | None
    problems: Problems = {}


class ProblemsByObject:
    """Collects problems by object."""

    def __init__(self) -> None:
        self._found: dict[str, list[TreeProblem]] = {}
        self._count = 0

    def add(self, key: str, *problems: TreeProblem) -> None:
        for problem in problems:
            if self._count <= PROBLEMS_MAX:
                self._found.setdefault(key, []).append(problem)
                self._count += 1

    def report(self, key: str, path: str, text: str, fix: str) -> None:
        self.add(key, TreeProblem(path, text, fix))

    def __bool__(self) -> bool:
        return bool(self._found)

    def by_object(self) -> Problems:
        return {key: tuple(problems) for key, problems in self._found.items()}
