"""An independent replay of the event log of a simulated tide: it recomputes the figures and lists what must not happen.

Figures count from `Rules.begin_s` on; the log begins earlier.

It knows the format of the log and the parameters of the scenario, and shares no code with the simulation or the planner.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

Event = dict[str, Any]


@dataclass
class Rules:
    """The parameters of the scenario; durations in seconds."""

    cards: int
    cards_per_node: int
    begin_s: float
    end_s: float
    notice_s: float = 60.0
    min_run_s: float = 1_800.0
    checkpoint_every_s: float = 1_800.0
    restart_s: float = 120.0
    stop_s: float = 5.0


@dataclass
class Gang:
    """One job."""

    cards: int
    work_s: float
    done_s: float = 0.0
    """Work kept by the last checkpoint."""
    runs: int = 0
    started_s: float | None = None
    works_from_s: float = 0.0
    kept_at_s: float = 0.0
    pods: dict[str, int] = field(default_factory=dict)
    evicted: set[str] = field(default_factory=set)
    notice: Event | None = None


class Replay:
    """Replays one run. `problems` is empty if nothing happened that must not."""

    def __init__(self, lines: Iterable[str | bytes], rules: Rules) -> None:
        self.rules = rules
        self.problems: list[str] = []
        self.waits: list[float] = []
        self.used = self.trained = self.bound = self.lost = 0.0
        self.evicted_cards = self.needed_cards = 0
        self._now = -math.inf
        self._on_node: dict[str, int] = defaultdict(int)
        self._holds: dict[str, tuple[str, int]] = {}
        """Pod -> node and cards, from bound to ended."""
        self._asked: dict[str, Event] = {}
        self._serving: dict[str, int] = {}
        self._gangs: dict[str, Gang] = {}
        self._surplus = 0
        for line in lines:
            event = json.loads(line)
            if event["time"] > rules.end_s:
                break
            if self._now < rules.begin_s <= event["time"]:
                self._begin()
            self._advance(event["time"])
            getattr(self, f"_on_{event['what']}")(event)
        self._advance(rules.end_s)
        self.waits += [rules.end_s - event["time"] for event in self._asked.values()]
        for key, gang in self._gangs.items():
            if gang.evicted and gang.evicted != set(gang.pods):
                self._complain(f"{key} was evicted in part")

    def _begin(self) -> None:
        self._now = self.rules.begin_s
        self.waits = []
        self.used = self.trained = self.bound = self.lost = 0.0
        self.evicted_cards = self.needed_cards = self._surplus = 0

    # -- figures ----------------------------------------------------------------------------------------------------------

    @property
    def wait_p99_s(self) -> float:
        """Linear between the two nearest ranks."""
        ordered = sorted(self.waits)
        place = 0.99 * (len(ordered) - 1)
        low = math.floor(place)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (ordered[high] - ordered[low]) * (place - low)

    @property
    def figures(self) -> dict[str, float]:
        return {
            "inferenceWaitP99S": self.wait_p99_s,
            "inferenceWaitMaxS": max(self.waits),
            "gpuHoursLostPercent": 100 * self.lost / self.trained,
            "useOfFluidBound": self.used / self.bound,
            "usedCardHours": self.used / 3_600,
            "evictedOverNeeded": self.evicted_cards / self.needed_cards if self.needed_cards else 1.0,
        }

    def _advance(self, to_s: float) -> None:
        if to_s < self._now:
            self._complain("the log goes back in time")
        step, self._now = max(0.0, to_s - max(self._now, self.rules.begin_s)), to_s
        training = sum(gang.cards for gang in self._gangs.values() if gang.started_s is not None)
        demand = sum(self._serving.values()) + sum(event["cards"] for event in self._asked.values())
        runnable = sum(gang.cards for gang in self._gangs.values() if gang.done_s < gang.work_s)
        self.used += step * (sum(self._serving.values()) + training)
        self.trained += step * training
        self.bound += step * min(self.rules.cards, demand + runnable)

    def _complain(self, text: str) -> None:
        self.problems.append(f"{self._now - self.rules.begin_s:.1f} s: {text}")

    # -- cards ------------------------------------------------------------------------------------------------------------

    def _take(self, event: Event) -> None:
        if event["pod"] in self._holds:
            self._complain(f"{event['pod']} is bound twice")
        self._on_node[event["node"]] += event["cards"]
        self._holds[event["pod"]] = event["node"], event["cards"]
        if self._on_node[event["node"]] > self.rules.cards_per_node:
            self._complain(f"a card of {event['node']} is used twice")

    def _on_ended(self, event: Event) -> None:
        if event["pod"] in self._holds:
            node, cards = self._holds.pop(event["pod"])
            self._on_node[node] -= cards

    @property
    def _free(self) -> int:
        """Cards that no pod will hold soon: free ones, and those of pods that end."""
        training = sum(sum(gang.pods.values()) for gang in self._gangs.values())
        asked = sum(int(event["cards"]) for event in self._asked.values())
        return self.rules.cards - sum(self._serving.values()) - asked - training

    # -- inference ----------------------------------------------------------------------------------------------------------

    def _on_created(self, event: Event) -> None:
        self._asked[event["pod"]] = event
        self._use_surplus()

    def _use_surplus(self) -> None:
        """Evicted cards are needed when inference takes cards that it would not have without the eviction."""
        left = min(self._surplus, max(0, self._free))
        self.needed_cards += self._surplus - left
        self._surplus = left

    def _on_deleted(self, event: Event) -> None:
        self._serving.pop(event["pod"], None)
        asked = self._asked.pop(event["pod"], None)
        if asked is not None:
            self.waits.append(event["time"] - asked["time"])

    # -- training -----------------------------------------------------------------------------------------------------------

    def _on_submitted(self, event: Event) -> None:
        self._gangs[event["gang"]] = Gang(event["cards"], event["workSeconds"])

    def _on_bound(self, event: Event) -> None:
        self._take(event)
        if "gang" not in event:
            self.waits.append(event["time"] - self._asked.pop(event["pod"])["time"])
            self._serving[event["pod"]] = event["cards"]
            return
        gang = self._gangs[event["gang"]]
        if gang.started_s is not None:
            self._complain(f"{event['gang']} gets a pod while it runs")
        gang.pods[event["pod"]] = event["cards"]

    def _on_started(self, event: Event) -> None:
        gang = self._gangs[event["gang"]]
        if sum(gang.pods.values()) != gang.cards:
            self._complain(f"{event['gang']} starts with {sum(gang.pods.values())} of {gang.cards} cards")
        restart_s = self.rules.restart_s if gang.runs else 0.0
        gang.runs += 1
        gang.started_s = event["time"]
        gang.works_from_s = gang.kept_at_s = event["time"] + restart_s
        self.lost += restart_s * gang.cards
        self._surplus = min(self._surplus, max(0, self._free))

    def _keep(self, gang: Gang, to_s: float) -> None:
        if to_s > gang.kept_at_s:
            gang.done_s += to_s - gang.kept_at_s
            gang.kept_at_s = to_s

    def _keep_regular(self, gang: Gang, now_s: float) -> None:
        every_s = self.rules.checkpoint_every_s
        self._keep(gang, gang.kept_at_s + (now_s - gang.kept_at_s) // every_s * every_s)

    def _on_checkpoint(self, event: Event) -> None:
        gang = self._gangs[event["gang"]]
        self._keep_regular(gang, event["time"])
        self._keep(gang, event["time"])

    def _on_noticed(self, event: Event) -> None:
        gang = self._gangs[event["gang"]]
        if gang.started_s is None:
            self._complain(f"{event['gang']} gets a notice and does not run")
            return
        if gang.notice is not None:
            self._complain(f"{event['gang']} gets a second notice")
        if event["deadline"] - event["time"] < self.rules.notice_s:
            self._complain(f"the notice of {event['gang']} is too short")
        if event["time"] - gang.started_s < self.rules.min_run_s and not event.get("overridesMinRunTime"):
            self._complain(f"{event['gang']} gets a notice within its minimum run time")
        gang.notice = event

    def _on_withdrawn(self, event: Event) -> None:
        self._gangs[event["gang"]].notice = None

    def _on_evicted(self, event: Event) -> None:
        gang = self._gangs[event["gang"]]
        if event["pod"] not in gang.pods or event["pod"] in gang.evicted:
            self._complain(f"{event['pod']} is evicted and does not run")
        if gang.notice is None:
            self._complain(f"{event['gang']} is evicted without a notice")
        elif event["time"] < gang.notice["deadline"]:
            self._complain(f"{event['gang']} is evicted before its deadline")
        gang.evicted.add(event["pod"])
        if gang.started_s is not None and gang.evicted == set(gang.pods):
            self._keep_regular(gang, event["time"])
            self.lost += (max(0.0, event["time"] - gang.kept_at_s) + self.rules.stop_s) * gang.cards
            self.evicted_cards += gang.cards
            self._surplus += gang.cards
            gang.started_s, gang.notice = None, None
            gang.pods, gang.evicted = {}, set()

    def _on_completed(self, event: Event) -> None:
        gang = self._gangs[event["gang"]]
        self._keep(gang, event["time"])
        if not math.isclose(gang.done_s, gang.work_s, abs_tol=0.01):
            self._complain(f"{event['gang']} completes after {gang.done_s:.1f} of {gang.work_s:.1f} s of work")
        gang.done_s = gang.work_s
        gang.started_s, gang.notice, gang.pods = None, None, {}
