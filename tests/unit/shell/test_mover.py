"""DomainMover: whom it counts as a pod's replicas, and which budgets keep a pod where it is."""

from __future__ import annotations

from contextlib import closing
from typing import Any, cast

import pytest

from multisched.framework.objects_view import ObjectKind
from multisched.model.cluster_objects import PodDisruptionBudget
from multisched.model.selectors import LabelSelector, Operator, Requirement
from multisched.shell.mover import DomainMover, Hands, Insight
from multisched.state.reservations import Reservations
from multisched.testing.sim_loop import SimLoop
from tests.unit.shell.shell_kit import House


def owned(uid: str, namespace: str = "default") -> dict[str, Any]:
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": uid, "controller": True}
    return {"namespace": namespace, "ownerReferences": [owner]}


def a_mover(house: House) -> DomainMover:
    insight = Insight(house.cache, house.pods, Reservations(house.domain.nominator), house.router, house.clock)
    return DomainMover(house.worker, insight, cast("Hands", None))


def test_replicas_are_pods_of_the_owner_in_its_own_namespace() -> None:
    """Anybody may write the uid of another namespace's ReplicaSet into a pod: it is no replica of it."""
    with closing(SimLoop(seed=1)) as loop:
        house = House(loop, "a")
        house.see_pod("stands", nodeName="a", metadata=owned("rs"))
        house.see_pod("waits", metadata=owned("rs"))
        house.see_pod("other", nodeName="a", metadata=owned("another"))
        house.see_pod("forged", nodeName="a", metadata=owned("rs", "blog"))
        mover = a_mover(house)

        assert {pod.name for pod in mover.peers("default", "rs")} == {"stands", "waits"}
        assert {pod.name for pod in mover.peers("blog", "rs")} == {"forged"}


@pytest.mark.parametrize(
    ("selected", "allowed", "is_kept"),
    [({"app": "web"}, 0, True), ({"app": "web"}, 1, False), ({"app": "db"}, 0, False), (None, 0, False)],
)
def test_a_pod_stays_while_a_budget_that_selects_it_allows_no_disruption(
    selected: dict[str, str] | None, allowed: int, is_kept: bool
) -> None:
    with closing(SimLoop(seed=1)) as loop:
        house = House(loop, "a")
        uid = house.see_pod("web", nodeName="a", metadata={"labels": {"app": "web"}})
        wanted = [Requirement(key, Operator.IN, (value,)) for key, value in (selected or {}).items()]
        selector = LabelSelector(tuple(wanted)) if selected is not None else None
        budget = PodDisruptionBudget(name="few", namespace="default", selector=selector, disruptions_allowed=allowed)
        house.cache.objects.set(ObjectKind.POD_DISRUPTION_BUDGET, budget)
        pod = a_mover(house).standing(uid)
        assert pod is not None
        refusal = "PodDisruptionBudget default/few allows no disruption" if is_kept else ""
        assert a_mover(house).budget_refusal(pod) == refusal
