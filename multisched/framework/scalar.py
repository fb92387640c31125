"""ScalarPlugin: wraps a plugin that evaluates one node at a time, so that the framework can ask it about many rows.

    class OnlyBlue:
        name = "OnlyBlue"

        def filter(self, pod: Pod, node: Node) -> bool:
            return node.labels.get("colour") == "blue"

        def sign(self, pod: Pod) -> Hashable:
            return ()          # it reads nothing of a pod except namespace and priority

    def make_only_blue() -> Plugin:
        return ScalarPlugin(OnlyBlue())

It costs one Python call per row (about 0.2 us plus the plugin's own work); results are cached per class as for any plugin.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from multisched.framework.dependency import Dependency, why_wrong_dependency
from multisched.framework.node_view import Codes, Rows, Scores
from multisched.framework.points import CycleView
from multisched.framework.reasons import ReasonTable
from multisched.framework.status import Code, Status
from multisched.model.objects import Node, Pod

PASSED_ON = (
    "pre_enqueue",
    "sort_key",
    "pre_filter",
    "post_filter",
    "pre_score",
    "normalize_score",
    "reserve",
    "unreserve",
    "permit",
    "pre_bind",
    "pre_bind_pre_flight",
    "bind",
    "post_bind",
    "events_to_register",
    "sign",
    "traits",
)
"""Attributes that are copied from the wrapped object; it must implement them in the framework's own form."""


class ScalarPlugin:
    """Wraps an object with `name` and any of `filter(pod, node)`, `score(pod, node)` and the points in PASSED_ON.

    `filter` returns a Status, True or False, or the reason for refusing ("" passes). A refusal without a Status is
    Unschedulable. `score` returns an int, 0..100 unless the object normalizes. Both must depend only on the pod and the
    node object; an object that reads more declares its own `depends_on`. Without `sign` each pod is its own class:
    correct, but never cached.
    """

    def __init__(self, wrapped: Any) -> None:
        name = getattr(wrapped, "name", None)
        if not isinstance(name, str) or not name:
            raise TypeError(f"{type(wrapped).__name__}: has no name; give the plugin a `name`")
        if why := why_wrong_dependency(wrapped):
            raise TypeError(why)
        self.name = name
        self.depends_on: Dependency = getattr(wrapped, "depends_on", Dependency.NODE)
        self.reasons = ReasonTable(name)
        self._filter_one: Callable[[Pod, Node], Status | bool | str] | None = getattr(wrapped, "filter", None)
        self._score_one: Callable[[Pod, Node], int] | None = getattr(wrapped, "score", None)
        # The framework detects extension points by attributes, so only points that the object implements are set.
        if self._filter_one is not None:
            self.filter = self._filter
        if self._score_one is not None:
            self.score = self._score
        for point in PASSED_ON:
            if hasattr(wrapped, point):
                setattr(self, point, getattr(wrapped, point))

    def _filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        """Returns uint8[rows]: the object's answer for each row's node."""
        assert self._filter_one is not None
        nodes, one = cycle.nodes, self._filter_one
        codes = (_asked(lambda node: self._code(one(pod, node)), nodes.node(row)) for row in rows.tolist())
        return np.fromiter(codes, np.uint8, len(rows))

    def _score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        """Returns int64[rows]: the object's answer for each row's node."""
        assert self._score_one is not None
        nodes, one = cycle.nodes, self._score_one
        scores = (_asked(lambda node: _whole(one(pod, node)), nodes.node(row)) for row in rows.tolist())
        return np.fromiter(scores, np.int64, len(rows))

    def _code(self, answer: Status | bool | str) -> int:
        if answer is True or answer == "":
            return 0
        if answer is False:
            return self.reasons.code(Code.UNSCHEDULABLE, f"node(s) didn't pass {self.name}")
        if isinstance(answer, str):
            return self.reasons.code(Code.UNSCHEDULABLE, answer)
        if not isinstance(answer, Status):
            raise TypeError(f"filter returned {type(answer).__name__}, not Status, bool or str")
        if answer.is_success:
            return 0
        if not answer.code.is_rejection:
            raise ValueError(f"filter returned {answer.code.value}: {answer.message}")
        return self.reasons.code(answer.code, *answer.reasons)


def _asked(ask: Callable[[Node], int], node: Node) -> int:
    """Returns the answer about the node; adds the node's name as a note to an exception."""
    try:
        return ask(node)
    except Exception as error:
        error.add_note(f"on node {node.name}")
        raise


def _whole(score: int) -> int:
    if isinstance(score, bool) or not isinstance(score, int | np.integer):
        raise TypeError(f"score returned {type(score).__name__}, not int")
    return int(score)
