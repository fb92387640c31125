"""A plugin that cannot be built: nobody sees that before it is tried, as `config validate` calls no factory."""

from __future__ import annotations

from multisched.framework.points import CycleView
from multisched.framework.status import SUCCESS, Status
from multisched.model.objects import Pod


class Unbuildable:
    """Asks for something that this machine does not have."""

    name = "Unbuildable"

    def __init__(self) -> None:
        raise FileNotFoundError("no licence file")

    def reserve(self, cycle: CycleView, pod: Pod, node: str) -> Status:
        return SUCCESS

    def unreserve(self, cycle: CycleView, pod: Pod, node: str) -> None:
        """Nothing."""
