"""A bounded log of the latest preemptions that were started, for the web page. Keeps names and sums, not the pod objects."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from multisched.framework.preemption import Preemption

PREEMPTIONS_KEPT: Final = 100
PODS_KEPT: Final = 50
"""Maximum number of victims, and of preemptors, that are kept per preemption; others are only counted."""


class Victim(NamedTuple):
    """A pod that was to be evicted."""

    uid: str
    pod: str
    """NAMESPACE/NAME."""
    node: str


class StartedPreemption(msgspec.Struct, frozen=True):
    """One preemption, recorded when it started."""

    at_s: float
    """Monotonic clock."""
    plugin: str
    scheduler_name: str
    """schedulerName of its preemptors."""
    first: str
    """uid of the first preemptor."""
    preemptors: tuple[tuple[str, str], ...]
    """NAMESPACE/NAME, and the nominated node."""
    preemptors_left_out: int
    victims: tuple[Victim, ...]
    """Without pods that were already being deleted."""
    victims_left_out: int
    freed: dict[str, int]
    """Resource -> sum of the requests of all victims, including those left out."""


class RecentPreemptions:
    """The latest PREEMPTIONS_KEPT preemptions."""

    def __init__(self) -> None:
        self._kept: deque[StartedPreemption] = deque(maxlen=PREEMPTIONS_KEPT)

    def note(self, at_s: float, preemption: Preemption) -> None:
        """Adds a preemption that starts."""
        victims = [
            (node, victim) for node, some in preemption.victims.items() for victim in some if not victim.is_deleting
        ]
        freed: Counter[str] = Counter()
        for _, victim in victims:
            freed.update(victim.requests)
        first = preemption.nominations[0].pod
        self._kept.append(
            StartedPreemption(
                at_s,
                preemption.plugin,
                first.spec.scheduler_name,
                first.uid,
                tuple((pod.key, node) for pod, node in preemption.nominations[:PODS_KEPT]),
                max(0, len(preemption.nominations) - PODS_KEPT),
                tuple(Victim(victim.uid, victim.key, node) for node, victim in victims[:PODS_KEPT]),
                max(0, len(victims) - PODS_KEPT),
                dict(freed),
            )
        )

    def __iter__(self) -> Iterator[StartedPreemption]:
        """Yields the preemptions, the newest first."""
        return reversed(self._kept)
