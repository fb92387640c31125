"""Pods for the state's tests, and ledgers that anybody can check by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from multisched.framework.ledger import NO_CHOICES, Choices
from multisched.model.objects import CPU, HostPort, Node, Pod, PodSpec
from multisched.state.cluster_cache import Assumption, ClusterCache
from multisched.state.transaction import Choose, NotTaken, StillFits, Transaction
from multisched.testing import builders
from multisched.testing.builders import GPU


def make_spec(cpu: int = 0, *, gpu: int = 0, port: int = 0) -> PodSpec:
    requests = {name: amount for name, amount in ((CPU, cpu), (GPU, gpu)) if amount}
    return PodSpec(
        requests=requests,
        placed_cpu_milli=cpu or 100,
        placed_memory_bytes=7,
        host_ports=(HostPort("", "TCP", port),) if port else (),
    )


def make_pod(uid: str, spec: PodSpec | None = None, **fields: Any) -> Pod:
    """The state knows pods by their uid, so that is what a test calls them."""
    return builders.make_pod(fields.pop("name", uid), uid=uid, spec=spec or make_spec(1000), **fields)


def choose_nothing(pod: Pod, row: int) -> Choices:
    """For ledgers of which there is nothing to choose."""
    return NO_CHOICES


def assume_in_turn(
    cache: ClusterCache, places: Sequence[tuple[Pod, int]], still_fits: StillFits, choose: Choose = choose_nothing
) -> list[Assumption] | tuple[Pod, str]:
    """What a caller does who has a row for each pod: all of them in one transaction, or the first that fits not, and why."""
    found: list[Assumption] = []
    with Transaction(cache) as together:
        for pod, row in places:
            if found and not still_fits(pod, row):
                return pod, ""
            taken = together.assume(pod, row, choose)
            if isinstance(taken, NotTaken):
                return pod, taken.refusal
            found.append(taken)
        together.keep()
    return found


class Tickets:
    """A ledger of so many tickets per row; every pod with annotation `tickets` takes one, numbered."""

    name = "tickets"

    def __init__(self, per_row: int = 2) -> None:
        self.per_row = per_row
        self.at: dict[str, tuple[int, int]] = {}
        self.nodes: set[int] = set()
        self._versions: dict[int, int] = {}

    def is_used_by(self, pod: Pod) -> bool:
        return "tickets" in pod.annotations

    def version(self, row: int) -> int:
        return self._versions.get(row, 0)

    def _free(self, row: int) -> list[int]:
        taken = {number for at, number in self.at.values() if at == row}
        return [number for number in range(self.per_row) if number not in taken]

    def fits(self, pod: Pod, row: int) -> str:
        return "" if self.at.get(pod.uid, (-1,))[0] == row or self._free(row) else "no tickets"

    def take(self, pod: Pod, row: int) -> Mapping[str, str]:
        if pod.uid not in self.at:
            self._put(pod.uid, row, self._free(row)[0])
        return {"ticket": str(self.at[pod.uid][1])}

    def restore(self, pod: Pod, row: int) -> None:
        self._put(pod.uid, row, int(pod.annotations.get("ticket", 0)))

    def _put(self, uid: str, row: int, number: int) -> None:
        if self.at.get(uid) != (row, number):
            self.at[uid] = (row, number)
            self._versions[row] = self.version(row) + 1

    def release(self, uid: str) -> None:
        held = self.at.pop(uid, None)
        if held is not None:
            self._versions[held[0]] = self.version(held[0]) + 1

    def set_node(self, row: int, node: Node | None) -> None:
        (self.nodes.discard if node is None else self.nodes.add)(row)

    def held(self) -> Mapping[str, object]:
        return dict(self.at)

    def empty_copy(self) -> Tickets:
        return Tickets(self.per_row)


class FlakyTickets(Tickets):
    """Raises whenever it is told to."""

    raises = ""

    def __getattribute__(self, name: str) -> Any:
        if name != "raises" and name == self.raises:
            return _down
        return super().__getattribute__(name)


class NamespaceRoom:
    """A ledger about the cluster: at most so many milli-CPU for the pods of each namespace."""

    name = "namespace-room"
    plugin = "NamespaceQuota"
    condition_reason = "NamespaceFull"

    def __init__(self, max_milli: int) -> None:
        self.max_milli = max_milli
        self.used: Counter[str] = Counter()
        self.at: dict[str, tuple[str, int]] = {}
        """uid -> namespace and milli-CPU."""
        self._changes = 0

    def is_used_by(self, pod: Pod) -> bool:
        return pod.requests.get(CPU, 0) > 0

    def version(self) -> int:
        return self._changes

    def fits(self, pod: Pod) -> str:
        left = self.max_milli - self.used[pod.namespace]
        is_held = pod.uid in self.at
        return "" if is_held or pod.requests[CPU] <= left else f"namespace {pod.namespace} has {left}m of its CPU left"

    def take(self, pod: Pod) -> None:
        refusal = self.fits(pod)
        assert not refusal, refusal
        self.restore(pod)

    def restore(self, pod: Pod) -> None:
        entry = (pod.namespace, pod.requests[CPU])
        if self.at.get(pod.uid) != entry:
            self.release(pod.uid)
            self.at[pod.uid] = entry
            self.used[entry[0]] += entry[1]
            self._changes += 1

    def release(self, uid: str) -> None:
        held = self.at.pop(uid, None)
        if held is not None:
            self.used[held[0]] -= held[1]
            self._changes += 1

    def held(self) -> Mapping[str, object]:
        return dict(self.at)

    def sums(self) -> object:
        return {namespace: milli for namespace, milli in self.used.items() if milli}

    def recount(self) -> None:
        before, self.used = self.sums(), Counter()
        for namespace, milli in self.at.values():
            self.used[namespace] += milli
        self._changes += self.sums() != before

    def empty_copy(self) -> NamespaceRoom:
        return NamespaceRoom(self.max_milli)


def _down(*args: object) -> None:
    raise ConnectionError("down")
