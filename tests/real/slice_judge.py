"""Judges a loan between processes by every version of pods, nodes, SliceSets and Leases that a watch of its own shows.

`SliceJudge` shares no code with multisched. A watch that ends is continued after the last version it has shown, so that nothing is
missed; where the API server refuses that, `gaps` says so. `check_against_list` proves at the end that the watch has seen all.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import aiohttp

from tests.real.admin import NODES, RETRY_S, Admin, UnexpectedAnswerError, until
from tests.real.slice_history import Amount, SliceHistory
from tests.real.slice_replay import PodEntry, SliceEntry, SliceReplay
from tests.real.witness import ENDED, quantity, requests

ALL_PODS: Final = "/api/v1/pods"
ALL_LEASES: Final = "/apis/coordination.k8s.io/v1/leases"
SLICES: Final = "/apis/multisched.io/v1alpha1/slicesets"
DELETED: Final = "DELETED"
CAUGHT_UP_S: Final = 60.0
Document = Mapping[str, Any]


@dataclass
class NodeSums:
    """What a node has, and what its bound pods request that have not ended."""

    name: str
    uid: str = ""
    has: dict[str, int] = field(default_factory=dict)
    used: Counter[str] = field(default_factory=Counter)
    borrowed: Counter[str] = field(default_factory=Counter)
    """The part of pods of the borrower."""


@dataclass(frozen=True)
class Holding:
    """A version of a Lease."""

    holder: str
    renewed: str
    duration_s: int


class SliceJudge:
    """Only `watching` makes one."""

    def __init__(self, admin: Admin, borrower: str) -> None:
        """`borrower`: schedulerName of its pods."""
        self._admin = admin
        self._borrower = borrower
        self._counted: dict[str, tuple[str, dict[str, int], bool]] = {}
        self._nodes: dict[str, NodeSums] = {}
        self._seen: dict[str, int] = {}
        self._is_synced: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.pods: dict[str, Document] = {}
        """By uid: the latest version of those that exist."""
        self.node_of: dict[str, str] = {}
        """By uid, of every pod that was ever seen bound."""
        self.slices = SliceHistory()
        self.leases: defaultdict[str, list[Holding]] = defaultdict(list)
        """By name: each version."""
        self.over: list[str] = []
        """One sentence per version at which a node held more than it has."""
        self.most: Counter[str] = Counter()
        """By resource: the largest share of a node that was requested, in thousandths."""
        self.broken: list[str] = []
        """What `check_slices` has found."""
        self._journal: list[PodEntry | SliceEntry] = []
        self._uids: dict[str, str] = {}
        """uid -> name of each node."""
        self.moved: list[str] = []
        """Pods that were seen on a second node."""
        self.gaps: list[str] = []
        """Where versions may have been missed."""
        self.versions: Counter[str] = Counter()
        """By kind: versions seen."""
        self.listeners: list[Callable[[str, Document], None]] = []
        """Called with the type of each event of a pod, and the pod."""

    @classmethod
    @asynccontextmanager
    async def watching(cls, admin: Admin, borrower: str = "job-scheduler") -> AsyncIterator[SliceJudge]:
        """Watches until the block ends. Nodes are known before the first pod; the definition of SliceSets may be missing."""
        judge = cls(admin, borrower)
        tasks = [
            asyncio.create_task(judge._watch(path, take))
            for path, take in (
                (NODES, judge._take_node),
                (ALL_PODS, judge._take_pod),
                (SLICES, judge._take_slices),
                (ALL_LEASES, judge._take_lease),
            )
        ]
        try:
            for path in (NODES, ALL_PODS, ALL_LEASES):
                await judge._is_synced[path].wait()
            yield judge
            if failed := [task for task in tasks if task.done()]:
                await failed[0]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def violations(self) -> list[str]:
        return [*self.over, *self.moved, *self.gaps, *self.broken]

    def holder(self, lease: str) -> str:
        """Returns the holder of a lease as last seen; empty if it is free."""
        return self.leases[lease][-1].holder if self.leases[lease] else ""

    def sums(self) -> list[NodeSums]:
        return list(self._nodes.values())

    def bound(self, prefix: str = "") -> int:
        """Returns how many pods hold capacity now."""
        return sum(1 for uid in self._counted if self.pods[uid]["metadata"]["name"].startswith(prefix))

    def lent(self) -> tuple[int, int]:
        """Returns thousandths of cores: what is offered now, and how much of that pods of the borrower request."""
        borrowed = {node.uid: node.borrowed["cpu"] for node in self._nodes.values()}
        offered = {uid: amount[0] for uid, amount in self.slices.offered().items()}
        return sum(offered.values()), sum(min(amount, borrowed.get(uid, 0)) for uid, amount in offered.items())

    def check_slices(self) -> None:
        """Replays all versions in the order in which they were stored; adds to `broken` where a side used what it had not got."""
        replay = SliceReplay({name: _amount_of(node.has) for name, node in self._nodes.items()}, self._uids)
        for entry in sorted(self._journal, key=lambda entry: entry.version):
            replay.take(entry)
        self.broken = replay.broken

    async def check_against_list(self) -> None:
        """Compares what the watch has shown with a consistent list, once nothing changes any more; adds to `gaps` what differs."""

        async def agrees() -> bool:
            listed = {
                one["metadata"]["uid"]: one["spec"].get("nodeName", "") for one in await self._admin.items(ALL_PODS)
            }
            return listed == {uid: one["spec"].get("nodeName", "") for uid, one in self.pods.items()}

        try:
            await until(agrees, CAUGHT_UP_S)
        except TimeoutError:
            self.gaps.append("the watch has shown other pods than a list")

    # -- the watch -------------------------------------------------------------------------------------------------

    async def _watch(self, path: str, take: Callable[[str, Document], None]) -> None:
        listed = 0
        while True:
            try:
                items, version = await self._admin.listing(path)
            except (aiohttp.ClientError, TimeoutError):
                await asyncio.sleep(RETRY_S)
                continue
            except UnexpectedAnswerError:
                if path != SLICES:
                    raise
                await asyncio.sleep(RETRY_S)  # the kind is not served
                continue
            if listed and path != SLICES:
                self.gaps.append(f"{path} was listed again after version {self._seen[path]}")
            listed += 1
            if path == SLICES:
                for name in self.slices.names() - {item["metadata"]["name"] for item in items}:
                    take(DELETED, {"metadata": {"name": name, "resourceVersion": version}})
            for item in items:
                take("ADDED", item)
            self._seen[path] = int(version)
            self._is_synced[path].set()
            can_continue = True
            while can_continue:
                can_continue = await self._follow(path, take)
                await asyncio.sleep(RETRY_S)

    async def _follow(self, path: str, take: Callable[[str, Document], None]) -> bool:
        """Takes events until the watch ends; returns whether it can be continued."""
        async for event in self._admin.watch(path, str(self._seen[path]), bookmarks=True):
            if event.get("type") not in ("ADDED", "MODIFIED", DELETED, "BOOKMARK"):
                return False
            found = event["object"]
            version = int(found["metadata"]["resourceVersion"])
            if version < self._seen[path]:
                self.gaps.append(f"{path} shows version {version} after {self._seen[path]}")
            self._seen[path] = version
            if event["type"] != "BOOKMARK":
                self.versions[path] += 1
                take(event["type"], found)
        return True

    # -- pods and nodes --------------------------------------------------------------------------------------------

    def _take_node(self, kind: str, node: Document) -> None:
        metadata = node["metadata"]
        known = self._nodes.setdefault(metadata["name"], NodeSums(metadata["name"]))
        known.uid = metadata["uid"]
        self._uids[known.uid] = known.name
        has = {} if kind == DELETED else node["status"].get("allocatable", {})
        known.has = {name: _units(name, text) for name, text in has.items()}
        self._judge_node(known)

    def _take_pod(self, kind: str, pod: Document) -> None:
        uid, node = pod["metadata"]["uid"], pod["spec"].get("nodeName", "")
        if node and self.node_of.setdefault(uid, node) != node:
            self.moved.append(f"{pod['metadata']['name']} was on {self.node_of[uid]} and is on {node}")
        if kind == DELETED:
            self.pods.pop(uid, None)
        else:
            self.pods[uid] = pod
        holds = kind != DELETED and bool(node) and pod["status"].get("phase") not in ENDED
        if holds != (uid in self._counted):
            self._count(uid, pod, holds=holds)
        for listener in self.listeners:
            listener(kind, pod)

    def _count(self, uid: str, pod: Document, *, holds: bool) -> None:
        if holds:
            amounts = {name: _units(name, amount) for name, amount in requests(pod).items()}
            self._counted[uid] = pod["spec"]["nodeName"], amounts, pod["spec"]["schedulerName"] == self._borrower
        name, amounts, is_borrower = self._counted[uid]
        version = int(pod["metadata"]["resourceVersion"])
        self._journal.append(PodEntry(version, name, _amount_of(amounts), is_borrower=is_borrower, holds=holds))
        node = self._nodes.setdefault(name, NodeSums(name))
        for sums in (node.used, node.borrowed) if is_borrower else (node.used,):
            sums.update(amounts) if holds else sums.subtract(amounts)
        if holds:
            self._judge_node(node)
        else:
            del self._counted[uid]

    def _judge_node(self, node: NodeSums) -> None:
        for resource, used in node.used.items():
            has = node.has.get(resource, 0)
            if has:
                self.most[resource] = max(self.most[resource], 1000 * used // has)
            if used > has:
                lent = node.borrowed[resource]
                self.over.append(
                    f"{node.name}: {used} of {has} {resource}, {lent} of that borrowed, at pods {self._seen.get(ALL_PODS)}"
                )

    # -- slices and leases -----------------------------------------------------------------------------------------

    def _take_slices(self, kind: str, found: Document) -> None:
        self.slices.take(found, time.monotonic(), is_there=kind != DELETED)
        name, version = found["metadata"]["name"], int(found["metadata"]["resourceVersion"])
        self._journal.append(SliceEntry(version, name, *self.slices.content(name)))

    def _take_lease(self, kind: str, lease: Document) -> None:
        spec = lease["spec"]
        self.leases[lease["metadata"]["name"]].append(
            Holding(
                "" if kind == DELETED else spec.get("holderIdentity") or "",
                spec.get("renewTime") or "",
                int(spec.get("leaseDurationSeconds") or 0),
            )
        )


def _amount_of(amounts: Mapping[str, int]) -> Amount:
    return amounts.get("cpu", 0), amounts.get("memory", 0), amounts.get("pods", 0)


def _units(resource: str, amount: Any) -> int:
    """Returns thousandths of cores, bytes or pieces."""
    number = quantity(amount) if isinstance(amount, str) else amount
    return int(number * 1000) if resource == "cpu" else int(number)


def bound_without_lease(binds: Iterable[tuple[str, float]], holdings: Sequence[Holding]) -> list[str]:
    """Returns the binds that a process made while its lease had run out or was another's.

    `binds`: holder, and time of the request in epoch seconds. `holdings`: each version of the lease.
    """
    versions = sorted((datetime.fromisoformat(one.renewed).timestamp(), one) for one in holdings if one.renewed)
    times = [renewed_s for renewed_s, _ in versions]
    found = []
    for holder, at_s in binds:
        index = bisect_right(times, at_s) - 1
        renewed_s, one = versions[index] if index >= 0 else (0.0, Holding("nobody", "", 0))
        if one.holder != holder:
            found.append(f"{holder} has bound at {at_s:.3f}, when {one.holder or 'nobody'} held the lease")
        elif at_s > renewed_s + one.duration_s:
            found.append(f"{holder} has bound {at_s - renewed_s - one.duration_s:.1f} s after its lease ran out")
    return found
