"""The latest run times per workload, and what they predict. Pure: no clock, no I/O.

A workload is a namespace, a root owner (the CronJob of a Job) and images. A workload without runs is predicted from the runs of its
namespace, else from all runs. At most WORKLOADS_MAX workloads are kept; the one whose last run ended first is dropped.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final, NamedTuple

import msgspec

from domains.job.runtimes.pod_run import PodRun
from domains.job.runtimes.quantiles import quantile_of

RUNS_MAX: Final = 32
WORKLOADS_MAX: Final = 1_000
"""Including namespaces and the sum of all; a full document of them has about 600 kB."""
FORECASTS_MAX: Final = 64
"""Past values of a P90 that are kept, to judge runs by what was predicted before they began."""
DEADLINE_SHARE: Final = 0.9
PRICE_SHARE: Final = 0.5
SECONDS_MAX: Final = 10 * 366 * 86_400.0


class RunKey(NamedTuple):
    """What identifies runs that last about the same time."""

    namespace: str
    owner: str = ""
    """KIND/NAME of the root owner; empty for a pod without one, and for a whole namespace."""
    images: str = ""
    """Hash of the images of its containers."""


ALL: Final = RunKey("")


class Origin(Enum):
    """The runs from which a prediction is made."""

    WORKLOAD = "workload"
    NAMESPACE = "namespace"
    ALL = "all"
    NONE = "none"


class Prediction(msgspec.Struct, frozen=True):
    """What is expected of the next run. With origin NONE, all times are 0."""

    origin: Origin = Origin.NONE
    runs: int = 0
    """Number of runs it is made of, at most RUNS_MAX."""
    median_s: float = 0.0
    p90_s: float = 0.0
    start_up_s: float = 0.0
    """P90 of the time from the bind until the first container runs."""

    @property
    def is_known(self) -> bool:
        return self.origin is not Origin.NONE


NOTHING_KNOWN: Final = Prediction()


class Runs(msgspec.Struct):
    """The latest runs of one workload. Fields are part of the stored document."""

    durations_s: list[float] = msgspec.field(default_factory=list)
    """Oldest first, at most RUNS_MAX."""
    start_ups_s: list[float] = msgspec.field(default_factory=list)
    ended_s: float = 0.0
    """End of the last run."""
    judged: int = 0
    covered: int = 0
    """Of the judged runs, those that ended within the P90 that was predicted before they began."""
    forecasts: list[tuple[float, float]] = msgspec.field(default_factory=list)
    """(since when, P90), oldest first; every second one of the older half is dropped when there are too many."""

    def add(self, run: PodRun) -> None:
        """Judges the run by what was predicted when it began, and learns from it."""
        self._judge(run)
        self.durations_s.append(round(run.duration_s, 1))
        self.start_ups_s.append(round(run.start_up_s, 1))
        del self.durations_s[:-RUNS_MAX], self.start_ups_s[:-RUNS_MAX]
        self.ended_s = max(self.ended_s, run.ended_s)
        p90_s = quantile_of(self.durations_s, DEADLINE_SHARE) or 0.0
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
        """Share of the judged runs that ended within their P90; None before one was judged."""
        return self.covered / self.judged if self.judged else None

    def predict(self, origin: Origin) -> Prediction:
        return Prediction(
            origin,
            len(self.durations_s),
            quantile_of(self.durations_s, PRICE_SHARE) or 0.0,
            quantile_of(self.durations_s, DEADLINE_SHARE) or 0.0,
            quantile_of(self.start_ups_s, DEADLINE_SHARE) or 0.0,
        )


class _Stored(msgspec.Struct):
    """The stored document."""

    learned_until_s: float = 0.0
    runs: list[tuple[str, str, str, Runs]] = []


class MalformedHistoryError(ValueError):
    """The stored document is not a history."""


class RunHistory:
    """Runs of all workloads of one domain."""

    def __init__(self) -> None:
        self._runs: dict[RunKey, Runs] = {}
        self.learned_until_s = 0.0
        """End of the latest run that was learned."""
        self.version = 0
        """Rises with each change."""

    @property
    def runs(self) -> Mapping[RunKey, Runs]:
        return self._runs

    def add(self, key: RunKey, run: PodRun) -> None:
        """Learns from a run; the caller passes each once. Times outside any calendar are ignored."""
        if not 0.0 <= run.scheduled_s <= SECONDS_MAX * 10 or not 0.0 <= run.duration_s <= SECONDS_MAX:
            return
        self.version += 1
        self.learned_until_s = max(self.learned_until_s, run.ended_s)
        for one in dict.fromkeys((key, RunKey(key.namespace), ALL)):
            self._runs.setdefault(one, Runs()).add(run)
        while len(self._runs) > WORKLOADS_MAX:
            kept = (one for one in self._runs if one != ALL and one != key)
            del self._runs[min(kept, key=lambda one: self._runs[one].ended_s)]

    def predict(self, key: RunKey) -> Prediction:
        """Returns what is expected of the next run."""
        runs, origin = self._of(key)
        return NOTHING_KNOWN if runs is None else runs.predict(origin)

    def residual_s(self, key: RunKey, age_s: float, share: float = DEADLINE_SHARE) -> float | None:
        """Returns a quantile of the remaining seconds of a run of this age, from the runs that took longer.

        If none did, it is expected to run as long again as it already has. None if no run is known.
        """
        runs, _ = self._of(key)
        if runs is None:
            return None
        whole_s = quantile_of(runs.durations_s, share, above=age_s)
        return age_s if whole_s is None else whole_s - age_s

    def _of(self, key: RunKey) -> tuple[Runs | None, Origin]:
        for one, origin in ((key, Origin.WORKLOAD), (RunKey(key.namespace), Origin.NAMESPACE), (ALL, Origin.ALL)):
            if (runs := self._runs.get(one)) is not None:
                return runs, origin
        return None, Origin.NONE

    def document(self) -> bytes:
        """Returns the history as a document of at most 1,000 workloads."""
        return msgspec.json.encode(_Stored(self.learned_until_s, [(*key, runs) for key, runs in self._runs.items()]))


def read_history(document: bytes, early: Iterable[tuple[RunKey, PodRun]] = ()) -> RunHistory:
    """Returns the stored history with the runs of `early` that ended after it was stored. Raises MalformedHistoryError."""
    try:
        stored = msgspec.json.decode(document, type=_Stored)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedHistoryError(str(error)) from error
    history = RunHistory()
    for namespace, owner, images, runs in stored.runs[:WORKLOADS_MAX]:
        if not runs.durations_s or len(runs.durations_s) != len(runs.start_ups_s) or len(runs.durations_s) > RUNS_MAX:
            raise MalformedHistoryError(f"{namespace} {owner}: not 1 to {RUNS_MAX} runs")
        if not all(0.0 <= one <= SECONDS_MAX for one in (*runs.durations_s, *runs.start_ups_s)):
            raise MalformedHistoryError(f"{namespace} {owner}: a time is out of range")
        if not 0 <= runs.covered <= runs.judged or len(runs.forecasts) > FORECASTS_MAX:
            raise MalformedHistoryError(f"{namespace} {owner}: impossible counts")
        history._runs[RunKey(namespace, owner, images)] = runs  # noqa: SLF001 - its own constructor
    history.learned_until_s = stored.learned_until_s
    history.version = 1
    for key, run in sorted(early, key=lambda one: one[1].ended_s):
        if run.ended_s > stored.learned_until_s:
            history.add(key, run)
    return history
