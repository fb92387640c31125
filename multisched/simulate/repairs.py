"""Repairs of a run: when the windows of the judged days open, and the interceptor through which the program repairs.

The program itself plans and evicts (`domains/forecast/repair/control.py`). The run creates the replacements of evicted pods, as
the workloads' controllers would. The policy's windows may be longer, but the program repairs only while the run is in one.
Outside, requests for the repair's record get a 503, and the program starts no repair that it cannot record.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

import msgspec

from domains.forecast.settings.windows import TroughWindows
from multisched.cluster.api.watch import WatchStream
from multisched.cluster.base import errors
from multisched.cluster.base.request import ApiRequest
from multisched.framework.moving import CarriesOutRepairs, RepairStatus
from multisched.framework.registry import implements
from multisched.model.wire import Response
from multisched.shell.program import Program
from multisched.simulate.scenario import Repair, Scenario
from multisched.simulate.scenario_time import DAY_S

STOPS_MAX = 3
"""Stopped runs in one window after which the program waits for the next window."""

_EVICTION = re.compile(r"/pods/([^/?]+)/eviction(?:\?|$)")
_RECORD = re.compile(r"/configmaps/[^/?]*-repair-")
_RECORDS = re.compile(r"/configmaps(?:\?|$)")


class RepairWindow(msgspec.Struct, frozen=True):
    """A repair window on a judged day, in epoch seconds."""

    opens_s: float
    closes_s: float


class WindowResult(msgspec.Struct, frozen=True):
    """The result of a window in which the program could repair."""

    opens_s: float
    moves: int
    reason: str
    """Why a run stopped or no plan was made; else empty."""


def repair_windows(repair: Repair, scenario: Scenario) -> list[RepairWindow]:
    """Returns windows that open on judged days, in order of time; windows that opened before the judged days do not count."""
    days = (scenario.judged_to_s - scenario.judged_from_s) // DAY_S
    first = datetime.fromtimestamp(scenario.judged_from_s - DAY_S, UTC).date()
    spans = {
        span for one in TroughWindows.from_config(repair.args["windows"]).windows for span in one.spans(first, days + 2)
    }
    inside = (span for span in spans if scenario.judged_from_s <= span.opens_s < scenario.judged_to_s)
    return [RepairWindow(span.opens_s, span.closes_s) for span in sorted(inside)]


class RepairGate:
    """Implements `server.Interceptor`: refuses the repair's record while closed; collects evicted pods until the run replaces them."""

    def __init__(self) -> None:
        self.is_open = False
        self.evicted: list[str] = []
        """Pods to replace, in the order of their evictions."""
        self.count = 0
        """Evictions since the start."""

    def before(self, request: ApiRequest) -> Response | None:
        is_created = _RECORDS.search(request.path) and b"-repair-" in (request.body or b"")
        if not self.is_open and (is_created or _RECORD.search(request.path)):
            return errors.unavailable("the simulation allows repairs only in its windows").response()
        return None

    def after(self, request: ApiRequest, answer: Response | WatchStream) -> Response | WatchStream:
        found = _EVICTION.search(request.path) if request.method == "POST" and answer.status == 201 else None
        if found is not None:
            self.evicted.append(found[1])
            self.count += 1
        return answer


def status_of(program: Program) -> RepairStatus:
    """Returns the repair status of the one domain that repairs."""
    plugins = (built.plugin for worker in program.router.workers() for built in worker.plugins.built)
    stands = (plugin.repair_status() for plugin in plugins if implements(plugin, CarriesOutRepairs))
    return next(status for status in stands if status.mode != "off")


def is_finished(begun: RepairStatus, now: RepairStatus) -> bool:
    """Reports whether no more repairs happen in a window: the budget is spent, a plan was empty, or too many runs stopped."""
    counts = {name: number - begun.counts.get(name, 0) for name, number in now.counts.items()}
    if counts["runs"] > counts["finished"] + counts["stopped"]:
        return False
    is_spent = counts["plans"] > 0 and now.moves_left == 0
    return is_spent or counts["plans"] > counts["runs"] or counts["stopped"] >= STOPS_MAX
