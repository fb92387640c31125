"""A loan between two processes on the real control plane, while processes are killed and stopped and the network is slow.

    python -m tests.perf.slices_bench [--kills 30] [--stops 10] [--latency 2.0] [--minutes 40] [--seed 1] [--nodes 64] [--check]
    python -m tests.perf.slices_bench --one-process [--rounds 3] [--pods 4000]

Three replicas run, as in `deploy/overlays/scale-out`: by `lease.spread` one leads the lender `gpu`, one the borrower `job`, and one is
a standby. Kills and stops of leaders are spread evenly over `--minutes`; a process that has ended is started again.
Short pods of the borrower fill what is lent, waves of pods of the lender take it back. `SliceJudge` reads every version of pods,
nodes, SliceSets and Leases. Prints one JSON document; `--check` exits 1 if a bar is missed.

`--one-process` compares instead (`slices_contest.py`): both domains in one process, or in one process each.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from tests.perf import slices_contest
from tests.perf.slices_load import BORROWER, LENDER, Load, node
from tests.real.admin import Admin, until
from tests.real.audit_log import Call, bound, calls
from tests.real.control_plane import ControlPlane
from tests.real.deployed import Deployed, Scheduler
from tests.real.slice_history import Recall
from tests.real.slice_judge import SliceJudge, bound_without_lease
from tests.real.slow_network import SlowNetwork

DEFINITION: Final = Path(__file__).parents[2] / "deploy" / "crds" / "slicesets.yaml"
NOTICE_S: Final = 5.0
GRACE_S: Final = 5.0
DEADLINE_S: Final = 30.0
"""After which a recall is late. Time without a leader of the borrower does not count."""
SETTINGS: Final = {
    "lease": {"perDomain": True, "spread": True},
    "domains": [
        {"name": LENDER},
        {
            "name": BORROWER,
            "loans": [
                {
                    "from": LENDER,
                    "resources": ["cpu", "memory"],
                    "return": {"notice": f"{NOTICE_S:g}s", "grace": f"{GRACE_S:g}s", "deadline": f"{DEADLINE_S:g}s"},
                }
            ],
        },
    ],
}
LEASE_OF: Final = {name: f"multisched-{name}" for name in (LENDER, BORROWER)}
SLOW_FOR_S: Final = (4.0, 12.0)
FAST_FOR_S: Final = (8.0, 24.0)
REPLICAS: Final = ("first", "second", "third")
LED_MAX_S: Final = 75.0
"""A fault is not delayed longer than this, although a domain has no leader."""
SPREAD: Final = (0.2, 0.8)
"""When a fault happens, as a share of its part of the run."""
RESTARTS_S: Final = (0.0, 0.0, 0.0, 2.0, 25.0)
"""After which a killed process starts again: a kubelet does it at once the first time, and waits after that."""
BOTH: Final = 0.25
"""Share of kills that concern the leaders of both domains."""
STOP_S: Final = (20.0, 40.0)
ENDS_MAX_S: Final = 20.0
LOOK_S: Final = 0.25
QUIET_S: Final = 20.0
SHOWN: Final = 10


@dataclass(frozen=True)
class Options:
    kills: int
    stops: int
    latency_s: float
    minutes: float
    seed: int
    nodes: int
    backlog: int
    wave_s: float
    pod_s: float
    folder: Path


class Replica:
    """One of the replicas; after the end of its process, another one takes its place."""

    def __init__(self, name: str, deployed: Deployed, network: SlowNetwork) -> None:
        self.name = name
        self.network = network
        self._deployed = deployed
        self.past: list[Scheduler] = []
        self.scheduler: Scheduler | None = None

    async def start(self) -> None:
        identity = f"{self.name}-{len(self.past)}"
        self.scheduler = await self._deployed.start(identity, SETTINGS, port=self.network.port)
        self.past.append(self.scheduler)

    @property
    def is_running(self) -> bool:
        return self.scheduler is not None and self.scheduler.program.returncode is None


class Faults:
    """Kills, stops and latency, drawn from the seed."""

    def __init__(self, replicas: list[Replica], judge: SliceJudge, options: Options) -> None:
        self._replicas = replicas
        self._judge = judge
        self._options = options
        self._rng = random.Random(options.seed)
        self.counts: Counter[str] = Counter()
        self.slow_s = 0.0
        """Time in which the network of a process was slow."""
        self._stopped: set[str] = set()

    async def run(self) -> None:
        """Returns after `--minutes`, when all faults have happened and both domains have a leader."""
        began_s = time.monotonic()
        slowing = [asyncio.create_task(self._slow(replica)) for replica in self._replicas]
        watching = asyncio.create_task(self._restart_ended())
        try:
            for at_s, is_stop, domains in schedule(self._options, self._rng):
                await asyncio.sleep(began_s + at_s - time.monotonic())
                await self._wait_led()
                victims = [self._leader(domain) for domain in domains]
                if is_stop:
                    await self._stop(victims[0])
                else:
                    await self._kill(list(dict.fromkeys(victims)))
            await asyncio.sleep(began_s + 60 * self._options.minutes - time.monotonic())
            await self._wait_led()
        finally:
            for task in (*slowing, watching):
                task.cancel()
            await asyncio.gather(*slowing, watching, return_exceptions=True)
            for replica in self._replicas:
                replica.network.delay_s = 0.0

    async def _wait_led(self) -> None:
        """Waits until a running process leads each domain."""

        async def are_led() -> bool:
            return self.is_led()

        with suppress(TimeoutError):
            await until(are_led, LED_MAX_S)
        self.counts["unled"] += not self.is_led()

    def is_led(self, domain: str = "") -> bool:
        """Reports whether running processes hold the lease of the domain, or of both."""
        running = {
            one.scheduler.identity
            for one in self._replicas
            if one.scheduler is not None and one.is_running and one.name not in self._stopped
        }
        domains = [domain] if domain else [LENDER, BORROWER]
        return all(self._judge.holder(LEASE_OF[one]).rpartition("-")[0] in running for one in domains)

    def _leader(self, domain: str) -> Replica:
        led = [one for one in self._replicas if self._leads(one.scheduler, LEASE_OF[domain])]
        return led[0] if led else self._rng.choice(self._replicas)

    async def _kill(self, victims: list[Replica]) -> None:
        waits_s = [self._rng.choice(RESTARTS_S) for _ in victims]
        for replica in victims:
            if replica.is_running and replica.scheduler is not None:
                leads_borrower = self._leads(replica.scheduler, LEASE_OF[BORROWER])
                scheduler, replica.scheduler = replica.scheduler, None
                await scheduler.program.kill()
                self.counts["kills"] += 1
                self.counts["kills of a borrower"] += leads_borrower
        began_s = time.monotonic()
        for wait_s, replica in sorted(zip(waits_s, victims, strict=True), key=lambda one: one[0]):
            await asyncio.sleep(began_s + wait_s - time.monotonic())
            await replica.start()

    async def _stop(self, replica: Replica) -> None:
        scheduler = replica.scheduler
        if scheduler is None or not replica.is_running:
            return
        led = [domain for domain, lease in LEASE_OF.items() if self._leads(scheduler, lease)]
        scheduler.program.signal(signal.SIGSTOP)
        self.counts["stops"] += 1
        self._stopped.add(replica.name)
        await asyncio.sleep(self._rng.uniform(*STOP_S))
        lost = [domain for domain in led if not self._leads(scheduler, LEASE_OF[domain])]
        self.counts["stops of a borrower"] += BORROWER in led
        self.counts["stops in which another process took the borrower"] += BORROWER in lost
        scheduler.program.signal(signal.SIGCONT)
        for _ in range(int(ENDS_MAX_S / LOOK_S)):
            if not led or scheduler.program.returncode is not None:
                break
            await asyncio.sleep(LOOK_S)
        self._stopped.discard(replica.name)

    def _leads(self, scheduler: Scheduler | None, lease: str) -> bool:
        return scheduler is not None and self._judge.holder(lease).rpartition("-")[0] == scheduler.identity

    async def _restart_ended(self) -> None:
        """Starts processes again that ended by themselves, for instance because they lost a lease."""
        while True:
            await asyncio.sleep(LOOK_S)
            for replica in self._replicas:
                if replica.scheduler is not None and not replica.is_running and replica.name not in self._stopped:
                    self.counts["ended by themselves"] += 1
                    await replica.start()

    async def _slow(self, replica: Replica) -> None:
        """Changes the latency of one process's network; a request and its answer take up to the option together."""
        rng = random.Random(f"{self._options.seed} {replica.name}")
        while self._options.latency_s:
            await asyncio.sleep(rng.uniform(*FAST_FOR_S))
            replica.network.delay_s = rng.uniform(0.0, self._options.latency_s / 2)
            slow_for_s = rng.uniform(*SLOW_FOR_S)
            self.slow_s += slow_for_s
            await asyncio.sleep(slow_for_s)
            replica.network.delay_s = 0.0


def schedule(options: Options, rng: random.Random) -> list[tuple[float, bool, list[str]]]:
    """Returns when each fault happens in seconds, whether it is a stop, and the domains whose leaders it concerns."""
    faults: list[tuple[bool, list[str]]] = [(True, [rng.choice([LENDER, BORROWER])]) for _ in range(options.stops)]
    kills = options.kills
    while kills:
        domains = [LENDER, BORROWER] if kills > 1 and rng.random() < BOTH else [rng.choice([LENDER, BORROWER])]
        faults.append((False, domains))
        kills -= len(domains)
    rng.shuffle(faults)
    part_s = 60 * options.minutes / max(1, len(faults))
    return [((index + rng.uniform(*SPREAD)) * part_s, *fault) for index, fault in enumerate(faults)]


class Samples:
    """How much of what is lent is used, looked at several times a second."""

    def __init__(self, judge: SliceJudge, faults: Faults) -> None:
        self._judge = judge
        self._faults = faults
        self.ends = False
        self._holder, self._former_epoch = "", 0
        self._sums: Counter[str] = Counter()
        self.unled: list[tuple[float, float]] = []
        """When the borrower had no leader that had taken over."""

    async def run(self) -> None:
        while not self.ends:
            began_s = time.monotonic()
            await asyncio.sleep(LOOK_S)
            offered, used = self._judge.lent()
            is_led = self._is_led()
            for name, weighs in (("all", True), ("led", is_led)):
                self._sums[f"{name} offered"] += offered * weighs
                self._sums[f"{name} used"] += used * weighs
            if not is_led:
                self.unled.append((began_s, time.monotonic()))

    def _is_led(self) -> bool:
        """Reports whether a process leads the borrower and has completed its takeover: it has raised the epoch."""
        holder, epoch = self._judge.holder(LEASE_OF[BORROWER]), self._judge.slices.borrower_epoch
        if holder != self._holder:
            self._holder, self._former_epoch = holder, epoch
        return self._faults.is_led(BORROWER) and epoch > self._former_epoch

    def used_share(self, name: str) -> float:
        return self._sums[f"{name} used"] / max(1, self._sums[f"{name} offered"])

    def outages_s(self) -> list[float]:
        """Returns how long each time without a leader of the borrower lasted, in order of length."""
        found: list[list[float]] = []
        for begin_s, end_s in self.unled:
            if found and begin_s - found[-1][1] < LOOK_S:
                found[-1][1] = end_s
            else:
                found.append([begin_s, end_s])
        return sorted(end_s - begin_s for begin_s, end_s in found)

    def unled_s(self, since_s: float, until_s: float) -> float:
        """Returns how long the borrower had no leader in this time."""
        return sum(max(0.0, min(until_s, end_s) - max(since_s, begin_s)) for begin_s, end_s in self.unled)


async def play(options: Options) -> dict[str, Any]:
    """Runs the bench; returns the document."""
    async with (
        ControlPlane.start(options.folder, controller_manager=False, audit=True) as plane,
        Admin.open(plane) as admin,
    ):
        await admin.create_all(map(node, range(options.nodes)))
        deployed = await Deployed.install(plane)
        await plane.kubectl("apply", "--server-side", "-f", str(DEFINITION))
        await plane.kubectl("wait", "crd/slicesets.multisched.io", "--for=condition=Established", "--timeout=30s")
        async with SliceJudge.watching(admin) as judge, running_replicas(plane, deployed) as replicas:
            load = Load(
                admin,
                judge,
                nodes=options.nodes,
                backlog=options.backlog,
                wave_s=options.wave_s,
                pod_s=options.pod_s,
                seed=options.seed,
            )
            faults = Faults(replicas, judge, options)
            samples = Samples(judge, faults)
            began_s = time.monotonic()
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(one) for one in (load.run(), samples.run(), report(judge, faults))]
                await faults.run()
                samples.ends = load.is_calm = True
                await asyncio.sleep(QUIET_S)
                for task in running:
                    task.cancel()
            ended_s = time.monotonic()
            for replica in replicas:
                if replica.scheduler is not None:
                    await replica.scheduler.program.stop(GRACE_S)
            await judge.check_against_list()
            judge.check_slices()
            assert plane.audit_log is not None
            seen = await asyncio.to_thread(calls, plane.audit_log)
            schedulers = [one for replica in replicas for one in replica.past]
            return document(options, judge, faults, samples, (began_s, ended_s), seen, schedulers)


@asynccontextmanager
async def running_replicas(plane: ControlPlane, deployed: Deployed) -> AsyncIterator[list[Replica]]:
    async with AsyncExitStack() as stack:
        replicas = []
        for name in REPLICAS:
            network = await stack.enter_async_context(SlowNetwork.serving(plane.ports.api_server))
            replicas.append(Replica(name, deployed, network))
            await replicas[-1].start()
        yield replicas


async def report(judge: SliceJudge, faults: Faults) -> None:
    """Says now and then how far it is."""
    began_s = time.monotonic()
    while True:
        await asyncio.sleep(QUIET_S)
        offered, used = judge.lent()
        say(
            f"{time.monotonic() - began_s:.0f} s: {len(judge.node_of)} bound, {judge.slices.raises} raises,"
            f" {judge.slices.recalling_versions} recalls, {judge.slices.writes} writes, {used} of {offered} mCPU used,"
            f" {dict(faults.counts)}, {len(judge.violations)} violations {judge.violations[:1]}"
        )


def document(
    options: Options,
    judge: SliceJudge,
    faults: Faults,
    samples: Samples,
    lasted: tuple[float, float],
    seen: list[Call],
    schedulers: list[Scheduler],
) -> dict[str, Any]:
    slices = judge.slices
    began_s, now_s = lasted

    def is_late(one: Recall, allowed_s: Callable[[Recall, float], float]) -> bool:
        until_s = now_s if one.until_s is None else one.until_s
        return until_s - one.since_s > allowed_s(one, until_s)

    late = [one for one in slices.recalls if is_late(one, lambda one, until_s: DEADLINE_S)]
    culpable = [
        one for one in late if is_late(one, lambda one, until_s: DEADLINE_S + samples.unled_s(one.since_s, until_s))
    ]
    borrowers = binds_of(seen, schedulers, judge, BORROWER)
    lenders = binds_of(seen, schedulers, judge, LENDER)
    twice = [uid for uid, count in bound(seen).items() if count > 1]
    old = [
        *bound_without_lease(borrowers, judge.leases[LEASE_OF[BORROWER]]),
        *bound_without_lease(lenders, judge.leases[LEASE_OF[LENDER]]),
    ]
    took_s = sorted(one.until_s - one.since_s for one in slices.recalls if one.until_s and not one.is_withdrawn)
    requests = [call for call in seen if "/slicesets" in call.uri and call.verb in ("update", "create")]
    binds = len(judge.node_of)
    figures = {
        "seed": options.seed,
        "durationS": round(now_s - began_s, 1),
        "pods": {"bound": binds, "ofBorrower": len(borrowers), "ofLender": len(lenders)},
        "raises": slices.raises,
        "recalls": slices.recalling_versions,
        "nodesRaised": slices.raised_nodes,
        "nodesRecalled": len(slices.recalls),
        "nodesWithdrawn": slices.withdrawn_nodes,
        "recallTookS": {f"p{share}": quantile(took_s, share) for share in (50, 90, 100)},
        "lateRecalls": len(culpable),
        "lateRecallsWithoutLeader": len(late) - len(culpable),
        "lateForS": [
            round((one.until_s or now_s) - one.since_s - samples.unled_s(one.since_s, one.until_s or now_s), 1)
            for one in culpable[:SHOWN]
        ],
        "faults": {**faults.counts, "slowS": round(faults.slow_s)},
        "violations": [*judge.violations[:SHOWN], *slices.above_offer[:SHOWN], *old[:SHOWN], *twice[:SHOWN]],
        "rowsOverAllocatable": len(judge.over),
        "boundTwice": len(judge.moved) + len(twice),
        "bindsWithoutLease": len(old),
        "invariantsBroken": len(judge.broken),
        "heldAboveOffer": len(slices.above_offer),
        "gapsOfTheJudge": len(judge.gaps),
        "versions": dict(judge.versions),
        "fullestNode": {name: judge.most[name] / 1000 for name in ("cpu", "memory", "pods")},
        "lentUsedOfOffered": round(samples.used_share("all"), 3),
        "lentUsedOfOfferedWhileLed": round(samples.used_share("led"), 3),
        "unledS": round(sum(until_s - since_s for since_s, until_s in samples.unled)),
        "unledForS": {f"p{share}": quantile(samples.outages_s(), share) for share in (50, 90, 100)},
        "sliceWrites": {
            "spec": slices.spec_writes,
            "status": slices.status_writes,
            "kinds": dict(slices.kinds.most_common()),
            "requests": dict(Counter(str(call.code) for call in requests)),
        },
        "sliceWritesPerBind": round(slices.writes / max(1, binds), 4),
        "processes": len(schedulers),
        "unexpectedLogLines": unexpected(schedulers),
    }
    return figures | {"missed": missed(figures)}


def binds_of(seen: list[Call], schedulers: list[Scheduler], judge: SliceJudge, domain: str) -> list[tuple[str, float]]:
    """Returns the holder and the time of each bind of a domain's pods that the API server accepted."""
    identity_of = {one.credential: one.identity for one in schedulers}
    holder_of = {one.holder.rpartition("-")[0]: one.holder for all_of in judge.leases.values() for one in all_of}
    return [
        (holder_of.get(identity := identity_of.get(call.credential, "nobody"), identity), call.received_at.timestamp())
        for call in seen
        if call.is_bind and call.code == 201 and call.name.startswith(f"{domain}-")
    ]


def unexpected(schedulers: list[Scheduler]) -> dict[str, int]:
    """Returns lines of level error, and lines that are no JSON, with how often each was logged."""
    found: Counter[str] = Counter()
    for one in schedulers:
        for line in one.failures():
            found[orjson.loads(line).get("message", line)[:160] if line.startswith("{") else line[:160]] += 1
    return dict(found.most_common(SHOWN))


def missed(figures: Mapping[str, Any]) -> list[str]:
    """Returns the bars that are not reached."""
    zero = (
        "rowsOverAllocatable",
        "invariantsBroken",
        "boundTwice",
        "bindsWithoutLease",
        "heldAboveOffer",
        "gapsOfTheJudge",
        "lateRecalls",
    )
    found = [f"{name}: {figures[name]}, not 0" for name in zero if figures[name]]
    if figures["raises"] + figures["recalls"] < 200:
        found.append(f"raises and recalls: {figures['raises'] + figures['recalls']} < 200")
    if figures["lentUsedOfOffered"] < 0.8:
        found.append(f"lentUsedOfOffered: {figures['lentUsedOfOffered']} < 0.8")
    if figures["sliceWritesPerBind"] > 0.01:
        found.append(f"sliceWritesPerBind: {figures['sliceWritesPerBind']} > 0.01")
    return found


def quantile(values: list[float], percent: int) -> float:
    return round(values[min(len(values) - 1, len(values) * percent // 100)], 1) if values else 0.0


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    """Prints the document; 1 if a bar is missed and --check was given."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=30, help="SIGKILLs of either process")
    parser.add_argument("--stops", type=int, default=10, help="SIGSTOPs of 20 to 40 s")
    parser.add_argument("--latency", type=float, default=2.0, help="longest latency of the API server, seconds")
    parser.add_argument(
        "--minutes", type=float, default=40.0, help="length of the run, over which the faults are spread"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--backlog", type=int, default=300, help="pods of the borrower that wait")
    parser.add_argument("--pod-seconds", type=float, default=75.0, help="mean time that its pods run")
    parser.add_argument("--wave", type=float, default=35.0, help="mean seconds between waves of pods of the lender")
    parser.add_argument("--keep", type=Path, help="folder for logs and data, which is kept")
    parser.add_argument("--check", action="store_true", help="exit 1 if a bar is missed")
    parser.add_argument("--one-process", action="store_true", help="compare one process with two")
    parser.add_argument("--rounds", type=int, default=3, help="with --one-process")
    parser.add_argument(
        "--share", type=int, default=50, help="with --one-process: percent of free capacity that is lent"
    )
    parser.add_argument("--pods", type=int, default=4_000, help="with --one-process: pods of both domains together")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="slices-bench-") as made:
        folder = given.keep or Path(made)
        if given.one_process:
            contest = slices_contest.play(
                folder, rounds=given.rounds, pods=given.pods, nodes=given.nodes, share_percent=given.share
            )
            found = asyncio.run(contest)
        else:
            options = Options(
                given.kills,
                given.stops,
                given.latency,
                given.minutes,
                given.seed,
                given.nodes,
                given.backlog,
                given.wave,
                given.pod_seconds,
                folder,
            )
            found = asyncio.run(play(options))
    print(json.dumps(found, indent=2))
    return 1 if given.check and found["missed"] else 0


if __name__ == "__main__":
    sys.exit(main())
