"""An independent replay of the event log of a simulated day of jobs: it recomputes the figures and lists what must not happen.

It knows the format of the log and the parameters of the scenario, and shares no code with the simulation.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

Event = dict[str, Any]
TOLERANCE_S = 0.01


class DayReplay:
    """Replays one run. `problems` is empty if nothing happened that must not."""

    def __init__(
        self,
        lines: Iterable[str],
        *,
        slots: int,
        hidden_slots: int,
        begin_s: float,
        end_s: float,
        start_up_s: float = 2.0,
        priced_start_up_s: float = 20.0,
        price_per_hour: float = 0.05,
    ) -> None:
        self.problems: list[str] = []
        self._slots, self._hidden_slots = slots, hidden_slots
        self._span = begin_s, end_s
        self._start_up_s = {"own": start_up_s, "priced": priced_start_up_s}
        self._price_per_hour = price_per_hour
        self._jobs: dict[str, dict[str, Event]] = {}
        self._on_slot: dict[int, str] = {}
        self._now_s = -math.inf
        for line in lines:
            event = json.loads(line)
            if event["time"] < self._now_s - TOLERANCE_S:
                self.problems.append("the log goes back in time")
            self._now_s = event["time"]
            getattr(self, f"_{event['what']}")(event, self._jobs.setdefault(event["job"], {}))
        for name, seen in self._jobs.items():
            if set(seen) != {"created", "bound", "ended"}:
                self.problems.append(f"{name} is never {' or '.join({'created', 'bound', 'ended'} - set(seen))}")
        if not self.problems:
            self._judge_hidden_schedule()

    # -- events ------------------------------------------------------------------------------------------------------------

    def _created(self, event: Event, seen: dict[str, Event]) -> None:
        if seen:
            self.problems.append(f"{event['job']} is created twice")
        seen["created"] = event

    def _bound(self, event: Event, seen: dict[str, Event]) -> None:
        name = event["job"]
        if "created" not in seen or "bound" in seen:
            self.problems.append(f"{name} is bound and does not wait")
        if event["unit"] == "own":
            if not 0 <= event["slot"] < self._slots:
                self.problems.append(f"{name} is on a slot that does not exist")
            if event["slot"] in self._on_slot:
                self.problems.append(f"{name} is on a slot in use")
            self._on_slot[event["slot"]] = name
        seen["bound"] = event

    def _ended(self, event: Event, seen: dict[str, Event]) -> None:
        if not {"created", "bound"} <= set(seen):
            self.problems.append(f"{event['job']} ends and does not run")
            return
        bound = seen["bound"]
        if bound["unit"] == "own":
            self._on_slot.pop(bound["slot"], None)
        expected_s = bound["time"] + self._start_up_s[bound["unit"]] + seen["created"]["runSeconds"]
        if abs(expected_s - event["time"]) > TOLERANCE_S:
            self.problems.append(f"{event['job']} does not end when it has run")
        seen["ended"] = event

    def _judge_hidden_schedule(self) -> None:
        """The hidden schedule starts no job before its creation, misses no deadline, and uses no more slots than there are."""
        steps = list[tuple[float, int]]()
        for name, seen in self._jobs.items():
            created = seen["created"]
            end_s = created["hiddenStart"] + self._start_up_s["own"] + created["runSeconds"]
            if created["hiddenStart"] < created["time"] - TOLERANCE_S:
                self.problems.append(f"{name} starts before its creation in the hidden schedule")
            if end_s > created["deadline"] + TOLERANCE_S:
                self.problems.append(f"{name} misses its deadline in the hidden schedule")
            steps += [(created["hiddenStart"] + TOLERANCE_S, 1), (end_s, -1)]
        used = highest = 0
        for _, step in sorted(steps):
            used += step
            highest = max(highest, used)
        if highest > self._hidden_slots:
            self.problems.append(f"the hidden schedule uses {highest} slots")

    # -- figures -----------------------------------------------------------------------------------------------------------

    @property
    def figures(self) -> dict[str, float | None]:
        begin_s, end_s = self._span
        jobs = list(self._jobs.values())
        missed = sum(seen["ended"]["time"] > seen["created"]["deadline"] + 1e-3 for seen in jobs)
        predicted = [seen for seen in jobs if "p90Seconds" in seen["bound"]]
        covered = sum(seen["created"]["runSeconds"] <= seen["bound"]["p90Seconds"] for seen in predicted)
        waits = sorted(seen["bound"]["time"] - seen["created"]["time"] for seen in jobs)
        own = [seen for seen in jobs if seen["bound"]["unit"] == "own"]
        priced = [seen for seen in jobs if seen["bound"]["unit"] == "priced"]
        busy_s = sum(max(0.0, min(seen["ended"]["time"], end_s) - max(seen["bound"]["time"], begin_s)) for seen in own)
        sandbox_s = sum(seen["ended"]["time"] - seen["bound"]["time"] for seen in priced)
        return {
            "jobs": len(jobs),
            "missed": missed,
            "missedPercent": 100 * missed / len(jobs),
            "p90Coverage": covered / len(predicted) if predicted else None,
            "cost": sandbox_s / 3_600 * self._price_per_hour,
            "waitP50S": _quantile(waits, 0.5),
            "waitP99S": _quantile(waits, 0.99),
            "slotsUsed": busy_s / (self._slots * (end_s - begin_s)),
            "pricedJobs": len(priced),
        }


def _quantile(ordered: list[float], share: float) -> float:
    """Linear between the two nearest ranks."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
