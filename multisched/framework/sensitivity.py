"""Which other pods affect a Filter. With this, preemption need not call the Filter for each row."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Protocol, runtime_checkable

import msgspec

from multisched.framework.node_view import Bools, Rows
from multisched.framework.points import CycleView, Plugin
from multisched.model.objects import Pod


class PodSensitivity(msgspec.Struct, frozen=True):
    """Which other pods affect the result of a plugin's Filter for a pod."""

    mark: Hashable
    """The inputs of `matters` besides the other pod: equal marks mean equal answers about placed pods."""
    matters: Callable[[Pod], bool]
    """False: adding or removing that pod on any row does not change Filter's result. Depends on its namespace, labels and spec."""
    rows_that_matter: Callable[[Rows], Bools] | None = None
    """bool[rows]: rows that may hold pods that matter, for a plugin that tracks them.

    Then `matters` is called only for pods on no row, and may depend on anything.
    """
    is_by_row: bool = False
    """Only pods on the row itself affect the row's result."""


@runtime_checkable
class PodSensitivePlugin(Plugin, Protocol):
    """A Filter that reads other pods and knows which of them affect it.

    Preemption does not call the Filter again when it removes a pod that does not matter. For a plugin without this, Filter is
    called again for each row, which takes a thousand times as long.
    """

    def pod_sensitivity(self, cycle: CycleView, pod: Pod) -> PodSensitivity: ...
