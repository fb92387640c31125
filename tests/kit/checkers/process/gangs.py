"""Checks gangs of one process by what it has observed: capacity is held for a whole gang, or for none of its members (I13)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from multisched.model.objects import Pod
from multisched.verify.gang_objects import GangKey
from multisched.verify.gangs import GangJudge, GangState
from tests.kit.checkers.delivered_state import DeliveredState

PAUSED_S: Final = 0.01
"""Delay after which a gang with a paused attempt is checked again."""


class ProcessGangs:
    """Called at each assumption. Checks after the current step of the event loop, since a gang is assumed pod by pod."""

    def __init__(self, delivered: DeliveredState, is_paused: Callable[[GangKey], bool]) -> None:
        """`is_paused`: reports whether a paused attempt holds capacity for members of the gang."""
        self._delivered = delivered
        self._is_paused = is_paused
        self._whole: set[GangKey] = set()
        """Gangs that this process has assumed completely. If members fail afterwards, the program handles it."""
        self._waiting: set[GangKey] = set()
        self.broken: list[str] = []
        """Violations since the last read."""

    def assumed(self, pod: Pod) -> None:
        """Records an assumption."""
        judge = self._delivered.gangs
        key = judge.gang_of(pod.uid) if judge is not None else None
        if judge is None or key is None:
            return
        state = judge.state(key)
        if self._held(state) == {pod.uid} and not state.bound:
            self._whole.discard(key)  # no earlier member is held: it starts again
        if not self._is_short(judge, key):
            self._whole.update(state.groups or (key,))
        elif key not in self._waiting:
            self._waiting.add(key)
            asyncio.get_running_loop().call_soon(self._judge, judge, key)

    def _held(self, state: GangState) -> set[str]:
        return self._delivered.held.keys() & (state.waiting | state.bound)

    def _is_short(self, judge: GangJudge, key: GangKey) -> bool:
        return key in {one.key for one in judge.held_without_start(self._delivered.held.keys())}

    def _judge(self, judge: GangJudge, key: GangKey) -> None:
        if self._is_paused(key):
            asyncio.get_running_loop().call_later(PAUSED_S, self._judge, judge, key)
            return
        self._waiting.discard(key)
        state = judge.state(key)
        held = self._held(state)
        if self._is_short(judge, key) and key not in self._whole and held and not state.bound:
            there = f"{len(held)} of {state.minimum} members"
            self.broken.append(f"I13: room is held for {there} of gang {'/'.join(key)}, which does not run")
