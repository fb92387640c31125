"""Where pods of a simulated tide are: the scheduling core chooses their nodes, and a table of cards mirrors them for the planner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from domains.gpu.dialects.whole import GPU
from domains.gpu.tide.state import NodeCards
from multisched.model.objects import Pod
from multisched.simulate.bare_core import BareCore
from multisched.simulate.scenario import Policy

PART: Final = "tide.multisched.io/part"
"""Node label: which half of a static split a node is in."""
INFERENCE, TRAINING = "inference", "training"


class Seat(msgspec.Struct, frozen=True):
    """A placed pod."""

    pod: Pod
    node: str
    cards: int


class CardTable:
    """The nodes and the pods on them. Cards of a pod that is being deleted are leaving until `free`."""

    def __init__(self, policy: Policy, seed: int, nodes: int, cards_per_node: int, inference_nodes: int | None) -> None:
        """`inference_nodes`: the first this many nodes are for inference only, the others for training only; None: all for both."""
        self._core = BareCore(policy, seed)
        self._scheduler = policy.scheduler_name
        self._total = cards_per_node
        self._free, self._leaving = dict[str, int](), dict[str, int]()
        self._is_split = inference_nodes is not None
        self._shapes = dict[tuple[int, str], Pod]()
        for number in range(nodes):
            name = f"node-{number:04}"
            self._free[name], self._leaving[name] = cards_per_node, 0
            part = INFERENCE if inference_nodes is not None and number < inference_nodes else TRAINING
            self._core.add_node(_node(name, cards_per_node, part))

    @property
    def free_cards(self) -> int:
        return sum(self._free.values())

    @property
    def leaving_cards(self) -> int:
        return sum(self._leaving.values())

    def nodes(self) -> tuple[NodeCards, ...]:
        return tuple(NodeCards(name, "", self._total, free, self._leaving[name]) for name, free in self._free.items())

    def place(self, uid: str, cards: int, part: str) -> Seat | None:
        """Places one pod; returns None if no node has room."""
        if max(self._free.values()) < cards:
            return None
        shape = (cards, part if self._is_split else "")
        if shape not in self._shapes:
            self._shapes[shape] = self._core.read_pod(_pod(*shape, self._scheduler))
        pod = msgspec.structs.replace(self._shapes[shape], name=uid, uid=uid)
        node = self._core.place(pod)
        if not node:
            return None
        self._free[node] -= cards
        assert self._free[node] >= 0, f"{node} has no more cards than it has"
        return Seat(pod, node, cards)

    def place_all(self, uids: Sequence[tuple[str, int]], part: str) -> list[Seat] | None:
        """Places all pods of a gang, or none and returns None."""
        seats = list[Seat]()
        for uid, cards in uids:
            seat = self.place(uid, cards, part)
            if seat is None:
                for placed in seats:
                    self._core.remove(placed.pod)
                    self._free[placed.node] += placed.cards
                return None
            seats.append(seat)
        return seats

    def leave(self, seat: Seat) -> None:
        """Marks the cards of a pod that is being deleted, and still holds them."""
        self._leaving[seat.node] += seat.cards

    def free(self, seat: Seat) -> None:
        """Frees the cards of a pod that has ended after `leave`."""
        self._leaving[seat.node] -= seat.cards
        self._free[seat.node] += seat.cards
        self._core.remove(seat.pod)

    def failures(self) -> tuple[str, ...]:
        return self._core.failures()


def _node(name: str, cards: int, part: str) -> dict[str, Any]:
    amounts = {"cpu": "1000", "memory": "4Ti", "pods": "1000", GPU: str(cards)}
    metadata = {"name": name, "uid": f"node-{name}", "labels": {PART: part}}
    return {"metadata": metadata, "status": {"allocatable": amounts, "capacity": amounts}}


def _pod(cards: int, part: str, scheduler: str) -> dict[str, Any]:
    amounts = {"cpu": "1", "memory": "1Gi", GPU: str(cards)}
    container = {"name": "main", "image": "tide:v1", "resources": {"requests": amounts, "limits": amounts}}
    spec: dict[str, Any] = {"schedulerName": scheduler, "containers": [container]}
    if part:
        spec["nodeSelector"] = {PART: part}
    return {"metadata": {"name": "pod", "namespace": "default", "uid": "pod"}, "spec": spec}
