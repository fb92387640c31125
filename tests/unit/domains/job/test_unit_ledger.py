"""Places in units under random changes: never more than max, and at any time what a restarted process would count."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from domains.job.units.unit_ledger import COUNTED_MAX, UNIT, UnitLedger
from multisched.cycle.results import Placed, Unplaced
from multisched.framework.ledger import rebuild
from multisched.model.cluster_objects import ResourcePolicy
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import CPU, Owner, Pod, PodSpec
from multisched.testing.builders import make_node, make_pod
from tests.unit.cycle.cycle_kit import Domain
from tests.unit.cycle.test_gang_attempts import attempt as attempt_gang
from tests.unit.cycle.test_gang_attempts import gang_of

COST = "controller.kubernetes.io/pod-deletion-cost"
VIRTUAL = {"type": "virtual-kubelet"}
PLUGINS = ("NodeResourcesFit", "TaintToleration", "NodeAffinity", "ResourcePolicy")
HEAVY = dict.fromkeys(PLUGINS, 10_000)
ONE = PodSpec(requests={CPU: 1000}, placed_cpu_milli=1000)


def with_policy(domain: Domain, *units: Mapping[str, Any], name: str = "web", **spec: Any) -> Domain:
    policy = ResourcePolicy(
        name=name, namespace="default", spec={"selector": {"app": "web"}, "units": list(units), **spec}
    )
    domain.cache.objects.set(ObjectKind.RESOURCE_POLICY, policy)
    return domain


def ledger_of(domain: Domain) -> UnitLedger:
    (found,) = (one for one in domain.cache.ledgers if isinstance(one, UnitLedger))
    return found


def web(name: str, group: str = "1", **fields: Any) -> Pod:
    return make_pod(name, labels={"app": "web", "version": group}, spec=ONE, **fields)


def differing(domain: Domain) -> object:
    """What the ledger holds and what its nodes and pods imply, if that is not the same."""
    cache = domain.cache
    pods = [(pod, row) for row, _ in cache.nodes.live_rows() for pod in cache.nodes.pods_on(row)]
    again = rebuild(ledger_of(domain), cache.nodes.live_rows(), pods)
    assert isinstance(again, UnitLedger)
    kept = ledger_of(domain)
    same = kept.held() == again.held() and kept.counted() == again.counted()
    return None if same else (kept.held(), again.held(), kept.counted(), again.counted())


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("is_static", [True, False])
def test_kept_counts_equal_rebuilt_ones_and_stay_within_max(seed: int, is_static: bool) -> None:
    rng = random.Random(seed)
    nodes = [make_node(f"{pool}{i}", cpu_milli=4000, labels={"pool": pool}) for pool in "ab" for i in range(3)]
    domain = Domain(*nodes, in_tree=PLUGINS)
    units = (
        {"nodeSelector": {"pool": "a"}, "max": 3},
        {"nodeSelector": {"pool": "b"}, "max": 4, "podLabels": {"unit": "b"}},
    )
    with_policy(domain, *units, matchLabelKeys=["version"])
    placed: dict[str, Placed] = {}
    for step in range(250):
        name, uid = f"p{step}", rng.choice(sorted(placed) or [""])
        match rng.randrange(7 if is_static else 9):
            case 0 | 1 | 2:
                result = domain.schedule(web(name, rng.choice("12")))
                if isinstance(result, Placed):
                    placed[result.pod.uid] = result
            case 3 | 4 if placed:  # the watch shows the bind, with or without the labels of the Binding
                one = placed[uid]
                written = ledger_of(domain).binding_labels(one.annotations) if rng.random() < 0.7 else {}
                domain.cache.place(
                    replace(
                        one.pod, node=one.node, annotations=dict(one.annotations), labels={**one.pod.labels, **written}
                    )
                )
            case 5 if placed:
                domain.cache.forget(uid) and placed.pop(uid)
            case 6 if placed:
                domain.cache.remove(placed.pop(uid).pod.uid)
            case 7:
                node = rng.choice(nodes)
                domain.cache.set_node(replace(node, labels={"pool": rng.choice("abc")}))
            case 8:
                with_policy(
                    domain, *rng.sample(units, rng.randint(1, 2)), matchLabelKeys=["version"] * rng.randrange(2)
                )
        assert differing(domain) is None
        if is_static:
            pools = Counter((one.node[0], one.pod.labels["version"]) for one in placed.values())
            assert all(count <= (3 if pool == "a" else 4) for (pool, _), count in pools.items())
    assert placed


def crowded(count: int) -> tuple[Domain, UnitLedger]:
    """Returns a domain with so many pods in units of a policy, whose ledger counts in steps."""
    nodes = [
        make_node(f"{pool}{i}", cpu_milli=10**9, pods=10**6, labels={"pool": pool}) for pool in "ab" for i in range(3)
    ]
    domain = with_policy(Domain(*nodes, in_tree=PLUGINS), {"nodeSelector": {"pool": "a"}, "max": count})
    for number in range(count):
        domain.cache.place(web(f"p{number}", node=f"{'ab'[number % 2]}{number % 3}"))
    ledger = ledger_of(domain)
    ledger.refresh()
    ledger.is_counted_in_background = True
    return domain, ledger


def test_changed_policy_is_counted_in_bounded_steps_and_places_no_pod_meanwhile() -> None:
    count = 3 * COUNTED_MAX + 500
    domain, ledger = crowded(count)
    with_policy(domain, {"nodeSelector": {"pool": "b"}, "max": count // 2 + 1})
    with_policy(domain, {"nodeSelector": {"pool": "a"}, "max": 1}, name="other", selector={"app": "other"})
    steps = 0
    ledger.refresh()
    while ledger.is_counting:
        result = domain.schedule(web("early"))
        assert isinstance(result, Unplaced)
        assert "web has changed, and its pods are being counted" in result.message
        ledger.count_some()
        steps += 1
    assert steps == 4
    assert differing(domain) is None
    first, second = (domain.schedule(web(name)) for name in ("first", "second"))
    assert isinstance(first, Placed)
    assert first.node[0] == "b"
    assert isinstance(second, Placed)
    assert second.node[0] == "a", "no unit, because the other one has its max"


@pytest.mark.parametrize("seed", range(6))
def test_counts_are_right_whatever_changes_between_steps(seed: int) -> None:
    rng = random.Random(seed)
    domain, ledger = crowded(2 * COUNTED_MAX + 100)
    units: tuple[dict[str, Any], ...] = (
        {"nodeSelector": {"pool": "a"}, "max": 2_000},
        {"nodeSelector": {"pool": "b"}, "podLabels": {"unit": "b"}},
    )
    for step in range(40):
        name = f"p{rng.randrange(2 * COUNTED_MAX)}"
        match rng.randrange(6):
            case 0 | 1:
                with_policy(domain, *rng.sample(units, rng.randint(1, 2)), name=rng.choice(("web", "second")))
            case 2:
                domain.cache.remove(web(name).uid)
            case 3:
                domain.cache.remove(web(f"{name}-{step}").uid)
                domain.cache.place(web(f"{name}-{step}", node=f"{rng.choice('ab')}0"))
            case 4:
                domain.cache.set_node(make_node(rng.choice(("a0", "b1")), labels={"pool": rng.choice("abc")}))
            case 5:
                domain.cache.objects.remove(ObjectKind.RESOURCE_POLICY, "default", "second")
        ledger.refresh()
        ledger.count_some()
    while ledger.is_counting:
        ledger.count_some()
    assert differing(domain) is None


def test_policy_that_changes_again_and_again_delays_no_other() -> None:
    domain, ledger = crowded(2 * COUNTED_MAX + 1)
    with_policy(domain, {"max": 5}, name="other", selector={"app": "other"})
    for size in range(10):
        with_policy(domain, {"nodeSelector": {"pool": "a"}, "max": 100 + size})
        ledger.refresh()
        ledger.count_some()
    match = ledger.match(make_pod("p", labels={"app": "other"}))
    assert match is not None
    assert not match.problem


@pytest.mark.parametrize(
    ("kind", "annotations", "unit", "cost"),
    [
        ("ReplicaSet", {}, {}, "100"),
        ("ReplicaSet", {}, {"scaleInWeight": -5}, "-5"),
        ("ReplicaSet", {}, {"podAnnotations": {COST: "7"}}, "7"),
        ("ReplicaSet", {COST: "3"}, {}, None),
        ("ReplicaSet", {COST: "3"}, {"podAnnotations": {COST: "7"}}, None),
        ("Job", {}, {}, None),
        ("", {}, {"podAnnotations": {COST: "7"}}, None),
    ],
)
def test_deletion_cost_is_for_replica_sets_and_never_over_the_users(
    kind: str, annotations: Mapping[str, str], unit: Mapping[str, Any], cost: str | None
) -> None:
    domain = with_policy(Domain(make_node("n"), in_tree=PLUGINS), unit)
    owner = Owner(kind, "o", "uid-o") if kind else None
    result = domain.schedule(replace(web("p"), owner=owner, annotations=annotations))
    assert isinstance(result, Placed)
    expected = {UNIT: "default/web#0"} if cost is None else {UNIT: "default/web#0", COST: cost}
    assert result.annotations == expected


@pytest.mark.parametrize("is_gang", [False, True])
def test_pods_fill_real_nodes_before_a_huge_virtual_one(is_gang: bool) -> None:
    reals = [make_node(f"real{i}", cpu_milli=1000) for i in range(50)]
    virtual = make_node("virtual", cpu_milli=10_000_000, labels=VIRTUAL)
    domain = with_policy(
        Domain(virtual, *reals, in_tree=PLUGINS, weights=HEAVY), {"resource": "ecs"}, {"resource": "eci"}
    )
    pods = [web(f"p{i}") for i in range(60)]
    if is_gang:
        placed = list(attempt_gang(domain, gang_of(pods, 60)).placed)
    else:
        placed = [one for pod in pods if isinstance(one := domain.schedule(pod), Placed)]
    assert [one.node for one in placed[50:]] == ["virtual"] * 10
    assert len({one.node for one in placed[:50]} - {"virtual"}) == 50


def test_pods_without_policies_cost_nothing() -> None:
    domain = Domain(make_node("n"), in_tree=PLUGINS)
    assert isinstance(domain.schedule(web("p")), Placed)
    assert not domain.cache.ledgers.has_ledger(web("q"))
    assert ledger_of(domain).held() == {}


def test_a_pod_stays_in_its_unit_while_its_victims_terminate() -> None:
    """BeforeNextUnit: preemption has found a node; the pod only waits for it."""
    nodes = [make_node(pool, cpu_milli=1000, labels={"pool": pool}) for pool in "ab"]
    domain = Domain(*nodes, in_tree=PLUGINS)
    with_policy(domain, *({"nodeSelector": {"pool": pool}} for pool in "ab"), preemptPolicy="BeforeNextUnit")
    victim = replace(web("victim"), node="a", is_deleting=True, is_preempted=True)
    domain.cache.place(victim)
    urgent = replace(web("urgent"), nominated_node="a", spec=replace(ONE, priority=10))
    domain.nominator.nominate(urgent, "a")

    assert isinstance(domain.schedule(urgent), Unplaced)
    assert isinstance(domain.schedule(urgent), Unplaced)
    domain.cache.remove(victim.uid)
    assert isinstance(placed := domain.schedule(urgent), Placed)
    assert placed.node == "a"
