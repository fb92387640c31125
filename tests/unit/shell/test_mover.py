"""DomainMover: whom it counts as a pod's replicas."""

from __future__ import annotations

from contextlib import closing
from typing import Any, cast

from multisched.shell.mover import DomainMover, Hands, Insight
from multisched.state.reservations import Reservations
from multisched.testing.sim_loop import SimLoop
from tests.unit.shell.shell_kit import House


def owned(uid: str, namespace: str = "default") -> dict[str, Any]:
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": uid, "controller": True}
    return {"namespace": namespace, "ownerReferences": [owner]}


def test_replicas_are_pods_of_the_owner_in_its_own_namespace() -> None:
    """Anybody may write the uid of another namespace's ReplicaSet into a pod: it is no replica of it."""
    with closing(SimLoop(seed=1)) as loop:
        house = House(loop, "a")
        house.see_pod("stands", nodeName="a", metadata=owned("rs"))
        house.see_pod("waits", metadata=owned("rs"))
        house.see_pod("other", nodeName="a", metadata=owned("another"))
        house.see_pod("forged", nodeName="a", metadata=owned("rs", "blog"))
        insight = Insight(house.cache, house.pods, Reservations(house.domain.nominator), house.router, house.clock)
        mover = DomainMover(house.worker, insight, cast("Hands", None))

        assert {pod.name for pod in mover.peers("default", "rs")} == {"stands", "waits"}
        assert {pod.name for pod in mover.peers("blog", "rs")} == {"forged"}
