"""A plugin that moves pods, as a repair does: it reserves a row, writes a document, evicts, and waits for the replacement.

Its moves are drawn. Any pod of a controller may be moved to any node that takes it, with or without a plan made on a copy. All
actions use `framework.moving.Mover`, so that the reservation, the eviction and the kept document meet the faults of a run.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import Final

from multisched.framework.background import BackgroundPorts
from multisched.framework.context import PluginContext
from multisched.framework.moving import EvictAnswer, Mover
from multisched.framework.points import CycleView
from multisched.framework.ports import UnreachableError, pod_ref
from multisched.framework.repair import (
    RepairInput,
    RepairMove,
    RepairPeak,
    RepairPlan,
    RepairRefusedError,
    RepairRequest,
)
from multisched.framework.views import Document, ViewPorts, ViewQuery
from multisched.model.objects import Pod

REST_MIN_S, REST_MAX_S = 1.0, 5.0
WATCH_S: Final = 4.0
"""Time within which the replacement must be created."""
GIVES_UP: Final = 0.05
"""Share of moves after which the background task ends, with or without an error, and is restarted."""
LOOK_S: Final = 0.2
LONG_SHARE, LONG = 0.03, 50_000
"""Share of moves whose document is longer than allowed, and its length factor."""
PLANNED: Final = 0.15
"""Share of moves that follow a plan."""
MOVES: Final = "moves"
"""The name of the plugin's view."""
PODS_PLANNED: Final = 8
"""Placed pods that a plan considers."""


class GaveUpError(Exception):
    """A bug of the background task."""


class Restless:
    """A plugin that moves drawn pods as a repair does."""

    name = "Restless"
    view = MOVES

    def __init__(self, context: PluginContext) -> None:
        self._nodes = context.nodes
        self._rows = context.rows
        self._newest = ""
        """The pod that was bound last. It is not moved."""

    def post_bind(self, cycle: CycleView, pod: Pod, node: str) -> None:
        self._newest = pod.uid

    async def show(self, query: ViewQuery, ports: ViewPorts) -> Callable[[], Document]:
        await asyncio.sleep(0)
        return lambda: {query.name: self._newest, "nodes": len(ports.rows)}

    async def run(self, ports: BackgroundPorts) -> None:
        mover, rng = ports.mover, ports.rng
        if mover is None:
            await asyncio.Event().wait()
            return
        while True:
            await asyncio.sleep(rng.uniform(REST_MIN_S, REST_MAX_S))
            if not mover.may_act():
                continue
            try:
                await self._move(mover, rng)
            except UnreachableError:
                continue
            finally:
                mover.release()
            if rng.random() < GIVES_UP:
                return  # as if its work were done: it is restarted

    async def _move(self, mover: Mover, rng: random.Random) -> None:
        found = await self._found(mover, rng)
        if found is None or (await mover.read() is None and rng.random() < GIVES_UP):
            return
        pod, node = found
        placed = mover.placed_pod(pod.uid)
        if placed is None or placed.owner is None or not mover.has_node(node) or mover.budget_refusal(pod):
            return
        handed: list[str] = []
        if mover.reserve(pod.uid, placed, node, on_assigned=lambda: handed.append(pod.uid)):
            return
        regarding = pod_ref(pod)
        await mover.write((f"{pod.key} to {node}" * (LONG if rng.random() < LONG_SHARE else 1)).encode())
        if not await mover.still_exists(regarding) or not mover.is_reserved():
            return
        known = frozenset(peer.uid for peer in mover.peers(pod.namespace, placed.owner.uid))
        reply = await mover.evict(regarding, timeout_s=mover.write_timeout_s)
        if reply.answer not in (EvictAnswer.EVICTED, EvictAnswer.UNKNOWN):
            return
        mover.record_event("Normal", regarding, "Moving", f"goes to {node}")
        mover.assign_to_replacement(known)
        if rng.random() < GIVES_UP:
            raise GaveUpError
        for _ in range(int(WATCH_S / LOOK_S)):
            await asyncio.sleep(LOOK_S)
            if handed and mover.placed_pod(mover.replacement()) is not None:
                break
        await mover.write(b"")

    async def _found(self, mover: Mover, rng: random.Random) -> tuple[Pod, str] | None:
        """Returns the pod to move and its new node; None for none."""
        if rng.random() >= PLANNED:
            return self._drawn(rng)
        with contextlib.suppress(RepairRefusedError):
            plan = await mover.plan(RepairRequest())
            for move in plan.moves:
                if (placed := mover.placed_pod(move.uid)) is not None:
                    return placed, move.to_node
        return None

    def plan_repair(self, scene: RepairInput, asked: RepairRequest) -> RepairPlan:
        """Plans moves of controllers' pods, each to the last node that takes it. They repair nothing."""
        moves = []
        owned = [(pod, row) for pod, row in scene.placed if pod.owner is not None]
        for pod, row in owned[-PODS_PLANNED:]:
            if pod.spec.scheduler_name not in scene.scheduler_names:
                continue
            rows = scene.rows[scene.fits(pod) & (scene.rows != row)].tolist()
            if rows:
                moves.append(_move(pod, scene.nodes.node(row).name, scene.nodes.node(rows[-1]).name))
        return RepairPlan(
            domain=scene.domain,
            profiles_version=0,
            threshold_percent={},
            moves=tuple(moves[: asked.moves]),
            repaired=(),
            unrepaired=(),
            least_moves=0,
            worst_before=_NO_PEAK,
            worst_after=_NO_PEAK,
            nodes=len(scene.rows),
            pods=len(scene.placed),
            movable=len(owned),
            kept={},
            notes=scene.notes,
        )

    def _drawn(self, rng: random.Random) -> tuple[Pod, str] | None:
        """Returns a drawn pod of a controller on one of our nodes, and another of our nodes; None if there is none."""
        rows = self._rows().tolist() if self._rows is not None else []
        owned = [
            pod for row in rows for pod in self._nodes.pods_on(row) if pod.owner is not None and pod.uid != self._newest
        ]
        if not owned:
            return None
        return rng.choice(owned), self._nodes.node(rng.choice(rows)).name


_NO_PEAK: Final = RepairPeak(dimension="cpu", at="", percent=0.0)


def _move(pod: Pod, from_node: str, to_node: str) -> RepairMove:
    return RepairMove(
        pod=pod.key,
        uid=pod.uid,
        service="",
        from_node=from_node,
        to_node=to_node,
        repairs=from_node,
        gain_percent=0.0,
        from_before=_NO_PEAK,
        from_after=_NO_PEAK,
        to_before=_NO_PEAK,
        to_after=_NO_PEAK,
        from_peaks_percent={},
        to_peaks_percent={},
        replicas=1,
    )
