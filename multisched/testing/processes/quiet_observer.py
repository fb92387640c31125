"""An observer of domains for tests and simulations."""

from __future__ import annotations

from multisched.cycle.bind_outcome import Outcome
from multisched.model.objects import Pod


class QuietObserver:
    """A DomainObserver that counts plugin failures and nothing else."""

    def __init__(self) -> None:
        self.failures: list[str] = []

    def plugin_ran(self, plugin: str, point: str, seconds: float) -> None: ...

    def plugin_failed(self, plugin: str, point: str, error: BaseException | str) -> None:
        self.failures.append(f"{plugin} {point}: {error!r}")

    def attempt_ended(self, pod: Pod, result: str, seconds: float) -> None: ...

    def pod_bound(self, pod: Pod, seconds: float, attempts: int) -> None: ...

    def bind_ended(self, pod: Pod, outcome: Outcome, seconds: float) -> None: ...

    def permit_waited(self, result: str, seconds: float) -> None: ...

    def preemption_began(self, victims: int) -> None: ...

    def preemption_ended(self, result: str, seconds: float) -> None: ...
