"""From a scene of the cluster to the planner's case: loads, room, pods, budgets and quotas are those of the cluster."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domains.forecast.curves.capacity import UNKNOWN
from domains.forecast.repair.case import NO_GANG
from domains.forecast.repair.rules import ALONE, NOT_READY
from domains.forecast.repair.snapshot import NO_LIMIT, UNREADABLE_BUDGET, Quotas, disruptions
from multisched.framework.repair import RepairRefusedError
from multisched.model.cluster_objects import PodDisruptionBudget, ResourceQuota
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import CPU, MEMORY, PODS, PodSpec
from multisched.model.selectors import LabelSelector
from multisched.state.object_store import ObjectStore
from multisched.testing.builders import row_of
from tests.unit.domains.forecast.repair.town import Town, make_ledger, node, pod, selector

placements = st.lists(
    st.tuples(
        st.sampled_from(("web", "batch", "stranger", "")),
        st.sampled_from(("a", "b", "c", "gone")),
        st.integers(0, 2_000),
    ),
    max_size=12,
)


@given(placements, st.lists(st.tuples(st.sampled_from(("web", "batch")), st.sampled_from(("a", "b"))), max_size=3))
def test_loads_equal_the_ledger_and_the_sum_of_pods(
    placed: list[tuple[str, str, int]], nominated: list[tuple[str, str]]
) -> None:
    pods = [pod(f"p{i}", service, at, cpu=cpu) for i, (service, at, cpu) in enumerate(placed)]
    town = Town([node("a"), node("b", cpu=16_000), node("c", log=""), node("elsewhere")], pods)
    promised = [(pod(f"n{i}", service), at) for i, (service, at) in enumerate(nominated)]

    case = town.snapshot(("a", "b", "c"), promised).case

    rows = np.array([row_of(town.cache, name) for name in case.nodes.names], np.intp)
    ledger, quantized = town.ledger, town.ledger.predictor.quantized
    assert quantized is not None
    milli = ledger.settled(rows).of(rows) * quantized.quantum_milli
    for one, at in promised:
        curve = ledger.predictor.predict(one).curve
        assert curve is not None
        milli[case.nodes.names.index(at)] += curve.quanta * quantized.quantum_milli
    capacity = ledger.capacity(rows).T
    stated = capacity != UNKNOWN
    np.testing.assert_array_equal(np.isfinite(case.nodes.loads).all(axis=2), stated)
    np.testing.assert_array_equal(np.isfinite(case.nodes.capacity), stated)
    expected = np.where(stated, capacity, 1.0)[:, :, None]
    np.testing.assert_allclose(case.nodes.loads[stated], (milli / expected)[stated], rtol=1e-12)
    # What the pods of the case add, node by node, is what stands there but for the promised.
    summed = np.zeros((len(rows), *case.curves.shape[1:]))
    np.add.at(summed, case.pods.node, case.curves[case.pods.curve])
    for one, at in promised:
        curve = ledger.predictor.predict(one).curve
        assert curve is not None
        summed[case.nodes.names.index(at)] += curve.quanta * quantized.quantum_milli
    np.testing.assert_allclose(summed, milli, rtol=1e-12)


def test_pods_of_other_domains_and_schedulers_count_and_stay() -> None:
    foreign = pod("theirs", "web", "a", spec=PodSpec(scheduler_name="other", requests={CPU: 100}))
    town = Town([node("a"), node("b")], [pod("ours", "web", "a"), foreign, pod("far", "web", "b")])

    found = town.snapshot(("a",))

    assert found.case.nodes.names == ("a",)
    assert found.case.pods.names == ("default/ours", "default/theirs"), (
        "who stands elsewhere is no matter of this domain"
    )
    assert [bool(code) for code in found.case.pods.fixed] == [False, True]
    assert float(found.case.nodes.loads[0, 1].max()) == pytest.approx(0.6, rel=1e-3)


def test_free_amounts_include_the_number_of_pods() -> None:
    town = Town([node("a"), node("b")], [pod("p", at="a", cpu=3_000), pod("q", at="a", cpu=1_000)])

    case = town.snapshot(nominated=[(pod("n", cpu=500), "b")]).case

    assert case.nodes.free.tolist() == [[8, 4_000], [9, 7_500]]
    assert case.pods.requests.tolist() == [[1, 3_000], [1, 1_000]]


def test_node_with_zero_capacity_is_over_with_any_usage() -> None:
    town = Town([node("a", log="0"), node("b", log="0")], [pod("p", at="a")])

    loads = town.snapshot().case.nodes.loads[:, 1].max(axis=1)

    assert np.isfinite(loads).all()
    assert loads[0] > 1e6
    assert loads[1] == 0.0


def test_pod_data_is_written_to_its_columns() -> None:
    grouped = pod("g", at="a", labels={"app": "web", "scheduling.x-k8s.io/pod-group": "team"})
    town = Town(
        [node("a")], [pod("p", at="a"), grouped, pod("x", at="a", owner=None), pod("y", at="a", is_ready=False)]
    )

    found = town.snapshot()

    case = found.case
    assert [case.fixed_reasons[code] for code in case.pods.fixed.tolist()] == ["", "", ALONE, NOT_READY]
    assert (case.pods.gang.tolist(), case.gang_spare.tolist()) == ([NO_GANG, 0, NO_GANG, NO_GANG], [0])
    assert found.services == ("default/web",)
    assert [one.uid for one in found.pods] == ["uid-p", "uid-g", "uid-x", "uid-y"]


def test_dimension_with_unknown_capacity_on_some_nodes_is_reported() -> None:
    notes = Town([node("a"), node("b", log="")], [pod("p", at="a")]).snapshot().notes
    assert notes == ("log: 1 of 2 nodes do not state their capacity; the dimension is ignored there",)


def test_no_plan_is_made_without_profiles_nodes_or_budgets() -> None:
    with pytest.raises(RepairRefusedError, match="no profiles are active yet"):
        Town([node("a")], ledger=make_ledger(has_profiles=False)).snapshot()
    with pytest.raises(RepairRefusedError, match="the domain has no nodes"):
        Town([]).snapshot()
    town = Town([node("a")])
    town.cache.objects.set_unreadable(ObjectKind.POD_DISRUPTION_BUDGET, "403 forbidden")
    with pytest.raises(RepairRefusedError, match="PodDisruptionBudgets cannot be read \\(403 forbidden\\)"):
        town.snapshot()


# -- budgets -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("budget", "members"),
    [
        (
            PodDisruptionBudget(name="b", namespace="default", selector=selector(app="web"), disruptions_allowed=2),
            [0, 2],
        ),
        (
            PodDisruptionBudget(name="b", namespace="default", selector=LabelSelector(), disruptions_allowed=2),
            [0, 1, 2],
        ),
        (PodDisruptionBudget(name="b", namespace="default", selector=None, disruptions_allowed=2), None),
        (PodDisruptionBudget(name="b", namespace="default", selector=selector(app="none")), None),
        (PodDisruptionBudget(name="b", namespace="shop", selector=selector(app="web"), disruptions_allowed=2), [3]),
    ],
)
def test_budget_covers_pods_of_its_selector_in_its_namespace(
    budget: PodDisruptionBudget, members: list[int] | None
) -> None:
    store = ObjectStore()
    store.set(ObjectKind.POD_DISRUPTION_BUDGET, budget)
    pods = [pod("a"), pod("b", "batch"), pod("c"), pod("d", namespace="shop")]

    found = disruptions(store, pods)

    told = [(one.name, one.allowed, list(one.pods)) for one in found]
    assert told == ([] if members is None else [(budget.key, 2, members)])


def test_unreadable_budget_keeps_all_pods_of_its_namespace() -> None:
    town = Town([node("a")], [pod("p", at="a"), pod("q", at="a", namespace="shop")])
    town.cache.objects.set(
        ObjectKind.POD_DISRUPTION_BUDGET, PodDisruptionBudget(name="b", namespace="shop", malformed="x")
    )
    case = town.snapshot().case
    assert [case.fixed_reasons[code] for code in case.pods.fixed.tolist()] == ["", UNREADABLE_BUDGET]
    assert case.disruptions == ()


# -- quotas ------------------------------------------------------------------------------------------------------------


def room(*quotas: ResourceQuota) -> list[int]:
    store = ObjectStore()
    for quota in quotas:
        store.set(ObjectKind.RESOURCE_QUOTA, quota)
    found = Quotas(store).room(("shop",), (PODS, CPU, MEMORY)).tolist()
    return found[0] if found else []


def quota(name: str = "q", *, used: Mapping[str, int] | None = None, **hard: int) -> ResourceQuota:
    named = {key.replace("_", "."): amount for key, amount in hard.items()}
    return ResourceQuota(name=name, namespace="shop", hard=named, used=used or {})


@pytest.mark.parametrize(
    ("quotas", "left"),
    [
        ([], []),
        ([quota(pods=5, used={"pods": 3})], [2, NO_LIMIT, NO_LIMIT]),
        ([quota(requests_cpu=1_000, used={"requests.cpu": 900})], [NO_LIMIT, 100, NO_LIMIT]),
        ([quota(cpu=1_000, used={"cpu": 200}), quota("r", requests_cpu=500)], [NO_LIMIT, 500, NO_LIMIT]),
        ([quota(memory=10, used={"memory": 20})], [NO_LIMIT, NO_LIMIT, -10]),
        ([quota(limits_cpu=10, used={"limits.cpu": 10})], [0, NO_LIMIT, NO_LIMIT]),
        ([quota(limits_cpu=10, used={"limits.cpu": 9})], [NO_LIMIT, NO_LIMIT, NO_LIMIT]),
        ([ResourceQuota(name="q", namespace="shop", malformed="spec.hard")], [0, 0, 0]),
        ([ResourceQuota(name="q", namespace="shop", hard={"pods": 0}, is_scoped=True)], [NO_LIMIT] * 3),
        ([ResourceQuota(name="q", namespace="other", hard={"pods": 0})], []),
    ],
)
def test_free_quota_per_namespace_is_computed(quotas: list[ResourceQuota], left: list[int]) -> None:
    assert room(*quotas) == left


def test_ignored_quotas_are_reported() -> None:
    store = ObjectStore()
    store.set(ObjectKind.RESOURCE_QUOTA, ResourceQuota(name="q", namespace="shop", is_scoped=True))
    assert list(Quotas(store).notes(("shop",))) == ["1 ResourceQuotas with scopes are not evaluated, such as shop/q"]
    store.set_unreadable(ObjectKind.RESOURCE_QUOTA, "403")
    assert next(iter(Quotas(store).notes(()))).startswith("ResourceQuotas cannot be read (403)")
