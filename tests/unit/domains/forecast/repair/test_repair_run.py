"""Carrying out a repair plan: whatever happens, no replica is missing that a PodDisruptionBudget wants."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domains.forecast.repair.plan import Step, plan_repair
from domains.forecast.repair.run import (
    REFUSALS_MAX,
    TABLE,
    Action,
    Event,
    Run,
    State,
    StepState,
    advance,
    should_stop,
)
from domains.forecast.settings.repair_limits import RepairLimits
from tests.unit.domains.forecast.repair.cases import fits_any_node, make_case

STEPS = 3


class World:
    """An API server with one service, its controller and its kubelets; whoever else acts on it; one run that a controller drives.

    The controller knows only what it asked for; `crash` loses its reservation and everything it was about to do or hear.
    """

    def __init__(self, replicas: int, needed: int) -> None:
        self.needed, self.wanted = needed, replicas
        self.ready = {uid: f"old-{uid}" for uid in range(replicas)}
        self.starting: list[int] = []
        self.next_uid = replicas
        self.reserved, self.target_stands = False, True
        self.evicted: list[int] = []
        self.away_for_us: int | None = None
        self.run = Run(STEPS)
        self.todo: list[Action] = []
        self.feed(Event.BEGIN)

    def feed(self, event: Event) -> None:
        run, actions = advance(self.run, event)
        self.run = msgspec.json.decode(msgspec.json.encode(run), type=Run)  # as it is stored and read back
        self.todo.extend(actions)
        if event is Event.CHECK_PASSED:  # the next step has a target of its own
            self.target_stands = True

    @property
    def pod(self) -> int:
        """Of the step under way."""
        return self.run.place

    def act(self, choice: int) -> None:
        """Does the controller's next action, or lets the cluster go on."""
        if not self.todo:
            self.settle_one(choice)
            return
        match self.todo.pop(0):
            case Action.RESERVE:
                self.reserved = self.target_stands and choice % 11 != 0
                self.feed(Event.RESERVED if self.reserved else Event.RESERVE_REFUSED)
            case Action.RELEASE:
                self.reserved = False
            case Action.LOOK:
                self.look()
            case Action.EVICT:
                self.evict(answered=choice % 4 != 0, landed=choice % 3 != 0)
            case Action.CHECK:
                self.feed(Event.CHECK_FAILED if choice % 7 == 0 else Event.CHECK_PASSED)
            case Action.WATCH:
                pass

    def look(self) -> None:
        if self.pod not in self.ready:
            self.feed(Event.POD_GONE)
        elif len(self.ready) == self.wanted and len(self.ready) > self.needed:
            self.feed(Event.MAY_LEAVE)
        else:
            self.feed(Event.MAY_NOT_LEAVE)

    def evict(self, *, answered: bool, landed: bool) -> None:
        """The eviction API: by uid, and only what the budget allows."""
        assert self.away_for_us is None, "one replica at a time is away on our account"
        assert self.reserved or not self.target_stands, "reserve first"
        outcome = Event.EVICT_UNKNOWN
        if answered or landed:
            outcome = self.granted()
        self.feed(outcome if answered else Event.EVICT_UNKNOWN)

    def granted(self) -> Event:
        if self.pod not in self.ready:
            return Event.POD_GONE
        if len(self.ready) - 1 < self.needed:
            return Event.EVICT_REFUSED
        self.lose(self.pod)
        self.evicted.append(self.pod)
        self.away_for_us = self.starting[-1]
        assert len(self.ready) >= self.needed
        return Event.EVICTED

    def lose(self, uid: int) -> None:
        del self.ready[uid]
        self.starting.append(self.next_uid)
        self.next_uid += 1

    def settle_one(self, choice: int) -> None:
        """One replacement becomes ready, and the controller hears of it."""
        if not self.starting:
            if self.run.state is State.LEAVING:
                self.feed(Event.READY_ON_TARGET if self.reserved else Event.READY_ELSEWHERE)
            return
        uid = self.starting.pop(choice % len(self.starting))
        self.ready[uid] = "target" if self.reserved else "elsewhere"
        if uid == self.away_for_us:
            self.away_for_us = None
            self.feed(Event.READY_ON_TARGET if self.reserved else Event.READY_ELSEWHERE)

    def delete(self, choice: int) -> None:
        """Whoever deletes a pod asks no budget."""
        if self.ready:
            uid = sorted(self.ready)[choice % len(self.ready)]
            self.lose(uid)
            if uid == self.pod:
                self.feed(Event.POD_GONE)

    def lose_target(self) -> None:
        self.target_stands = self.reserved = False
        self.feed(Event.TARGET_GONE)

    def crash(self) -> None:
        self.todo.clear()
        self.reserved = False
        self.feed(Event.RESTARTED)


happenings = st.lists(
    st.tuples(st.sampled_from(["act"] * 8 + ["delete", "target", "crash", "close"]), st.integers(0, 1000)), max_size=80
)


def play(world: World, what: list[tuple[str, int]]) -> None:
    for word, choice in what:
        match word:
            case "act":
                world.act(choice)
            case "delete":
                world.delete(choice)
            case "target":
                world.lose_target()
            case "crash":
                world.crash()
            case "close":
                world.feed(Event.WINDOW_CLOSED)


@given(st.integers(3, 6), st.integers(0, 6), happenings)
def test_no_event_order_causes_an_eviction_below_the_budget_or_two_together(
    replicas: int, spare: int, what: list[tuple[str, int]]
) -> None:
    world = World(replicas, max(0, replicas - spare))
    play(world, what)  # World asserts at every eviction
    assert len(world.evicted) == len(set(world.evicted))


@given(st.integers(3, 6), happenings, st.booleans())
def test_an_interrupted_run_leaves_every_replica_running(
    replicas: int, what: list[tuple[str, int]], comes_back: bool
) -> None:
    world = World(replicas, replicas - 1)
    play(world, what)
    if comes_back:
        for _ in range(40 * REFUSALS_MAX):
            world.act(1)
        assert world.run.is_over
        assert not world.reserved
    else:
        world.todo.clear()
        while world.starting:
            world.ready[world.starting.pop()] = "anywhere"
    assert len(world.ready) == replicas


def test_an_undisturbed_run_carries_out_every_step_in_order() -> None:
    world = World(4, 3)
    for _ in range(100):
        world.act(1)
    assert world.run.state is State.FINISHED
    assert world.evicted == [0, 1, 2]


def test_budget_that_never_allows_stops_the_run_after_limited_checks() -> None:
    run, _ = advance(Run(1), Event.BEGIN)
    run, _ = advance(run, Event.RESERVED)
    for _ in range(REFUSALS_MAX):
        run, actions = advance(run, Event.MAY_NOT_LEAVE)
        assert actions == (Action.LOOK,)
    run, actions = advance(run, Event.MAY_NOT_LEAVE)
    assert run.reason == "step 1 of 1: a replica is not ready, or no disruption is allowed"
    assert actions == (Action.RELEASE,)


def test_reservation_granted_after_the_end_is_released() -> None:
    run, _ = advance(Run(1), Event.BEGIN)
    run, actions = advance(run, Event.WINDOW_CLOSED)
    assert (run.state, actions) == (State.STOPPED, (Action.RELEASE,))
    assert advance(run, Event.RESERVED) == (run, (Action.RELEASE,))


@pytest.mark.parametrize("state", [State.EVICTING, State.RESOLVING, State.LEAVING, State.CHECKING])
def test_closing_window_ends_the_current_step_and_starts_no_other(state: State) -> None:
    run, actions = advance(Run(2, state=state), Event.WINDOW_CLOSED)
    assert (run.state, actions) == (state, ())
    ended, actions = advance(msgspec.structs.replace(run, state=State.CHECKING), Event.CHECK_PASSED)
    assert (ended.state, actions) == (State.STOPPED, (Action.RELEASE,))
    assert ended.reason == "step 1 of 2: the window closed"


def test_eviction_follows_only_from_a_check() -> None:
    assert [(at, on) for (at, on), (_, actions) in TABLE.items() if Action.EVICT in actions] == [
        (State.LOOKING, Event.MAY_LEAVE)
    ]


def step() -> Step:
    return plan_repair(make_case([[0.5, 0.5], [0.1]]), RepairLimits((0.8,)), fits_any_node(2)).steps[0]


BEFORE = StepState("node-0", 3, (1.0,), (0.1,), (0.1,))
AFTER = StepState("node-1", 3, (0.5,), (0.6,), (0.3,))


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ({}, {}, ""),
        ({}, {"source_peaks": (0.2,), "target_peaks": (0.64,)}, ""),
        ({}, {"target_load": (float("nan"),)}, ""),
        ({"node": "node-1"}, {}, "ns/pod-0 was on node-1, not on node-0"),
        ({}, {"node": "node-7"}, "the replacement of ns/pod-0 is on node-7, not on node-1"),
        ({}, {"node": ""}, "the replacement of ns/pod-0 is on no node, not on node-1"),
        ({}, {"ready": 2}, "2 replicas are ready, 3 before the step"),
        ({}, {"source_peaks": (0.7,)}, "the source node-0 would peak at 70% where the plan says 50%"),
        ({}, {"target_peaks": (0.9,)}, "the target node-1 would peak at 90% where the plan says 60%"),
        ({}, {"target_peaks": (float("nan"),)}, "the target node-1 would peak at nan% where the plan says 60%"),
        ({}, {"target_load": (0.85,)}, "the target node-1 is at 85% now, past its threshold of 80%"),
    ],
)
def test_run_stops_if_the_cluster_differs_from_the_plan(
    before: dict[str, object], after: dict[str, object], reason: str
) -> None:
    found = (msgspec.structs.replace(BEFORE, **before), msgspec.structs.replace(AFTER, **after))
    assert should_stop(step(), *found, threshold=(0.8,)) == reason


def test_check_with_other_dimensions_is_refused() -> None:
    with pytest.raises(ValueError, match="one number for each of 1 dimensions"):
        should_stop(step(), BEFORE, msgspec.structs.replace(AFTER, source_peaks=(0.1, 0.1)), threshold=(0.8,))
