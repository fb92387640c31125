"""Two or three replicas that lead the lender and the borrower of a sliced loan, while everything around them is disturbed.

Beside `handover`: the same replicas, leases and judge of binds. Writes of SliceSets are late, lost, or take effect without an answer;
watches stall; replicas are killed and stopped; nodes move between the domains, join and leave the loan; pods come and end.

From WIDE_FROM on, each domain has a standby, and a third domain may borrow, too; watches lag, and leaders fail while offers or pods of
theirs are not seen yet by their successors. These draws have a generator of their own: earlier seeds keep their traces.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import orjson
import yaml

from multisched.cluster.api.direct import DirectTransport
from multisched.model.wire import AnswerLostError, Response
from multisched.testing.sim_loop import SimLoop, simulate
from tests.kit import definitions
from tests.sim.handover import PODS_PATH, HandoverCluster, Replica, ReplicaTransport

SLICES: Final = "/apis/multisched.io/v1alpha1/slicesets"
NODES: Final = 3
NODE_MILLI: Final = 8_000
FAULTS_S: Final = 150.0
QUIET_S: Final = 120.0
QUIET_BORROWER_S: Final = 37.0
"""After so long without pods, the borrower has released everything."""
ANSWERED_IN_S: Final = 6.0
"""How long a replica waits for the answer to a write, which may take effect later."""
LENDER, BORROWER, LATER_BORROWER = "gpu", "job", "web"
WIDE_FROM: Final = 100
"""The first seed with standbys, watches that lag, and leaders whose successors know little."""


def configuration(share_percent: int, *, has_later: bool = False) -> str:
    """`has_later`: a second borrower, of all nodes of the lender, gets what the first one leaves."""
    loan = {
        "from": LENDER,
        "selector": {"matchExpressions": [{"key": "kept", "operator": "DoesNotExist"}]},
        "sharePercent": share_percent,
        "return": {"notice": "6s", "grace": "4s"},
    }
    domains = [
        {"name": LENDER, "nodes": {"rule": "rest"}},
        {"name": BORROWER, "nodes": {"rule": "labelled"}, "loans": [loan]},
    ]
    if has_later:
        later = {"from": LENDER, "sharePercent": 100, "return": {"notice": "6s", "grace": "4s"}}
        domains.append({"name": LATER_BORROWER, "nodes": {"rule": "labelled"}, "loans": [later]})
    head = {"apiVersion": "multisched.io/v1", "kind": "MultischedConfiguration", "lease": {"perDomain": True}}
    return yaml.safe_dump({**head, "domains": domains})


class SliceFaults(ReplicaTransport):
    """A connection on which requests about SliceSets may be late, get lost, or lose their answers."""

    def __init__(self, cluster: HandoverCluster, leads: frozenset[str], late_s: float) -> None:
        super().__init__(cluster, leads, late_s)
        self._rng = random.Random(cluster.rng.random())
        self.loses = 0.0
        """Share of writes that get lost, or lose their answer."""
        self.late_min_s = self.late_max_s = 0.0
        if cluster.seed >= WIDE_FROM:
            self.lags = {"/pods": 0.0, "/slicesets": 0.0}

    async def request(self, method: str, path: str, **more: Any) -> Response:
        if "/slicesets" not in path or method == "GET":
            return await super().request(method, path, **more)
        self.check()
        rng = self._rng
        late_s, loses_answer = rng.uniform(self.late_min_s, self.late_max_s), rng.random() < self.loses
        if rng.random() < self.loses / 2:
            raise AnswerLostError("lost before it arrived")

        async def travel() -> Response:
            await asyncio.sleep(late_s)
            return await DirectTransport.request(self, method, path, **more)

        answer = await self.carry(travel(), ANSWERED_IN_S)
        self.check()
        if loses_answer:
            raise AnswerLostError("its answer was lost")
        return answer


def faults_of(replica: Replica) -> SliceFaults:
    assert isinstance(replica.transport, SliceFaults), "the cluster makes no others"
    return replica.transport


class SliceCluster(HandoverCluster):
    """The cluster, with a judge of every version of every pod."""

    transport_class = SliceFaults

    async def judge_pods(self) -> None:
        """Sums the requests of the pods on each node over a watch of its own."""
        pods: dict[str, tuple[str, int]] = {}
        async with self.api.stream("/api/v1/pods?watch=true", idle_timeout_s=1e9) as lines:
            async for line in lines:
                event = orjson.loads(line)
                pod = event["object"]
                uid, node = pod["metadata"]["uid"], pod["spec"].get("nodeName", "")
                pods.pop(uid, None)
                if event["type"] == "DELETED" or not node:
                    continue
                pods[uid] = node, sum(_milli(one["resources"]["requests"]["cpu"]) for one in pod["spec"]["containers"])
                total = sum(milli for at, milli in pods.values() if at == node)
                if total > NODE_MILLI:
                    self.broken.append(f"I1: {node} holds {total} of {NODE_MILLI} mCPU at {self.loop.time():.1f} s")

    async def end_evicted(self, wide: random.Random | None) -> None:
        """Ends pods that are being deleted, as kubelets do."""
        while True:
            await asyncio.sleep(self.rng.uniform(0.2, 3.0) if wide is None else wide.uniform(2.0, 8.0))
            answer = await self.send("GET", PODS_PATH)
            for pod in orjson.loads(answer.body)["items"]:
                if pod["metadata"].get("deletionTimestamp"):
                    await self.delete_pod(pod["metadata"]["name"])

    async def slice_sets(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = orjson.loads((await self.send("GET", SLICES)).body).get("items", [])
        return found

    def bound(self, domain: str) -> int:
        return sum(1 for pod in self.stored("pods") if pod.node and pod.name.startswith(f"{domain}-"))


def _milli(cpu: str) -> int:
    return int(cpu[:-1]) if cpu.endswith("m") else 1000 * int(cpu)


class SliceSchedule:
    """Disturbances, drawn from the seed."""

    def __init__(self, cluster: SliceCluster, *, moves: bool, wide: random.Random | None) -> None:
        """`wide`: the generator of what only seeds from WIDE_FROM on have."""
        self.cluster = cluster
        steps: list[tuple[Callable[[], Awaitable[None]], float]] = [
            (self._burst, 10),
            (self._delete_pods, 5),
            (self._stall_watches, 1),
            (self._disturb_writes, 2),
            (self._slow_binds, 1),
            (self._fail, 0.8),
        ]
        if moves:
            steps += [(self._move, 2), (self._keep, 1), (self._recreate, 0.5)]
        if wide is not None:
            composite = [self._see_late, self._release_late, self._fail_unseen, self._fail_while_raising]
            if any(LATER_BORROWER in one.leads for one in cluster.replicas):
                composite.append(self._change_loans)
            steps += [(partial(step, wide), 3) for step in composite]
        self._steps = [step for step, _ in steps]
        self._weights = [weight for _, weight in steps]

    async def run(self) -> None:
        cluster, loop = self.cluster, self.cluster.loop
        end_s = loop.time() + FAULTS_S
        while loop.time() < end_s and not cluster.broken:
            await asyncio.sleep(cluster.rng.uniform(0.05, 2.0))
            step = cluster.rng.choices(self._steps, self._weights)[0]
            cluster.counts[getattr(getattr(step, "func", step), "__name__", "").strip("_")] += 1
            await step()

    def _replica(self) -> Replica:
        return self.cluster.rng.choice(self.cluster.replicas)

    async def _burst(self) -> None:
        rng = self.cluster.rng
        domain = rng.choice([LENDER, BORROWER, BORROWER])
        for _ in range(rng.randrange(1, 9)):
            await self.cluster.add_pod(domain, rng.choice(["500m", "1", "3"]))

    async def _delete_pods(self) -> None:
        pods = sorted(pod.name for pod in self.cluster.stored("pods"))
        for name in self.cluster.rng.sample(pods, len(pods) // 2):
            await self.cluster.delete_pod(name)

    async def _stall_watches(self) -> None:
        transport, until_s = self._replica().transport, self.cluster.loop.time() + self.cluster.rng.uniform(1.0, 12.0)
        transport.stalled_until_s = self.cluster.rng.choice([0.0, until_s])
        transport.pods_stalled_until_s = until_s

    async def _disturb_writes(self) -> None:
        for transport in map(faults_of, self.cluster.replicas):
            transport.loses = self.cluster.rng.choice([0.0, 0.0, 0.3])
            transport.late_max_s = self.cluster.rng.choice([0.0, 0.1, 1.0, 3.0, 40.0])

    async def _slow_binds(self) -> None:
        self._replica().transport.bind_s = self.cluster.rng.choice([None, 0.05, 4.5])

    async def _fail(self) -> None:
        replica = self._replica()
        if self.cluster.rng.random() < 0.7:
            await self.cluster.kill(replica)
        else:
            await self.cluster.stop(replica)
        await asyncio.sleep(self.cluster.rng.choice([0.0, 1.0, 25.0]))
        self.cluster.start(replica.leads, replica.text)

    # -- from WIDE_FROM on -----------------------------------------------------------------------------------------

    def _of(self, domain: str) -> tuple[list[SliceFaults], list[SliceFaults]]:
        """Returns the connections of the replica that leads the domain, and of those that may."""
        able = [one for one in self.cluster.replicas if domain in one.leads]
        leading = [one for one in able if any(w.is_leading for w in one.program.router.workers() if w.name == domain)]
        standing_by = [one for one in able if one not in leading]
        return [faults_of(one) for one in leading], [faults_of(one) for one in standing_by]

    async def _see_late(self, wide: random.Random) -> None:
        """Leaders see late what pods do. The borrower fills the room for pods of the lender that its leader does not see yet, and must
        return it before the lender sees who filled it."""
        lag_s = wide.choice([3.0, 12.0, 12.0])
        for one in self._of(LENDER)[0] + (self._of(BORROWER)[0] if wide.random() < 0.3 else []):
            one.lags["/pods"], one.lags["/slicesets"] = lag_s, wide.choice([0.0, 0.0, 3.0])
            one.loses, one.late_max_s, one.bind_s = 0.0, wide.choice([0.0, 1.0]), wide.choice([None, 0.05])
        await self._delete_pods()
        await asyncio.sleep(lag_s + 2.0)
        await self._add(LENDER, wide.randrange(2, 5), "3")
        await asyncio.sleep(max(0.0, lag_s - wide.uniform(0.0, 2.0)))
        await self._add(BORROWER, 16, "1")
        await asyncio.sleep(wide.uniform(12.0, 16.0))

    async def _release_late(self, wide: random.Random) -> None:
        """Pods arrive while it is not known whether what they could use has been released."""
        await self._add(BORROWER, 12, "1")
        await asyncio.sleep(6.0)
        for one in self._of(BORROWER)[0]:
            one.loses, one.late_min_s, one.late_max_s = 0.0, 4.0, 4.0
        await self._delete_pods_of(BORROWER)
        for one in self._of(LENDER)[0]:
            one.loses, one.late_max_s, one.lags["/pods"] = 0.0, 0.0, wide.choice([0.0, 3.0])
        await asyncio.sleep(wide.uniform(23.0, 30.0))
        for _ in range(2):
            await self._add(BORROWER, 8, "1")
            await self._add(LENDER, wide.randrange(3, 7), wide.choice(["1", "3"]))
            await asyncio.sleep(wide.uniform(1.0, 5.0))
        await asyncio.sleep(6.0)
        for one in self._of(BORROWER)[0]:
            one.late_min_s = one.late_max_s = 0.0
        for one in self._of(LENDER)[0]:
            one.lags["/pods"] = 0.0

    async def _fail_unseen(self, wide: random.Random) -> None:
        """The lender replaces its pods and fails, before its standby and the borrower have seen it: first they see only that room is
        free."""
        await self._delete_pods_of(LENDER, BORROWER)
        await asyncio.sleep(QUIET_BORROWER_S)
        await self._add(LENDER, 6, "4")
        await asyncio.sleep(10.0)
        await self._add(BORROWER, 16, "1")
        await asyncio.sleep(2.0)
        (leading, standing_by), (borrowing, _) = self._of(LENDER), self._of(BORROWER)
        for one in leading:
            one.bind_s = 4.5
        for one in standing_by + borrowing:
            one.loses, one.late_max_s, one.lags["/pods"] = 0.0, 0.0, 45.0
        await asyncio.sleep(wide.uniform(0.0, 5.0))
        await self._delete_pods_of(LENDER)
        await self._add(LENDER, 6, "4")
        await asyncio.sleep(6.0)
        await self._replace(leading, after_s=25.0)
        await asyncio.sleep(25.0)
        for one in standing_by + borrowing:
            one.lags["/pods"] = 0.0

    async def _fail_while_raising(self, wide: random.Random) -> None:
        """The lender fails while it raises its offers from nothing, and its successor's writes are slow, too. The borrower writes nothing
        before the raise arrives, since that would make it fail, and sees late which pods the successor has bound."""
        await self._delete_pods_of(LENDER, BORROWER)
        await asyncio.sleep(QUIET_BORROWER_S)
        await self._add(LENDER, 6, "4")
        await asyncio.sleep(10.0)
        leading, standing_by = self._of(LENDER)
        borrowing, _ = self._of(BORROWER)
        for one in borrowing:
            one.loses, one.late_max_s, one.lags["/pods"] = 0.0, 0.0, 20.0
        for one in leading:
            one.loses, one.late_min_s, one.late_max_s = 0.0, 20.0, 40.0
        for one in [one for one in standing_by if one not in borrowing]:
            one.loses, one.late_min_s = 0.0, wide.choice([5.0, 20.0, 20.0])
            one.late_max_s = one.late_min_s
            one.stalled_until_s = self.cluster.loop.time() + wide.choice([0.0, 60.0])
        await self._add(BORROWER, 16, "1")
        await self._delete_pods_of(LENDER)
        await asyncio.sleep(wide.uniform(5.5, 7.0))
        await self._add(LENDER, 4, "4")
        await asyncio.sleep(1.5)
        await self._replace(leading, after_s=8.0)
        await self._add(LENDER, 4, "4")
        await asyncio.sleep(40.0)
        for one in borrowing:
            one.lags["/pods"] = 0.0

    async def _change_loans(self, wide: random.Random) -> None:
        """All nodes leave the first borrower's loan, so that the later one fills them, and join it again. The first one does not see yet
        who fills them."""
        await self._delete_pods_of(LENDER, BORROWER)
        for number in range(NODES):
            await self.cluster.label(f"node-{number}", kept="yes")
        await self._add(BORROWER, 16, "1")
        await asyncio.sleep(8.0)
        for one in self._of(BORROWER)[0]:
            one.loses, one.late_max_s, one.lags["/pods"] = 0.0, 0.0, 20.0
        await self._add(LATER_BORROWER, 24, "1")
        await asyncio.sleep(wide.uniform(5.0, 10.0))
        for number in range(NODES):
            await self.cluster.label(f"node-{number}", kept=None)
        await asyncio.sleep(15.0)
        await self._delete_pods_of(LATER_BORROWER)
        for one in self._of(BORROWER)[0]:
            one.lags["/pods"] = 0.0

    async def _replace(self, leading: Sequence[SliceFaults], after_s: float) -> None:
        """Kills replicas, and starts others in their place."""
        killed = [replica for replica in self.cluster.replicas if replica.transport in leading]
        for one in killed:
            await self.cluster.kill(one)
        await asyncio.sleep(after_s)
        for one in killed:
            self.cluster.start(one.leads, one.text)

    async def _delete_pods_of(self, *domains: str) -> None:
        for pod in self.cluster.stored("pods"):
            if pod.name.startswith(domains):
                await self.cluster.delete_pod(pod.name)

    async def _add(self, domain: str, count: int, cpu: str) -> None:
        for _ in range(count):
            await self.cluster.add_pod(domain, cpu)

    async def _fill(self, domain: str, rounds: int, wide: random.Random) -> None:
        """Pods of the domain, and fewer of the other ones, arrive for `rounds` times three seconds."""
        others = sorted({name for one in self.cluster.replicas for name in one.leads} - {domain})
        for _ in range(rounds):
            for _ in range(wide.randrange(1, 4)):
                await self.cluster.add_pod(domain, wide.choice(["500m", "1", "3"]))
            await self.cluster.add_pod(wide.choice(others), wide.choice(["500m", "1", "3"]))
            await asyncio.sleep(wide.uniform(2.0, 4.0))
            if self.cluster.broken:
                return

    def _node(self) -> str:
        return f"node-{self.cluster.rng.randrange(NODES)}"

    async def _move(self) -> None:
        await self.cluster.label(self._node(), **{"multisched.io_domain": self.cluster.rng.choice([LENDER, BORROWER])})

    async def _keep(self) -> None:
        await self.cluster.label(self._node(), kept=self.cluster.rng.choice([None, "yes"]))

    async def _recreate(self) -> None:
        name = self._node()
        await self.cluster.remove_node(name)
        await self.cluster.add_node(name)


@dataclass(frozen=True)
class SliceReport:
    broken: tuple[str, ...]
    counts: Counter[str]
    stuck: tuple[str, ...]
    """What did not settle after the disturbances."""

    @property
    def found(self) -> tuple[str, ...]:
        """All that is wrong."""
        return self.broken + self.stuck


def run(seed: int, *, moves: bool) -> SliceReport:
    """Runs one seed. `moves`: nodes move between domains, and into and out of the loan."""
    loop = SimLoop(seed)
    cluster = SliceCluster(loop, seed)
    wide = random.Random(f"wide {seed}") if seed >= WIDE_FROM else None
    has_later = wide is not None and wide.random() < 0.5
    text = configuration(cluster.rng.choice([100, 60]), has_later=has_later)

    async def main() -> SliceReport:
        for number in range(NODES):
            await cluster.add_node(f"node-{number}")
        await cluster.send("POST", definitions.PATH, definitions.definition("slicesets"))
        tasks = [asyncio.create_task(cluster.judge_pods()), asyncio.create_task(cluster.end_evicted(wide))]
        both = [{LENDER}, {BORROWER}] + [{LENDER, BORROWER}] * cluster.rng.randrange(2)
        if wide is not None:
            both += [{LENDER}, {BORROWER}] + [{LATER_BORROWER}] * has_later
        for leads in both:
            cluster.start(leads, text)
        await asyncio.sleep(15.0)
        await SliceSchedule(cluster, moves=moves, wide=wide).run()
        stuck = () if cluster.broken else await _settled(cluster)
        await cluster.end()
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        return SliceReport(tuple(dict.fromkeys(cluster.broken)), cluster.counts, tuple(stuck))

    return simulate(main(), loop)


async def _settled(cluster: SliceCluster) -> Sequence[str]:
    """Ends the disturbances; returns what is wrong once the loan has had time to settle."""
    for transport in map(faults_of, cluster.replicas):
        transport.lags = dict.fromkeys(transport.lags, 0.0)
        transport.loses = transport.late_min_s = transport.late_max_s = 0.0
        transport.stalled_until_s = transport.pods_stalled_until_s = 0.0
        transport.bind_s = 0.05
    for number in range(NODES):
        await cluster.label(f"node-{number}", multisched_io_domain=None, kept=None, **{"multisched.io_domain": None})
    for pod in cluster.stored("pods"):
        await cluster.delete_pod(pod.name)
    await asyncio.sleep(QUIET_S)
    stuck = []
    for _ in range(4 * NODES):
        await cluster.add_pod(BORROWER, "1")
    await asyncio.sleep(QUIET_S)
    if cluster.bound(BORROWER) != 4 * NODES:
        stuck.append(f"{cluster.bound(BORROWER)} of {4 * NODES} pods of the borrower are bound")
    for _ in range(2 * NODES):
        await cluster.add_pod(LENDER, "4")
    await asyncio.sleep(QUIET_S)
    if cluster.bound(LENDER) != 2 * NODES:
        stuck.append(f"{cluster.bound(LENDER)} of {2 * NODES} pods of the lender are bound")
    for pod in cluster.stored("pods"):
        await cluster.delete_pod(pod.name)
    await asyncio.sleep(QUIET_S)
    held = {one["metadata"]["name"]: (one.get("status") or {}).get("held") for one in await cluster.slice_sets()}
    stuck += [f"SliceSet {name} holds {amounts}" for name, amounts in held.items() if amounts]
    return stuck
