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


class GangQueue:
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
    gang_queue = GangQueue()
    gang_queue.add(member("a", 3), member("b", 3))
    assert gang_queue.pop() == []
    assert gang_queue.places() == {"a": "gated", "b": "gated"}
    assert {e.message for e in gang_queue.queue.entries()} == {"gang team/g: waits until 3 members are there"}
    gang_queue.add(member("c", 3))
    assert sorted(gang_queue.pop()) == ["a", "b", "c"]
    assert set(gang_queue.places().values()) == {"in-flight"}


def test_started_gang_whose_loss_was_made_up_at_once_does_not_wait() -> None:
    gang_queue = GangQueue(HoldsOne("c"))
    gang_queue.add(member("a"), member("b"), member("c"))
    assert sorted(gang_queue.pop()) == ["a", "b"]
    gang_queue.bind("a", "b")
    assert gang_queue.pop() == []
    gang_queue.now_s = 1.0
    gang_queue.remove("a")
    gang_queue.room_comes()  # the gate of c is asked, and its gang lacks a member
    gang_queue.roster.set(member("d"))
    gang_queue.roster.set_member_node("uid-d", "node", is_bound=True)
    assert gang_queue.pop() == []
    gang_queue.now_s = 500.0
    gang_queue.roster.remove("uid-d")
    assert gang_queue.pop() == []
    gang = gang_queue.roster.gang("team/g")
    assert gang is not None
    gang_queue.queue.flush(700.0)
    assert not gang.is_overdue
    gang_queue.queue.flush(500.0 + gang.timeout_s)
    assert gang.is_overdue


def test_gang_sorts_as_one_entry_by_the_priority_of_its_lead() -> None:
    gang_queue = GangQueue()
    gang_queue.add(
        member("a"),
        make_pod("single", priority=5),
        member("b"),
        member("c", gang="h", priority=9),
        member("d", gang="h", priority=9),
    )
    assert sorted(gang_queue.pop()) == ["c", "d"]
    assert gang_queue.pop() == ["single"]
    assert sorted(gang_queue.pop()) == ["a", "b"]


@pytest.mark.parametrize("is_later", [False, True])
def test_gang_sorts_by_its_most_important_member(is_later: bool) -> None:
    gang_queue = GangQueue()
    gang_queue.add(make_pod("single", priority=5))
    gang_queue.add(
        *((member("low"), member("high", priority=9)) if is_later else (member("high", priority=9), member("low")))
    )
    assert gang_queue.pop() == ["high", "low"]
    gang_queue.fail("low", "high")
    assert gang_queue.pop() == ["single"]
    gang_queue.now_s = 20.0
    gang_queue.add(make_pod("other", priority=5))
    gang_queue.queue.on_event(NODE_ADD, None, A_NODE, gang_queue.now_s)
    assert gang_queue.pop() == ["high", "low"], "the one that failed first leads, and is the less important one"


def test_failed_gang_is_parked_and_retried_as_one() -> None:
    gang_queue = GangQueue()
    gang_queue.add(member("a"), member("b"))
    first = gang_queue.pop()
    gang_queue.fail(*first)
    assert sorted(gang_queue.places().values()) == ["gang", "unschedulable"]
    assert gang_queue.pop() == []
    gang_queue.now_s += 400
    gang_queue.queue.flush(gang_queue.now_s)
    gang_queue.now_s += 20
    assert sorted(gang_queue.pop()) == ["a", "b"]


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_refused_gang_is_retried_with_a_member_added_during_its_attempt(order: str) -> None:
    gang_queue = GangQueue()
    gang_queue.add(member("a"), member("b"))
    assert gang_queue.pop() == ["a", "b"]
    gang_queue.add(member("c"))
    assert gang_queue.pop() == []
    gang_queue.fail(*order)
    assert sorted(gang_queue.places().values()) == ["backoff", "gang", "gang"]
    gang_queue.now_s += 2.0
    assert gang_queue.pop() == ["a", "b", "c"]
    gang_queue.fail("a", "b", "c")
    assert sorted(gang_queue.places().values()) == ["gang", "gang", "unschedulable"], "no member has joined since"


def test_all_members_requeued_by_the_flush_are_counted() -> None:
    gang_queue = GangQueue()
    gang_queue.add(member("a"), member("b"))
    gang_queue.fail(*gang_queue.pop())
    gang_queue.now_s += 400
    gang_queue.queue.flush(gang_queue.now_s)
    gang_queue.bind(*gang_queue.pop())
    assert gang_queue.queue.statistics().bound_after_flush == 2


def test_attempt_with_an_outdated_minimum_is_repeated() -> None:
    gang_queue = GangQueue()
    gang_queue.add(member("a"), member("b"), member("c"))
    gang_queue.roster.set_object(GangApi.SCHEDULER_PLUGINS, "team/h", GangSpec(3))
    gang_queue.add(*(Pod("team", name, f"uid-{name}", 1, labels={SP_LABEL: "h"}) for name in "xyz"))
    gang_queue.pop()
    assert gang_queue.pop() == ["x", "y", "z"]
    gang_queue.roster.set_object(GangApi.SCHEDULER_PLUGINS, "team/h", GangSpec(2))
    gang_queue.queue.regroup(gang_queue.now_s)
    gang_queue.fail("x", "y", "z")
    assert gang_queue.places()["x"] == "backoff"
    assert gang_queue.pop() == ["x", "y", "z"]
    gang_queue.fail("x", "y", "z")
    assert gang_queue.places()["x"] == "unschedulable", "nothing has changed since"


def test_refused_gang_is_retried_when_another_program_binds_a_member() -> None:
    gang_queue = GangQueue()
    gang_queue.add(member("a", 3), member("b", 3), member("c", 3))
    gang_queue.fail(*gang_queue.pop())
    assert gang_queue.places() == {"a": "unschedulable", "b": "gang", "c": "gang"}
    gang_queue.roster.set_member_node("uid-c", "node", is_bound=True)
    gang_queue.queue.remove("uid-c")
    gang_queue.queue.regroup(gang_queue.now_s)
    assert gang_queue.places() == {"a": "backoff", "b": "gang"}


def test_refused_gang_is_retried_when_its_pod_group_asks_for_less() -> None:
    gang_queue = GangQueue()
    gang_queue.roster.set_object(GangApi.SCHEDULER_PLUGINS, "team/h", GangSpec(3))
    gang_queue.add(*(Pod("team", name, f"uid-{name}", 1, labels={SP_LABEL: "h"}) for name in "xyz"))
    gang_queue.fail(*gang_queue.pop())
    assert gang_queue.places()["x"] == "unschedulable"
    gang_queue.roster.set_object(GangApi.SCHEDULER_PLUGINS, "team/h", GangSpec(2))
    gang_queue.queue.regroup(gang_queue.now_s)
    assert gang_queue.places()["x"] == "backoff"


def test_changed_timeout_counts_from_the_start_of_the_wait() -> None:
    gang_queue = GangQueue()
    spec = GangSpec(3, 60.0)
    gang_queue.roster.set_object(GangApi.SCHEDULER_PLUGINS, "team/h", spec)
    gang_queue.add(*(Pod("team", name, f"uid-{name}", 1, labels={SP_LABEL: "h"}) for name in "xy"))

    def is_overdue(now_s: float) -> bool:
        gang_queue.now_s = now_s
        gang_queue.queue.regroup(now_s)
        gang_queue.queue.flush(now_s)
        gang = gang_queue.roster.gang("team/h")
        assert gang is not None
        return gang.is_overdue

    assert not is_overdue(59.0)
    gang_queue.roster.set_object(GangApi.SCHEDULER_PLUGINS, "team/h", replace(spec, timeout_s=90.0))
    assert (is_overdue(61.0), is_overdue(91.0)) == (False, True)
    gang_queue.roster.set_object(GangApi.SCHEDULER_PLUGINS, "team/h", replace(spec, timeout_s=200.0))
    assert (is_overdue(92.0), is_overdue(201.0)) == (False, True)


def test_later_members_join_the_waiting_ones() -> None:
    gang_queue = GangQueue()
    gang_queue.add(member("a"), member("b"))
    gang_queue.fail(*gang_queue.pop())
    gang_queue.add(member("late"))
    assert gang_queue.places()["late"] == "gang"
    assert gang_queue.queue.activate("uid-late", gang_queue.now_s) is not None
    assert sorted(gang_queue.pop()) == ["a", "b", "late"]


def test_members_of_a_started_gang_are_queued_one_by_one() -> None:
    gang_queue = GangQueue()
    gang_queue.add(member("a"), member("b"))
    gang_queue.bind(*gang_queue.pop())
    gang_queue.add(member("c"), member("d"))
    assert (gang_queue.pop(), gang_queue.pop()) == (["c"], ["d"])


def test_later_member_of_linked_gangs_is_queued_alone() -> None:
    gang_queue = GangQueue()
    pods = [member(name) for name in "abc"]
    together = [replace(pod, annotations={TOPOLOGY_ANNOTATION: "rack:required"}) for pod in pods]
    gang_queue.add(*together[:2])
    gang_queue.bind(*gang_queue.pop())
    gang_queue.add(together[2])
    popped = gang_queue.queue.pop(gang_queue.now_s)
    assert isinstance(popped, QueuedGang)
    assert (names_of(popped), popped.needs, popped.member_nodes) == (["c"], {"team/g": 1}, ("node",))
    assert [level.key for level in popped.topology] == ["rack"]
    gang_queue.queue.fail("uid-c", REFUSED, gang_queue.now_s)
    gang_queue.queue.validate()


def test_surplus_members_without_a_node_are_queued_one_by_one() -> None:
    gang_queue = GangQueue()
    gang_queue.add(*(member(name) for name in "abc"))
    popped = gang_queue.pop()
    gang_queue.bind(*popped[:2])
    gang_queue.fail(popped[2])
    gang_queue.now_s += 400
    gang_queue.queue.flush(gang_queue.now_s)
    gang_queue.now_s += 20
    assert gang_queue.pop() == popped[2:]


def test_removed_lead_is_replaced() -> None:
    gang_queue = GangQueue()
    gang_queue.add(*(member(name, 2) for name in "abc"))
    lead = gang_queue.pop()
    gang_queue.fail(*lead)
    gang_queue.remove(lead[0])
    gang_queue.now_s += 20
    assert sorted(gang_queue.pop()) == sorted(lead[1:])


def test_gang_below_its_minimum_restarts_together_before_new_gangs() -> None:
    gang_queue = GangQueue()
    gang_queue.add(member("new1", gang="h"), member("new2", gang="h"))
    gang_queue.add(*(member(name, 3) for name in "abc"))
    gang_queue.pop()
    gang_queue.bind(*gang_queue.pop())
    gang_queue.fail("new1", "new2")
    gang_queue.remove("a")
    gang_queue.remove("b")
    gang_queue.add(member("a2", 3), member("b2", 3))
    gang_queue.now_s += 400
    gang_queue.queue.flush(gang_queue.now_s)
    gang_queue.now_s += 20
    assert sorted(gang_queue.pop()) == ["a2", "b2"], "it is healed before a gang that has not begun"
    assert sorted(gang_queue.pop()) == ["new1", "new2"]


def _half_a_gang_backs_off(gang_queue: GangQueue) -> None:
    """Two of gang g are gone, two others have come for them, have been refused, and back off for longer and longer."""
    gang_queue.add(*(member(name, 3) for name in "abc"))
    gang_queue.bind(*gang_queue.pop())
    gang_queue.remove("a")
    gang_queue.remove("b")
    gang_queue.add(member("a2", 3), member("b2", 3))
    gang_queue.fail(*gang_queue.pop())
    gang_queue.room_comes()
    assert sorted(set(gang_queue.places().values())) == ["backoff", "gang"]


def test_recovering_gang_in_backoff_precedes_an_unstarted_one() -> None:
    gang_queue = GangQueue()
    _half_a_gang_backs_off(gang_queue)
    gang_queue.add(member("new1", gang="h"), member("new2", gang="h"))
    assert sorted(gang_queue.pop()) == ["a2", "b2"]
    gang_queue.fail("a2", "b2")
    assert sorted(gang_queue.pop()) == ["new1", "new2"], "it has been tried, and nothing has happened since"


def test_higher_priority_gangs_and_pods_do_not_wait_for_a_recovering_one() -> None:
    gang_queue = GangQueue()
    _half_a_gang_backs_off(gang_queue)
    gang_queue.add(make_pod("single"))
    assert gang_queue.pop() == ["single"]
    gang_queue.add(*(member(name, gang="h", priority=5) for name in ("new1", "new2")))
    assert sorted(gang_queue.pop()) == ["new1", "new2"]


def test_recovering_gang_after_an_error_waits_out_its_backoff() -> None:
    gang_queue = GangQueue()
    _half_a_gang_backs_off(gang_queue)
    gang_queue.add(member("new1", gang="h"), member("new2", gang="h"))
    gang_queue.fail(*gang_queue.pop(), failure=Failure(is_error=True))
    assert sorted(gang_queue.pop()) == ["new1", "new2"]


@pytest.mark.parametrize("is_in_flight", [False, True])
def test_gang_that_only_an_undone_attempt_helps_waits_out_its_backoff(*, is_in_flight: bool) -> None:
    """Two gangs whose attempts undo each other are not tried by turns without a pause; any other event brings a gang back early."""
    freed = replace(make_pod("freed"), node="a")
    for event, popped in ((ATTEMPT_UNDONE, []), (ASSIGNED_POD_DELETE, ["a", "b"])):
        gang_queue = GangQueue()
        gang_queue.add(member("a"), member("b"))
        assert sorted(gang_queue.pop()) == ["a", "b"]
        if is_in_flight:
            gang_queue.queue.on_event(event, freed, None, 0.0)
            gang_queue.fail("a", "b")
        else:
            gang_queue.fail("a", "b")
            gang_queue.queue.on_event(event, freed, None, 0.0)
        assert sorted(set(gang_queue.places().values())) == ["backoff", "gang"]
        assert sorted(gang_queue.pop()) == popped


@pytest.mark.parametrize("event", [ATTEMPT_UNDONE, ASSIGNED_POD_DELETE])
def test_events_during_an_attempt_are_checked_until_one_requeues_the_gang(event: ClusterEvent) -> None:
    """A paused attempt of hundreds of members misses thousands of events, and must not ask about each of both."""
    gang_queue = GangQueue()
    gang_queue.add(*(member(name, least=4) for name in "abcd"))
    gang_queue.pop()
    for number in range(100):
        gang_queue.queue.on_event(event, replace(make_pod(f"freed-{number}"), node="a"), None, 0.0)

    gang_queue.fail(*"abcd")

    assert sorted(gang_queue.places().values()) == ["backoff", "gang", "gang", "gang"]
    assert gang_queue.queue.statistics().hint_calls == 1


def test_gang_that_held_capacity_without_success_yields_to_others() -> None:
    gang_queue = GangQueue()
    gang_queue.add(
        *(member(name, gang="big", priority=5) for name in "ab"), *(member(name, gang="small") for name in "cd")
    )
    assert (sorted(gang_queue.pop()), sorted(gang_queue.pop())) == (["a", "b"], ["c", "d"])
    gang_queue.fail("c", "d")  # its backoff ends at 1 s
    gang_queue.queue.gangs.note_failed_while_holding("uid-a")
    gang_queue.fail("a", "b")
    gang_queue.queue.on_event(ATTEMPT_UNDONE, replace(make_pod("a"), node="n"), None, 0.0)
    gang_queue.now_s = 0.5
    gang_queue.room_comes()
    assert gang_queue.pop() == [], "both wait out their backoff"
    gang_queue.now_s = 1.0
    assert sorted(gang_queue.pop()) == ["c", "d"]
    assert gang_queue.pop() == []
    gang_queue.fail("c", "d")
    gang_queue.now_s = 2.0
    assert sorted(gang_queue.pop()) == ["a", "b"]
    gang_queue.fail("a", "b")
    gang_queue.room_comes()
    assert sorted(gang_queue.pop() + gang_queue.pop()) == ["a", "b", "c", "d"], "this attempt held nothing"


def test_pod_loses_its_recovery_rank_when_another_pod_completes_the_gang() -> None:
    gang_queue = GangQueue()
    gang_queue.add(member("a"), member("b"))
    gang_queue.bind(*gang_queue.pop())
    gang_queue.remove("a")
    gang_queue.now_s = 5.0
    gang_queue.add(make_pod("single"))
    gang_queue.now_s = 6.0
    gang_queue.add(member("c"))
    gang_queue.roster.set(member("stranger"))
    gang_queue.roster.set_member_node("uid-stranger", "node", is_bound=True)
    assert [gang_queue.pop(), gang_queue.pop()] == [["single"], ["c"]]


def test_pod_keeps_its_recovery_place_until_the_queue_learns_of_another() -> None:
    gang_queue = GangQueue()
    gang_queue.add(member("a"), member("b"))
    gang_queue.bind(*gang_queue.pop())
    gang_queue.remove("a")
    gang_queue.now_s = 5.0
    gang_queue.add(member("c"))
    gang_queue.roster.set(member("stranger"))
    gang_queue.roster.set_member_node("uid-stranger", "node", is_bound=True)
    gang_queue.now_s = 6.0
    gang_queue.add(make_pod("single"))
    gang_queue.now_s = 50.0  # nothing was popped in between, as in a domain that does not lead
    assert [gang_queue.pop(), gang_queue.pop()] == [["c"], ["single"]]


def test_gated_member_does_not_lead_until_its_gate_opens() -> None:
    gang_queue = GangQueue()
    gang_queue.add(member("a", gates=("x",)), member("b"), member("c"))
    assert sorted(gang_queue.pop()) == ["b", "c"]
    assert gang_queue.places()["a"] == "gated"


def test_gated_lead_is_replaced_as_lead() -> None:
    gate = HoldsOne("")
    gang_queue = GangQueue(gate)
    gang_queue.add(member("a"), member("b"), member("c"))
    gang_queue.fail(*gang_queue.pop())
    gate.held = "a"
    gang_queue.room_comes()
    assert gang_queue.queue.gangs.has_changed, "else nobody is woken for the others"
    gang_queue.now_s = 20.0
    assert gang_queue.places()["a"] == "gated"
    assert sorted(gang_queue.pop()) == ["b", "c"]


def test_gang_below_its_minimum_gets_its_whole_timeout_again() -> None:
    gang_queue = GangQueue()

    def of(name: str) -> Pod:
        said = {"name": "g", "min-available": "2", "waiting-time": "50s", "match-policy": "waiting-and-running"}
        annotations = {f"{KOORDINATOR}{key}": text for key, text in said.items()}
        return Pod("team", name, f"uid-{name}", 1, annotations=annotations)

    def is_overdue() -> bool:
        gang_queue.queue.regroup(gang_queue.now_s)
        gang_queue.queue.flush(gang_queue.now_s)
        gang = gang_queue.roster.gang("team/g")
        return gang is not None and gang.is_overdue

    gang_queue.add(of("a"), of("b"), of("c"))
    gang_queue.pop()
    gang_queue.bind("a", "b")
    gang_queue.fail("c")
    gang_queue.now_s = 40.0
    assert not is_overdue()
    gang_queue.remove("b")
    gang_queue.queue.regroup(gang_queue.now_s)
    gang_queue.now_s = 80.0
    assert not is_overdue(), "it had started until 40 s ago"
    gang_queue.now_s = 91.0
    assert is_overdue()


def test_gated_follower_is_not_popped_with_a_new_lead() -> None:
    """Its victims are on their way, for instance, and the new lead has none."""
    gate = HoldsOne("")
    gang_queue = GangQueue(gate)
    gang_queue.add(member("a"), member("b"))
    assert gang_queue.pop() == ["a", "b"]
    gang_queue.fail("a", "b")
    gate.held = "b"
    gang_queue.add(member("c"))
    gang_queue.now_s = 20.0
    assert gang_queue.pop() == ["a", "c"]
    assert gang_queue.queue.where("uid-b") is QueueState.GATED


def test_linked_gangs_are_one_queue_entry() -> None:
    gang_queue = GangQueue()

    def of(name: str, gang: str) -> Pod:
        notes = {
            f"{KOORDINATOR}{key}": text
            for key, text in {"name": gang, "min-available": "1", "groups": '["g", "h"]'}.items()
        }
        return Pod("team", name, f"uid-{name}", 1, annotations=notes)

    gang_queue.add(of("a", "g"))
    assert gang_queue.pop() == []
    gang_queue.add(of("b", "h"))
    assert sorted(gang_queue.pop()) == ["a", "b"]


def test_linked_gangs_keep_the_topology_of_each() -> None:
    gang_queue = GangQueue()

    def of(name: str, gang: str, topology: str) -> Pod:
        notes = {f"{KOORDINATOR}{key}": text for key, text in (("name", gang), ("min-available", "1"))}
        notes |= {f"{KOORDINATOR}groups": '["g", "h", "i"]', TOPOLOGY_ANNOTATION: topology}
        return Pod("team", name, f"uid-{name}", 1, annotations=notes)

    gang_queue.add(of("a", "g", ""), of("b", "h", "zone,rack"), of("c", "i", "rack:required"))
    gang_queue.queue.regroup(gang_queue.now_s)
    popped = gang_queue.queue.pop(gang_queue.now_s)
    assert isinstance(popped, QueuedGang)
    assert sorted(names_of(popped)) == ["a", "b", "c"]
    assert popped.topology == (TopologyLevel("zone"), TopologyLevel("rack", is_required=True))
    gang_queue.bind("a", "b", "c")
    gang_queue.roster.remove("uid-a")
    gang_queue.add(of("d", "g", ""))
    gang_queue.queue.regroup(gang_queue.now_s)
    popped = gang_queue.queue.pop(gang_queue.now_s)
    assert isinstance(popped, QueuedGang)
    assert (names_of(popped), popped.topology) == (["d"], ()), "this one may go anywhere, as its own gang says"


def test_member_removed_in_flight_ends_with_its_attempt() -> None:
    gang_queue = GangQueue()
    gang_queue.add(member("a"), member("b"))
    popped = gang_queue.pop()
    gang_queue.remove(popped[1])
    assert gang_queue.queue.where(f"uid-{popped[1]}") is QueueState.LEAVING
    gang_queue.fail(*popped)
    assert gang_queue.places() == {popped[0]: "unschedulable"}


def test_bound_member_leaves_no_queue_entry() -> None:
    """Else the queue says that it has work, and nobody is woken for it."""
    gang_queue = GangQueue()
    gang_queue.add(member("a"), member("b"))
    gang_queue.bind(*gang_queue.pop())
    gang_queue.add(member("c"), member("d"))
    assert (gang_queue.pop(), gang_queue.pop(), gang_queue.pop()) == (["c"], ["d"], [])
    gang_queue.fail("d")
    gang_queue.bind("c")
    assert not gang_queue.queue.has_ready


def wait_for_a_node() -> tuple[GangQueue, HoldsOne]:
    """A gang of which one member is held by a plugin, and the others were refused."""
    gate = HoldsOne("c")
    gang_queue = GangQueue(gate)
    gang_queue.add(*(member(name) for name in "cab"))
    gang_queue.fail(*gang_queue.pop())
    assert gang_queue.places() == {"a": "unschedulable", "b": "gang", "c": "gated"}
    return gang_queue, gate


def test_gang_is_requeued_once_by_an_event_for_member_and_lead() -> None:
    gang_queue, gate = wait_for_a_node()
    gate.held = ""
    moved = gang_queue.queue.on_event(NODE_ADD, None, A_NODE, gang_queue.now_s)
    assert (moved.active, moved.backoff) == (0, 1)
    gang_queue.queue.validate()
    gang_queue.now_s += 20
    assert sorted(gang_queue.pop()) == ["a", "b", "c"]


def test_gang_is_requeued_once_by_the_flush_of_member_and_lead() -> None:
    gang_queue, gate = wait_for_a_node()
    gate.held = ""
    gang_queue.now_s += 400
    moved = gang_queue.queue.flush(gang_queue.now_s)
    assert (moved.active, moved.backoff) == (1, 0)
    assert sorted(gang_queue.pop()) == ["a", "b", "c"]


def test_lead_requeued_by_a_member_counts_as_moved() -> None:
    """Else nobody looks at the queue until something else happens."""
    gang_queue, gate = wait_for_a_node()
    gate.held = ""
    gang_queue.now_s += 20
    moved = gang_queue.queue.on_event(NODE_ANNOTATION, A_NODE, A_NODE, gang_queue.now_s)
    assert (moved.active, moved.backoff) == (1, 0)


@pytest.mark.parametrize("seed", range(40))
def test_each_pod_is_in_one_state_and_startable_gangs_are_popped(seed: int) -> None:
    rng, gang_queue = random.Random(seed), GangQueue()
    flying: dict[str, list[str]] = {}
    bound: set[str] = set()
    for number in range(200):
        step = rng.choice(("add", "add", "pop", "pop", "fail", "bind", "remove", "die", "time"))
        if step == "add":
            gang = rng.choice("ghi")
            gang_queue.add(member(f"p{number}", {"g": 2, "h": 3, "i": 1}[gang], gang=gang, priority=rng.choice((0, 5))))
        elif step == "pop":
            popped = gang_queue.pop()
            if popped:
                flying[popped[0]] = popped
        elif step in ("fail", "bind") and flying:
            popped = flying.pop(rng.choice(sorted(flying)))
            here = [name for name in popped if gang_queue.queue.where(f"uid-{name}") is not None]
            if step == "fail":
                gang_queue.fail(*here)
            else:
                gang_queue.bind(
                    *(name for name in here if gang_queue.queue.where(f"uid-{name}") is QueueState.IN_FLIGHT)
                )
                gang_queue.fail(*(name for name in here if gang_queue.queue.where(f"uid-{name}") is QueueState.LEAVING))
                bound |= set(here)
        elif step == "remove" and len(gang_queue.queue):
            gang_queue.remove(rng.choice(sorted(gang_queue.places())))
        elif step == "die" and bound:
            name = rng.choice(sorted(bound))
            bound.discard(name)
            gang_queue.roster.remove(f"uid-{name}")
        elif step == "time":
            gang_queue.now_s += rng.choice((1.0, 30.0, 301.0))
            gang_queue.queue.flush(gang_queue.now_s)
        gang_queue.queue.validate()
    for popped in flying.values():
        gang_queue.fail(*(name for name in popped if gang_queue.queue.where(f"uid-{name}") is not None))
    for _ in range(50):
        gang_queue.now_s += 400
        gang_queue.queue.flush(gang_queue.now_s)
        gang_queue.now_s += 20
        while popped := gang_queue.pop():
            gang_queue.bind(*popped)
    waiting = set(gang_queue.places().values())
    assert waiting <= {"gated"}, gang_queue.places()
    assert all("members are there" in entry.message for entry in gang_queue.queue.entries())
