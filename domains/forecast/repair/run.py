"""Execution of a repair plan as a pure state machine, and the check after each step.

The executor (`repair/run_executor.py`) holds one `Run`, reports events to it (`advance`) and executes the returned `Action`s.
It stores the run before it acts. After a crash it resumes the run with the event RESTARTED. For each step of the plan,
in order:

1. RESERVE: after running the filters again, reserves the pod's requests and curve on the target for the replacement. The
   reservation exists only in the process, so after a restart it is made again before anything is evicted.
2. LOOK: checks that the pod (by uid) is still on its node, that all replicas of its service are ready, and that its
   PodDisruptionBudget allows a disruption.
3. EVICT: uses the eviction API with the pod's uid as precondition, never a delete. The API server checks the budget, so
   a replica lost between LOOK and EVICT causes a 429 and no outage. A repeated request for one uid evicts once.
4. WATCH: the workload's controller creates the replacement, which takes the reservation and becomes ready.
5. CHECK: `should_stop` compares the state with the predictions of the step. Then the next step begins.

So at most one replica at a time is down because of repair. An interrupted run leaves nothing that Kubernetes does not
repair itself: before EVICT there is only a reservation; after EVICT the workload's controller creates a replacement,
which a scheduler places. If the window closes, the run waits for the current replacement and then ends. Every run
releases its reservation at its end. A stopped run is not resumed; a new plan is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from math import isnan
from types import MappingProxyType
from typing import Final

import msgspec

from domains.forecast.repair.plan import Step
from multisched.model.plural import counted, verb

REFUSALS_MAX: Final = 10
"""Tolerated number of failed LOOKs and EVICTs of one step; one more stops the run. The executor waits between them."""
DRIFT_MAX: Final = 0.05
"""Tolerated excess of a node's peak after a step over the peak predicted by the plan, as a share of capacity."""


class State(Enum):
    """State of a run, or of its current step; earlier steps are done."""

    PLANNED = "planned"
    RESERVING = "reserving"
    LOOKING = "looking"
    EVICTING = "evicting"
    RESOLVING = "resolving"
    """The outcome of an eviction is unknown: the pod is read, and if it still exists the step starts again."""
    LEAVING = "leaving"
    """The pod was evicted or deleted; the replacement is not ready."""
    CHECKING = "checking"
    FINISHED = "finished"
    STOPPED = "stopped"


class Event(Enum):
    """Events, each about the current step. The values are shown as reasons."""

    BEGIN = "begin"
    RESERVED = "reserved"
    RESERVE_REFUSED = "the target no longer takes the pod"
    MAY_LEAVE = "the pod exists, all replicas are ready, a disruption is allowed"
    MAY_NOT_LEAVE = "a replica is not ready, or no disruption is allowed"
    EVICTED = "evicted"
    EVICT_REFUSED = "the eviction was refused"
    """429 or another definite answer: the pod was not evicted."""
    EVICT_UNKNOWN = "no answer to the eviction"
    POD_GONE = "the pod was deleted, or is on another node"
    READY_ON_TARGET = "the replacement is ready on the target"
    READY_ELSEWHERE = "the replacement is ready on another node"
    NOT_READY = "no replacement was ready in time"
    TARGET_GONE = "the target node no longer exists"
    CHECK_PASSED = "check passed"
    CHECK_FAILED = "reality differs from the forecast"
    WINDOW_CLOSED = "the window closed"
    RESTARTED = "restarted"


class Action(Enum):
    """The next step of the executor."""

    RESERVE = "reserve"
    LOOK = "look"
    EVICT = "evict"
    WATCH = "watch"
    """Wait for the pod's end and its replacement, and report them."""
    CHECK = "check"
    RELEASE = "release"


Actions = tuple[Action, ...]


class Run(msgspec.Struct, frozen=True):
    """Progress of a plan. Plain data, serializable with msgspec."""

    steps: int
    place: int = 0
    """Index of the current step."""
    state: State = State.PLANNED
    refusals: int = 0
    """Number of refusals in this step."""
    ending: Event | None = None
    """Why the run will end when the current replacement is ready; None: it continues."""
    reason: str = ""
    """Why the run stopped."""

    @property
    def is_over(self) -> bool:
        return self.state in (State.FINISHED, State.STOPPED)


_STOP: Final = (State.STOPPED, (Action.RELEASE,))
_BEFORE_EVICTION: Final = (State.RESERVING, State.LOOKING)
_AFTER_EVICTION: Final = (State.EVICTING, State.RESOLVING, State.LEAVING)
_STOPPING_EVENTS: Final = (Event.POD_GONE, Event.TARGET_GONE, Event.WINDOW_CLOSED, Event.RESERVE_REFUSED)
_REFUSED: Final = (
    (State.LOOKING, Event.MAY_NOT_LEAVE),
    (State.EVICTING, Event.EVICT_REFUSED),
    (State.EVICTING, Event.EVICT_UNKNOWN),
)

TABLE: Final[Mapping[tuple[State, Event], tuple[State, Actions]]] = MappingProxyType(
    {
        (State.PLANNED, Event.BEGIN): (State.RESERVING, (Action.RESERVE,)),
        (State.PLANNED, Event.WINDOW_CLOSED): _STOP,
        (State.RESERVING, Event.RESERVED): (State.LOOKING, (Action.LOOK,)),
        (State.LOOKING, Event.MAY_LEAVE): (State.EVICTING, (Action.EVICT,)),
        (State.LOOKING, Event.MAY_NOT_LEAVE): (State.LOOKING, (Action.LOOK,)),
        (State.EVICTING, Event.EVICTED): (State.LEAVING, (Action.WATCH,)),
        (State.EVICTING, Event.EVICT_REFUSED): (State.LOOKING, (Action.LOOK,)),
        (State.EVICTING, Event.EVICT_UNKNOWN): (State.RESOLVING, (Action.LOOK,)),
        (State.RESOLVING, Event.MAY_LEAVE): (State.RESERVING, (Action.RESERVE,)),
        (State.RESOLVING, Event.MAY_NOT_LEAVE): (State.RESERVING, (Action.RESERVE,)),
        (State.LEAVING, Event.READY_ON_TARGET): (State.CHECKING, (Action.RELEASE, Action.CHECK)),
        (State.LEAVING, Event.READY_ELSEWHERE): _STOP,
        (State.LEAVING, Event.NOT_READY): _STOP,
        (State.CHECKING, Event.CHECK_FAILED): _STOP,
        (State.CHECKING, Event.TARGET_GONE): _STOP,
        (State.CHECKING, Event.RESTARTED): (State.CHECKING, (Action.CHECK,)),
        **{(state, event): _STOP for state in _BEFORE_EVICTION for event in _STOPPING_EVENTS},
        **{(state, Event.RESTARTED): (State.RESERVING, (Action.RESERVE,)) for state in _BEFORE_EVICTION},
        **{(state, Event.POD_GONE): (State.LEAVING, (Action.WATCH,)) for state in _AFTER_EVICTION},
        (State.EVICTING, Event.RESTARTED): (State.RESOLVING, (Action.RESERVE, Action.LOOK)),
        (State.RESOLVING, Event.RESTARTED): (State.RESOLVING, (Action.RESERVE, Action.LOOK)),
        (State.LEAVING, Event.RESTARTED): (State.LEAVING, (Action.RESERVE, Action.WATCH)),
    }
)
"""All transitions. Other events, such as late answers or events outdated by a restart, are ignored."""


def advance(run: Run, event: Event) -> tuple[Run, Actions]:
    """Returns the run after the event, and the actions to execute. The run must be stored before they are executed."""
    if run.is_over:  # a reservation granted after the end must be released
        return run, (Action.RELEASE,) if event is Event.RESERVED else ()
    if (run.state, event) == (State.CHECKING, Event.CHECK_PASSED):
        return _next_step(run)
    if event in (Event.WINDOW_CLOSED, Event.TARGET_GONE) and run.state in (*_AFTER_EVICTION, State.CHECKING):
        run = msgspec.structs.replace(run, ending=run.ending or event)
    found = TABLE.get((run.state, event))
    if found is None:
        return run, ()
    state, actions = found
    if state is State.STOPPED:
        return _stopped(run, event), actions
    if state in _BEFORE_EVICTION and run.ending is not None:  # the pod was not evicted, so the run can end now
        return _stopped(run, run.ending), (Action.RELEASE,)
    refusals = run.refusals + ((run.state, event) in _REFUSED)
    if refusals > REFUSALS_MAX:
        return _stopped(run, event), (Action.RELEASE,)
    return msgspec.structs.replace(run, state=state, refusals=refusals), actions


def _next_step(run: Run) -> tuple[Run, Actions]:
    if run.ending is not None:
        return _stopped(run, run.ending), (Action.RELEASE,)
    if run.place + 1 == run.steps:
        return msgspec.structs.replace(run, state=State.FINISHED), (Action.RELEASE,)
    following = msgspec.structs.replace(run, place=run.place + 1, state=State.RESERVING, refusals=0)
    return following, (Action.RESERVE,)


def _stopped(run: Run, event: Event) -> Run:
    return msgspec.structs.replace(
        run, state=State.STOPPED, reason=f"step {run.place + 1} of {run.steps}: {event.value}"
    )


class PredictedStep(msgspec.Struct, frozen=True):
    """The predictions of a step, for the check after it."""

    pod: str
    source: str
    target: str
    source_peaks: tuple[float, ...]
    """Per dimension: predicted peak after the step, as a share of capacity."""
    target_peaks: tuple[float, ...]


class StepState(msgspec.Struct, frozen=True):
    """State of a step's pod and of its two nodes at one moment."""

    node: str
    """Node of the pod, or of its replacement if there is one; empty: none."""
    ready: int
    """Number of ready replicas of its service."""
    source_peaks: tuple[float, ...]
    """Per dimension: predicted peak of the present pods, as a share of capacity."""
    target_peaks: tuple[float, ...]
    target_load: tuple[float, ...]
    """Per dimension: measured load as a share of capacity; NaN if not measured."""


def should_stop(
    step: Step | PredictedStep,
    before: StepState,
    after: StepState,
    *,
    threshold: tuple[float, ...],
    drift_max: float = DRIFT_MAX,
) -> str:
    """Returns why the run must stop after this step; empty: continue. `before`: state at LOOK, `after`: state at CHECK.

    Lower peaks than predicted are no reason to stop, because other pods may have ended. Raises ValueError if the numbers
    of dimensions differ.
    """
    count = len(step.source_peaks)
    for name in ("source_peaks", "target_peaks", "target_load"):
        if not len(getattr(before, name)) == len(getattr(after, name)) == len(threshold) == count:
            raise ValueError(f"{name}, threshold: one number for each of {count} dimensions is required")
    if before.node != step.source:
        return f"{step.pod} was on {before.node or 'no node'}, not on {step.source}"
    if after.node != step.target:
        return f"the replacement of {step.pod} is on {after.node or 'no node'}, not on {step.target}"
    if after.ready < before.ready:
        return (
            f"{counted(after.ready, 'replica')} {verb(after.ready, 'is', 'are')} ready, {before.ready} before the step"
        )
    pairs = (
        ("source", step.source, step.source_peaks, after.source_peaks),
        ("target", step.target, step.target_peaks, after.target_peaks),
    )
    for word, node, predicted, found in pairs:
        for expected, peak in zip(predicted, found, strict=True):
            if isnan(peak) or peak > expected + drift_max:
                return f"the {word} {node} would peak at {peak:.0%} where the plan says {expected:.0%}"
    for most, load in zip(threshold, after.target_load, strict=True):
        if load > most:
            return f"the target {step.target} is at {load:.0%} now, past its threshold of {most:.0%}"
    return ""
