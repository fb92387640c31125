"""Repairs of a run: when the windows of the judged days open, and the ports through which the program repairs.

The program itself decides and acts (`domains/forecast/repair/control.py`). The run makes the replacements of what it
evicts, as the workloads' controllers would. The windows are the policy's own, but the program may use them only while
the run is there to see it. Outside, its record can neither be read nor kept (503). What it cannot keep it does not
begin.
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
from multisched.simulate.moments import DAY_S
from multisched.simulate.scenario import Repair, Scenario

STOPS_MAX = 3
"""Runs that stopped in one window, after which the program waits for the next one."""

_EVICTION = re.compile(r"/pods/([^/?]+)/eviction(?:\?|$)")
_RECORD = re.compile(r"/configmaps(?:[/?]|$)")


class Opening(msgspec.Struct, frozen=True):
    """A window on a judged day, in epoch seconds."""

    opens_s: float
    closes_s: float


class Visit(msgspec.Struct, frozen=True):
    """What came of a window that the program could use."""

    opens_s: float
    moves: int
    reason: str
    """Why a run stopped, or no plan was made; empty."""


def openings(repair: Repair, scenario: Scenario) -> list[Opening]:
    """Windows that open on judged days, in the order of time; what opens before and ends in them does not count."""
    days = (scenario.judged_to_s - scenario.judged_from_s) // DAY_S
    first = datetime.fromtimestamp(scenario.judged_from_s - DAY_S, UTC).date()
    spans = {
        span for one in TroughWindows.from_config(repair.args["windows"]).windows for span in one.spans(first, days + 2)
    }
    inside = (span for span in spans if scenario.judged_from_s <= span.opens_s < scenario.judged_to_s)
    return [Opening(span.opens_s, span.closes_s) for span in sorted(inside)]


class RepairGate:
    """`server.Interceptor`: see the module. Keeps which pods were evicted until the run has seen to them."""

    def __init__(self) -> None:
        self.is_open = False
        self.evicted: list[str] = []
        """To be replaced, in the order of their evictions."""
        self.count = 0
        """Evictions since the start."""

    def before(self, request: ApiRequest) -> Response | None:
        if not self.is_open and _RECORD.search(request.path):
            return errors.unavailable("the run repairs in its windows only").response()
        return None

    def after(self, request: ApiRequest, answer: Response | WatchStream) -> Response | WatchStream:
        found = _EVICTION.search(request.path) if request.method == "POST" and answer.status == 201 else None
        if found is not None:
            self.evicted.append(found[1])
            self.count += 1
        return answer


def status_of(program: Program) -> RepairStatus:
    """Of the one domain that repairs."""
    plugins = (built.plugin for worker in program.router.workers() for built in worker.plugins.built)
    stands = (plugin.repair_status() for plugin in plugins if implements(plugin, CarriesOutRepairs))
    return next(status for status in stands if status.mode != "off")


def is_at_rest(begun: RepairStatus, now: RepairStatus) -> bool:
    """Whether nothing more comes in a window: the budget is spent, a plan was empty, or too many runs stopped."""
    counts = {name: number - begun.counts.get(name, 0) for name, number in now.counts.items()}
    if counts["runs"] > counts["finished"] + counts["stopped"]:
        return False
    is_spent = counts["plans"] > 0 and now.moves_left == 0
    return is_spent or counts["plans"] > counts["runs"] or counts["stopped"] >= STOPS_MAX
