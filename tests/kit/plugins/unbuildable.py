"""A plugin that cannot be built. `config validate` does not detect that, since it calls no factory."""

from __future__ import annotations

from multisched.framework.points import CycleView
from multisched.framework.status import SUCCESS, Status
from multisched.model.objects import Pod


class Unbuildable:
    """Fails in its constructor: the machine lacks a file."""

    name = "Unbuildable"

    def __init__(self) -> None:
        raise FileNotFoundError("no licence file")

    def reserve(self, cycle: CycleView, pod: Pod, node: str) -> Status:
        return SUCCESS

    def unreserve(self, cycle: CycleView, pod: Pod, node: str) -> None:
        """Does nothing."""
