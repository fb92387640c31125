"""The observer interface of the shell: `observe.metrics` counts what it reports, tests record it."""

from __future__ import annotations

from typing import Protocol

from multisched.cycle.bind_outcome import Outcome
from multisched.framework.runner import PluginObserver
from multisched.model.objects import Pod


class DomainObserver(PluginObserver, Protocol):
    """Observer of one domain. Methods must be cheap and never raise."""

    def attempt_ended(self, pod: Pod, result: str, seconds: float) -> None:
        """`result`: scheduled, unschedulable, error or conflict."""
        ...

    def pod_bound(self, pod: Pod, seconds: float, attempts: int) -> None:
        """`seconds`: from the time the pod was first schedulable to the success response of its bind."""
        ...

    def bind_ended(self, pod: Pod, outcome: Outcome, seconds: float) -> None: ...

    def permit_waited(self, result: str, seconds: float) -> None: ...

    def preemption_began(self, victims: int) -> None:
        """`victims`: number of victims, including those that are already being deleted."""
        ...

    def preemption_ended(self, result: str, seconds: float) -> None:
        """`result`: success or error. `seconds`: time to mark and delete the victims."""
        ...


class SilentObserver:
    """A DomainObserver that does nothing; base class for observers of a few events."""

    def plugin_ran(self, plugin: str, point: str, seconds: float) -> None: ...

    def plugin_failed(self, plugin: str, point: str, error: BaseException | str) -> None: ...

    def attempt_ended(self, pod: Pod, result: str, seconds: float) -> None: ...

    def pod_bound(self, pod: Pod, seconds: float, attempts: int) -> None: ...

    def bind_ended(self, pod: Pod, outcome: Outcome, seconds: float) -> None: ...

    def permit_waited(self, result: str, seconds: float) -> None: ...

    def preemption_began(self, victims: int) -> None: ...

    def preemption_ended(self, result: str, seconds: float) -> None: ...
