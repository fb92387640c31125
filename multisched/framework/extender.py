"""The place of HTTP extenders among the plugins: outside the profile, after every filter, with words and weights of their own."""

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
    """Victims whose disruption budget has no room for it."""


@runtime_checkable
class NegotiablePostFilter(Plugin, Protocol):
    """A PostFilter plugin that can have its candidates looked at from outside before it takes one of them.

    Border: a plugin has it (`DefaultPreemption`), and the cycle sees no plugin.
    """

    def offers(self, cycle: CycleView, pod: Pod, refusals: Refusals) -> Sequence[Offer] | PostFilterResult:
        """All candidates; PostFilter's result where there are none."""
        ...

    def accept(self, pod: Pod, offers: Sequence[Offer]) -> PostFilterResult:
        """PostFilter's result for the pod, given what is left of the offers."""
        ...

    def spoiled(self, why: str) -> PostFilterResult:
        """PostFilter's result where those who were to look at the offers failed."""
        ...


@runtime_checkable
class ExtenderPlugin(RemotePlugin, Protocol):
    """Asks outside, and its answer is no code per row and no score of 0..100.

    An extender refuses with any text and weighs its scores itself. Both are asked with `cycle.responses[self.name]`, about the
    rows that are feasible then; at commit nothing is asked again, as upstream.

    Border: a plugin is it (`HTTPExtenders`), and the cycle sees no plugin.
    """

    def verdicts(self, cycle: CycleView, pod: Pod, rows: Rows) -> Mapping[int, Status]:
        """Position in `rows` -> why the row is refused; rows that are not named pass."""
        ...

    def add_up(self, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        """int64[rows]: what is added to the totals of these rows, as it is."""
        ...

    def negotiates(self, pod: Pod) -> bool:
        """True if the pod's offers are to be shown."""
        ...

    def show(self, cycle: CycleView, pod: Pod, offers: Sequence[Offer]) -> object:
        """The request about the offers, for `response`."""
        ...

    def left(self, cycle: CycleView, offers: Sequence[Offer], answer: object) -> Sequence[Offer]:
        """What the answer leaves of the offers, with the victims it wants."""
        ...
