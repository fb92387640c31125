"""The ports through which the parts of a domain reach the rest of the program."""

from __future__ import annotations

from typing import Protocol

import msgspec

from multisched.framework.events import ClusterEvent, EventObject
from multisched.framework.ports import Binder, Clock, ConditionWriter, EventSink, LeaseHolder
from multisched.model.objects import Pod
from multisched.queueing.entry import EVERY_POD, ParkedPodFilter
from multisched.shell.event_time_share import EventTimeShare
from multisched.shell.observer import DomainObserver
from multisched.shell.step_clock import Steps


class DomainPorts(msgspec.Struct, frozen=True):
    """The ports of one domain."""

    clock: Clock
    binder: Binder
    events: EventSink
    conditions: ConditionWriter
    lease: LeaseHolder
    observer: DomainObserver
    event_time_share: EventTimeShare
    steps: Steps
    """Step budget of attempts. All domains share it, because they share the event loop."""


class Listeners(Protocol):
    """Passes events about freed capacity to the queues of all domains, including this one.

    Implemented by `Router`, which is in a layer above the parts of a domain.
    """

    def notify(
        self,
        event: ClusterEvent,
        old: EventObject,
        new: EventObject,
        now_s: float,
        only: ParkedPodFilter = EVERY_POD,
    ) -> None: ...

    def notify_nomination_ended(self, pod: Pod, node: str, now_s: float) -> None: ...
