"""Defects of gangs: each breaks the roster, the queue, an attempt, or a preemption in one way that somebody could write."""

from __future__ import annotations

from itertools import islice
from typing import Any

from msgspec.structs import replace

from multisched.cycle import gang_attempt
from multisched.cycle.gang_topology import GangTopology
from multisched.plugins.gang import gang_scheduling, gang_status
from multisched.queueing import gang_entries
from multisched.queueing.gang_entries import GangEntries
from multisched.queueing.gang_reservations import GangReservations
from multisched.queueing.readmission import Readmission
from multisched.shell.binding.gang_barrier import Barrier, GangBarriers
from multisched.shell.ingest.router import Router
from multisched.state.gang_roster import Gang, GangRoster
from multisched.state.transaction import Transaction
from tests.sim.defects import defect, put

# -- who counts --------------------------------------------------------------------------------------------------------


@defect
def gang_quorum_off_by_one() -> None:
    """A gang starts with one member too few."""
    genuine: Any = vars(Gang)["needs"].fget
    put(Gang, "needs", property(lambda self: genuine(self) - 1))


@defect
def bound_members_count_twice() -> None:
    """A member counts when it is assumed, and again when it is bound."""
    genuine: Any = vars(Gang)["needs"].fget
    put(Gang, "needs", property(lambda self: genuine(self) - self.bound))


@defect
def finished_members_not_counted() -> None:
    """A gang with a succeeded member waits for another one in its place."""
    put(GangRoster, "finish", lambda self, pod: self.remove(pod.uid))


@defect
def gangs_start_without_their_group() -> None:
    """Gangs that must start together start one by one."""
    put(GangRoster, "together_with", lambda self, key: (key,))


@defect
def partial_gangs_start_over() -> None:
    """A partly bound gang waits for as many members as if none was bound."""

    def needs(self: Gang) -> int:
        spec = self.spec
        if spec is None:
            return 1
        return 0 if self.placed_count >= spec.min_members else spec.min_members

    put(Gang, "needs", property(needs))


@defect
def paused_attempts_count_as_started() -> None:
    """Members that an attempt in progress may forget count as started."""
    genuine: Any = vars(Gang)["needs"].fget
    put(Gang, "needs", property(lambda self: genuine(self) - self.tentative))


@defect
def dependent_gangs_not_updated() -> None:
    """When a gang changes, members of gangs that start with it stay in their state."""

    def changed(self: GangRoster, key: str) -> None:
        gang = self.gang(key)
        if gang is not None:
            self._link(gang, self.together_with(key))
        self.on_change(key)

    put(GangRoster, "_changed", changed)


@defect
def updates_spare_victims() -> None:
    """A later version of a member that is about to be evicted makes it one that stays."""
    genuine = GangRoster.set

    def set_unmarked(self: GangRoster, pod: Any) -> Any:
        if not pod.is_deleting:
            self.set_victim(pod.uid, is_victim=False)
        return genuine(self, pod)

    put(GangRoster, "set", set_unmarked)


# -- the queue ---------------------------------------------------------------------------------------------------------


@defect
def members_tried_alone() -> None:
    """Members are entries of their own from the beginning."""
    put(GangEntries, "must_start_together", lambda self, entry: False)


@defect
def gangs_woken_twice() -> None:
    """An event that helps a held member and the lead of its gang moves the lead twice."""
    put(Readmission, "wake", Readmission.requeue)


@defect
def gangs_wait_for_ever() -> None:
    """A gang never becomes overdue."""
    put(GangEntries, "_start_timeout", lambda self, key, now_s: None)


@defect
def bound_members_do_not_wake_the_loop() -> None:
    """When a member is bound, the scheduling loop is not woken for the queue's new work."""
    genuine = GangEntries.leave

    def leave(self: GangEntries, entry: Any) -> None:
        key = self._gang_of.get(entry.uid, "")
        genuine(self, entry)
        self.changed(key)

    put(GangEntries, "leave", leave)


@defect
def changed_gangs_requeue_nothing() -> None:
    """Members are regrouped only at the next other event."""

    def gang_changed(self: Router, key: str) -> None:
        for worker, _ in self._workers:
            worker.queue.gang_changed(key)

    put(Router, "gang_changed", gang_changed)


@defect
def new_members_leave_the_lead_parked() -> None:
    """A new member does not requeue its refused gang."""
    put(Readmission, "_came", lambda self, entry, lead, now_s, tally: None)


# -- the attempt -------------------------------------------------------------------------------------------------------


@defect
def room_for_one_member_more() -> None:
    """Pods are evicted for one member more than must start."""
    put(gang_attempt, "_needed", lambda gang: iter(gang.members[: sum(gang.needs.values()) + 1]))


@defect
def undone_members_are_waited_for() -> None:
    """A member that was undone before its binding was sent keeps the others waiting."""
    genuine = GangBarriers.leave

    def leave(self: GangBarriers, barrier: Barrier, uid: str) -> str:
        has_arrived = uid in barrier.arrived
        key = genuine(self, barrier, uid)
        barrier.missing[key] += not has_arrived
        return key

    put(GangBarriers, "leave", leave)


@defect
def some_of_a_gang_are_enough() -> None:
    """An attempt keeps the members that found nodes, even if they are too few."""
    put(gang_attempt, "_gang_below_minimum", lambda gang, found: None if found.placed else (next(iter(gang.needs)), 0))


@defect
def failed_gangs_keep_their_room() -> None:
    """The assumptions of a failed attempt are kept."""
    put(Transaction, "__exit__", lambda self, *error: self._assumed.clear())


@defect
def gangs_lose_their_nominations_during_evictions() -> None:
    """A gang that is tried again after its first victim has ended loses its nominated nodes."""
    genuine = gang_attempt._with_outcome

    def with_outcome(refused: Any, after: Any) -> Any:
        found = genuine(refused, after)
        return found if after.preemption is not None else replace(found, nominated_node="")

    put(gang_attempt, "_with_outcome", with_outcome)


# -- topology ----------------------------------------------------------------------------------------------------------


@defect
def required_domains_left() -> None:
    """A required topology domain is ignored."""
    put(GangTopology, "masks", lambda self: iter((None,)))


@defect
def bound_members_fix_no_domain() -> None:
    """Later members may be placed in another domain than the bound ones."""
    put(gang_entries, "_placed_member_nodes", lambda gang: iter(()))


@defect
def later_domains_not_tried() -> None:
    """If the first topology domain does not fit, the gang waits."""
    genuine: Any = GangTopology.masks
    put(GangTopology, "masks", lambda self: islice(genuine(self), 1))


# -- preemption and status ---------------------------------------------------------------------------------------------


@defect
def gangs_evicted_below_minimum() -> None:
    """A preemption takes some members of a gang, and leaves it below its minimum."""

    def surplus(self: GangRoster, key: str) -> int:
        return len(self.placed_members(key))

    put(GangRoster, "surplus", surplus)


@defect
def waiting_members_count_as_scheduled() -> None:
    """The status of a PodGroup counts members that have no node."""
    genuine = gang_status.status_of

    def status_of(kind: Any, namespace: str, uid: str, gang: Any) -> Any:
        return genuine(kind, namespace, uid, replace(gang, bound=gang.bound + bool(gang.waiting)))

    put(gang_scheduling, "status_of", status_of)


# -- turns to reserve --------------------------------------------------------------------------------------------------


@defect
def turns_follow_without_a_pause() -> None:
    """A turn to reserve begins as soon as the one before it has ended, even if its gang did not start."""
    genuine = GangReservations._end

    def end_at_once(self: GangReservations, key: str, now_s: float) -> str:
        found = genuine(self, key, now_s)
        self._next_s = now_s
        return found

    put(GangReservations, "_end", end_at_once)


@defect
def turns_never_end() -> None:
    """A gang reserves until it starts."""
    put(GangReservations, "_end", lambda self, key, now_s: "")


@defect
def no_gang_gets_a_turn() -> None:
    """No gang ever reserves."""
    put(GangEntries, "next_turn", lambda self, since_s: "")
