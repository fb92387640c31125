"""What the parts of a domain reach the outside through."""

from __future__ import annotations

from typing import Protocol

import msgspec

from multisched.framework.events import ClusterEvent, EventObject
from multisched.framework.ports import Binder, Clock, ConditionWriter, EventSink, LeaseHolder
from multisched.model.objects import Pod
from multisched.queueing.entry import EVERY_POD, Addressees
from multisched.shell.news_share import NewsShare
from multisched.shell.observer import DomainObserver
from multisched.shell.step_clock import Steps


class DomainPorts(msgspec.Struct, frozen=True):
    """The ports one domain works through."""

    clock: Clock
    binder: Binder
    events: EventSink
    conditions: ConditionWriter
    lease: LeaseHolder
    observer: DomainObserver
    news: NewsShare
    steps: Steps
    """Of attempts: all domains share the event loop, and so the steps."""


class Listeners(Protocol):
    """All domains, this one among them: whoever waits for room hears of room that comes back.

    Border: ingest has them (`Router`), above the parts of a domain.
    """

    def notify(
        self,
        event: ClusterEvent,
        old: EventObject,
        new: EventObject,
        now_s: float,
        only: Addressees = EVERY_POD,
    ) -> None: ...

    def notify_nomination_ended(self, pod: Pod, node: str, now_s: float) -> None: ...
