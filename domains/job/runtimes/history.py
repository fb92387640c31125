"""RunHistory: the latest run times per workload, and predictions of the next run. Pure: no clock, no I/O.

A workload is a namespace, a root owner (such as the CronJob that created a Job) and the images. A workload without runs is predicted
from the runs of its namespace, or from all runs if the namespace has none. At most WORKLOADS_MAX workloads are kept; beyond that, the
workload without runs for the longest time is dropped.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final, NamedTuple

import msgspec

from domains.job.runtimes.pod_run import PodRun
from domains.job.runtimes.quantiles import bound_of, quantile_of

RUNS_MAX: Final = 32
WORKLOADS_MAX: Final = 1_000
"""Keys kept, including those of namespaces and of all runs. The stored document then has about 600 kB."""
FORECASTS_MAX: Final = 64
"""Past P90 predictions kept per key, so that each run can be compared with the prediction before its start."""
DEADLINE_SHARE: Final = 0.9
"""Quantile of run times that decides about deadlines."""
PRICE_SHARE: Final = 0.5
"""Quantile of run times that decides about prices."""
LATE_MARGIN: Final = 0.1
"""Share added to the P90, because one run in ten exceeds it, and the predicted wait before the run is only a median. For measurements,
see `simulation/README.md`."""
SECONDS_MAX: Final = 10 * 366 * 86_400.0


class RunKey(NamedTuple):
    """Identifies runs that probably take about the same time: a workload, a namespace, or all runs."""

    namespace: str
    owner: str = ""
    """KIND/NAME of the root owner; empty for pods without an owner, and for a whole namespace."""
    images: str = ""
    """Hash of the images of the pod's containers."""


ALL: Final = RunKey("")


class Origin(Enum):
    """Which runs a prediction is made from."""

    WORKLOAD = "workload"
    NAMESPACE = "namespace"
    ALL = "all"
    NONE = "none"


class Prediction(msgspec.Struct, frozen=True):
    """A prediction of the next run. If the origin is NONE, all times are 0."""

    origin: Origin = Origin.NONE
    runs: int = 0
    """Number of runs that the prediction is made from, at most RUNS_MAX."""
    median_s: float = 0.0
    p90_s: float = 0.0
    start_up_s: float = 0.0
    """P90 of the time from the bind to the start of the first container."""

    @property
    def is_known(self) -> bool:
        return self.origin is not Origin.NONE

    @property
    def finish_s(self) -> float:
        """Time from the bind to the predicted end, used for deadlines: P90 of the run time + P90 of the start-up, and LATE_MARGIN."""
        return (1.0 + LATE_MARGIN) * (self.p90_s + self.start_up_s)


NOTHING_KNOWN: Final = Prediction()


class Runs(msgspec.Struct):
    """The latest runs of one key. The fields are part of the stored document."""

    durations_s: list[float] = msgspec.field(default_factory=list)
    """Run times, the oldest first; at most RUNS_MAX."""
    start_ups_s: list[float] = msgspec.field(default_factory=list)
    ended_s: float = 0.0
    """End of the last run."""
    judged: int = 0
    """Number of runs for which a prediction existed when they began."""
    covered: int = 0
    """Number of these runs that took no longer than the P90 predicted when they began."""
    forecasts: list[tuple[float, float]] = msgspec.field(default_factory=list)
    """(start of validity, P90), the oldest first. Beyond FORECASTS_MAX, every second entry of the older half is dropped."""

    def add(self, run: PodRun) -> None:
        """Compares the run with the prediction at its start, and adds it to the runs."""
        self._judge(run)
        self.durations_s.append(round(run.duration_s, 1))
        self.start_ups_s.append(round(run.start_up_s, 1))
        del self.durations_s[:-RUNS_MAX], self.start_ups_s[:-RUNS_MAX]
        self.ended_s = max(self.ended_s, run.ended_s)
        p90_s = bound_of(self.durations_s, DEADLINE_SHARE) or 0.0
        if self.forecasts and self.forecasts[-1][0] >= run.ended_s:
            self.forecasts[-1] = self.forecasts[-1][0], p90_s
        elif not self.forecasts or self.forecasts[-1][1] != p90_s:
            self.forecasts.append((run.ended_s, p90_s))
        if len(self.forecasts) > FORECASTS_MAX:
            del self.forecasts[1 : FORECASTS_MAX // 2 : 2]

    def _judge(self, run: PodRun) -> None:
        at = bisect_right(self.forecasts, (run.began_s, SECONDS_MAX))
        if at:
            self.judged += 1
            self.covered += run.duration_s <= self.forecasts[at - 1][1]

    @property
    def coverage(self) -> float | None:
        """Share of the judged runs that took no longer than their P90; None if no run was judged yet."""
        return self.covered / self.judged if self.judged else None

    def predict(self, origin: Origin) -> Prediction:
        return Prediction(
            origin,
            len(self.durations_s),
            quantile_of(self.durations_s, PRICE_SHARE) or 0.0,
            bound_of(self.durations_s, DEADLINE_SHARE) or 0.0,
            bound_of(self.start_ups_s, DEADLINE_SHARE) or 0.0,
        )


class _Stored(msgspec.Struct):
    """The stored document."""

    learned_until_s: float = 0.0
    runs: list[tuple[str, str, str, Runs]] = []


class MalformedHistoryError(ValueError):
    """The stored document is malformed."""


class RunHistory:
    """Runs of all workloads of one domain."""

    def __init__(self) -> None:
        self._runs: dict[RunKey, Runs] = {}
        self._predicted: dict[RunKey, Prediction] = {}
        """Key -> prediction since its last run. Cached, because the prediction of one key is read for many pods."""
        self.learned_until_s = 0.0
        """End of the latest run in the history."""
        self.version = 0
        """Increases with each change."""

    @property
    def runs(self) -> Mapping[RunKey, Runs]:
        return self._runs

    def add(self, key: RunKey, run: PodRun) -> None:
        """Adds a run, which the caller must pass only once. Ignores runs with impossible times."""
        if not 0.0 <= run.scheduled_s <= SECONDS_MAX * 10 or not 0.0 <= run.duration_s <= SECONDS_MAX:
            return
        self.version += 1
        self.learned_until_s = max(self.learned_until_s, run.ended_s)
        for one in dict.fromkeys((key, RunKey(key.namespace), ALL)):
            self._runs.setdefault(one, Runs()).add(run)
            self._predicted.pop(one, None)
        while len(self._runs) > WORKLOADS_MAX:
            kept = (one for one in self._runs if one != ALL and one != key)
            forgotten = min(kept, key=lambda one: self._runs[one].ended_s)
            del self._runs[forgotten]
            self._predicted.pop(forgotten, None)

    def predict(self, key: RunKey) -> Prediction:
        """Returns the prediction of the next run of the workload."""
        known, runs, origin = self._of(key)
        if runs is None:
            return NOTHING_KNOWN
        found = self._predicted.get(known)
        if found is None or found.origin is not origin:
            found = self._predicted[known] = runs.predict(origin)
        return found

    def residual_s(self, key: RunKey, age_s: float, share: float = DEADLINE_SHARE) -> float | None:
        """Returns a quantile of the remaining seconds of a run that has taken `age_s` so far; None if no run is known.

        It is computed from the runs that took longer than `age_s`. If there are none, the remaining time is `age_s` again.
        """
        _, runs, _ = self._of(key)
        if runs is None:
            return None
        whole_s = quantile_of(runs.durations_s, share, above=age_s)
        return age_s if whole_s is None else whole_s - age_s

    def _of(self, key: RunKey) -> tuple[RunKey, Runs | None, Origin]:
        for one, origin in ((key, Origin.WORKLOAD), (RunKey(key.namespace), Origin.NAMESPACE), (ALL, Origin.ALL)):
            if (runs := self._runs.get(one)) is not None:
                return one, runs, origin
        return key, None, Origin.NONE

    def document(self) -> bytes:
        """Returns the history as a document with at most WORKLOADS_MAX keys."""
        return msgspec.json.encode(_Stored(self.learned_until_s, [(*key, runs) for key, runs in self._runs.items()]))


def read_history(document: bytes, early: Iterable[tuple[RunKey, PodRun]] = ()) -> RunHistory:
    """Returns the stored history. Raises MalformedHistoryError.

    `early`: runs learned before the document was read; those that ended after its last run are added.
    """
    try:
        stored = msgspec.json.decode(document, type=_Stored)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedHistoryError(str(error)) from error
    history = RunHistory()
    for namespace, owner, images, runs in stored.runs[:WORKLOADS_MAX]:
        if not runs.durations_s or len(runs.durations_s) != len(runs.start_ups_s) or len(runs.durations_s) > RUNS_MAX:
            raise MalformedHistoryError(f"{namespace} {owner}: the number of runs is not 1 to {RUNS_MAX}")
        if not all(0.0 <= one <= SECONDS_MAX for one in (*runs.durations_s, *runs.start_ups_s)):
            raise MalformedHistoryError(f"{namespace} {owner}: a time is out of range")
        if not 0 <= runs.covered <= runs.judged or len(runs.forecasts) > FORECASTS_MAX:
            raise MalformedHistoryError(f"{namespace} {owner}: the counts of runs or forecasts are out of range")
        history._runs[RunKey(namespace, owner, images)] = runs  # noqa: SLF001 - its own constructor
    history.learned_until_s = stored.learned_until_s
    history.version = 1
    for key, run in sorted(early, key=lambda one: one[1].ended_s):
        if run.ended_s > stored.learned_until_s:
            history.add(key, run)
    return history
