"""The audit of a ledger about the cluster: wrong holds, leaks and sums are found, told once and mended; what is right is not told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from multisched.shell.audit.ledgers import LedgerAudit
from multisched.state.cluster_cache import ClusterCache
from multisched.state.ledgers import LedgerRegistry
from multisched.testing.builders import make_node
from tests.unit.state.state_kit import NamespaceRoom, Tickets, make_pod, make_spec

NODES, PODS_PER_NODE, CPU_MILLI = 150, 2, 100


class Scene:
    """Nodes of more than one slice, with pods on them that are bound or assumed; and some pods on nodes that nobody knows."""

    def __init__(self) -> None:
        self.room, registry = NamespaceRoom(10**6), LedgerRegistry()
        registry.register(Tickets(per_row=10))
        registry.register(self.room)
        self.cache = ClusterCache(registry)
        for number in range(NODES):
            self.cache.set_node(make_node(f"n{number}"))
            self.cache.place(make_pod(f"bound{number}", make_spec(CPU_MILLI), node=f"n{number}"))
            self.cache.assume(make_pod(f"assumed{number}", make_spec(CPU_MILLI)), number)
        self.cache.place(make_pod("stray", make_spec(CPU_MILLI), node="unknown"))
        self.cache.remove_node("n7")

    def audit(self) -> list[tuple[str, str]]:
        told: list[tuple[str, str]] = []
        asyncio.run(LedgerAudit(self.cache).check(lambda key, what: told.append((key, what))))
        return told

    def is_right(self) -> bool:
        pods = NODES * PODS_PER_NODE + 1
        return len(self.room.at) == pods and self.room.used == {"default": pods * CPU_MILLI}


def count_wrong(scene: Scene) -> None:
    scene.room.used["default"] += 7


def count_for_a_namespace_without_pods(scene: Scene) -> None:
    scene.room.used["empty"] = 5


def hold_too_much(scene: Scene) -> None:
    scene.room.restore(make_pod("bound3", make_spec(900)))


def forget_a_hold(scene: Scene) -> None:
    scene.room.release("bound149")


def forget_a_stray(scene: Scene) -> None:
    scene.room.release("stray")


def forget_one_whose_node_went(scene: Scene) -> None:
    scene.room.release("bound7")


def hold_for_nobody(scene: Scene) -> None:
    scene.room.restore(make_pod("ghost", make_spec(CPU_MILLI)))


def hold_and_count_wrong(scene: Scene) -> None:
    hold_too_much(scene)
    count_wrong(scene)


HELD = "ledger namespace-room holds ('default', 900), its pod says ('default', 100)"
LOST = "ledger namespace-room holds None, its pod says ('default', 100)"
WRONGS: list[tuple[Callable[[Scene], None], list[tuple[str, str]]]] = [
    (lambda scene: None, []),
    (
        count_wrong,
        [
            (
                "namespace-room",
                "ledger namespace-room has {'default': 30107} in total, the sum of its holds is {'default': 30100}",
            )
        ],
    ),
    (
        count_for_a_namespace_without_pods,
        [
            (
                "namespace-room",
                "ledger namespace-room has {'default': 30100, 'empty': 5} in total, the sum of its holds is {'default': 30100}",
            )
        ],
    ),
    (hold_too_much, [("default/bound3", HELD)]),
    (forget_a_hold, [("default/bound149", LOST)]),
    (forget_a_stray, [("default/stray", LOST)]),
    (forget_one_whose_node_went, [("default/bound7", LOST)]),
    (
        hold_for_nobody,
        [("ghost", "ledger namespace-room holds ('default', 100) for a pod that is on no node")],
    ),
    (
        hold_and_count_wrong,
        [
            ("default/bound3", HELD),
            (
                "namespace-room",
                "ledger namespace-room has {'default': 30107} in total, the sum of its holds is {'default': 30100}",
            ),
        ],
    ),
]


@pytest.mark.parametrize(("wrong", "found"), WRONGS, ids=[one[0].__name__ for one in WRONGS])
def test_ledger_fault_is_reported_once_and_repaired(
    wrong: Callable[[Scene], None], found: list[tuple[str, str]]
) -> None:
    scene = Scene()
    assert scene.is_right()
    wrong(scene)
    assert scene.is_right() is not bool(found)
    assert scene.audit() == found
    assert scene.is_right()
    assert scene.audit() == []


class FailingRoom(NamespaceRoom):
    is_down = False

    def restore(self, pod: object) -> None:
        if self.is_down:
            raise ConnectionError("down")
        super().restore(pod)  # type: ignore[arg-type]


def test_failed_ledger_is_trusted_again_once_its_holds_are_complete() -> None:
    room, registry = FailingRoom(10**6), LedgerRegistry()
    registry.register(room)
    cache = ClusterCache(registry)
    cache.set_node(make_node("n"))
    room.is_down = True
    cache.place(make_pod("on-a-node", make_spec(CPU_MILLI), node="n"))
    cache.place(make_pod("stray", make_spec(CPU_MILLI), node="unknown"))
    assert list(registry.broken) == ["namespace-room"]

    async def audit() -> list[str]:
        told: list[str] = []
        await LedgerAudit(cache).check(lambda key, what: told.append(key))
        return told

    assert asyncio.run(audit()) == ["default/on-a-node"]
    assert registry.broken, "what is down cannot be compared"
    room.is_down = False
    assert asyncio.run(audit()) == ["default/on-a-node", "default/stray"]
    assert registry.broken == {}
    assert room.sums() == {"default": 2 * CPU_MILLI}
