"""Repairs of a run: the interceptor that allows them only in the windows of the judged days, and what happens in a window.

The program itself plans and evicts (`domains/forecast/repair/control.py`). The run creates the replacements of evicted pods, as
the workloads' controllers would. The policy's windows may be longer, but the program repairs only while the run is in one.
Outside, requests for the repair's record get a 503, and the program starts no repair that it cannot record.
"""

from __future__ import annotations

import re

import msgspec

from domains.forecast.simulation.repair_section import Repair, RepairWindow
from multisched.cluster.api.watch import WatchStream
from multisched.cluster.base import errors
from multisched.cluster.base.request import ApiRequest
from multisched.framework.moving import RepairExecutor, RepairStatus
from multisched.framework.registry import implements
from multisched.model.wire import Response
from multisched.simulate.contribution import ServicesRun
from multisched.simulate.virtual_cluster import VirtualCluster

STOPS_MAX = 3
"""Stopped runs in one window after which the program waits for the next window."""

_RECORD = re.compile(r"/configmaps/[^/?]*-repair-")
_RECORDS = re.compile(r"/configmaps(?:\?|$)")


class WindowResult(msgspec.Struct, frozen=True):
    """The result of a window in which the program could repair."""

    opens_s: float
    moves: int
    reason: str
    """Why a run stopped or no plan was made; else empty."""


class RepairGate:
    """Implements `server.Interceptor`: refuses the repair's record while closed."""

    def __init__(self) -> None:
        self.is_open = False

    def before(self, request: ApiRequest) -> Response | None:
        is_created = _RECORDS.search(request.path) and b"-repair-" in (request.body or b"")
        if not self.is_open and (is_created or _RECORD.search(request.path)):
            return errors.unavailable("the simulation allows repairs only in its windows").response()
        return None

    def after(self, request: ApiRequest, answer: Response | WatchStream) -> Response | WatchStream:
        return answer


class Repairs:
    """Lets the program of one run repair in the windows of its policy."""

    def __init__(self, run: ServicesRun, repair: Repair, replicas: int) -> None:
        self._run = run
        self._moves_in_all, self._moves_in_window = repair.moves(replicas)
        self._gate = RepairGate()
        run.cluster.server.interceptors.append(self._gate)
        self.results: list[WindowResult] = []

    async def repair_in(self, window: RepairWindow) -> None:
        """Lets the program repair until it has finished or the window closes; skips the window if its full budget is not left."""
        run, cluster = self._run, self._run.cluster
        count_before = cluster.pods.evictions
        if count_before + self._moves_in_window > self._moves_in_all or cluster.clock.epoch_s() >= window.closes_s:
            return
        run.update_usage()
        await run.set_all_ready()
        before = status_of(cluster)
        self._gate.is_open = True
        while cluster.clock.epoch_s() < window.closes_s and not is_finished(before, status_of(cluster)):
            await cluster.pause()
            await run.replace_evicted()
        self._gate.is_open = False
        now = status_of(cluster)
        has_plan = now.counts["plans"] > before.counts["plans"]
        has_stopped = now.counts["stopped"] > before.counts["stopped"]
        reason = "" if has_plan and not has_stopped else now.reason or "no plan was made"
        self.results.append(WindowResult(window.opens_s, cluster.pods.evictions - count_before, reason))


def status_of(cluster: VirtualCluster) -> RepairStatus:
    """Returns the repair status of the one domain that repairs."""
    statuses = (plugin.repair_status() for _, plugin in cluster.plugins() if implements(plugin, RepairExecutor))
    return next(status for status in statuses if status.mode != "off")


def is_finished(before: RepairStatus, now: RepairStatus) -> bool:
    """Reports whether no more repairs happen in a window: the budget is spent, a plan was empty, or too many runs stopped."""
    counts = {name: number - before.counts.get(name, 0) for name, number in now.counts.items()}
    if counts["runs"] > counts["finished"] + counts["stopped"]:
        return False
    is_spent = counts["plans"] > 0 and now.moves_left == 0
    return is_spent or counts["plans"] > counts["runs"] or counts["stopped"] >= STOPS_MAX
