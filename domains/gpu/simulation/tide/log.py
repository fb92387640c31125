"""The results of a simulated tide: the log of events, one JSON object per line, and the figures that are summed up during the run.

An event has `time` (epoch seconds), `what`, and of `pod`, `gang`, `cards`, `node` those that apply:

created, bound, deleted, ended an inference pod: waits, has its cards, is being deleted, its cards are free submitted (workSeconds),
completed a training gang bound, started its pods, then the gang as a whole noticed (deadline), withdrawn a notice, and that it is void;
overridesMinRunTime: demand exceeded the upper band checkpoint the gang answered the hook with a checkpoint evicted, ended each of its pods;
ended follows completed, too
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from domains.gpu.simulation.tide.cards import CardTable
from domains.gpu.tide.demand import NeedTally
from domains.gpu.tide.state import WaitingInference

_ENCODER: Final = msgspec.json.Encoder()


class EventLog:
    """The lines of one run; none are kept unless they are wanted."""

    def __init__(self, policy: str, seed: int, *, is_wanted: bool) -> None:
        self.lines: list[bytes] = []
        self._run = {"policy": policy, "seed": seed}
        self._is_wanted = is_wanted

    def write(self, time_s: float, what: str, **fields: Any) -> None:
        if self._is_wanted:
            kept = {name: value for name, value in fields.items() if value != ""}
            self.lines.append(_ENCODER.encode({"time": round(time_s, 3), "what": what, **kept, **self._run}))


class TideMeter:
    """Sums card-seconds between events. The run changes the counts after `advance`."""

    def __init__(self, begin_s: float, cards: int) -> None:
        self.cards = cards
        self.demand_cards = 0
        self.inference_cards = 0
        self.training_cards = 0
        self.runnable_cards = 0
        """Cards of all jobs that arrived and have not completed, running ones included."""
        self._now_s = begin_s
        self.reset()

    def reset(self) -> None:
        """Forgets all sums: what was played so far only led up to the judged time."""
        self.used_card_s = self.training_card_s = self.bound_card_s = 0.0
        """Used by inference and training; by training; min(cards, demand + runnable)."""
        self.lost_card_s = 0.0
        self.waits_s: list[float] = []
        self.samples: list[tuple[float, ...]] = []
        """(time, demand, cards of inference, cards of training, cards evicted so far, card-seconds lost so far), one a plan."""
        self._tally = NeedTally()

    def advance(self, to_s: float) -> None:
        step_s = to_s - self._now_s
        self._now_s = to_s
        self.used_card_s += step_s * (self.inference_cards + self.training_cards)
        self.training_card_s += step_s * self.training_cards
        self.bound_card_s += step_s * min(self.cards, self.demand_cards + self.runnable_cards)

    def evicted(self, cards: int) -> None:
        self._tally.evicted(cards)

    def inference_took(self, table: CardTable, asking: Iterable[WaitingInference]) -> None:
        self._tally.inference_has(table.free_cards + table.leaving_cards - sum(pod.cards for pod in asking))

    def training_took(self, table: CardTable) -> None:
        self._tally.training_has(table.free_cards + table.leaving_cards)

    @property
    def evicted_cards(self) -> int:
        return self._tally.evicted_cards

    @property
    def evicted_over_needed(self) -> float:
        return self._tally.ratio

    def sample(self, now_s: float) -> None:
        self.samples.append(
            (
                now_s,
                self.demand_cards,
                self.inference_cards,
                self.training_cards,
                self._tally.evicted_cards,
                self.lost_card_s,
            )
        )
