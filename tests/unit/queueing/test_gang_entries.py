"""Gangs in the queue: one entity until they have started, single pods from then on; nobody is lost, and nobody is popped twice."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from multisched.framework.events import (
    ASSIGNED_POD_DELETE,
    ATTEMPT_UNDONE,
    NODE_ADD,
    Action,
    ClusterEvent,
    EventRegistration,
    Resource,
)
from multisched.framework.points import Queued, QueuedGang
from multisched.framework.status import SUCCESS, Status
from multisched.model.gang import (
    ACK_MIN,
    ACK_NAME,
    KOORDINATOR,
    SP_LABEL,
    TOPOLOGY_ANNOTATION,
    GangApi,
    GangSpec,
    TopologyLevel,
)
from multisched.model.objects import Node, Pod, PodSpec
from multisched.plugins.gang.gang_scheduling import GangScheduling
from multisched.queueing.backoff import BackoffPolicy
from multisched.queueing.entry import Failure
from multisched.queueing.pod_queue import PodQueue
from multisched.queueing.transitions import QueueState
from multisched.state.gang_roster import GangRoster
from multisched.testing.builders import make_context
from tests.unit.queueing.builders import BySortOfPriority, ClosedGates, make_pod

NODE_ANNOTATION = ClusterEvent(Resource.NODE, Action.UPDATE_NODE_ANNOTATION, "NodeAnnotation")
"""Helps no member that waits for room."""
A_NODE = Node("node", "uid-node", 1)
REFUSED = Failure(rejectors=frozenset({GangScheduling.name}), message="gang team/g: 1 of 2")


def member(name: str, least: int = 2, *, gang: str = "g", priority: int = 0, gates: tuple[str, ...] = ()) -> Pod:
    spec = PodSpec(priority=priority)
    labels = {ACK_NAME: gang, ACK_MIN: str(least)}
    return Pod("team", name, f"uid-{name}", 1, spec, labels=labels, gates=gates)


class HoldsOne:
    """Holds the pod of one name until a node comes after it was told to let it go."""

    name = "HoldsOne"

    def __init__(self, held: str) -> None:
        self.held = held

    def pre_enqueue(self, pod: Pod) -> Status:
        return Status.unschedulable("held") if pod.name == self.held else SUCCESS

    def events_to_register(self) -> Sequence[EventRegistration]:
        return [EventRegistration(NODE_ADD), EventRegistration(NODE_ANNOTATION)]


class House:
    """A queue with the roster that ingest and cache would keep."""

    def __init__(self, *gates: HoldsOne) -> None:
        self.roster = GangRoster()
        context = replace(make_context(), gangs=self.roster)
        gang = GangScheduling(context)
        self.queue = PodQueue(
            BySortOfPriority(),
            [ClosedGates(), gang, *gates],
            [gang],
            on_error=_raise,
            backoff=BackoffPolicy(1.0, 10.0),
            gangs=self.roster,
        )
        self.roster.on_change = self.queue.gang_changed
        self.now_s = 0.0

    def add(self, *pods: Pod) -> None:
        for pod in pods:
            self.roster.set(pod)
            self.queue.add(pod, self.now_s)
            self.queue.validate()

    def pop(self) -> list[str]:
        """Names of who is popped together, the lead first."""
        self.queue.regroup(self.now_s)
        popped = self.queue.pop(self.now_s)
        self.queue.validate()
        return [] if popped is None else names_of(popped)

    def fail(self, *names: str, failure: Failure = REFUSED) -> None:
        for name in names:
            self.queue.fail(f"uid-{name}", failure, self.now_s)
            self.queue.validate()

    def room_comes(self) -> None:
        """Something happens for which members that found no node are tried again."""
        self.queue.on_event(NODE_ADD, None, A_NODE, self.now_s)
        self.queue.validate()

    def bind(self, *names: str) -> None:
        for name in names:
            self.roster.set_member_node(f"uid-{name}", "node")
        for name in names:
            self.queue.done(f"uid-{name}")
            self.queue.validate()

    def remove(self, name: str) -> None:
        self.roster.remove(f"uid-{name}")
        self.queue.remove(f"uid-{name}")
        self.queue.validate()

    def places(self) -> dict[str, str]:
        return {entry.pod.name: entry.state.value for entry in self.queue.entries()}


def _raise(plugin: str, point: str, error: BaseException | str) -> None:
    raise AssertionError(f"{plugin} {point}: {error}")


def names_of(popped: Queued) -> list[str]:
    return [one.pod.name for one in popped.members] if isinstance(popped, QueuedGang) else [popped.pod.name]


def test_members_wait_for_their_minimum_and_are_popped_together() -> None:
    house = House()
    house.add(member("a", 3), member("b", 3))
    assert house.pop() == []
    assert house.places() == {"a": "gated", "b": "gated"}
    assert {e.message for e in house.queue.entries()} == {"gang team/g: waits until 3 members are there"}
    house.add(member("c", 3))
    assert sorted(house.pop()) == ["a", "b", "c"]
    assert set(house.places().values()) == {"in-flight"}


def test_gang_sorts_as_one_entry_by_the_priority_of_its_lead() -> None:
    house = House()
    house.add(
        member("a"),
        make_pod("single", priority=5),
        member("b"),
        member("c", gang="h", priority=9),
        member("d", gang="h", priority=9),
    )
    assert sorted(house.pop()) == ["c", "d"]
    assert house.pop() == ["single"]
    assert sorted(house.pop()) == ["a", "b"]


@pytest.mark.parametrize("is_later", [False, True])
def test_gang_sorts_by_its_most_important_member(is_later: bool) -> None:
    house = House()
    house.add(make_pod("single", priority=5))
    house.add(
        *((member("low"), member("high", priority=9)) if is_later else (member("high", priority=9), member("low")))
    )
    assert house.pop() == ["high", "low"]
    house.fail("low", "high")
    assert house.pop() == ["single"]
    house.now_s = 20.0
    house.add(make_pod("other", priority=5))
    house.queue.on_event(NODE_ADD, None, A_NODE, house.now_s)
    assert house.pop() == ["high", "low"], "the one that failed first leads, and is the less important one"


def test_failed_gang_is_parked_and_retried_as_one() -> None:
    house = House()
    house.add(member("a"), member("b"))
    first = house.pop()
    house.fail(*first)
    assert sorted(house.places().values()) == ["gang", "unschedulable"]
    assert house.pop() == []
    house.now_s += 400
    house.queue.flush(house.now_s)
    house.now_s += 20
    assert sorted(house.pop()) == ["a", "b"]


def test_all_members_requeued_by_the_flush_are_counted() -> None:
    house = House()
    house.add(member("a"), member("b"))
    house.fail(*house.pop())
    house.now_s += 400
    house.queue.flush(house.now_s)
    house.bind(*house.pop())
    assert house.queue.statistics().bound_after_flush == 2


def test_attempt_with_an_outdated_minimum_is_repeated() -> None:
    house = House()
    house.add(member("a"), member("b"), member("c"))
    house.roster.set_object(GangApi.SCHEDULER_PLUGINS, "team/h", GangSpec(3))
    house.add(*(Pod("team", name, f"uid-{name}", 1, labels={SP_LABEL: "h"}) for name in "xyz"))
    house.pop()
    assert house.pop() == ["x", "y", "z"]
    house.roster.set_object(GangApi.SCHEDULER_PLUGINS, "team/h", GangSpec(2))
    house.queue.regroup(house.now_s)
    house.fail("x", "y", "z")
    assert house.places()["x"] == "backoff"
    assert house.pop() == ["x", "y", "z"]
    house.fail("x", "y", "z")
    assert house.places()["x"] == "unschedulable", "nothing has changed since"


def test_refused_gang_is_retried_when_another_program_binds_a_member() -> None:
    house = House()
    house.add(member("a", 3), member("b", 3), member("c", 3))
    house.fail(*house.pop())
    assert house.places() == {"a": "unschedulable", "b": "gang", "c": "gang"}
    house.roster.set_member_node("uid-c", "node", is_bound=True)
    house.queue.remove("uid-c")
    house.queue.regroup(house.now_s)
    assert house.places() == {"a": "backoff", "b": "gang"}


def test_refused_gang_is_retried_when_its_pod_group_asks_for_less() -> None:
    house = House()
    house.roster.set_object(GangApi.SCHEDULER_PLUGINS, "team/h", GangSpec(3))
    house.add(*(Pod("team", name, f"uid-{name}", 1, labels={SP_LABEL: "h"}) for name in "xyz"))
    house.fail(*house.pop())
    assert house.places()["x"] == "unschedulable"
    house.roster.set_object(GangApi.SCHEDULER_PLUGINS, "team/h", GangSpec(2))
    house.queue.regroup(house.now_s)
    assert house.places()["x"] == "backoff"


def test_changed_timeout_counts_from_the_start_of_the_wait() -> None:
    house = House()
    spec = GangSpec(3, 60.0)
    house.roster.set_object(GangApi.SCHEDULER_PLUGINS, "team/h", spec)
    house.add(*(Pod("team", name, f"uid-{name}", 1, labels={SP_LABEL: "h"}) for name in "xy"))

    def is_overdue(now_s: float) -> bool:
        house.now_s = now_s
        house.queue.regroup(now_s)
        house.queue.flush(now_s)
        gang = house.roster.gang("team/h")
        assert gang is not None
        return gang.is_overdue

    assert not is_overdue(59.0)
    house.roster.set_object(GangApi.SCHEDULER_PLUGINS, "team/h", replace(spec, timeout_s=90.0))
    assert (is_overdue(61.0), is_overdue(91.0)) == (False, True)
    house.roster.set_object(GangApi.SCHEDULER_PLUGINS, "team/h", replace(spec, timeout_s=200.0))
    assert (is_overdue(92.0), is_overdue(201.0)) == (False, True)


def test_later_members_join_the_waiting_ones() -> None:
    house = House()
    house.add(member("a"), member("b"))
    house.fail(*house.pop())
    house.add(member("late"))
    assert house.places()["late"] == "gang"
    assert house.queue.activate("uid-late", house.now_s) is not None
    assert sorted(house.pop()) == ["a", "b", "late"]


def test_members_of_a_started_gang_are_queued_one_by_one() -> None:
    house = House()
    house.add(member("a"), member("b"))
    house.bind(*house.pop())
    house.add(member("c"), member("d"))
    assert (house.pop(), house.pop()) == (["c"], ["d"])


def test_later_member_of_linked_gangs_is_queued_alone() -> None:
    house = House()
    pods = [member(name) for name in "abc"]
    together = [replace(pod, annotations={TOPOLOGY_ANNOTATION: "rack:required"}) for pod in pods]
    house.add(*together[:2])
    house.bind(*house.pop())
    house.add(together[2])
    popped = house.queue.pop(house.now_s)
    assert isinstance(popped, QueuedGang)
    assert (names_of(popped), popped.needs, popped.member_nodes) == (["c"], {"team/g": 1}, ("node",))
    assert [level.key for level in popped.topology] == ["rack"]
    house.queue.fail("uid-c", REFUSED, house.now_s)
    house.queue.validate()


def test_surplus_members_without_a_node_are_queued_one_by_one() -> None:
    house = House()
    house.add(*(member(name) for name in "abc"))
    popped = house.pop()
    house.bind(*popped[:2])
    house.fail(popped[2])
    house.now_s += 400
    house.queue.flush(house.now_s)
    house.now_s += 20
    assert house.pop() == popped[2:]


def test_removed_lead_is_replaced() -> None:
    house = House()
    house.add(*(member(name, 2) for name in "abc"))
    lead = house.pop()
    house.fail(*lead)
    house.remove(lead[0])
    house.now_s += 20
    assert sorted(house.pop()) == sorted(lead[1:])


def test_gang_below_its_minimum_restarts_together_before_new_gangs() -> None:
    house = House()
    house.add(member("new1", gang="h"), member("new2", gang="h"))
    house.add(*(member(name, 3) for name in "abc"))
    house.pop()
    house.bind(*house.pop())
    house.fail("new1", "new2")
    house.remove("a")
    house.remove("b")
    house.add(member("a2", 3), member("b2", 3))
    house.now_s += 400
    house.queue.flush(house.now_s)
    house.now_s += 20
    assert sorted(house.pop()) == ["a2", "b2"], "it is healed before a gang that has not begun"
    assert sorted(house.pop()) == ["new1", "new2"]


def _half_a_gang_backs_off(house: House) -> None:
    """Two of gang g are gone, two others have come for them, have been refused, and back off for longer and longer."""
    house.add(*(member(name, 3) for name in "abc"))
    house.bind(*house.pop())
    house.remove("a")
    house.remove("b")
    house.add(member("a2", 3), member("b2", 3))
    house.fail(*house.pop())
    house.room_comes()
    assert sorted(set(house.places().values())) == ["backoff", "gang"]


def test_recovering_gang_in_backoff_precedes_an_unstarted_one() -> None:
    house = House()
    _half_a_gang_backs_off(house)
    house.add(member("new1", gang="h"), member("new2", gang="h"))
    assert sorted(house.pop()) == ["a2", "b2"]
    house.fail("a2", "b2")
    assert sorted(house.pop()) == ["new1", "new2"], "it has been tried, and nothing has happened since"


def test_higher_priority_gangs_and_pods_do_not_wait_for_a_recovering_one() -> None:
    house = House()
    _half_a_gang_backs_off(house)
    house.add(make_pod("single"))
    assert house.pop() == ["single"]
    house.add(*(member(name, gang="h", priority=5) for name in ("new1", "new2")))
    assert sorted(house.pop()) == ["new1", "new2"]


def test_recovering_gang_after_an_error_waits_out_its_backoff() -> None:
    house = House()
    _half_a_gang_backs_off(house)
    house.add(member("new1", gang="h"), member("new2", gang="h"))
    house.fail(*house.pop(), failure=Failure(is_error=True))
    assert sorted(house.pop()) == ["new1", "new2"]


@pytest.mark.parametrize("is_in_flight", [False, True])
def test_gang_that_only_an_undone_attempt_helps_waits_out_its_backoff(*, is_in_flight: bool) -> None:
    """Two gangs whose attempts undo each other are not tried by turns without a pause; any other event brings a gang back early."""
    freed = replace(make_pod("freed"), node="a")
    for event, popped in ((ATTEMPT_UNDONE, []), (ASSIGNED_POD_DELETE, ["a", "b"])):
        house = House()
        house.add(member("a"), member("b"))
        assert sorted(house.pop()) == ["a", "b"]
        if is_in_flight:
            house.queue.on_event(event, freed, None, 0.0)
            house.fail("a", "b")
        else:
            house.fail("a", "b")
            house.queue.on_event(event, freed, None, 0.0)
        assert sorted(set(house.places().values())) == ["backoff", "gang"]
        assert sorted(house.pop()) == popped


def test_gang_that_held_capacity_without_success_yields_to_others() -> None:
    house = House()
    house.add(*(member(name, gang="big", priority=5) for name in "ab"), *(member(name, gang="small") for name in "cd"))
    assert (sorted(house.pop()), sorted(house.pop())) == (["a", "b"], ["c", "d"])
    house.fail("c", "d")  # its backoff ends at 1 s
    house.queue.gangs.note_failed_while_holding("uid-a")
    house.fail("a", "b")
    house.queue.on_event(ATTEMPT_UNDONE, replace(make_pod("a"), node="n"), None, 0.0)
    house.now_s = 0.5
    house.room_comes()
    assert house.pop() == [], "both wait out their backoff"
    house.now_s = 1.0
    assert sorted(house.pop()) == ["c", "d"]
    assert house.pop() == []
    house.fail("c", "d")
    house.now_s = 2.0
    assert sorted(house.pop()) == ["a", "b"]
    house.fail("a", "b")
    house.room_comes()
    assert sorted(house.pop() + house.pop()) == ["a", "b", "c", "d"], "this attempt held nothing"


def test_pod_loses_its_recovery_rank_when_another_pod_completes_the_gang() -> None:
    house = House()
    house.add(member("a"), member("b"))
    house.bind(*house.pop())
    house.remove("a")
    house.now_s = 5.0
    house.add(make_pod("single"))
    house.now_s = 6.0
    house.add(member("c"))
    house.roster.set(member("stranger"))
    house.roster.set_member_node("uid-stranger", "node", is_bound=True)
    assert [house.pop(), house.pop()] == [["single"], ["c"]]


def test_pod_keeps_its_recovery_place_until_the_queue_learns_of_another() -> None:
    house = House()
    house.add(member("a"), member("b"))
    house.bind(*house.pop())
    house.remove("a")
    house.now_s = 5.0
    house.add(member("c"))
    house.roster.set(member("stranger"))
    house.roster.set_member_node("uid-stranger", "node", is_bound=True)
    house.now_s = 6.0
    house.add(make_pod("single"))
    house.now_s = 50.0  # nothing was popped in between, as in a domain that does not lead
    assert [house.pop(), house.pop()] == [["c"], ["single"]]


def test_gated_member_does_not_lead_until_its_gate_opens() -> None:
    house = House()
    house.add(member("a", gates=("x",)), member("b"), member("c"))
    assert sorted(house.pop()) == ["b", "c"]
    assert house.places()["a"] == "gated"


def test_gated_lead_is_replaced_as_lead() -> None:
    gate = HoldsOne("")
    house = House(gate)
    house.add(member("a"), member("b"), member("c"))
    house.fail(*house.pop())
    gate.held = "a"
    house.room_comes()
    assert house.queue.gangs.has_changed, "else nobody is woken for the others"
    house.now_s = 20.0
    assert house.places()["a"] == "gated"
    assert sorted(house.pop()) == ["b", "c"]


def test_gang_below_its_minimum_gets_its_whole_timeout_again() -> None:
    house = House()

    def of(name: str) -> Pod:
        said = {"name": "g", "min-available": "2", "waiting-time": "50s", "match-policy": "waiting-and-running"}
        annotations = {f"{KOORDINATOR}{key}": text for key, text in said.items()}
        return Pod("team", name, f"uid-{name}", 1, annotations=annotations)

    def is_overdue() -> bool:
        house.queue.regroup(house.now_s)
        house.queue.flush(house.now_s)
        gang = house.roster.gang("team/g")
        return gang is not None and gang.is_overdue

    house.add(of("a"), of("b"), of("c"))
    house.pop()
    house.bind("a", "b")
    house.fail("c")
    house.now_s = 40.0
    assert not is_overdue()
    house.remove("b")
    house.queue.regroup(house.now_s)
    house.now_s = 80.0
    assert not is_overdue(), "it had started until 40 s ago"
    house.now_s = 91.0
    assert is_overdue()


def test_gated_follower_is_not_popped_with_a_new_lead() -> None:
    """Its victims are on their way, for instance, and the new lead has none."""
    gate = HoldsOne("")
    house = House(gate)
    house.add(member("a"), member("b"))
    assert house.pop() == ["a", "b"]
    house.fail("a", "b")
    gate.held = "b"
    house.add(member("c"))
    house.now_s = 20.0
    assert house.pop() == ["a", "c"]
    assert house.queue.where("uid-b") is QueueState.GATED


def test_linked_gangs_are_one_queue_entry() -> None:
    house = House()

    def of(name: str, gang: str) -> Pod:
        notes = {
            f"{KOORDINATOR}{key}": text
            for key, text in {"name": gang, "min-available": "1", "groups": '["g", "h"]'}.items()
        }
        return Pod("team", name, f"uid-{name}", 1, annotations=notes)

    house.add(of("a", "g"))
    assert house.pop() == []
    house.add(of("b", "h"))
    assert sorted(house.pop()) == ["a", "b"]


def test_linked_gangs_keep_the_topology_of_each() -> None:
    house = House()

    def of(name: str, gang: str, topology: str) -> Pod:
        notes = {f"{KOORDINATOR}{key}": text for key, text in (("name", gang), ("min-available", "1"))}
        notes |= {f"{KOORDINATOR}groups": '["g", "h", "i"]', TOPOLOGY_ANNOTATION: topology}
        return Pod("team", name, f"uid-{name}", 1, annotations=notes)

    house.add(of("a", "g", ""), of("b", "h", "zone,rack"), of("c", "i", "rack:required"))
    house.queue.regroup(house.now_s)
    popped = house.queue.pop(house.now_s)
    assert isinstance(popped, QueuedGang)
    assert sorted(names_of(popped)) == ["a", "b", "c"]
    assert popped.topology == (TopologyLevel("zone"), TopologyLevel("rack", is_required=True))
    house.bind("a", "b", "c")
    house.roster.remove("uid-a")
    house.add(of("d", "g", ""))
    house.queue.regroup(house.now_s)
    popped = house.queue.pop(house.now_s)
    assert isinstance(popped, QueuedGang)
    assert (names_of(popped), popped.topology) == (["d"], ()), "this one may go anywhere, as its own gang says"


def test_member_removed_in_flight_ends_with_its_attempt() -> None:
    house = House()
    house.add(member("a"), member("b"))
    popped = house.pop()
    house.remove(popped[1])
    assert house.queue.where(f"uid-{popped[1]}") is QueueState.LEAVING
    house.fail(*popped)
    assert house.places() == {popped[0]: "unschedulable"}


def test_bound_member_leaves_no_queue_entry() -> None:
    """Else the queue says that it has work, and nobody is woken for it."""
    house = House()
    house.add(member("a"), member("b"))
    house.bind(*house.pop())
    house.add(member("c"), member("d"))
    assert (house.pop(), house.pop(), house.pop()) == (["c"], ["d"], [])
    house.fail("d")
    house.bind("c")
    assert not house.queue.has_ready


def wait_for_a_node() -> tuple[House, HoldsOne]:
    """A gang of which one member is held by a plugin, and the others were refused."""
    gate = HoldsOne("c")
    house = House(gate)
    house.add(*(member(name) for name in "cab"))
    house.fail(*house.pop())
    assert house.places() == {"a": "unschedulable", "b": "gang", "c": "gated"}
    return house, gate


def test_gang_is_requeued_once_by_an_event_for_member_and_lead() -> None:
    house, gate = wait_for_a_node()
    gate.held = ""
    moved = house.queue.on_event(NODE_ADD, None, A_NODE, house.now_s)
    assert (moved.active, moved.backoff) == (0, 1)
    house.queue.validate()
    house.now_s += 20
    assert sorted(house.pop()) == ["a", "b", "c"]


def test_gang_is_requeued_once_by_the_flush_of_member_and_lead() -> None:
    house, gate = wait_for_a_node()
    gate.held = ""
    house.now_s += 400
    moved = house.queue.flush(house.now_s)
    assert (moved.active, moved.backoff) == (1, 0)
    assert sorted(house.pop()) == ["a", "b", "c"]


def test_lead_requeued_by_a_member_counts_as_moved() -> None:
    """Else nobody looks at the queue until something else happens."""
    house, gate = wait_for_a_node()
    gate.held = ""
    house.now_s += 20
    moved = house.queue.on_event(NODE_ANNOTATION, A_NODE, A_NODE, house.now_s)
    assert (moved.active, moved.backoff) == (1, 0)


@pytest.mark.parametrize("seed", range(40))
def test_each_pod_is_in_one_state_and_startable_gangs_are_popped(seed: int) -> None:
    rng, house = random.Random(seed), House()
    flying: dict[str, list[str]] = {}
    bound: set[str] = set()
    for number in range(200):
        step = rng.choice(("add", "add", "pop", "pop", "fail", "bind", "remove", "die", "time"))
        if step == "add":
            gang = rng.choice("ghi")
            house.add(member(f"p{number}", {"g": 2, "h": 3, "i": 1}[gang], gang=gang, priority=rng.choice((0, 5))))
        elif step == "pop":
            popped = house.pop()
            if popped:
                flying[popped[0]] = popped
        elif step in ("fail", "bind") and flying:
            popped = flying.pop(rng.choice(sorted(flying)))
            here = [name for name in popped if house.queue.where(f"uid-{name}") is not None]
            if step == "fail":
                house.fail(*here)
            else:
                house.bind(*(name for name in here if house.queue.where(f"uid-{name}") is QueueState.IN_FLIGHT))
                house.fail(*(name for name in here if house.queue.where(f"uid-{name}") is QueueState.LEAVING))
                bound |= set(here)
        elif step == "remove" and len(house.queue):
            house.remove(rng.choice(sorted(house.places())))
        elif step == "die" and bound:
            name = rng.choice(sorted(bound))
            bound.discard(name)
            house.roster.remove(f"uid-{name}")
        elif step == "time":
            house.now_s += rng.choice((1.0, 30.0, 301.0))
            house.queue.flush(house.now_s)
        house.queue.validate()
    for popped in flying.values():
        house.fail(*(name for name in popped if house.queue.where(f"uid-{name}") is not None))
    for _ in range(50):
        house.now_s += 400
        house.queue.flush(house.now_s)
        house.now_s += 20
        while popped := house.pop():
            house.bind(*popped)
    waiting = set(house.places().values())
    assert waiting <= {"gated"}, house.places()
    assert all("members are there" in entry.message for entry in house.queue.entries())
