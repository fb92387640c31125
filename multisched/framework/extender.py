"""Interfaces of HTTP extenders: they run outside the profile, after all other filters, with their own reasons and weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from multisched.framework.node_view import Rows, Scores
from multisched.framework.points import CycleView, Plugin, PostFilterResult, Refusals
from multisched.framework.remote import RemotePlugin
from multisched.framework.status import Status
from multisched.model.objects import Pod


class Offer(msgspec.Struct, frozen=True):
    """A node on which a pod would fit without these victims."""

    node: str
    victims: tuple[Pod, ...]
    """Most important first."""
    violations: int
    """Number of victims whose eviction would violate a PodDisruptionBudget."""


@runtime_checkable
class NegotiablePostFilter(Plugin, Protocol):
    """A PostFilter plugin whose candidates can be passed to an external service before it chooses one.

    A Protocol because the cycle imports no plugin; implemented by a plugin (`DefaultPreemption`).
    """

    def offers(self, cycle: CycleView, pod: Pod, refusals: Refusals) -> Sequence[Offer] | PostFilterResult:
        """Returns all candidates; PostFilter's result if there are none."""
        ...

    def accept(self, pod: Pod, offers: Sequence[Offer]) -> PostFilterResult:
        """Returns PostFilter's result for the pod, given the remaining offers."""
        ...

    def on_extender_failure(self, why: str) -> PostFilterResult:
        """Returns PostFilter's result if the external service failed."""
        ...


@runtime_checkable
class ExtenderPlugin(RemotePlugin, Protocol):
    """A remote plugin that answers with reasons and unbounded scores instead of codes per row and scores of 0..100.

    An extender refuses with any text and weighs its scores itself. `verdicts` and `add_up` run with `cycle.responses[self.name]`,
    for the rows that are feasible then; commit does not run them again, as upstream.

    A Protocol because the cycle imports no plugin; implemented by a plugin (`HTTPExtenders`).
    """

    def verdicts(self, cycle: CycleView, pod: Pod, rows: Rows) -> Mapping[int, Status]:
        """Returns position in `rows` -> why the row is refused; other rows pass."""
        ...

    def add_up(self, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        """Returns int64[rows]: added unchanged to the total scores of these rows."""
        ...

    def negotiates(self, pod: Pod) -> bool:
        """Reports whether the pod's preemption offers must be sent to the extender."""
        ...

    def preemption_request(self, cycle: CycleView, pod: Pod, offers: Sequence[Offer]) -> object:
        """Returns the request about the offers, for `response`."""
        ...

    def remaining_offers(self, cycle: CycleView, offers: Sequence[Offer], answer: object) -> Sequence[Offer]:
        """Returns the offers that the answer keeps, with the victims it names."""
        ...
