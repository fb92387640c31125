"""The place of HTTP extenders among the plugins: outside the profile, after every filter, with words and weights of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from multisched.framework.node_view import Rows, Scores
from multisched.framework.plugin import CycleView, Plugin
from multisched.framework.status import Status
from multisched.model.objects import Pod


@runtime_checkable
class ExtenderPlugin(Plugin, Protocol):
    """An `AskingPlugin` whose answer is no code per row and no score of 0..100.

    An extender refuses with any text and weighs its scores itself. Both are asked with `cycle.answers[self.name]`, about the
    rows that are feasible then; at commit nothing is asked again, as upstream.
    """

    def verdicts(self, cycle: CycleView, pod: Pod, rows: Rows) -> Mapping[int, Status]:
        """Position in `rows` -> why the row is refused; rows that are not named pass."""
        ...

    def add_up(self, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        """int64[rows]: what is added to the totals of these rows, as it is."""
        ...
