"""Victims on a node that shares GPUs: all are sufficient, and each is needed."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from multisched.model.objects import Node, Pod
from multisched.testing.builders import make_node, make_pod
from tests.kit.checkers.card_rules import fault_of_victims
from tests.kit.world.gpu_nodes import HAMI, MIB, CardNode
from tests.kit.world.gpu_pods import CardDemand, Part
from tests.kit.world.labels import CARDS, GPU

CARD = {"memory": MIB, "cores": 100, "sharers": 5}
KNOWN = CardNode("n", HAMI, {"GPU-n-0": CARD, "GPU-n-1": CARD})
NODE = make_node("n", extra={GPU: 10}, annotations=KNOWN.annotations())
LATE = make_pod("late", extra={GPU: 1, "nvidia.com/gpumem": 20_000}, labels={CARDS: HAMI})
DEMAND = CardDemand(HAMI, (), (Part(1, 20_000, needs_cores=True),))


def held(name: str, card: int, memory: int, *, is_served: bool = True) -> Pod:
    """A pod on the node with this much of a card."""
    text = f"GPU-n-{card},NVIDIA,{memory},10:;"
    found = make_pod(
        name,
        node="n",
        extra={GPU: 1, "nvidia.com/gpumem": memory},
        labels={CARDS: HAMI},
        annotations={
            "hami.io/vgpu-devices-allocated": text,
            "hami.io/vgpu-devices-to-allocate": ";" if is_served else text,
        },
    )
    return replace(found, phase="Running" if is_served else "Pending")


SMALL, LARGE, OTHER = held("small", 0, 5_000), held("large", 0, 9_000), held("other", 1, 9_000)
UNSERVED = held("unserved", 1, 1_000, is_served=False)


@pytest.mark.parametrize(
    ("there", "victims", "fault"),
    [
        ([SMALL, OTHER], [SMALL], ""),
        ([SMALL, OTHER], [OTHER], ""),
        ([SMALL, LARGE, OTHER], [SMALL, LARGE], ""),
        ([SMALL, LARGE, OTHER], [SMALL], "it does not fit when ['default/small'] are gone"),
        ([SMALL, LARGE, OTHER], [SMALL, OTHER], "default/small might as well stay"),
        ([SMALL, UNSERVED], [SMALL], "it does not fit when ['default/small'] are gone"),
        ([SMALL, UNSERVED], [UNSERVED], ""),
    ],
)
def test_victims_on_shared_gpus_are_sufficient_and_needed(there: list[Pod], victims: list[Pod], fault: str) -> None:
    assert fault_of_victims(DEMAND, LATE, KNOWN, NODE, there, victims) == fault


def test_unknown_cards_are_not_judged() -> None:
    sick: Node = make_node("n", extra={GPU: 10}, annotations=KNOWN.annotations(sick=["GPU-n-1"]))
    unknown = make_pod("unknown", node="n", extra={GPU: 1}, labels={CARDS: HAMI})
    assert fault_of_victims(DEMAND, LATE, KNOWN, sick, [SMALL, LARGE, OTHER], [SMALL]) == ""
    assert fault_of_victims(DEMAND, LATE, KNOWN, NODE, [SMALL, LARGE, OTHER, unknown], [SMALL]) == ""
