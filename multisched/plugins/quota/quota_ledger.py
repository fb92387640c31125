"""QuotaLedger: what the pods of each level hold together, so that no commit of any domain passes a max.

Owns the sums of every level of the tree in force. A pod costs a number: equal requests of one namespace are one holding. When
another tree comes into force, all placed pods are counted anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from multisched.model.objects import PODS, Pod, Requests
from multisched.model.quota_tree import QuotaTree, shown_amount
from multisched.plugins.quota.quota_source import QuotaSource

QUOTA: Final = "ElasticQuota"
"""Name of the plugin and of its ledger."""

Items = tuple[tuple[str, int], ...]
"""What one pod counts for, by resource; one pod among them."""


def items_of(pod: Pod) -> Items:
    return (*sorted(pod.requests.items()), (PODS, 1))


class Level:
    """One node of the tree in force."""

    __slots__ = ("at", "max", "min", "path", "used")

    def __init__(self, at: int, path: str, least: Requests, most: Requests) -> None:
        self.at = at
        self.path = path
        self.min = least
        self.max = most
        self.used: dict[str, int] = {}
        """Resource -> what its pods hold together."""

    def add(self, items: Items, sign: int) -> None:
        used = self.used
        for resource, amount in items:
            used[resource] = used.get(resource, 0) + sign * amount

    def refusal(self, items: Items, promised: Mapping[str, int]) -> str:
        """Why so much more would pass its max; empty: it would not."""
        for resource, amount in items:
            most = self.max.get(resource)
            if most is None or not amount:
                continue
            used, others = self.used.get(resource, 0), promised.get(resource, 0)
            if used + others + amount > most:
                shown = [shown_amount(resource, one) for one in (used, others, amount, most)]
                beside = f" and {shown[1]} promised" if others else ""
                return f"quota {self.path}: {resource} {shown[0]} used{beside}, {shown[2]} requested, max {shown[3]}"
        return ""


class _Holding:
    """Pods of one namespace that ask for the same."""

    __slots__ = ("count", "items", "levels", "namespace")

    def __init__(self, namespace: str, items: Items, levels: tuple[Level, ...]) -> None:
        self.namespace = namespace
        self.items = items
        self.levels = levels
        self.count = 0


NO_LEVELS: Final[tuple[Level, ...]] = ()
NOTHING: Final[Mapping[int, Mapping[str, int]]] = {}


class QuotaLedger:
    """`framework.ledger.ClusterLedger`."""

    name = QUOTA

    def __init__(self, source: QuotaSource | None, placed: Callable[[], Iterable[Pod]]) -> None:
        """`placed`: every pod that holds something at this moment. `source`: None for a copy, whose tree stays as it is."""
        self._source = source
        self._placed = placed
        self._generation = 0
        self._version = 0
        self.tree: QuotaTree | None = None
        self.levels: list[Level] = []
        self._levels_of: dict[str, tuple[Level, ...]] = {}
        self._held: dict[str, int] = {}
        self._holdings: list[_Holding | None] = []
        self._free: list[int] = []
        self._numbers: dict[tuple[str, Items], int] = {}

    # -- the tree --------------------------------------------------------------------------------------------------

    def renew(self) -> None:
        """Counts all pods anew if another tree is in force."""
        if self._source is not None and self._source.renew() != self._generation:
            self._generation = self._source.generation
            self._put_in_force(self._source.tree)
            for pod in self._placed():
                if pod.namespace in self._levels_of:
                    self._take(pod)

    def _put_in_force(self, tree: QuotaTree | None) -> None:
        self.tree = tree
        self._version += 1
        self._held, self._holdings, self._free, self._numbers = {}, [], [], {}
        nodes = () if tree is None else tree.nodes
        self.levels = [Level(at, node.path, node.min, node.max) for at, node in enumerate(nodes)]
        self._levels_of = {}
        if tree is not None:
            paths = [tuple(self.levels[at] for at in path) for path in tree.paths]
            self._levels_of = {namespace: paths[leaf] for namespace, leaf in tree.leaf_of.items()}

    @property
    def generation(self) -> int:
        """Rises with each tree that comes into force."""
        self.renew()
        return self._generation

    def levels_of(self, namespace: str) -> tuple[Level, ...]:
        """The leaf of the namespace and what is above it; empty for a namespace without quota."""
        self.renew()
        return self._levels_of.get(namespace, NO_LEVELS)

    # -- ClusterLedger ---------------------------------------------------------------------------------------------

    def concerns(self, pod: Pod) -> bool:
        return bool(self.levels_of(pod.namespace))

    def version(self) -> int:
        return self._version

    def fits(self, pod: Pod) -> str:
        return self.refusal(pod.namespace, items_of(pod))

    def refusal(self, namespace: str, items: Items, promised: Mapping[int, Mapping[str, int]] = NOTHING) -> str:
        """Why so much more of the namespace would pass the max of a level; empty: it would not.

        `promised`: position of a level -> resource -> what pods that are nominated count on there.
        """
        for level in self.levels_of(namespace):
            why = level.refusal(items, promised.get(level.at, {}))
            if why:
                return why
        return ""

    def take(self, pod: Pod) -> None:
        if pod.uid not in self._held:
            self._take(pod)

    def restore(self, pod: Pod) -> None:
        number = self._held.get(pod.uid)
        if number is not None:
            holding = self._holdings[number]
            assert holding is not None
            if holding.namespace == pod.namespace and holding.items == items_of(pod):
                return
            self.release(pod.uid)
        self._take(pod)

    def release(self, uid: str) -> None:
        number = self._held.pop(uid, None)
        if number is None:
            return
        holding = self._holdings[number]
        assert holding is not None
        holding.count -= 1
        for level in holding.levels:
            level.add(holding.items, -1)
        if not holding.count:
            self._holdings[number] = None
            self._free.append(number)
            del self._numbers[holding.namespace, holding.items]
        self._version += 1

    def held(self) -> Mapping[str, object]:
        self.renew()
        holdings = self._holdings
        return {uid: _shown(holdings[number]) for uid, number in self._held.items()}

    def sums(self) -> object:
        return {level.path: {k: v for k, v in level.used.items() if v} for level in self.levels}

    def recount(self) -> None:
        self._version += 1
        for level in self.levels:
            level.used = {}
        for holding in self._holdings:
            for level in holding.levels if holding is not None else ():
                assert holding is not None
                level.add(tuple((resource, amount * holding.count) for resource, amount in holding.items), 1)

    def empty_copy(self) -> QuotaLedger:
        copy = QuotaLedger(None, tuple)
        copy._put_in_force(self.tree)
        return copy

    # -- inside ----------------------------------------------------------------------------------------------------

    def _take(self, pod: Pod) -> None:
        key = pod.namespace, items_of(pod)
        number = self._numbers.get(key)
        if number is None:
            holding = _Holding(*key, self._levels_of[pod.namespace])
            if self._free:
                number = self._free.pop()
                self._holdings[number] = holding
            else:
                number = len(self._holdings)
                self._holdings.append(holding)
            self._numbers[key] = number
        found = self._holdings[number]
        assert found is not None
        found.count += 1
        for level in found.levels:
            level.add(found.items, 1)
        self._held[pod.uid] = number
        self._version += 1


def _shown(holding: _Holding | None) -> object:
    assert holding is not None
    return holding.namespace, holding.items
