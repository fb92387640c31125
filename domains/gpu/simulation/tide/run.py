"""One run of a simulated tide: inference follows its curve, training jobs arrive, the planner of the product decides.

Event-driven and deterministic. The planner runs when the demand rises or a pod waits, at each deadline, and once a minute.
Under the policy `static` it does not run: a fixed part of the nodes is for inference, the rest for training.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from domains.gpu.simulation.tide.cards import INFERENCE, TRAINING, CardTable, Seat
from domains.gpu.simulation.tide.curve import CurveForecast
from domains.gpu.simulation.tide.gang import SimulatedGang
from domains.gpu.simulation.tide.log import EventLog, TideMeter
from domains.gpu.simulation.tide.scenario import Played
from domains.gpu.tide.demand import RecentDemand
from domains.gpu.tide.planner import TREND_S, kept_cards, plan
from domains.gpu.tide.state import GangNotice, InferenceState, TidePlan, TideState, WaitingGang, WaitingInference
from multisched.forecasting.time_units import HOUR_S

PLAN_EVERY_S: Final = 60.0
LEAD_S: Final = 3_600.0
"""The run begins this long before the judged time: else all gangs would be within their minimum run time at its begin."""
WAITING_GANGS_SEEN: Final = 20
"""Maximum number of gangs in the queue of training that the planner gets; it only reports how long the first one waits."""


class TideRun:
    """The world of one run. `run` plays all days and returns nothing; the log and the meter have the results."""

    def __init__(self, played: Played, table: CardTable, log: EventLog, *, is_static: bool, seed: int) -> None:
        self._played, self._table, self._log = played, table, log
        self._is_static = is_static
        self._now_s = played.begin_s - LEAD_S
        self.meter = TideMeter(self._now_s, played.cards)
        self._rng = np.random.default_rng([seed, 3])
        self._forecast = CurveForecast(played.curve, played.begin_s, played.settings.horizon_s, played.section.forecast)
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0
        self._serving: list[tuple[str, Seat]] = []
        """Running inference pods, oldest first."""
        self._asking: deque[WaitingInference] = deque()
        self._pods = 0
        self._running: dict[str, SimulatedGang] = {}
        self._queue: dict[int, deque[tuple[int, SimulatedGang]]] = {}
        """Cards -> waiting gangs with their number in the queue, in order."""
        self._queued = 0
        settings = played.settings
        self._recent = RecentDemand(max(settings.quiet_s, settings.horizon_s, TREND_S) + PLAN_EVERY_S)
        self._evictions: deque[tuple[float, int]] = deque()
        self._limit: int | None = None
        self._planned_s = -PLAN_EVERY_S
        self.overrides = 0
        """Notices within the minimum run time."""
        self.gangs_broken = 0

    def run(self) -> None:
        played = self._played
        self._at(self._now_s, self._scale)
        self._at(played.begin_s, self.meter.reset)
        for number, job in enumerate(played.jobs):
            jobs = played.section.jobs
            gang = SimulatedGang(number, job, jobs.checkpoint_every, jobs.restart_cost)
            self._at(job.arrives_s - LEAD_S * (job.arrives_s == played.begin_s), self._arrive, gang)
        end_s = played.end_s
        while self._events and self._events[0][0] <= end_s:
            at_s, _, happens, args = heapq.heappop(self._events)
            self.meter.advance(at_s)
            self._now_s = at_s
            happens(*args)
        self.meter.advance(end_s)
        for pod in self._asking:
            self.meter.waits_s.append(end_s - pod.since_s)

    @property
    def is_learned(self) -> bool:
        return self._forecast.is_learned

    def _at(self, at_s: float, happens: Callable[..., None], *args: object) -> None:
        self._number += 1
        heapq.heappush(self._events, (at_s, self._number, happens, args))

    # -- inference ----------------------------------------------------------------------------------------------------------

    @property
    def _demand(self) -> int:
        return sum(seat.cards for _, seat in self._serving) + sum(pod.cards for pod in self._asking)

    def _scale(self) -> None:
        """Follows the curve, as an autoscaler does."""
        section, now_s = self._played.section.inference, self._now_s
        self._at(now_s + section.scale_every, self._scale)
        wanted = round(float(self._played.curve.sampled(np.array([now_s]))[0]) / section.pod_cards)
        have = len(self._serving) + len(self._asking)
        for _ in range(wanted - have):
            self._pods += 1
            pod = WaitingInference(f"inference/pod-{self._pods:06}", section.pod_cards, (), now_s)
            self._log.write(now_s, "created", pod=pod.uid, cards=pod.cards)
            self._asking.append(pod)
        for _ in range(have - wanted):
            self._scale_down()
        self.meter.demand_cards = wanted * section.pod_cards
        if wanted != have:
            self._serve()
        is_due = now_s - self._planned_s >= PLAN_EVERY_S
        if wanted > have or self._asking or is_due:
            self._decide()

    def _scale_down(self) -> None:
        if self._asking:
            pod = self._asking.pop()
            self._log.write(self._now_s, "deleted", pod=pod.uid, cards=pod.cards)
            self._log.write(self._now_s, "ended", pod=pod.uid, cards=pod.cards)
            self.meter.waits_s.append(self._now_s - pod.since_s)
            return
        uid, seat = self._serving.pop()
        self._log.write(self._now_s, "deleted", pod=uid, cards=seat.cards, node=seat.node)
        self.meter.inference_cards -= seat.cards
        self._leave(uid, "", seat)

    def _serve(self) -> None:
        """Places waiting inference pods, the oldest first."""
        while self._asking:
            pod = self._asking[0]
            seat = self._table.place(pod.uid, pod.cards, INFERENCE)
            if seat is None:
                break
            self._asking.popleft()
            self._serving.append((pod.uid, seat))
            self._log.write(self._now_s, "bound", pod=pod.uid, cards=pod.cards, node=seat.node)
            self.meter.inference_cards += pod.cards
            self.meter.waits_s.append(self._now_s - pod.since_s)
        self.meter.inference_took(self._table, self._asking)

    # -- training -----------------------------------------------------------------------------------------------------------

    def _arrive(self, gang: SimulatedGang) -> None:
        self._log.write(self._now_s, "submitted", gang=gang.key, cards=gang.cards, workSeconds=gang.work_s)
        self.meter.runnable_cards += gang.cards
        self._enqueue(gang)
        self._train()

    def _enqueue(self, gang: SimulatedGang) -> None:
        self._queued += 1
        self._queue.setdefault(gang.cards, deque()).append((self._queued, gang))

    def _train(self) -> None:
        """Starts waiting gangs in the order of the queue; one that does not fit does not stop smaller ones."""
        failed = self._played.cards + 1
        while True:
            heads = [(queue[0][0], cards) for cards, queue in self._queue.items() if queue and cards < failed]
            if not heads or (self._asking and not self._is_static):
                break
            _, cards = min(heads)
            if not self._start(self._queue[cards][0][1]):
                failed = min(failed, cards)
                continue
            self._queue[cards].popleft()
        self.meter.training_took(self._table)

    def _start(self, gang: SimulatedGang) -> bool:
        if self._limit is not None:
            first = min(queue[0] for queue in self._queue.values() if queue)[1]
            kept = 0 if gang is first else kept_cards(first.cards, self._table.nodes())
            if self.meter.training_cards + gang.cards + kept > self._limit:
                return False
        if self._table.free_cards < gang.cards:
            return False
        seats = self._table.place_all(gang.pods(), TRAINING)
        if seats is None:
            return False
        self._running[gang.key] = gang
        self.meter.training_cards += gang.cards
        self.meter.lost_card_s += gang.restart_s * gang.cards
        completes_s = gang.start(self._now_s, seats)
        for seat in seats:
            self._log.write(self._now_s, "bound", pod=seat.pod.uid, gang=gang.key, cards=seat.cards, node=seat.node)
        self._log.write(self._now_s, "started", gang=gang.key, cards=gang.cards)
        self._at(completes_s, self._complete, gang, gang.runs)
        return True

    def _complete(self, gang: SimulatedGang, run: int) -> None:
        if gang.key not in self._running or gang.runs != run:
            return
        self.meter.runnable_cards -= gang.cards
        self._log.write(self._now_s, "completed", gang=gang.key, cards=gang.cards)
        self._end(gang)

    def _end(self, gang: SimulatedGang) -> None:
        del self._running[gang.key]
        self.meter.training_cards -= gang.cards
        for seat in gang.seats:
            self._leave(seat.pod.uid, gang.key, seat)

    def _leave(self, uid: str, gang: str, seat: Seat) -> None:
        self._table.leave(seat)
        self._at(self._now_s + self._played.section.stop_seconds, self._free, uid, gang, seat)

    def _free(self, uid: str, gang: str, seat: Seat) -> None:
        self._table.free(seat)
        self._log.write(self._now_s, "ended", pod=uid, gang=gang, cards=seat.cards, node=seat.node)
        self._serve()
        self._train()

    # -- the tide -----------------------------------------------------------------------------------------------------------

    def _decide(self) -> None:
        """Plans and carries the plan out."""
        self._planned_s = self._now_s
        self.meter.sample(self._now_s)
        if self._is_static:
            return
        demand = self._demand
        self._recent.add(self._now_s, demand)
        while self._evictions and self._evictions[0][0] <= self._now_s - HOUR_S:
            self._evictions.popleft()
        decided = plan(self._state(), self._played.settings)
        self._limit = decided.training_limit_cards
        self._carry_out(decided)
        self._train()

    def _carry_out(self, decided: TidePlan) -> None:
        for withdrawal in decided.withdrawals:
            self._running[withdrawal.gang].notice = None
            self._log.write(self._now_s, "withdrawn", gang=withdrawal.gang)
        for notice in decided.notices:
            gang = self._running[notice.gang]
            gang.notice = GangNotice(notice.deadline_s, notice.for_demand, notice.overrides_min_run_time)
            overrides = {"overridesMinRunTime": True} if notice.overrides_min_run_time else {}
            self._log.write(
                self._now_s, "noticed", gang=gang.key, cards=gang.cards, deadline=notice.deadline_s, **overrides
            )
            self.overrides += notice.overrides_min_run_time
            self._at(notice.deadline_s, self._decide)
            jobs = self._played.section.jobs
            if jobs.hook:
                answer_s = float(self._rng.uniform(*jobs.hook_answer))
                self._at(self._now_s + answer_s, self._answer, gang, gang.runs)
        for eviction in decided.evictions:
            gang = self._running[eviction.gang]
            self.gangs_broken += eviction.uids != tuple(seat.pod.uid for seat in gang.seats)
            for seat in gang.seats:
                self._log.write(
                    self._now_s, "evicted", pod=seat.pod.uid, gang=gang.key, cards=seat.cards, node=seat.node
                )
            self._end(gang)
            lost_card_s = gang.evict(self._now_s) + self._played.section.stop_seconds * gang.cards
            self.meter.lost_card_s += lost_card_s
            self.meter.evicted(gang.cards)
            self._evictions.append((self._now_s, gang.cards))
            self._enqueue(gang)

    def _answer(self, gang: SimulatedGang, run: int) -> None:
        """Writes a checkpoint of the gang, as its answer to the hook."""
        if gang.key in self._running and gang.runs == run:
            gang.checkpoint(self._now_s)
            self._log.write(self._now_s, "checkpoint", gang=gang.key, cards=gang.cards)

    def _state(self) -> TideState:
        now_s = self._now_s
        inference = InferenceState(
            running_cards=self.meter.inference_cards,
            waiting=tuple(self._asking),
            forecast=self._forecast.at(now_s),
            recent=self._recent.samples,
            pod_cards=self._played.section.inference.pod_cards,
        )
        first = sorted(queue[0] for queue in self._queue.values() if queue)[:WAITING_GANGS_SEEN]
        return TideState(
            now_s=now_s,
            nodes=self._table.nodes(),
            inference=inference,
            gangs=tuple(gang.seen(now_s) for gang in self._running.values()),
            waiting_gangs=tuple(WaitingGang(gang.key, gang.cards) for _, gang in first),
            previous_limit_cards=self._limit,
            evicted_last_hour_cards=sum(cards for _, cards in self._evictions),
        )
