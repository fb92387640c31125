"""HoldBack: how many more cards training may take until the next plan, and the message for pods that are held back.

Owned by GpuTide. Set by each plan; between two plans, cards that pods of training take are subtracted when they are reserved. A gang is
held back as a whole: all cards that its members still need must fit in addition to those that are kept for the first gang in the queue.
No clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

import msgspec

from domains.gpu.tide.state import TidePlan, WaitingGang

OUTSIDE: Final = "the tide holds training back"
"""Refusal of nodes of the tide, for a pod that other nodes may take."""


class Limits(msgspec.Struct, frozen=True):
    """The result of one plan for training pods. Exported to sandboxes."""

    limit_cards: int | None = None
    """`TidePlan.training_limit_cards`; None without a plan."""
    growth_cards: float = math.inf
    """Cards that training may take in addition; below 0 if it holds more than it may."""
    text: str = ""
    """The message for a pod that is held back."""
    waiting_cards: Mapping[str, int] = {}
    """Gang -> cards that its pods without a node need."""
    models: tuple[str, ...] = ()
    """Models of the tide; empty: all."""
    has_outside: bool = False
    """Some nodes have cards of other models: pods that are held back may use these."""
    first: str = ""
    """The first waiting gang; empty: none."""
    kept_cards: int = 0
    """`TidePlan.kept_cards`: cards of `growth_cards` that only the first gang may take."""

    def kept_from(self, gang: str) -> int:
        """Returns how many cards of `growth_cards` the gang may not take because they are kept for another one."""
        return 0 if gang == self.first else self.kept_cards

    def refusal(self, gang: str, cards: int, reserved_cards: int = 0) -> str:
        """Returns why a gang that needs this many cards is held back; empty: it is not. `reserved_cards`: taken since the plan."""
        left, kept = self.growth_cards - reserved_cards, self.kept_from(gang)
        if cards <= left - kept:
            return ""
        if cards > left:
            return self.text
        return f"held back: {kept} cards below the limit of training are kept for the first gang in the queue"


OPEN: Final = Limits()
"""Nothing is held back: no plan has been made."""


def limits_of(
    plan: TidePlan, waiting: tuple[WaitingGang, ...], models: tuple[str, ...], *, has_outside: bool
) -> Limits:
    """Returns what a plan means for training pods."""
    return Limits(
        plan.training_limit_cards,
        plan.training_limit_cards - plan.training_cards,
        held_text(plan),
        {gang.key: gang.cards for gang in waiting},
        models,
        has_outside,
        waiting[0].key if waiting else "",
        plan.kept_cards,
    )


def held_text(plan: TidePlan) -> str:
    """Returns the message for a pod that is held back, such as `held back until 11:40 UTC: inference is expected to need 38 cards`."""
    until = "" if plan.held_until_s is None else f" until {datetime.fromtimestamp(plan.held_until_s, UTC):%H:%M} UTC"
    reserved = plan.held_for_cards
    if plan.is_frozen:
        return f"held back{until}: the tide is frozen, and training may hold {plan.training_limit_cards} cards"
    if not reserved:
        return f"held back{until}: training may hold {plan.training_limit_cards} cards, and holds {plan.training_cards}"
    return f"held back{until}: inference is expected to need {reserved} cards"


class HoldBack:
    """The limits in force, and what was reserved since they were set."""

    def __init__(self) -> None:
        self.limits = OPEN
        self._reserved: dict[str, tuple[str, int]] = {}
        """uid -> gang and cards, of pods that were reserved since the limits were set."""
        self._reserved_cards = 0
        self._refused_cards = math.inf
        """The smallest growth of training with which one of the pods that were refused since the last requeue would fit."""

    @property
    def reserved(self) -> frozenset[str]:
        """The uids of pods that took cards since the limits were set: a snapshot of now counts them."""
        return frozenset(self._reserved)

    def set(self, limits: Limits, counted: frozenset[str] | None = None) -> bool:
        """Sets new limits. Returns True if pods that were held back may start now.

        `counted`: the `reserved` pods that the plan has counted; None: all.
        """
        before, self.limits = self.limits, limits
        for uid in self.reserved if counted is None else counted:
            self.unreserve(uid)
        may_leave = limits.has_outside and (not before.has_outside or limits.models != before.models)
        helps = self._refused_cards <= limits.growth_cards or (may_leave and self._refused_cards < math.inf)
        if helps:
            self._refused_cards = math.inf
        return helps

    def refusal(self, gang: str, cards: int) -> str:
        """Returns why a pod of the gang with this many cards is held back; empty: it is not."""
        taken = sum(cards for key, cards in self._reserved.values() if key == gang) if self._reserved else 0
        needed = max(cards, self.limits.waiting_cards.get(gang, 0) - taken)
        wanted = needed + self.limits.kept_from(gang)
        if wanted <= self.limits.growth_cards - self._reserved_cards:
            return ""
        self._refused_cards = min(self._refused_cards, wanted)
        return self.limits.refusal(gang, needed, self._reserved_cards)

    def reserve(self, uid: str, gang: str, cards: int) -> str:
        """Counts a pod that takes its cards now; returns why it must not, else an empty text."""
        if uid in self._reserved:
            return ""
        refusal = self.refusal(gang, cards)
        if not refusal:
            self._reserved[uid] = gang, cards
            self._reserved_cards += cards
        return refusal

    def unreserve(self, uid: str) -> None:
        """Takes back `reserve`; ignores pods that the limits in force have counted."""
        _, cards = self._reserved.pop(uid, ("", 0))
        self._reserved_cards -= cards
