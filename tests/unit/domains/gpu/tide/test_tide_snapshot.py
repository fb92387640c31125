"""What the tide sees of a cluster: cards by use, gangs with all members, and gangs that must not be evicted."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from domains.gpu.dialects.whole import GPU
from domains.gpu.gpu_ledger import GpuLedger
from domains.gpu.tide.planner import TREND_S
from domains.gpu.tide.settings import TideSettings, tide_settings
from domains.gpu.tide.snapshot import NO_MODEL, TideSnapshots
from multisched.framework.context import PluginContext
from multisched.framework.preemption import NoVictims
from multisched.model.cluster_objects import PodDisruptionBudget
from multisched.model.gang import ACK_MIN, ACK_NAME
from multisched.model.job_progress import CHECKPOINT, RETRIES_LEFT
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import NodeAffinity, Owner, Pod
from multisched.model.selectors import LabelSelector, Operator, Requirement
from multisched.state.cluster_cache import ClusterCache
from multisched.testing.builders import make_cache, make_context, make_node, make_pod

NOW_S = 1_000.0
JOB = Owner("Job", "job", "job")
SETTINGS: TideSettings = tide_settings({"inference": {"selector": {"matchLabels": {"tier": "serving"}}}})
MODEL = "nvidia.com/gpu.product"


class Victims(NoVictims):
    """Pods whose eviction was decided."""

    def __init__(self, *pods: Pod) -> None:
        self._pods = pods

    def pods(self) -> Collection[Pod]:
        return self._pods


def gpu_node(name: str, *, model: str = "A100", cards: int = 8, **fields: Any) -> Any:
    return make_node(name, extra={GPU: cards}, labels={MODEL: model}, **fields)


def pod(name: str, cards: int, node: str = "", *, gang: str = "", **fields: Any) -> Pod:
    """A pod of a Job; with a name that begins with `chat`, of inference."""
    labels = {"tier": "serving"} if name.startswith("chat") else {"team": "ml"}
    labels |= {ACK_NAME: gang, ACK_MIN: "2"} if gang else {}
    extra = {GPU: cards} if cards else {}
    wanted = {"labels": labels, "owner": JOB, "uid": name, **fields}
    return make_pod(name, extra=extra, node=node, **wanted)


class Cluster:
    """A cache with nodes and pods, and what the tide sees of it."""

    def __init__(self, *nodes: Any, pods: Collection[Pod] = (), victims: Victims | None = None) -> None:
        ledger = GpuLedger()
        self.cache: ClusterCache = make_cache(nodes, ledger)
        pending = [one for one in pods if not one.node]
        context: PluginContext = replace(
            make_context(self.cache),
            gangs=self.cache.gangs,
            victims=victims or NoVictims(),
            pending=lambda: pending,
            rows=lambda: np.array([row for row, one in self.cache.nodes.live_rows() if one.name in self.used]),
        )
        self.used: list[str] = [one.name for one in nodes]
        """Names of the nodes that the domain uses."""
        for one in pods:
            self.cache.gangs.set(one)
            if one.node:
                self.cache.place(one)
        self.snapshots = TideSnapshots(context, ledger, SETTINGS)

    def budget(self, allowed: int, name: str = "few", **fields: Any) -> None:
        selector = LabelSelector((Requirement("team", Operator.IN, ("ml",)),))
        wanted = {"selector": selector, "disruptions_allowed": allowed, **fields}
        budget = PodDisruptionBudget(name=name, namespace="default", **wanted)
        self.cache.objects.set(ObjectKind.POD_DISRUPTION_BUDGET, budget)


def test_cards_are_counted_by_use() -> None:
    leaving = pod("going", 2, "a", is_deleting=True)
    pods = (pod("chat", 1, "a"), pod("train", 4, "a"), leaving, pod("chat-new", 3), pod("other", 0, "a"))
    found = Cluster(gpu_node("a"), gpu_node("cordoned", is_unschedulable=True), pods=pods).snapshots.take(NOW_S)
    (node,) = found.nodes
    assert (node.name, node.model, node.total, node.free, node.leaving) == ("a", "A100", 8, 1, 2)
    assert (found.inference_cards, [one.cards for one in found.waiting_inference], found.pod_cards) == (1, [3], 3)
    assert {key: one.gang.cards for key, one in found.gangs.items()} == {"default/train": 4}
    assert found.leaving.keys() == {"default/going"}


def test_fractions_count_as_whole_cards_rounded_up() -> None:
    half = {"multisched.io/gpu-milli": "500"}
    waiting = pod("chat", 0, annotations=half)
    both = pod("chat-2", 0, annotations={**half, "multisched.io/gpu-count": "3"})
    found = Cluster(gpu_node("a"), pods=(waiting, both)).snapshots.take(NOW_S)
    assert sorted(one.cards for one in found.waiting_inference) == [1, 2]


def test_gang_has_all_members_and_the_latest_start_and_checkpoint() -> None:
    launcher = pod("launcher", 0, "a", gang="g", started_s=10.0)
    first = pod("first", 4, "a", gang="g", started_s=20.0, annotations={CHECKPOINT: "1970-01-01T00:01:00Z"})
    second = pod("second", 4, "b", gang="g", started_s=30.0, annotations={RETRIES_LEFT: "3"})
    found = Cluster(gpu_node("a"), gpu_node("b"), pods=(launcher, first, second)).snapshots.take(NOW_S)
    (running,) = found.gangs.values()
    assert [one.name for one in running.pods] == ["first", "launcher", "second"]
    gang = running.gang
    assert (gang.key, gang.cards, gang.started_s) == ("default/g", 8, 30.0)
    assert (gang.checkpoint_s, gang.retries_left, gang.is_protected) == (60.0, 3, False)


def test_gang_that_has_not_started_everywhere_starts_now() -> None:
    pods = (pod("first", 4, "a", gang="g", started_s=20.0), pod("second", 4, "a", gang="g"))
    (running,) = Cluster(gpu_node("a"), pods=pods).snapshots.take(NOW_S).gangs.values()
    assert running.gang.started_s == NOW_S


def test_waiting_gangs_are_whole_and_in_the_order_of_the_queue() -> None:
    pods = (
        pod("late", 1, created_s=9.0),
        pod("g-0", 4, gang="g", created_s=5.0),
        pod("g-1", 4, gang="g", created_s=5.0),
        pod("alone", 4, gang="incomplete", created_s=1.0),
        pod("gated", 1, gates=("x",), created_s=1.0),
        pod("going", 1, is_deleting=True),
        replace(pod("first", 2, created_s=9.0), spec=replace(pod("x", 2).spec, priority=5)),
    )
    found = Cluster(gpu_node("a"), pods=pods).snapshots.take(NOW_S)
    assert [(one.key, one.cards) for one in found.waiting_gangs] == [
        ("default/first", 2),
        ("default/g", 8),
        ("default/late", 1),
    ]


@pytest.mark.parametrize(
    ("label", "expected", "models", "has_outside"),
    [("", (), (), False), ("A100", ("A100",), ("A100",), True), ("B200", (NO_MODEL,), (), False)],
)
def test_models_of_the_tide_are_those_that_inference_accepts(
    label: str, expected: tuple[str, ...], models: tuple[str, ...], has_outside: bool
) -> None:
    waiting = pod("chat", 1)
    if label:
        wanted = NodeAffinity((Requirement(MODEL, Operator.IN, (label,)),))
        waiting = replace(waiting, spec=msgspec.structs.replace(waiting.spec, affinity=wanted))
    found = Cluster(gpu_node("a"), gpu_node("h", model="H100"), pods=(waiting,)).snapshots.take(NOW_S)
    assert [one.models for one in found.waiting_inference] == [expected]
    assert (found.models, found.has_outside) == (models, has_outside)


def test_new_models_are_those_of_pods_created_in_the_last_minutes() -> None:
    def of_model(one: Pod, model: str) -> Pod:
        wanted = NodeAffinity((Requirement(MODEL, Operator.IN, (model,)),))
        return replace(one, spec=msgspec.structs.replace(one.spec, affinity=wanted))

    new, old = NOW_S - TREND_S + 1.0, NOW_S - TREND_S
    pods = (of_model(pod("chat", 1, "a", created_s=old), "A100"), of_model(pod("chat-2", 1, created_s=new), "H100"))
    nodes = (gpu_node("a"), gpu_node("h", model="H100"))
    assert Cluster(*nodes, pods=pods).snapshots.take(NOW_S).new_models == ("H100",)
    assert Cluster(*nodes, pods=(pods[0],)).snapshots.take(NOW_S).new_models == ()
    either = pod("chat-3", 1, created_s=new)
    assert Cluster(*nodes, pods=(*pods, either)).snapshots.take(NOW_S).new_models == ()


def test_models_are_found_again_when_the_domain_gets_other_rows() -> None:
    """While a leader hands over, the domain does not use all its nodes yet."""
    waiting = pod("chat", 1)
    wanted = NodeAffinity((Requirement(MODEL, Operator.IN, ("H100",)),))
    waiting = replace(waiting, spec=msgspec.structs.replace(waiting.spec, affinity=wanted))
    cluster = Cluster(gpu_node("a"), gpu_node("h", model="H100"), pods=(waiting,))
    cluster.used = ["h"]
    assert [one.models for one in cluster.snapshots.take(NOW_S).waiting_inference] == [()]
    cluster.used = ["a", "h"]
    assert [one.models for one in cluster.snapshots.take(NOW_S).waiting_inference] == [("H100",)]


@pytest.mark.parametrize(("allowed", "is_kept"), [(1, True), (2, False)])
def test_budget_must_allow_the_whole_gang(allowed: int, is_kept: bool) -> None:
    cluster = Cluster(gpu_node("a"), pods=(pod("p", 4, "a", gang="g"), pod("q", 4, "a", gang="g")))
    cluster.budget(allowed)
    (running,) = cluster.snapshots.take(NOW_S).gangs.values()
    assert running.gang.is_protected is is_kept
    assert running.protection == ("PodDisruptionBudget default/few allows 1 disruptions" if is_kept else "")


def test_evictions_that_the_watch_has_not_shown_use_up_a_budget() -> None:
    gang, other = (pod("p", 4, "a"), pod("q", 2, "a"))
    cluster = Cluster(gpu_node("a"), pods=(gang, other), victims=Victims(other))
    cluster.budget(1)
    assert cluster.snapshots.protection((gang,))
    cluster.budget(1, disrupted_pods=frozenset({"q"}))
    assert cluster.snapshots.protection((gang,)) == "", "the budget has counted it"


def test_two_budgets_of_one_pod_keep_its_gang() -> None:
    cluster = Cluster(gpu_node("a"), pods=(pod("p", 4, "a"),))
    cluster.budget(5)
    cluster.budget(5, "more")
    (running,) = cluster.snapshots.take(NOW_S).gangs.values()
    assert running.gang.is_protected


def test_unreadable_budgets_keep_every_gang() -> None:
    cluster = Cluster(gpu_node("a"), pods=(pod("p", 4, "a"),))
    cluster.cache.objects.set_unreadable(ObjectKind.POD_DISRUPTION_BUDGET, "forbidden")
    (running,) = cluster.snapshots.take(NOW_S).gangs.values()
    assert running.gang.is_protected
