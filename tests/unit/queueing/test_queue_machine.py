"""The queue against a model of a few dicts, driven by hypothesis.

The model knows for each pod its place, its order key and what happened since its pop; it shares no code with the queue. Of
the shares of namespaces it knows only who may be next: how they are shared out, `test_active_pods.py` tells.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from multisched.framework.events import ASSIGNED_POD_DELETE, FLUSH, NODE_ADD, Action, ClusterEvent
from multisched.model.cluster_objects import ClusterObject
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Pod, PodSpec
from multisched.queueing.entry import Failure
from multisched.queueing.quarantine import API_SERVER
from multisched.queueing.transitions import QueueState
from multisched.queueing.uid_heap import GARBAGE_MIN_ITEMS
from multisched.testing.builders import make_node, pop_pod
from tests.unit.queueing.builders import AFFINITY, FIT, LEGACY, NODE_LABEL, OUTSIDE, ClosedGates, make_pod, make_queue

LEFTOVER_S, EVENTS_MAX = 30.0, 6
NAMESPACE_UPDATE = ClusterEvent(ObjectKind.NAMESPACE, Action.UPDATE, "NamespaceUpdate")
EVENTS = {
    "node": NODE_ADD,
    "deleted": ASSIGNED_POD_DELETE,
    "label": NODE_LABEL,
    "namespace": NAMESPACE_UPDATE,
    "all": FLUSH,
}
HEARD_BY = {"node": {FIT, AFFINITY}, "deleted": {FIT}, "label": {OUTSIDE}, "relabelled": {AFFINITY, API_SERVER}}
HEARD_BY["changed"] = {API_SERVER}
REFUSALS_MAX = 5
ZONES = {zone: {"zone": zone} for zone in ("a", "b")}
QUEUED = ("active", "backoff", "unschedulable", "gated", "gang")

plugin_sets = st.frozensets(st.sampled_from([FIT, AFFINITY, LEGACY]), max_size=2)
pending_sets = st.sampled_from([frozenset[str](), frozenset({OUTSIDE})])
zones = st.sampled_from(sorted(ZONES))
conflicts = st.sampled_from([False, False, False, True])


@dataclass
class Known:
    """What the model knows of one pod."""

    pod: Pod
    state: str
    queued_s: float
    order: int
    attempts: int = 0
    refusals: int = 0
    errors: int = 0
    conflicts: int = 0
    plugins: frozenset[str] = frozenset()
    pending: frozenset[str] = frozenset()
    until_s: float = 0.0
    parked_s: float = 0.0
    words: str = ""
    words_times: int = 0
    seen: list[tuple[str, str]] = field(default_factory=list)
    """(event, zone of the node) since the pop."""
    is_overflown: bool = False

    @property
    def is_retry(self) -> bool:
        return self.refusals + self.errors > 0

    @property
    def key(self) -> tuple[int, float, int]:
        return (-self.pod.spec.priority, self.queued_s, self.order)


class QueueMachine(RuleBasedStateMachine):
    """Every call of the queue, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = make_queue(gates=[ClosedGates()], leftover_s=LEFTOVER_S, in_flight_events_max=EVENTS_MAX)
        self.known: dict[str, Known] = {}
        self.dear: set[str] = set()
        """Namespaces of which a first attempt took long."""
        self.now_s = 0.0
        self.orders = 0
        self.made = 0
        self.log: list[set[str]] = []
        """For each kept event the attempts that may still ask for it."""

    # The model's rules

    def at(self, *places: str) -> list[Known]:
        return [known for known in self.known.values() if known.state in places]

    def pick(self, data: st.DataObject, *places: str) -> Known:
        return data.draw(st.sampled_from(self.at(*places)))

    def next_order(self) -> int:
        self.orders += 1
        return self.orders

    def forget_attempt(self, known: Known) -> None:
        for waiting in self.log:
            waiting.discard(known.pod.uid)
        while self.log and not self.log[0]:
            del self.log[0]

    def note(self, uids: set[str], event: str, zone: str) -> None:
        popped = {known.pod.uid for known in self.at("in-flight", "leaving")}
        if popped and len(self.log) >= EVENTS_MAX:
            for uid in set().union(*self.log):
                self.known[uid].is_overflown = True
                self.known[uid].seen.clear()
            self.log.clear()
        for uid in uids & popped:
            self.known[uid].seen.append((event, zone))
        if popped:
            self.log.append(set(popped))

    def strength(self, known: Known, event: str, zone: str) -> int:
        """0 nothing, 1 after backoff, 2 at once."""
        if event == "all":
            return 1
        best = 0
        for plugin in known.plugins | known.pending:
            hears = plugin == LEGACY or plugin in HEARD_BY.get(event, set())
            if plugin == AFFINITY and event == "node":
                hears = known.pod.labels["zone"] == zone
            if plugin == API_SERVER and event == "namespace":
                hears = known.pod.namespace == zone
            if hears:
                best = max(best, 2 if plugin in known.pending else 1)
        return best

    def place_after(self, known: Known, strength: int) -> None:
        if known.pod.gates:
            known.state, known.parked_s = "gated", self.now_s
        elif strength == 1 and known.until_s > self.now_s:
            known.state = "backoff"
        else:
            known.state = "active"

    def release(self) -> None:
        for known in self.at("backoff"):
            if known.until_s <= self.now_s:
                known.state = "active"

    def possible_heads(self) -> set[str]:
        """Who may be next. With several namespaces active a retry that stands first may have to wait for its share."""
        active = sorted(self.at("active"), key=lambda known: known.key)
        if not active:
            early = [known for known in self.at("backoff") if not known.errors]
            return {min(early, key=lambda k: (k.until_s // 1, k.key)).pod.uid} if early else set()
        first_attempts = self.possible_first_attempts([known for known in active if not known.is_retry])
        is_alone = len({known.pod.namespace for known in active}) == 1
        if is_alone or (not active[0].is_retry and len(first_attempts) == 1):
            return {active[0].pod.uid}
        of_namespaces = {known.pod.namespace: known for known in reversed(active) if known.is_retry}
        return {known.pod.uid for known in [*first_attempts, *of_namespaces.values()]}

    def possible_first_attempts(self, ordered: list[Known]) -> list[Known]:
        """The first, and as long as those before it are of namespaces whose attempts took long, that of the next one."""
        found: dict[str, Known] = {}
        for known in ordered:
            found.setdefault(known.pod.namespace, known)
            if known.pod.namespace not in self.dear:
                break
        return list(found.values())

    def take(self, uid: str) -> None:
        known = self.known[uid]
        known.state = "in-flight"
        known.attempts += 1
        known.seen, known.is_overflown = [], False

    # Steps

    @initialize(at_s=st.sampled_from([0.0, 1000.25]))
    def start(self, at_s: float) -> None:
        self.now_s = at_s

    @rule(by_s=st.sampled_from([0.1, 0.5, 1.0, 3.0, 31.0]))
    def time_passes(self, by_s: float) -> None:
        self.now_s += by_s

    @rule(
        pods=st.lists(
            st.tuples(st.integers(0, 2), zones, zones, st.sampled_from([False, False, True])), min_size=1, max_size=5
        )
    )
    def pods_come(self, pods: list[tuple[int, str, str, bool]]) -> None:
        for priority, namespace, zone, is_gated in pods:
            self.made += 1
            gates = ("g",) if is_gated else ()
            pod = make_pod(
                f"u{self.made}", name="same", namespace=namespace, priority=priority, labels=ZONES[zone], gates=gates
            )
            placed = self.queue.add(pod, self.now_s)
            place = "gated" if is_gated else "active"
            self.known[pod.uid] = Known(pod, place, self.now_s, self.next_order(), parked_s=self.now_s)
            assert placed.state == place
            assert placed.status.is_success != is_gated

    @precondition(lambda self: self.at("leaving"))
    @rule(data=st.data())
    def a_removed_pod_comes_back(self, data: st.DataObject) -> None:
        known = self.pick(data, "leaving")
        known.state = "in-flight"
        self.note({known.pod.uid}, "all", "")
        assert self.queue.add(known.pod, self.now_s).state is QueueState.IN_FLIGHT

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def only_the_status_changes(self, data: st.DataObject) -> None:
        known = self.pick(data, *QUEUED, "in-flight", "leaving")
        old = known.pod
        known.pod = make_pod(
            old.uid,
            name="same",
            namespace=old.namespace,
            spec=old.spec,
            labels=old.labels,
            gates=old.gates,
            version=f"after {old.version}",
        )
        self.queue.update(old, known.pod, self.now_s)

    @precondition(lambda self: self.known)
    @rule(data=st.data(), zone=zones, spec=st.none() | st.builds(PodSpec, priority=st.integers(0, 2)))
    def a_pod_is_relabelled_and_loses_its_gates(self, data: st.DataObject, zone: str, spec: PodSpec | None) -> None:
        known = self.pick(data, *QUEUED, "in-flight", "leaving")
        old = known.pod
        known.pod = make_pod(old.uid, name="same", namespace=old.namespace, spec=spec or old.spec, labels=ZONES[zone])
        self.queue.update(old, known.pod, self.now_s)
        event = "relabelled" if old.labels["zone"] != zone else "changed" if old.gates or spec else ""
        if known.state in ("in-flight", "leaving") and event:
            self.note({old.uid}, event, zone)
        elif known.state == "gated" and event:
            self.place_after(known, 1)
        elif known.state == "unschedulable" and event and (strength := self.strength(known, event, zone)):
            self.place_after(known, strength)

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def a_pod_is_removed(self, data: st.DataObject) -> None:
        known = self.pick(data, *QUEUED, "in-flight", "leaving")
        assert self.queue.remove(known.pod.uid) == known.state
        if known.state in ("in-flight", "leaving"):
            known.state = "leaving"
        else:
            del self.known[known.pod.uid]

    @rule(most=st.integers(1, 4))
    def pods_are_popped(self, most: int) -> None:
        self.release()
        for _ in range(most):
            popped = pop_pod(self.queue, self.now_s)
            heads = self.possible_heads()
            if popped is None:
                assert not heads
                return
            assert popped.pod.uid in heads
            assert popped.pod is self.known[popped.pod.uid].pod
            self.take(popped.pod.uid)
            assert popped.attempts == self.known[popped.pod.uid].attempts

    @precondition(lambda self: self.at("in-flight", "leaving"))
    @rule(data=st.data(), seconds=st.sampled_from([0.0005, 0.02, 60.0]))
    def an_attempt_takes_long(self, data: st.DataObject, seconds: float) -> None:
        known = self.pick(data, "in-flight", "leaving")
        self.queue.charge_attempt(known.pod.uid, seconds)
        if not known.is_retry:
            self.dear.add(known.pod.namespace)

    @precondition(lambda self: self.at("in-flight"))
    @rule(data=st.data(), words=st.sampled_from(["no", "never"]), times=st.integers(1, 6))
    def the_server_refuses_a_pod_again_and_again(self, data: st.DataObject, words: str, times: int) -> None:
        known = self.pick(data, "in-flight")
        for _ in range(times):
            if known.state != "in-flight":
                return
            placed = self.queue.fail(known.pod.uid, Failure(is_error=True, refusal=words), self.now_s)
            self.forget_attempt(known)
            known.queued_s, known.order = self.now_s, self.next_order()
            self.place_failed(known, frozenset(), frozenset(), words=words)
            assert placed.state == known.state
            assert bool(placed.quarantine_message) == (known.state == "unschedulable")
            if known.state == "backoff":
                self.queue.activate(known.pod.uid, self.now_s)
                known.state = "active"
            while known.state == "active":
                self.pods_are_popped(1)

    @precondition(lambda self: self.at("in-flight", "leaving"))
    @rule(data=st.data())
    def an_attempt_is_done(self, data: st.DataObject) -> None:
        known = self.pick(data, "in-flight", "leaving")
        assert self.queue.done(known.pod.uid)
        self.forget_attempt(known)
        del self.known[known.pod.uid]

    @precondition(lambda self: self.at("in-flight", "leaving"))
    @rule(failures=st.lists(st.tuples(plugin_sets, pending_sets, conflicts), min_size=1, max_size=4), data=st.data())
    def attempts_fail(self, failures: list[tuple[frozenset[str], frozenset[str], bool]], data: st.DataObject) -> None:
        for plugins, pending, is_conflict in failures[: len(self.at("in-flight", "leaving"))]:
            known = self.pick(data, "in-flight", "leaving")
            failure = Failure(plugins, pending, without_backoff=is_conflict)
            placed = self.queue.fail(known.pod.uid, failure, self.now_s)
            self.forget_attempt(known)
            if known.state == "leaving":
                del self.known[known.pod.uid]
                assert placed.state is QueueState.ABSENT
                continue
            known.queued_s, known.order = self.now_s, self.next_order()
            self.place_failed(known, plugins, pending, is_conflict=is_conflict)
            assert placed.state == known.state

    def place_failed(
        self,
        known: Known,
        plugins: frozenset[str],
        pending: frozenset[str],
        *,
        is_conflict: bool = False,
        words: str = "",
    ) -> None:
        known.plugins, known.pending = frozenset(), frozenset()
        if is_conflict and known.conflicts < 3:
            known.conflicts += 1
            known.until_s = self.now_s
            self.place_after(known, 2)
            return
        known.conflicts = 0
        is_error = not plugins | pending
        if is_error:
            known.errors += 1
            known.until_s = self.now_s + min(2 ** (known.errors - 1), 10)
            if words:
                known.words_times = known.words_times + 1 if known.words == words else 1
                known.words = words
            if not words or known.words_times < REFUSALS_MAX:
                self.place_after(known, 1)
                return
            plugins = frozenset({API_SERVER})
        else:
            known.errors, known.refusals = 0, known.refusals + 1
            known.until_s = self.now_s + min(2 ** (known.refusals - 1), 10)
        known.plugins, known.pending = plugins, pending
        strengths = [self.strength(known, event, zone) for event, zone in known.seen]
        strength = max([int(known.is_overflown), *strengths])
        if strength:
            self.place_after(known, strength)
        else:
            known.state, known.parked_s = "unschedulable", self.now_s

    @rule(event=st.sampled_from(sorted(EVENTS)), zone=zones)
    def something_happens(self, event: str, zone: str) -> None:
        happened: ClusterEvent = EVENTS[event]
        parked = {k.pod.uid: self.strength(k, event, zone) for k in self.at("unschedulable")}
        gated = self.at("gated") if event == "all" else []
        new = ClusterObject(name=zone) if event == "namespace" else make_node(labels={"zone": zone})
        moved = self.queue.on_event(happened, None, new, self.now_s)
        self.note(set(self.known), event, zone)
        for uid, strength in parked.items():
            if strength:
                self.place_after(self.known[uid], strength)
        for known in gated:
            self.place_after(known, 1)
        newly = [self.known[uid].state for uid, strength in parked.items() if strength]
        assert (moved.active, moved.backoff) == (newly.count("active"), newly.count("backoff"))

    @rule()
    def the_queue_is_flushed(self) -> None:
        self.queue.flush(self.now_s)
        self.release()
        for known in self.at("unschedulable", "gated"):
            if known.parked_s + LEFTOVER_S <= self.now_s:
                self.place_after(known, 1)

    # What always holds

    @invariant()
    def every_pod_is_where_the_model_says_and_nowhere_else(self) -> None:
        self.queue.validate()
        assert {e.uid: e.state.value for e in self.queue.entries()} == {u: k.state for u, k in self.known.items()}
        counts = {place: len(self.at(place)) for place in QUEUED}
        statistics = self.queue.statistics()
        assert statistics.pending == counts
        assert statistics.in_flight == len(self.at("in-flight", "leaving"))
        assert statistics.quarantined == sum(API_SERVER in known.plugins for known in self.at("unschedulable"))

    @invariant()
    def the_event_log_keeps_what_is_needed_and_no_more(self) -> None:
        assert self.queue.statistics().in_flight_events == len(self.log) <= EVENTS_MAX

    @invariant()
    def no_heap_keeps_more_garbage_than_its_bound(self) -> None:
        active, namespaces = self.queue._active, self.queue._active.retrying_namespaces
        heaps = 4 + namespaces + len(self.dear)
        assert active.items <= 2 * (len(active) + 2 * namespaces) + heaps * GARBAGE_MIN_ITEMS
        assert self.queue._backoff.items <= 4 * len(self.queue._backoff) + 2 * GARBAGE_MIN_ITEMS

    @invariant()
    def the_next_wakeup_is_the_first_thing_time_does(self) -> None:
        times = [known.until_s for known in self.at("backoff")]
        times += [known.parked_s + LEFTOVER_S for known in self.at("unschedulable", "gated")]
        assert self.queue.next_wakeup_s() == min(times, default=None)


TestQueueMachine = QueueMachine.TestCase
