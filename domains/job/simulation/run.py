"""One run of a simulated day: own slots, a queue in the order of the policy's QueueSort, and a priced unit for some policies.

The keys are those of the policy's QueueSort plugin itself, and run times are learned and predicted by it. Slots are equal, so no node
is chosen.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import floor
from typing import Any, Final

import msgspec

from domains.job.deadlines.deadline import ANNOTATION
from domains.job.deadlines.deadline_sort import DeadlineSort
from domains.job.deadlines.latest_starts import key_of
from domains.job.deadlines.waits import Pool, Room, RunningPod, WaitingPod, predict_waits
from domains.job.runtimes.history import PRICE_SHARE
from domains.job.simulation.hidden import BEGIN_S, Instance, SimulatedJob
from domains.job.simulation.section import JobDaySection
from multisched.framework.points import QueuedPod, QueueSortPlugin
from multisched.model.objects import Owner, Pod, PodSpec
from multisched.model.pod_outcome import PodOutcome
from multisched.model.version import NO_VERSION

PERIOD_S: Final = 30.0
"""How often keys that moved are sorted again, and waits are predicted. The program does both every 3 s."""
SAMPLE_S: Final = 300.0
PRICE, CHEAPEST = "price", "cheapest"
"""Policies with the priced unit: only for a job that is predicted to be late on own slots; whenever no own slot is free."""
OWN, PRICED = "own", "priced"
_SLOT: Final = Room(0, 0, 1)
_ENCODER: Final = msgspec.json.Encoder()


class EventLog:
    """The lines of one run; none are kept unless they are wanted.

    An event has `time` (epoch seconds), `what`, `job`, `policy`, `seed`, and of the others those that apply:

        created   owner, deadline, and of the hidden schedule hiddenStart and runSeconds, which the policy does not know
        bound     unit (own or priced), slot (of own ones), p90Seconds (predicted run time; none if nothing is predicted)
        ended     its slot or sandbox is free
    """

    def __init__(self, policy: str, seed: int, *, is_wanted: bool) -> None:
        self.lines: list[bytes] = []
        self._run = {"policy": policy, "seed": seed}
        self._is_wanted = is_wanted

    def write(self, time_s: float, what: str, job: str, **fields: Any) -> None:
        if self._is_wanted:
            kept = {name: value for name, value in fields.items() if value is not None}
            self.lines.append(
                _ENCODER.encode({"time": round(time_s, 3), "what": what, "job": job, **kept, **self._run})
            )


class _Running(msgspec.Struct):
    job: SimulatedJob
    pod: Pod
    bound_s: float
    began_s: float
    slot: int | None
    """None: in the priced unit."""


class DayRun:
    """Plays an instance. The figures are in the public fields."""

    def __init__(
        self, section: JobDaySection, instance: Instance, policy: str, sort: QueueSortPlugin, log: EventLog
    ) -> None:
        self._section, self._log = section, log
        self._instance = instance
        self._sort = sort
        self._learning = sort if isinstance(sort, DeadlineSort) else None
        self._rule = policy if section.priced is not None else ""
        self._free = list(range(section.slots))
        self._queue = list[tuple[Any, int, SimulatedJob, Pod]]()
        """A heap; a key that moved is replaced within PERIOD_S."""
        self._ends = list[tuple[float, int, _Running]]()
        self._running = dict[str, _Running]()
        """Name -> job on an own slot."""
        self._number = 0
        self._annotations = dict[str, dict[str, str]]()
        self._specs = dict[str, PodSpec]()
        self.waits_s: list[float] = []
        self.late_s: list[float] = []
        """For each job that missed its deadline, the delay."""
        self.judged = self.covered = 0
        """Runs with a predicted P90, and those that ended within it."""
        self.busy_s = self.priced_s = 0.0
        """Busy time of own slots within the day, and run time of sandboxes."""
        self.priced_jobs = 0
        self.samples: list[tuple[float, float, float, float]] = []
        """Every SAMPLE_S: waiting jobs, own slots in use, missed deadlines so far, hours of sandboxes so far."""

    def run(self) -> None:
        self._learn_earlier()
        jobs = self._instance.jobs
        at, next_turn_s, next_sample_s = 0, BEGIN_S, BEGIN_S
        while at < len(jobs) or self._ends or self._queue:
            next_s = jobs[at].created_s if at < len(jobs) else float("inf")
            next_s = min(next_s, self._ends[0][0] if self._ends else float("inf"), next_turn_s)
            while next_sample_s <= min(next_s, self._instance.end_s):
                self._sample()
                next_sample_s += SAMPLE_S
            while self._ends and self._ends[0][0] <= next_s:
                self._end(heappop(self._ends)[2], next_s)
            while at < len(jobs) and jobs[at].created_s <= next_s:
                self._create(jobs[at])
                at += 1
            if next_s == next_turn_s:
                self._turn(next_s)
                next_turn_s += PERIOD_S
            self._dispatch(next_s)

    # -- what happens ------------------------------------------------------------------------------------------------------

    def _create(self, job: SimulatedJob) -> None:
        self._log.write(
            job.created_s,
            "created",
            job.name,
            owner=job.owner,
            deadline=job.deadline_s,
            hiddenStart=round(job.hidden_start_s, 3),
            runSeconds=job.run_s,
        )
        pod = self._pod(job)
        self._number += 1
        heappush(self._queue, (self._key(pod), self._number, job, pod))

    def _dispatch(self, now_s: float) -> None:
        while self._queue and (self._free or self._rule == CHEAPEST):
            _, _, job, pod = heappop(self._queue)
            self._start(job, pod, heappop(self._free) if self._free else None, now_s)

    def _start(self, job: SimulatedJob, pod: Pod, slot: int | None, now_s: float) -> None:
        section = self._section
        start_up_s = section.start_up if slot is not None or section.priced is None else section.priced.start_up
        p90_s = self._p90_s(pod)
        if p90_s is not None:
            self.judged += 1
            self.covered += job.run_s <= p90_s
        self._log.write(now_s, "bound", job.name, unit=PRICED if slot is None else OWN, slot=slot, p90Seconds=p90_s)
        self.waits_s.append(now_s - job.created_s)
        running = _Running(job, pod, now_s, now_s + start_up_s, slot)
        end_s = running.began_s + job.run_s
        if slot is None:
            self.priced_jobs += 1
            self.priced_s += end_s - now_s
        else:
            self._running[job.name] = running
            self.busy_s += max(0.0, min(end_s, self._instance.end_s) - now_s)
        self._number += 1
        heappush(self._ends, (end_s, self._number, running))

    def _end(self, running: _Running, now_s: float) -> None:
        job = running.job
        self._log.write(now_s, "ended", job.name)
        if now_s > job.deadline_s + 1e-6:
            self.late_s.append(now_s - job.deadline_s)
        self._learn(running.pod, running.bound_s, running.began_s, now_s)
        if running.slot is not None:
            heappush(self._free, running.slot)
            del self._running[job.name]

    def _turn(self, now_s: float) -> None:
        """Sorts the queue again if a key moved, and moves late jobs to the priced unit."""
        learning = self._learning
        if learning is None or not self._queue:
            return
        if len(learning.starts) > 2 * len(self._queue):
            learning.starts.keep_only({key_of(pod) for _, _, _, pod in self._queue})
        if learning.starts.has_changed():
            moved = {key for key in learning.starts.changed() if key is not None}
            if moved:
                self._queue = [
                    (self._key(pod) if key_of(pod) in moved else key, number, job, pod)
                    for key, number, job, pod in self._queue
                ]
                heapify(self._queue)
        if self._rule == PRICE and not self._free:
            self._move_late(learning, now_s)

    def _move_late(self, learning: DeadlineSort, now_s: float) -> None:
        history, starts = learning.kept.history, learning.starts
        running = [
            RunningPod(_SLOT, history.residual_s(starts.run_key_of(one.pod), now_s - one.bound_s, PRICE_SHARE))
            for one in self._running.values()
        ]
        ordered = sorted(self._queue)
        waiting = list[WaitingPod]()
        for _, _, job, pod in ordered:
            known = starts.group_of(pod).prediction
            run_s = known.median_s + known.start_up_s if known.is_known else None
            left_s = job.deadline_s - now_s
            waiting.append(WaitingPod(job.name, _SLOT, run_s, known.finish_s, left_s, leaves_if_late=True))
        found = predict_waits([Pool(Room(0, 0, 0))], running, waiting)
        late = {name for name, wait in found.items() if wait.is_at_risk}
        if late:
            for _, _, job, pod in ordered:
                if job.name in late:
                    self._start(job, pod, None, now_s)
            self._queue = [one for one in ordered if one[2].name not in late]

    def _sample(self) -> None:
        in_use = float(self._section.slots - len(self._free))
        self.samples.append((float(len(self._queue)), in_use, float(len(self.late_s)), self.priced_s / 3_600.0))

    # -- what the plugin sees ----------------------------------------------------------------------------------------------

    def _key(self, pod: Pod) -> tuple[Any, ...]:
        return self._sort.sort_key(QueuedPod(pod, 0.0))

    def _p90_s(self, pod: Pod) -> float | None:
        if self._learning is None:
            return None
        found = self._learning.kept.history.predict(self._learning.starts.run_key_of(pod))
        return found.p90_s if found.is_known else None

    def _learn_earlier(self) -> None:
        for job in self._instance.earlier:
            began_s = job.hidden_start_s + self._section.start_up
            self._learn(self._pod(job), job.hidden_start_s, began_s, began_s + job.run_s)

    def _learn(self, pod: Pod, bound_s: float, began_s: float, ended_s: float) -> None:
        """Shows the end of the pod to the plugin, in whole seconds, as a kubelet writes them."""
        if self._learning is not None:
            ended = msgspec.structs.replace(pod, phase="Succeeded")
            outcome = PodOutcome(ended, scheduled_s=floor(bound_s), began_s=floor(began_s), ended_s=floor(ended_s))
            self._learning.see_outcome(outcome)

    def _pod(self, job: SimulatedJob) -> Pod:
        """Returns the pod of the job: owned by the Job that a CronJob created, so that its runs are known by the CronJob."""
        after = f"{round(job.deadline_s - job.created_s)}s"
        annotations = self._annotations.setdefault(after, {ANNOTATION: after})
        spec = self._specs.setdefault(job.owner, PodSpec(images=(job.owner,)))
        minute = floor(job.created_s / 60.0)
        owner = Owner("Job", f"{job.owner}-{minute:08}", f"{job.owner}-{minute}", "batch/v1")
        return Pod(
            job.namespace,
            job.name,
            job.name,
            NO_VERSION,
            spec,
            annotations=annotations,
            owner=owner,
            created_s=job.created_s,
        )
