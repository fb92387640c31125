"""What the shell tells of itself; `observe.metrics` counts it, tests record it."""

from __future__ import annotations

from typing import Protocol

from multisched.cycle.bind_outcome import Outcome
from multisched.framework.runner import PluginObserver
from multisched.model.objects import Pod


class DomainObserver(PluginObserver, Protocol):
    """Hears what happens in one domain. Must be cheap and never raise."""

    def attempt_ended(self, pod: Pod, result: str, seconds: float) -> None:
        """`result`: scheduled, unschedulable, error or conflict."""
        ...

    def pod_bound(self, pod: Pod, seconds: float, attempts: int) -> None:
        """Seconds from the moment the pod could first be scheduled to the definite bind."""
        ...

    def bind_ended(self, pod: Pod, outcome: Outcome, seconds: float) -> None: ...

    def permit_waited(self, result: str, seconds: float) -> None: ...

    def preemption_began(self, victims: int) -> None:
        """A cycle has chosen so many victims, those included that are being deleted already."""
        ...

    def preemption_ended(self, result: str, seconds: float) -> None:
        """`result`: success or error. Seconds in which the victims were marked and deleted."""
        ...


class SilentObserver:
    """A DomainObserver that does nothing. Who hears of some things alone derives from it."""

    def plugin_ran(self, plugin: str, point: str, seconds: float) -> None: ...

    def plugin_failed(self, plugin: str, point: str, error: BaseException | str) -> None: ...

    def attempt_ended(self, pod: Pod, result: str, seconds: float) -> None: ...

    def pod_bound(self, pod: Pod, seconds: float, attempts: int) -> None: ...

    def bind_ended(self, pod: Pod, outcome: Outcome, seconds: float) -> None: ...

    def permit_waited(self, result: str, seconds: float) -> None: ...

    def preemption_began(self, victims: int) -> None: ...

    def preemption_ended(self, result: str, seconds: float) -> None: ...
