"""One policy and one seed: recorded services on the virtual cluster, through a scenario's events.

The run acts as every component except API server and scheduler: it creates nodes and pods over the API, and replaces pods as the
controllers of the services do. A release replaces one replica after the other, creating the new one first. It stops if a new
replica finds no node.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np

from multisched.simulate.contribution import RunExtensions, RunReport, TimedStep
from multisched.simulate.current_load import SERIES_ANNOTATION, CurrentUsage
from multisched.simulate.policies import run_registry
from multisched.simulate.scenario import CAPACITY_ANNOTATION, Event, NodeSpec, Policy, Scenario, Service
from multisched.simulate.scenario_schema import FRACTIONAL
from multisched.simulate.usage_table import filled
from multisched.simulate.virtual_cluster import NODES, PODS, VirtualCluster
from multisched.testing.sim_loop import SimLoop, simulate

REPLICA_SETS = "/apis/apps/v1/namespaces/default/replicasets"
REVISION_LABEL = "pod-template-hash"
SETTLE_MAX_S = 30.0
"""Time that the run waits for pods that were not placed at once, and for each new replica of a release."""


class PlacementInterval(msgspec.Struct, frozen=True):
    """The time in which a replica was on a node (epoch seconds)."""

    series: int
    node: int
    begin_s: float
    end_s: float


class RunResult(msgspec.Struct, frozen=True):
    """The result of a run."""

    placement_intervals: tuple[PlacementInterval, ...]
    moves: int
    """Number of replicas whose replacement is on another node."""
    created: int
    """Number of pods created."""
    unplaced: tuple[str, ...]
    """Pods without a node at the end, and releases that stopped, with the scheduler's message."""
    failures: tuple[str, ...]
    """Failures of plugins."""
    reports: tuple[RunReport, ...] = ()
    """Reports of domains."""


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


class RecordedRun:
    """Runs one policy under one seed through a scenario's events. Used once."""

    def __init__(self, scenario: Scenario, policy: Policy, seed: int, extensions: RunExtensions, loop: SimLoop) -> None:
        self._scenario = scenario
        self._policy = policy
        self._order = np.random.default_rng(seed)
        self._current_usage = self._first_usage()
        self._extensions = [extension(policy) for extension in extensions]
        configuration = policy.configuration
        for extension in self._extensions:
            configuration = extension.configured(configuration)
        registry = run_registry(self._current_usage)
        self.cluster = VirtualCluster(configuration, seed, scenario.create_s, loop, registry)
        for extension in self._extensions:
            extension.begin(self)
        self._numbers = {node.name: number for number, node in enumerate(scenario.nodes)}
        self._replicas: dict[tuple[int, int], _Replica] = {}
        self._series: dict[str, int] = {}
        """Pod -> series of the usage."""
        self._owners: dict[int, _Owner] = {}
        """Service -> the ReplicaSet of its new pods."""
        self._placement_intervals: list[PlacementInterval] = []
        self._ready: set[str] = set()
        """Pods whose Ready condition was set, if an extension needs it."""
        self._stopped: list[str] = []
        self._moves = 0
        self._created = 0

    async def main(self) -> RunResult:
        scenario = self._scenario
        for node in scenario.nodes:
            await self.cluster.create(NODES, _node(node, scenario.usage.dimensions))
        async with self.cluster.running():
            await self._create_all()
            for step in self._timed_steps():
                self.cluster.clock.jump_to(step.at_s)
                await step.run()
        return self._result()

    def _timed_steps(self) -> list[TimedStep]:
        """Returns events and the steps of extensions in order of time; at the same time, events first."""
        steps = [TimedStep(event.at_s, partial(self._apply, event)) for event in self._scenario.events]
        steps += [step for extension in self._extensions for step in extension.timed_steps()]
        return sorted(steps, key=lambda step: step.at_s)

    async def _create_all(self) -> None:
        self.update_usage()
        services = self._scenario.services
        counts = [0] * len(services)
        for service in self._ordered([service.replicas for service in services]):
            number = counts[service]
            counts[service] += 1
            await self._create(self._replicas.setdefault((service, number), _Replica(service, number)))
        await self._settle()

    async def _apply(self, event: Event) -> None:
        """Applies the scaling first, so that a release replaces the new number of replicas."""
        self.update_usage()
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
        """Replaces one replica of the next service in `order` after the other, by number. Skips a service after a failed replacement."""
        done: dict[int, int] = {}
        stopped: set[int] = set()
        for service in order:
            number = done[service] = done.get(service, -1) + 1
            if service not in stopped and not await self._replace(self._replicas[service, number]):
                stopped.add(service)

    async def _replace(self, replica: _Replica) -> bool:
        before, owner = replica.pod, replica.owner
        await self._create(replica)
        if await self.cluster.until(lambda: replica.pod in self.cluster.pods.bound, SETTLE_MAX_S):
            self._note_node(replica)
            await self._remove(before)
            return True
        name = self._scenario.services[replica.service].name
        self._stopped.append(f"release of {name} stopped at {replica.pod}: {await self.cluster.reason(replica.pod)}")
        await self._remove(replica.pod)
        replica.pod, replica.owner = before, owner
        return False

    # -- for extensions --------------------------------------------------------------------------------------------

    def update_usage(self) -> None:
        """Sets the usage that policies can read to that of the current wall clock time."""
        usage = self._scenario.usage
        now_s = self.cluster.clock.epoch_s()
        step = min(max(usage.step_at(now_s), 0), usage.steps - 1)
        self._current_usage.update(np.nan_to_num(self._current[:, :, step]))
        for extension in self._extensions:
            extension.on_time(now_s)

    async def replace_evicted(self) -> None:
        """Replaces each evicted pod as its controller would; sets the replacement ready once it is bound."""
        by_pod = {replica.pod: replica for replica in self._replicas.values()}
        while self.cluster.pods.evicted:
            pod = self.cluster.pods.evicted.pop(0)
            self._end_interval(pod, self.cluster.clock.epoch_s())
            await self._create(by_pod[pod], by_pod[pod].owner)
        for replica in self._replicas.values():
            if replica.pod in self.cluster.pods.bound and replica.pod not in self._ready:
                self._note_node(replica)
                await self._set_ready(replica.pod)

    async def set_all_ready(self) -> None:
        """Sets the Ready condition of all bound pods, as their kubelets would."""
        for replica in self._replicas.values():
            await self._set_ready(replica.pod)

    async def _set_ready(self, pod: str) -> None:
        if pod in self.cluster.pods.bound and pod not in self._ready:
            await self.cluster.set_ready(pod)
            self._ready.add(pod)

    # -- pods ------------------------------------------------------------------------------------------------------

    def _ordered(self, counts: Sequence[int]) -> list[int]:
        """Returns each service once per replica, in the scenario's order."""
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
        await self.cluster.create(PODS, _pod(replica.pod, service, series, replica.owner, self._policy.scheduler_name))
        self._created += 1
        await self.cluster.pause()
        self._note_node(replica)

    async def _revise(self, service: int) -> _Owner:
        """Creates a ReplicaSet for the service's next pods, one per release as a Deployment does. Default spreading depends on it."""
        name = self._scenario.services[service].name
        before = self._owners.get(service)
        revision = 1 if before is None else before.revision + 1
        made = await self.cluster.create(REPLICA_SETS, _replica_set(name, revision))
        owner = self._owners[service] = _Owner(revision, made["metadata"]["name"], made["metadata"]["uid"])
        return owner

    def _note_node(self, replica: _Replica) -> None:
        """Counts a move if the replica's pod is on another node than its previous pod was; further calls do not count it again."""
        bound = self.cluster.pods.bound.get(replica.pod)
        if bound is not None:
            node = self._numbers[bound[0]]
            self._moves += replica.last_node not in (-1, node)
            replica.last_node = node

    async def _remove(self, pod: str) -> None:
        await self.cluster.delete_pod(pod)
        self._end_interval(pod, self.cluster.clock.epoch_s())
        await self.cluster.pause()

    def _end_interval(self, pod: str, end_s: float) -> None:
        bound = self.cluster.pods.bound.pop(pod, None)
        if bound is not None:
            self._placement_intervals.append(
                PlacementInterval(self._series[pod], self._numbers[bound[0]], bound[1], end_s)
            )

    async def _settle(self) -> None:
        await self.cluster.until(lambda: not self._pending(), SETTLE_MAX_S)
        for replica in self._replicas.values():
            self._note_node(replica)

    def _pending(self) -> list[_Replica]:
        return [replica for replica in self._replicas.values() if replica.pod not in self.cluster.pods.bound]

    # -- use and result --------------------------------------------------------------------------------------------

    def _first_usage(self) -> CurrentUsage:
        usage = self._scenario.usage
        self._current, _ = filled(usage.values) if self._policy.uses_current_load else (usage.values, 0)
        capacities = {node.name: np.array(node.capacity) for node in self._scenario.nodes}
        return CurrentUsage(self._current[:, :, 0], capacities)

    def _result(self) -> RunResult:
        unplaced = [replica.pod for replica in self._pending()]
        for pod in list(self.cluster.pods.bound):
            self._end_interval(pod, math.inf)
        notes = [*self._stopped, *(f"{pod} found no node" for pod in unplaced)]
        reports = tuple(extension.report() for extension in self._extensions)
        return RunResult(
            tuple(self._placement_intervals), self._moves, self._created, tuple(notes), self.cluster.failures(), reports
        )


def run_policy(scenario: Scenario, policy: Policy, seed: int, extensions: RunExtensions) -> RunResult:
    """Runs a policy under a seed; deterministic in its arguments. Raises PluginSetupError if a plugin cannot be built."""
    loop = SimLoop(seed)
    return simulate(_main(scenario, policy, seed, extensions, loop), loop)


async def _main(scenario: Scenario, policy: Policy, seed: int, extensions: RunExtensions, loop: SimLoop) -> RunResult:
    return await RecordedRun(scenario, policy, seed, extensions, loop).main()


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
    requests = dict(service.requests)
    limits = {
        name: amount for name, amount in requests.items() if name not in FRACTIONAL
    }  # the API server requires them
    resources = {"requests": requests, "limits": limits}
    container = {"name": "main", "image": f"{service.name}:v1", "resources": resources}
    spec = {"schedulerName": scheduler, "containers": [container], "terminationGracePeriodSeconds": 0}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
