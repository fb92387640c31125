"""Defects of a configuration change during attempts: seeds from `RELOADED_FROM` on find them."""

from __future__ import annotations

from typing import Any

from multisched.config.schema import Configuration
from multisched.framework.registry import PluginSetupError
from multisched.queueing.entry import Moved
from multisched.queueing.parked_pods import ParkedPods
from multisched.queueing.pod_queue import PodQueue
from multisched.queueing.transitions import QueueState
from multisched.shell.domain import DomainWorker
from multisched.shell.reload import Reload
from tests.sim.defects import defect, put


@defect
def pods_in_flight_end_by_the_new_profile() -> None:
    """Reservations of the earlier plugins are ended by the new ones."""
    genuine = DomainWorker.use

    def use(self: DomainWorker, cycle: Any, *, retry_refused: bool) -> None:
        before = self.cycle
        genuine(self, cycle, retry_refused=retry_refused)
        vars(before).update(vars(cycle))

    put(DomainWorker, "use", use)


@defect
def reloads_drop_a_queued_pod() -> None:
    """The queue loses a pod that was ready when the profile changed."""
    genuine = PodQueue.use

    def use(self: PodQueue, plugins: Any, now_s: float, *, retry_refused: bool) -> Moved:
        moved = genuine(self, plugins, now_s, retry_refused=retry_refused)
        ready = next(self.entries(QueueState.ACTIVE), None)
        if ready is not None:
            self.remove(ready.uid)
        return moved

    put(PodQueue, "use", use)


@defect
def shorter_flushes_ignored_for_parked_pods() -> None:
    """Pods parked under a longer flush block those that are parked later."""
    put(ParkedPods, "delay", lambda self, seconds: None)


@defect
def invalid_configurations_reported_in_force() -> None:
    """A plugin that cannot be built leaves its configuration behind as the one in force."""
    genuine = Reload.apply

    def apply(self: Reload, wanted: Configuration) -> Any:
        try:
            return genuine(self, wanted)
        except PluginSetupError:
            self.in_force = wanted
            raise

    put(Reload, "apply", apply)
