"""One policy and one seed: the real program on the embedded cluster, in virtual time, through a scenario's events.

Once the cluster is idle, the wall clock jumps to the next event while the monotonic clock does not advance, as on a
suspended machine. So nothing is computed for hours in which nothing happens, and waits by the monotonic clock
(backoff, flush) advance only while something happens.

The run plays every component except the scheduler: it creates nodes and pods over the API, and acts as the controllers of
the services. A release replaces one replica after the other, creating the new one first, and stops if a new one finds no node.
"""

from __future__ import annotations

import asyncio
import math
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np
import orjson

from multisched.cluster.api.direct import DirectTransport
from multisched.cluster.api.server import ApiServer
from multisched.cluster.api.watch import WatchStream
from multisched.cluster.base.request import ApiRequest
from multisched.config.schema import Configuration
from multisched.model.wire import MERGE_PATCH, Response
from multisched.shell.program import Program, ProgramPorts
from multisched.simulate.current_load import SERIES_ANNOTATION, CurrentUsage
from multisched.simulate.fits import FitCache, Refits
from multisched.simulate.policies import run_registry, with_learning
from multisched.simulate.repairs import RepairGate, RepairWindow, WindowResult, is_finished, repair_windows, status_of
from multisched.simulate.scenario import CAPACITY_ANNOTATION, Event, NodeSpec, Policy, Scenario, Service
from multisched.simulate.usage_table import filled
from multisched.testing.quiet_observer import QuietObserver
from multisched.testing.sim_loop import SimLoop, simulate
from multisched.testing.virtual_workers import VirtualThreads, VirtualWorkers
from multisched.whatif.repair_source import plans_of

PODS = "/api/v1/namespaces/default/pods"
REPLICA_SETS = "/apis/apps/v1/namespaces/default/replicasets"
REVISION_LABEL = "pod-template-hash"
PACE_S = 0.05
"""Pause between two pods, so that each is placed before the next is created: decisions follow the order of creation."""
SETTLE_MAX_S = 30.0
"""How long the run waits for pods that were not placed at once, and for each new replica of a release."""
READY_MAX_S = 60.0
STOP_MAX_S = 30.0
UNPLACED_SHOWN = 3

_BINDING = re.compile(r"/pods/([^/?]+)/binding(?:\?|$)")


class PlacementInterval(msgspec.Struct, frozen=True):
    """A replica was on a node from one moment to another (epoch seconds)."""

    series: int
    node: int
    begin_s: float
    end_s: float


class RunResult(msgspec.Struct, frozen=True):
    """The result of a run."""

    placement_intervals: tuple[PlacementInterval, ...]
    moves: int
    """Replicas that a release or a repair put on another node than before."""
    created: int
    """All pods created."""
    unplaced: tuple[str, ...]
    """Pods without a node at the end, and releases that stopped, with the scheduler's message."""
    failures: tuple[str, ...]
    """Failures of plugins."""
    repairs: tuple[WindowResult, ...] = ()
    """Windows in which the policy could repair."""


class JumpingClock:
    """Virtual time whose wall clock can jump."""

    def __init__(self, loop: SimLoop, begin_s: float) -> None:
        self._loop = loop
        self._base_s = begin_s

    def monotonic(self) -> float:
        return self._loop.time()

    def epoch_s(self) -> float:
        return self._base_s + self._loop.time()

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.epoch_s(), UTC)

    def jump_to(self, epoch_s: float) -> None:
        """Sets the wall clock, never back: if an event took too long, the following ones are late."""
        self._base_s += max(0.0, epoch_s - self.epoch_s())


class _Owner(msgspec.Struct, frozen=True):
    """A ReplicaSet."""

    revision: int
    name: str
    uid: str


class _Replica(msgspec.Struct):
    """A replica of a service, and its current pod."""

    service: int
    number: int
    pod: str = ""
    generation: int = 0
    last_node: int = -1
    """Node of its latest bound pod."""
    owner: _Owner | None = None
    """The ReplicaSet of its pod."""


class _Bindings:
    """Implements `server.Interceptor`: records which pod was bound to which node, and when."""

    def __init__(self, clock: JumpingClock) -> None:
        self._clock = clock
        self.bound: dict[str, tuple[str, float]] = {}
        """Pod -> node and moment."""

    def before(self, request: ApiRequest) -> Response | None:
        return None

    def after(self, request: ApiRequest, answer: Response | WatchStream) -> Response | WatchStream:
        if request.method == "POST" and answer.status == 201:
            found = _BINDING.search(request.path)
            if found is not None:
                node = orjson.loads(request.body or b"{}")["target"]["name"]
                self.bound[found[1]] = (node, self._clock.epoch_s())
        return answer


class RecordedRun:
    """Runs one policy under one seed through a scenario's events. Used once."""

    def __init__(self, scenario: Scenario, policy: Policy, seed: int, fits: FitCache, loop: SimLoop) -> None:
        self._scenario = scenario
        self._policy = policy
        self._order = np.random.default_rng(seed)
        self._clock = JumpingClock(loop, scenario.create_s)
        self._server = ApiServer(self._clock, seed=seed, rbac=False)
        self._bindings = _Bindings(self._clock)
        self._server.interceptors.append(self._bindings)
        self._api = DirectTransport(self._server)
        self._repair = policy.repair
        self._gate = RepairGate()
        self._server.interceptors.append(self._gate)
        self._window_results: list[WindowResult] = []
        self._current_usage = self._first_usage()
        self._observer = QuietObserver()
        configuration, settings = with_learning(policy, scenario.usage.dimensions, self._repair_args())
        self._program = self._built(seed, configuration)
        self._refits = Refits(fits, scenario.known_until_s, self._program, settings)
        self._numbers = {node.name: number for number, node in enumerate(scenario.nodes)}
        self._replicas: dict[tuple[int, int], _Replica] = {}
        self._series: dict[str, int] = {}
        """Pod -> series of the usage."""
        self._owners: dict[int, _Owner] = {}
        """Service -> the ReplicaSet of its new pods."""
        self._placement_intervals: list[PlacementInterval] = []
        self._ready: set[str] = set()
        """Pods whose Ready condition was set; used only by repairs."""
        self._stopped: list[str] = []
        self._moves = 0
        self._created = 0

    def _repair_args(self) -> Mapping[str, Any] | None:
        if self._repair is None:
            return None
        _, in_window = self._repair.moves(self._scenario.replicas)
        return {**self._repair.args, "movesPerWindow": in_window}

    def _built(self, seed: int, configuration: Configuration) -> Program:
        """Builds the program as `run` does, over in-process transport and virtual time."""
        rng = random.Random(seed)  # noqa: S311 - ties, a scenario's own
        ports = ProgramPorts(
            self._api,
            self._clock,
            random.Random(rng.random()),  # noqa: S311 - as above
            "simulate",
            "kube-system",
            observer=lambda domain: self._observer,
            registry=run_registry(self._current_usage),
            workshop=VirtualWorkers(rng),
            background_threads=VirtualThreads,
            plan_repairs=plans_of,
        )
        return Program(configuration, ports)

    # -- the run ---------------------------------------------------------------------------------------------------

    async def main(self) -> RunResult:
        scenario = self._scenario
        for node in scenario.nodes:
            await self._post("/api/v1/nodes", _node(node, scenario.usage.dimensions))
        running = asyncio.create_task(self._program.run())
        try:
            is_ready = await self._until(lambda: self._program.is_ready or running.done(), READY_MAX_S)
            assert is_ready, f"the program was not ready after {READY_MAX_S:.0f} s"
            await self._create_all()
            for step in self._timed_steps():
                if isinstance(step, RepairWindow):
                    await self._repair_in(step)
                else:
                    self._clock.jump_to(step.at_s)
                    await self._apply(step)
        finally:
            self._program.stop()
            async with asyncio.timeout(STOP_MAX_S):
                await running
        return self._result()

    def _timed_steps(self) -> list[Event | RepairWindow]:
        """Returns events and windows in order of time; at the same moment, events first."""
        timed: list[tuple[float, Event | RepairWindow]] = [(event.at_s, event) for event in self._scenario.events]
        if self._repair is not None:
            timed += [(one.opens_s, one) for one in repair_windows(self._repair, self._scenario)]
        return [step for _, step in sorted(timed, key=lambda pair: pair[0])]

    async def _create_all(self) -> None:
        self._update_usage()
        services = self._scenario.services
        counts = [0] * len(services)
        for service in self._ordered([service.replicas for service in services]):
            number = counts[service]
            counts[service] += 1
            await self._create(self._replicas.setdefault((service, number), _Replica(service, number)))
        await self._settle()

    async def _apply(self, event: Event) -> None:
        """Applies the scaling first, so that a release replaces the new number of replicas."""
        self._update_usage()
        for service, wanted in sorted(event.scale.items()):
            have = [replica for at, replica in sorted(self._replicas.items()) if at[0] == service]
            for replica in reversed(have[wanted:]):
                await self._remove(replica.pod)
                del self._replicas[service, replica.number]
            for number in range(len(have), wanted):
                await self._create(self._replicas.setdefault((service, number), _Replica(service, number)))
        await self._settle()
        for service in event.release:
            await self._revise(service)
        counts = [0] * len(self._scenario.services)
        for service, _ in self._replicas:
            counts[service] += service in event.release
        await self._release(self._ordered(counts))

    async def _release(self, order: Sequence[int]) -> None:
        """Replaces replicas in `order`, each service's by number. A service whose new replica finds no node is left as it is."""
        done: dict[int, int] = {}
        stopped: set[int] = set()
        for service in order:
            number = done[service] = done.get(service, -1) + 1
            if service not in stopped and not await self._replace(self._replicas[service, number]):
                stopped.add(service)

    async def _replace(self, replica: _Replica) -> bool:
        before, owner = replica.pod, replica.owner
        await self._create(replica)
        if await self._until(lambda: replica.pod in self._bindings.bound, SETTLE_MAX_S):
            self._note_node(replica)
            await self._remove(before)
            return True
        name = self._scenario.services[replica.service].name
        self._stopped.append(f"release of {name} stopped at {replica.pod}: {await self._reason(replica.pod)}")
        await self._remove(replica.pod)
        replica.pod, replica.owner = before, owner
        return False

    # -- repair ----------------------------------------------------------------------------------------------------

    async def _repair_in(self, window: RepairWindow) -> None:
        """Lets the program repair until it has finished or the window closes; skips the window if its full budget is not left."""
        assert self._repair is not None, "windows exist only with a repair"
        in_all, in_window = self._repair.moves(self._scenario.replicas)
        self._clock.jump_to(window.opens_s)
        if self._gate.count + in_window > in_all or self._clock.epoch_s() >= window.closes_s:
            return
        self._update_usage()
        for replica in self._replicas.values():
            await self._be_ready(replica.pod)
        begun, before = status_of(self._program), self._gate.count
        self._gate.is_open = True
        while self._clock.epoch_s() < window.closes_s and not is_finished(begun, status_of(self._program)):
            await asyncio.sleep(PACE_S)
            await self._replace_evicted()
        self._gate.is_open = False
        now = status_of(self._program)
        has_plan = now.counts["plans"] > begun.counts["plans"]
        has_stopped = now.counts["stopped"] > begun.counts["stopped"]
        reason = "" if has_plan and not has_stopped else now.reason or "no plan was made"
        self._window_results.append(WindowResult(window.opens_s, self._gate.count - before, reason))

    async def _replace_evicted(self) -> None:
        """Replaces each evicted pod as its controller would; sets the replacement ready once it is bound."""
        standing = {replica.pod: replica for replica in self._replicas.values()}
        while self._gate.evicted:
            pod = self._gate.evicted.pop(0)
            self._end_stay(pod, self._clock.epoch_s())
            await self._create(standing[pod], standing[pod].owner)
        for replica in self._replicas.values():
            if replica.pod in self._bindings.bound and replica.pod not in self._ready:
                self._note_node(replica)
                await self._be_ready(replica.pod)

    async def _be_ready(self, pod: str) -> None:
        """Sets the pod's Ready condition, as its kubelet would."""
        if pod not in self._bindings.bound or pod in self._ready:
            return
        conditions = [{"type": kind, "status": "True"} for kind in ("PodScheduled", "Ready", "ContainersReady")]
        document = orjson.dumps({"status": {"phase": "Running", "conditions": conditions}})
        path = f"{PODS}/{pod}/status"
        answer = await self._api.request("PATCH", path, body=document, content_type=MERGE_PATCH)
        assert answer.status == 200, answer.body
        self._ready.add(pod)

    # -- pods ------------------------------------------------------------------------------------------------------

    def _ordered(self, counts: Sequence[int]) -> list[int]:
        """Returns each service as often as it has replicas, in the scenario's order."""
        listed = np.repeat(np.arange(len(counts)), counts)
        match self._scenario.order:
            case "random":
                listed = self._order.permutation(listed)
            case "services":
                listed = np.concatenate([listed[listed == s] for s in self._order.permutation(len(counts))])
        ordered: list[int] = listed.tolist()
        return ordered

    async def _create(self, replica: _Replica, owner: _Owner | None = None) -> None:
        """Creates a new pod of the replica, owned by `owner` or by the current ReplicaSet of its service."""
        service = self._scenario.services[replica.service]
        replica.generation += 1
        replica.pod = f"{service.name}-{replica.number}-{replica.generation}"
        series = self._scenario.series[replica.service][replica.number]
        self._series[replica.pod] = series
        replica.owner = owner or self._owners.get(replica.service) or await self._revise(replica.service)
        await self._post(PODS, _pod(replica.pod, service, series, replica.owner, self._policy.scheduler_name))
        self._created += 1
        await asyncio.sleep(PACE_S)
        self._note_node(replica)

    async def _revise(self, service: int) -> _Owner:
        """Creates a new ReplicaSet for the service's next pods, one per release as a Deployment does: default spreading depends on it."""
        name = self._scenario.services[service].name
        before = self._owners.get(service)
        revision = 1 if before is None else before.revision + 1
        made = await self._post(REPLICA_SETS, _replica_set(name, revision))
        owner = self._owners[service] = _Owner(revision, made["metadata"]["name"], made["metadata"]["uid"])
        return owner

    def _note_node(self, replica: _Replica) -> None:
        """Counts a move if the replica's pod is on another node than its predecessor; further calls do not count it again."""
        bound = self._bindings.bound.get(replica.pod)
        if bound is not None:
            node = self._numbers[bound[0]]
            self._moves += replica.last_node not in (-1, node)
            replica.last_node = node

    async def _remove(self, pod: str) -> None:
        answer = await self._api.request("DELETE", f"{PODS}/{pod}?gracePeriodSeconds=0")
        assert answer.status == 200, answer.body
        self._end_stay(pod, self._clock.epoch_s())
        await asyncio.sleep(PACE_S)

    def _end_stay(self, pod: str, end_s: float) -> None:
        bound = self._bindings.bound.pop(pod, None)
        if bound is not None:
            self._placement_intervals.append(
                PlacementInterval(self._series[pod], self._numbers[bound[0]], bound[1], end_s)
            )

    async def _settle(self) -> None:
        await self._until(lambda: not self._pending(), SETTLE_MAX_S)
        for replica in self._replicas.values():
            self._note_node(replica)

    def _pending(self) -> list[_Replica]:
        return [replica for replica in self._replicas.values() if replica.pod not in self._bindings.bound]

    async def _until(self, is_done: Callable[[], bool], limit_s: float) -> bool:
        end_s = self._clock.monotonic() + limit_s
        while not is_done() and self._clock.monotonic() < end_s:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(PACE_S)
        return is_done()

    async def _post(self, path: str, document: Mapping[str, Any]) -> dict[str, Any]:
        answer = await self._api.request("POST", path, body=orjson.dumps(document))
        assert answer.status == 201, answer.body
        made: dict[str, Any] = orjson.loads(answer.body)
        return made

    async def _reason(self, pod: str) -> str:
        answer = await self._api.request("GET", f"{PODS}/{pod}")
        conditions = orjson.loads(answer.body).get("status", {}).get("conditions", ())
        return next((c.get("message", "") for c in conditions if c.get("type") == "PodScheduled"), "") or "not placed"

    # -- use and result --------------------------------------------------------------------------------------------

    def _first_usage(self) -> CurrentUsage:
        usage = self._scenario.usage
        self._current, _ = filled(usage.values) if self._policy.uses_current_load else (usage.values, 0)
        capacities = {node.name: np.array(node.capacity) for node in self._scenario.nodes}
        return CurrentUsage(self._current[:, :, 0], capacities)

    def _update_usage(self) -> None:
        """Updates what policies know to the time of the wall clock."""
        usage = self._scenario.usage
        step = min(max(usage.step_at(self._clock.epoch_s()), 0), usage.steps - 1)
        self._current_usage.update(np.nan_to_num(self._current[:, :, step]))
        self._refits.refit_due(self._clock.epoch_s())

    def _result(self) -> RunResult:
        unplaced = [replica.pod for replica in self._pending()]
        for pod in list(self._bindings.bound):
            self._end_stay(pod, math.inf)
        notes = [*self._stopped, *(f"{pod} found no node" for pod in unplaced)]
        failures = tuple(dict.fromkeys(self._observer.failures))
        return RunResult(
            tuple(self._placement_intervals),
            self._moves,
            self._created,
            tuple(notes),
            failures,
            tuple(self._window_results),
        )


def run_policy(scenario: Scenario, policy: Policy, seed: int, fits: FitCache) -> RunResult:
    """Runs a policy under a seed; deterministic in its arguments. Raises PluginSetupError if a plugin cannot be built."""
    loop = SimLoop(seed)
    return simulate(_main(scenario, policy, seed, fits, loop), loop)


async def _main(scenario: Scenario, policy: Policy, seed: int, fits: FitCache, loop: SimLoop) -> RunResult:
    return await RecordedRun(scenario, policy, seed, fits, loop).main()


def _node(node: NodeSpec, dimensions: Iterable[str]) -> dict[str, Any]:
    capacities = zip(dimensions, node.capacity, strict=True)
    metadata = {
        "name": node.name,
        "labels": {"kubernetes.io/hostname": node.name, **node.labels},
        "annotations": {CAPACITY_ANNOTATION + name: f"{round(amount * 1000)}m" for name, amount in capacities},
    }
    status = {"capacity": dict(node.allocatable), "allocatable": dict(node.allocatable)}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {}, "status": status}


def _replica_set(service: str, revision: int) -> dict[str, Any]:
    """Returns a ReplicaSet without a controller: the run creates its pods."""
    labels = {"app": service, REVISION_LABEL: str(revision)}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": f"{service}:v1"}]}}
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": f"{service}-{revision}", "labels": labels},
        "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": template},
    }


def _pod(name: str, service: Service, series: int, owner: _Owner, scheduler: str) -> dict[str, Any]:
    controller = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": owner.name,
        "uid": owner.uid,
        "controller": True,
    }
    metadata = {
        "name": name,
        "labels": {"app": service.name, "multisched.io/service": service.name, REVISION_LABEL: str(owner.revision)},
        "annotations": {SERIES_ANNOTATION: str(series)},
        "ownerReferences": [controller],
    }
    container = {"name": "main", "image": f"{service.name}:v1", "resources": {"requests": dict(service.requests)}}
    spec = {"schedulerName": scheduler, "containers": [container], "terminationGracePeriodSeconds": 0}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
