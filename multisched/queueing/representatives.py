"""Parked pods of one class that are requeued one after another when a pod leaves its node.

A pod that ends makes room for a few pods, and thousands of equal pods may wait for it: to try all of them at each such event costs
more time than there is. So only one pod of the class is requeued, as its representative. If a node is found for it, the next pod
is requeued. If the same plugins refuse it again, they would refuse the others, too, which therefore stay parked. If other plugins
refuse it, all pods of the class are requeued, since they must wait for the events of these plugins.

Only for classes that were refused by plugins whose answers depend on nothing but the class and a node with its pods.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import islice
from typing import Final

from multisched.queueing.entry import Entry, ParkedClass
from multisched.queueing.transitions import QueueState

LOOKED_AT_MAX: Final = 64
"""Pods of a class among which one is sought whose backoff has ended."""

_TRIED: Final = frozenset({QueueState.ACTIVE, QueueState.BACKOFF, QueueState.IN_FLIGHT})


class Representatives:
    """The classes of which another pod must be requeued. `Entry.represents` marks their representatives."""

    __slots__ = ("_due", "nominated_to")

    def __init__(self) -> None:
        self._due: dict[ParkedClass, bool] = {}
        """Class -> whether all its pods must be requeued, not only the next."""
        self.nominated_to: Callable[[str], Collection[str]] = _nobody
        """node -> uids of the pods nominated to it. They are requeued, too: to them the room is open that others must leave."""

    @property
    def are_due(self) -> bool:
        return bool(self._due)

    def take_due(self) -> Iterator[tuple[ParkedClass, bool]]:
        """Yields the classes of which pods must be requeued, and whether all; also those that become due meanwhile."""
        while self._due:
            yield self._due.popitem()

    def choose(
        self, where: ParkedClass, members: Mapping[str, Entry], node: str, apart: Collection[str], now_s: float
    ) -> list[Entry]:
        """Returns the pods of the class to requeue: a representative, and those nominated to this node; none of those `apart`."""
        nominated = [uid for uid in self.nominated_to(node) if uid in members and uid not in apart]
        others = (one for uid, one in members.items() if uid not in apart and uid not in nominated)
        looked_at = list(islice(others, LOOKED_AT_MAX))
        found = next((one for one in looked_at if one.backoff_until_s <= now_s), looked_at[0] if looked_at else None)
        if found is None:
            return [members[uid] for uid in nominated]
        found.represents = where
        return [*(members[uid] for uid in nominated), found]

    def pass_on(self, entry: Entry) -> None:
        """Makes the class of a representative due: another pod of it is tried next."""
        if entry.represents is not None:
            self._due.setdefault(entry.represents, False)
            entry.represents = None

    def moved(self, entry: Entry) -> None:
        """Handles a representative that has changed its state: if it is not tried any more, another one may have to be."""
        where = entry.represents
        is_delayed = entry.state is QueueState.BACKOFF and entry.failed_by_error
        if where is None or (entry.state in _TRIED and not is_delayed):
            return
        if entry.state is not QueueState.UNSCHEDULABLE:
            self.pass_on(entry)
        elif (entry.state, *entry.waits_for) != where.refusers:
            self._due[where], entry.represents = True, None


def _nobody(node: str) -> Collection[str]:
    return ()
