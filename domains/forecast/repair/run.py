"""How a repair plan is carried out: a state machine as data, which a controller drives, and the check after each step.

The controller (in the shell) keeps one `Run`, feeds it what happened (`advance`) and carries out its `Action`. It
stores the run before it acts. After a crash it goes on from there with the event RESTARTED. For each step of the plan,
in order:

1. RESERVE: the pod's requests and curve are held on the target for the replacement, after the filters were asked again. A
   reservation lives in the process; a restart loses it, so it is asked for anew before anything is evicted.
2. LOOK: the pod, by uid, still stands on its node, every replica of its service is ready, and its PodDisruptionBudget allows one.
3. EVICT: by the eviction API with the pod's uid as precondition, never by a delete. The API server checks the budget at
   that moment, so a replica lost between LOOK and EVICT means 429, not an outage. Asked twice for one uid, it evicts
   once.
4. The workload's controller makes the replacement, which takes the reserved place and becomes ready.
5. CHECK: `should_stop` compares what was found with what the step foretold. Then the next step begins.

So no more than one replica is away on our account at any time. Whatever interrupts a run leaves only what Kubernetes
mends by itself. Before EVICT nothing has happened but a reservation. After it the workload's controller owes a
replacement, and the normal scheduler places it with or without us. A run that has to end (window closed) waits for a
replacement under way, then ends. A run that ends for whatever reason releases its reservation. A run that stopped is
not resumed: a new plan is made.
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
"""Looks and evictions of one step that may be refused, or go without an answer, before the run stops; the controller waits
between them."""
DRIFT_MAX: Final = 0.05
"""Of a node's capacity: how much worse a forecast after a step may be than the plan foretold."""


class State(Enum):
    """Of the step that is under way; those before it are done."""

    PLANNED = "planned"
    RESERVING = "reserving"
    LOOKING = "looking"
    EVICTING = "evicting"
    RESOLVING = "resolving"
    """The outcome of an eviction is not known: the pod is looked at, and if it stands the step begins anew."""
    LEAVING = "leaving"
    """Evicted, or gone; the replacement is not ready."""
    CHECKING = "checking"
    FINISHED = "finished"
    STOPPED = "stopped"


class Event(Enum):
    """What happened. Each is about the step under way."""

    BEGIN = "begin"
    RESERVED = "reserved"
    RESERVE_REFUSED = "the target no longer takes the pod"
    MAY_LEAVE = "the pod stands, all replicas are ready, a disruption is allowed"
    MAY_NOT_LEAVE = "a replica is not ready, or no disruption is allowed"
    EVICTED = "evicted"
    EVICT_REFUSED = "the eviction was refused"
    """429, or another definite answer: nothing happened."""
    EVICT_UNKNOWN = "no answer to the eviction"
    POD_GONE = "the pod is not where it should be"
    READY_ON_TARGET = "the replacement is ready on the target"
    READY_ELSEWHERE = "the replacement is ready on another node"
    NOT_READY = "no replacement was ready in time"
    TARGET_GONE = "the target is gone"
    CHECK_PASSED = "check passed"
    CHECK_FAILED = "reality differs from the forecast"
    WINDOW_CLOSED = "the window closed"
    RESTARTED = "restarted"


class Action(Enum):
    """What the controller has to do now."""

    RESERVE = "reserve"
    LOOK = "look"
    EVICT = "evict"
    WATCH = "watch"
    """Tell of the pod's end and of its replacement."""
    CHECK = "check"
    RELEASE = "release"


Actions = tuple[Action, ...]


class Run(msgspec.Struct, frozen=True):
    """Where a plan stands. Plain data: it can be stored and read back with msgspec."""

    steps: int
    place: int = 0
    """The step under way."""
    state: State = State.PLANNED
    refusals: int = 0
    """Of this step."""
    ending: Event | None = None
    """Why the run ends once the replacement under way is ready."""
    reason: str = ""
    """Why it stopped."""

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
"""Every move there is. What is not here changes nothing: answers that come late, and what a restart made pointless."""


def advance(run: Run, event: Event) -> tuple[Run, Actions]:
    """The run after the event, and what to do now. The run has to be stored before it is done."""
    if run.is_over:  # a reservation that was granted meanwhile is nobody's
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
    if state in _BEFORE_EVICTION and run.ending is not None:  # nothing was evicted after all
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


class Foretold(msgspec.Struct, frozen=True):
    """What a step of a plan says, as far as the check after it goes."""

    pod: str
    source: str
    target: str
    source_peaks: tuple[float, ...]
    """Per dimension: the predicted peaks, shares of capacity, once the step is done."""
    target_peaks: tuple[float, ...]


class Found(msgspec.Struct, frozen=True):
    """What is true of a step's pod and its two nodes at one moment."""

    node: str
    """On which the pod, or its replacement once there is one, stands; empty: on none."""
    ready: int
    """Replicas of its service."""
    source_peaks: tuple[float, ...]
    """Per dimension: the peak forecast for what stands there now, a share of capacity."""
    target_peaks: tuple[float, ...]
    target_load: tuple[float, ...]
    """Per dimension: measured now; NaN where nothing was."""


def should_stop(
    step: Step | Foretold, before: Found, after: Found, *, threshold: tuple[float, ...], drift_max: float = DRIFT_MAX
) -> str:
    """Why the run has to stop after this step; empty: go on. `before` is of LOOK, `after` of CHECK.

    Better than foretold is no reason: others may have left. ValueError if the numbers of dimensions differ.
    """
    count = len(step.source_peaks)
    for name in ("source_peaks", "target_peaks", "target_load"):
        if not len(getattr(before, name)) == len(getattr(after, name)) == len(threshold) == count:
            raise ValueError(f"{name}, threshold: one number for each of {count} dimensions is wanted")
    if before.node != step.source:
        return f"{step.pod} stood on {before.node or 'no node'}, not on {step.source}"
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
    for word, node, foretold, found in pairs:
        for expected, peak in zip(foretold, found, strict=True):
            if isnan(peak) or peak > expected + drift_max:
                return f"the {word} {node} would peak at {peak:.0%} where the plan says {expected:.0%}"
    for most, load in zip(threshold, after.target_load, strict=True):
        if load > most:
            return f"the target {step.target} is at {load:.0%} now, past its threshold of {most:.0%}"
    return ""
