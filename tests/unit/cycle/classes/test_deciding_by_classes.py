"""Deciding through classes that are kept is deciding with fresh ones: random workloads, one pod after the other, by what ships.

Two domains live through the same story: nodes and pods come, change and go, and pods of a few specs, with labels, priorities,
sizes, namespaces and nominated nodes mixed, are decided. One keeps its plugins and classes; of the other nothing but the
cluster is kept: each pod is decided by classes that have seen nothing before, and every third by new plugins, too.
"""

from __future__ import annotations

from typing import Any

import msgspec
import orjson
import pytest
from hypothesis import settings
from msgspec.structs import replace

from multisched.config.plugins import base_profile, plugin_registry
from multisched.cycle.results import Attempt, Placed, Result, Unplaced
from multisched.cycle.scheduling_cycle import SchedulingCycle
from multisched.cycle.waiting_pods import WaitingPodTable
from multisched.framework.context import PluginContext
from multisched.framework.points import QueuedPod
from multisched.framework.registry import PluginSet, build_profile
from multisched.framework.runner import Runner
from multisched.model.cluster_objects import Namespace, Service
from multisched.model.decode import Decoder
from multisched.model.decode_selectors import equality_selector
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Pod
from multisched.state.cluster_cache import ClusterCache
from multisched.state.domain_rows import DomainRows
from multisched.state.nominator import Nominator
from multisched.testing.builders import Document
from tests.unit.cycle.cycle_kit import Heard
from tests.unit.cycle.relations_kit import Drawn

BATCH_CLUSTERS, BATCHES = 100, settings().max_examples // 50
STEPS = 9
PLUGINS_KEPT_FOR = 3
"""Decisions; building them costs more than a decision of a fresh class."""
NAMES = tuple(f"n{number}" for number in range(5))
REGISTRY, PROFILE = plugin_registry(), base_profile("default")
LABELS: tuple[dict[str, str], ...] = (
    {"app": "web"},
    {"app": "web", "rev": "1"},
    {"app": "db"},
    {"app": "db", "rev": "2"},
    {},
)


class ComparedDomain:
    """A domain that keeps its equivalence classes, or forgets them after each pod."""

    def __init__(self, *, keeps: bool) -> None:
        self.cache = ClusterCache()
        self.rows = DomainRows("test", lambda node: node.labels.get("rack") != "other")
        self.cache.add_domain(self.rows)
        self.nominator = Nominator()
        self.heard = Heard()
        self._keeps = keeps
        self._decided = 0
        self._plugins = self._new_plugins()
        self.cycle = self._new_cycle()

    def _new_plugins(self) -> PluginSet:
        context = PluginContext("test", self.cache.nodes, WaitingPodTable(), self.cache.ledgers, self.cache.objects)
        return build_profile(PROFILE, REGISTRY, context)

    def _new_cycle(self) -> SchedulingCycle:
        runner = Runner(self.heard, lambda: 0.0)
        return SchedulingCycle(self._plugins, runner, self.cache, self.rows, self.nominator)

    def decide(self, pod: Pod, attempt: int) -> Result:
        if not self._keeps:
            self._decided += 1
            if not self._decided % PLUGINS_KEPT_FOR:
                self._plugins = self._new_plugins()
            self.cycle = self._new_cycle()
        result = ended(self.cycle.attempt(QueuedPod(pod, 0.0, attempt)))
        if isinstance(result, Unplaced) and result.nominated_node is not None:
            self.nominator.nominate(pod, result.nominated_node)
            for victim in result.victims:
                self.cache.remove(victim.uid)
        return result


class Story:
    """What happens, to both sides."""

    def __init__(self, seed: int) -> None:
        self.draw = Drawn(seed)
        self.decoder = Decoder()
        self.sides = (ComparedDomain(keeps=True), ComparedDomain(keeps=False))
        for name in NAMES[: self.draw.rng.randint(2, len(NAMES))]:
            self._set_node(name)
        self._each("set_object", ObjectKind.NAMESPACE, Namespace(name="other", labels={"team": "x"}))
        self.specs = [self._template() for _ in range(self.draw.rng.randint(1, 2))]
        self.made = 0
        self.refused: list[Pod] = []

    def _each(self, what: str, *args: Any) -> None:
        for side in self.sides:
            match what:
                case "set_object":
                    side.cache.objects.set(*args)
                case "set_node":
                    side.cache.set_node(*args)
                case "remove_node":
                    side.cache.remove_node(*args)
                case "place":
                    side.cache.place(*args)
                case "remove":
                    side.cache.remove(*args)

    def _set_node(self, name: str) -> None:
        document = self.draw.node(name)
        document["status"]["allocatable"] |= {
            "cpu": self.draw.rng.choice(("1", "2")),
            "pods": self.draw.rng.choice(("4", "20")),
        }
        if self.draw.chance(0.1):
            document["spec"]["unschedulable"] = True
        self._each("set_node", self.decoder.node(orjson.dumps(document)))

    def _template(self) -> Document:
        spec: Document = self.draw.pod("w")["spec"]
        spec["containers"][0]["resources"]["requests"]["cpu"] = self.draw.rng.choice(("100m", "300m", "700m"))
        spec["containers"][0]["image"] = "app:v1"
        if self.draw.chance(0.3):
            spec["tolerations"] = [{"key": "t", "operator": "Exists"}]
        if self.draw.chance(0.15):
            spec["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": 80}]
        if self.draw.chance(0.3):
            spec["priority"] = self.draw.rng.choice((0, 10))
        return spec

    def pod(self, node: str = "") -> Pod:
        """One of a few specs, with labels, namespace, priority and nominated node of its own."""
        rng, self.made = self.draw.rng, self.made + 1
        spec = dict(rng.choice(self.specs), nodeName=node)
        if self.draw.chance(0.2):
            spec["priority"] = rng.choice((0, 10))
        metadata = {"name": f"p{self.made}", "uid": f"uid-{self.made}", "labels": rng.choice(LABELS)}
        metadata["namespace"] = "other" if self.draw.chance(0.2) else "default"
        status = {"nominatedNodeName": rng.choice(NAMES)} if not node and self.draw.chance(0.1) else {}
        return self.decoder.pod(orjson.dumps({"metadata": metadata, "spec": spec, "status": status}))

    def happen(self) -> None:
        """Most often a pod comes or goes."""
        rng, (side, _) = self.draw.rng, self.sides
        nodes, placed = [node.name for _, node in side.cache.nodes.live_rows()], side.cache.uids()
        match rng.choice(("place", "remove", "relabel", "node", "object", "round", *["nothing"] * 6)):
            case "place" if nodes:
                self._each("place", self.pod(rng.choice(nodes)))
            case "remove" if placed:
                self._each("remove", rng.choice(placed))
            case "round":  # the whole workload goes, and comes again
                for uid in placed:
                    self._each("remove", uid)
            case "relabel" if placed:
                entry = side.cache.placed(rng.choice(placed))
                assert entry is not None
                self._each("place", replace(entry.pod, node=entry.node, labels=dict(rng.choice(LABELS))))
            case "node":
                name = rng.choice(NAMES)
                if self.draw.chance(0.3):
                    self._each("remove_node", name)
                else:
                    self._set_node(name)
            case "object":
                selector = equality_selector(rng.choice(LABELS))
                self._each("set_object", ObjectKind.SERVICE, Service(name="s", namespace="default", selector=selector))

    def decide(self, step: int) -> None:
        again = self.refused and self.draw.chance(0.3)
        pod = self.refused.pop() if again else self.pod()
        kept, fresh = (side.decide(pod, 2 if again else 1) for side in self.sides)
        assert told(kept) == told(fresh), f"step {step}, {pod.key}"
        if not isinstance(kept, Placed):
            self.refused.append(pod)

    def ends_alike(self) -> None:
        kept, fresh = self.sides
        kept.cache.validate()
        assert [(e.pod.uid, e.node) for e in kept.cache] == [(e.pod.uid, e.node) for e in fresh.cache]
        assert kept.heard.failures == fresh.heard.failures == []


def ended(attempt: Attempt) -> Result:
    try:
        next(attempt)
    except StopIteration as end:
        result: Result = end.value
        return result
    raise AssertionError("no plugin of this profile asks outside")


def told(result: Result) -> Any:
    if isinstance(result, Placed):
        return result.node, dict(result.annotations)
    if isinstance(result, Unplaced):
        victims = [victim.uid for victim in result.victims]
        return result.message, result.rejectors, result.pending, result.is_error, result.nominated_node, victims
    return msgspec.structs.asdict(result)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_cached_classes_decide_as_fresh_ones(batch: int) -> None:
    for seed in range(batch * BATCH_CLUSTERS, (batch + 1) * BATCH_CLUSTERS):
        story = Story(seed)
        for step in range(STEPS):
            story.happen()
            story.decide(step)
        story.ends_alike()
