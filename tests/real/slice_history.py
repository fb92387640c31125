"""What the versions of SliceSets show: raises, recalls and how long they took, and what is offered and held now. Pure.

Shares no code with multisched. Amounts are (thousandths of cores, bytes, pods) per uid of a node.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

FIELDS: Final = ("cpuMilli", "memoryBytes", "pods")
NOTHING: Final = (0, 0, 0)
Amount = tuple[int, int, int]
Document = Mapping[str, Any]


@dataclass
class Recall:
    """An offer of a node that fell below what was held."""

    uid: str
    level: Amount
    """What may remain held."""
    since_s: float
    until_s: float | None = None
    """When no more than that was held, or more was offered again."""
    is_withdrawn: bool = False
    """The lender offered more again before it was returned."""


@dataclass
class _Half:
    amounts: dict[str, Amount] = field(default_factory=dict)
    writes: int = 0
    exists: bool = False
    epoch: int = 0


class SliceHistory:
    """The objects of one loan."""

    def __init__(self) -> None:
        self._offers: defaultdict[str, _Half] = defaultdict(_Half)
        self._held: defaultdict[str, _Half] = defaultdict(_Half)
        self._open: list[Recall] = []
        self.recalls: list[Recall] = []
        """Of every node, those that are not over included."""
        self.raises = 0
        """Versions that offer more of a node than before."""
        self.raised_nodes = 0
        self.recalling_versions = 0
        self.withdrawn_nodes = 0
        """Offers of a node that fell and did not concern what was held."""
        self.spec_writes = 0
        self.status_writes = 0
        self.kinds: Counter[str] = Counter()
        """Writes by what they change."""
        self.borrower_epoch = 0
        """The highest of all objects."""
        self.above_offer: list[str] = []
        """Versions in which held rose above what was offered (S3)."""

    def take(self, found: Document, now_s: float, *, is_there: bool) -> None:
        """Takes a version of an object."""
        name = found["metadata"]["name"]
        spec, status = found.get("spec") or {}, found.get("status") or {}
        before, held_before = self._offers[name], self._held[name]
        offers = _Half(
            _amounts(spec.get("offers")) if is_there else {},
            spec.get("writes", 0),
            is_there,
            spec.get("lenderEpoch", 0),
        )
        held = _Half(
            _amounts(status.get("held")) if is_there else {},
            status.get("writes", 0),
            epoch=status.get("borrowerEpoch", 0),
        )
        self._offers[name], self._held[name] = offers, held
        self.spec_writes += offers.writes != before.writes or not is_there
        self.status_writes += held.writes != held_before.writes
        if held.writes != held_before.writes:
            self.kinds[_kind_of_status(held_before, held, offers.amounts)] += 1
        elif offers.writes != before.writes:
            self.kinds[_kind_of_spec(before, offers, held.amounts)] += 1
        self.borrower_epoch = max(self.borrower_epoch, status.get("borrowerEpoch", 0))
        self._compare_held(name, held_before.amounts, held.amounts, before.amounts)
        self._compare_offers(before.amounts, offers.amounts, held.amounts, now_s)
        self._close(now_s)

    @property
    def writes(self) -> int:
        return self.spec_writes + self.status_writes

    def names(self) -> set[str]:
        """Returns the names of the objects that exist."""
        return {name for name, half in self._offers.items() if half.exists}

    def content(self, name: str) -> tuple[Mapping[str, Amount], Mapping[str, Amount]]:
        """Returns what an object offers and holds, by node."""
        return self._offers[name].amounts, self._held[name].amounts

    def offered(self) -> dict[str, Amount]:
        """Returns what is offered, by node."""
        return _sums(self._offers)

    def held(self) -> dict[str, Amount]:
        """Returns what is held, by node."""
        return _sums(self._held)

    def _compare_held(
        self, name: str, before: Mapping[str, Amount], after: Mapping[str, Amount], offers: Mapping[str, Amount]
    ) -> None:
        for uid, held in after.items():
            limit = larger(before.get(uid, NOTHING), offers.get(uid, NOTHING))
            if not is_within(held, limit):
                self.above_offer.append(f"{name} holds {held} of node {uid}, where it may hold {limit}")

    def _compare_offers(
        self, before: Mapping[str, Amount], after: Mapping[str, Amount], held: Mapping[str, Amount], now_s: float
    ) -> None:
        raised = recalled = 0
        for uid in before.keys() | after.keys():
            old, new = before.get(uid, NOTHING), after.get(uid, NOTHING)
            raised += not is_within(new, old)
            if is_within(old, new):
                continue
            if is_within(held.get(uid, NOTHING), new):
                self.withdrawn_nodes += 1
            elif not is_within(smaller(held.get(uid, NOTHING), old), new):
                recalled += 1
                self._open.append(Recall(uid, new, now_s))
                self.recalls.append(self._open[-1])
        self.raises += bool(raised)
        self.raised_nodes += raised
        self.recalling_versions += bool(recalled)

    def _close(self, now_s: float) -> None:
        held, offered = self.held(), self.offered()
        for one in list(self._open):
            is_returned = is_within(held.get(one.uid, NOTHING), one.level)
            is_withdrawn = is_within(larger(one.level, held.get(one.uid, NOTHING)), offered.get(one.uid, NOTHING))
            if is_returned or is_withdrawn:
                one.until_s, one.is_withdrawn = now_s, not is_returned
                self._open.remove(one)


def _kind_of_status(before: _Half, after: _Half, offers: Mapping[str, Amount]) -> str:
    if after.epoch != before.epoch:
        return "epoch of the borrower"
    pairs = [
        (before.amounts.get(uid, NOTHING), after.amounts.get(uid, NOTHING), offers.get(uid, NOTHING))
        for uid in before.amounts.keys() | after.amounts.keys()
    ]
    changed = [(old, new, offered) for old, new, offered in pairs if old != new]
    is_claim = any(not is_within(new, old) for old, new, _ in changed)
    is_return = any(not is_within(old, offered) for old, _, offered in changed)
    return " and ".join(["claim"] * is_claim + ["return"] * is_return) or "release"


def _kind_of_spec(before: _Half, after: _Half, held: Mapping[str, Amount]) -> str:
    if after.epoch != before.epoch:
        return "epoch of the lender"
    pairs = [
        (before.amounts.get(uid, NOTHING), after.amounts.get(uid, NOTHING), held.get(uid, NOTHING))
        for uid in before.amounts.keys() | after.amounts.keys()
    ]
    is_raise = any(not is_within(new, old) for old, new, _ in pairs)
    is_recall = any(not is_within(smaller(old, amount), new) for old, new, amount in pairs)
    return " and ".join(["raise"] * is_raise + ["recall"] * is_recall) or "withdrawal"


def _amounts(entries: Mapping[str, Mapping[str, int]] | None) -> dict[str, Amount]:
    return {uid: _amount(entry) for uid, entry in (entries or {}).items()}


def _amount(entry: Mapping[str, int]) -> Amount:
    cpu, memory, pods = (int(entry.get(name, 0)) for name in FIELDS)
    return cpu, memory, pods


def _sums(halves: Mapping[str, _Half]) -> dict[str, Amount]:
    total: dict[str, Amount] = {}
    for half in halves.values():
        for uid, amount in half.amounts.items():
            cpu, memory, pods = (one + other for one, other in zip(total.get(uid, NOTHING), amount, strict=True))
            total[uid] = cpu, memory, pods
    return total


def is_within(amount: Amount, limit: Amount) -> bool:
    return all(one <= other for one, other in zip(amount, limit, strict=True))


def larger(one: Amount, other: Amount) -> Amount:
    return max(one[0], other[0]), max(one[1], other[1]), max(one[2], other[2])


def smaller(one: Amount, other: Amount) -> Amount:
    return min(one[0], other[0]), min(one[1], other[1]), min(one[2], other[2])
