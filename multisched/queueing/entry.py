"""One pod's record in the queue, and the argument and result types of `PodQueue`.

An `Entry` is owned by one queue, whose parts change it: `entry_states` sets its state, `requeue_judge` counts its failures,
and `PodQueue` does the rest. All other types here are frozen.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from multisched.framework.status import SUCCESS, Code, Status
from multisched.model.objects import Pod, PodSpec
from multisched.queueing.quarantine import API_SERVER, EQUAL_REFUSALS_MAX
from multisched.queueing.transitions import QueueState

TRANSITIONS_KEPT = 8
"""Moves that an entry remembers for the message of a QueueInvariantError."""

RECOVERING_GANG_QUEUED_S: Final = -1.0
"""Queue time of a gang that has lost members, for QueueSort: before all gangs without placed members."""

NO_PLUGINS: frozenset[str] = frozenset()


Refusers = tuple[QueueState, frozenset[str], frozenset[str]]
"""(state, rejector plugins, pending plugins) of parked pods."""
ClassKey = tuple[PodSpec, *tuple[Hashable, ...]]
"""`parked_pods.class_of`"""


class ParkedClass(NamedTuple):
    """Equal pods that are parked for the same reason."""

    refusers: Refusers
    namespace: str
    key: ClassKey


class Failure(msgspec.Struct, frozen=True):
    """The result of a failed attempt. Without a plugin's name it is an error, as upstream."""

    rejectors: frozenset[str] = NO_PLUGINS
    """Plugins that returned Unschedulable or UnschedulableAndUnresolvable."""
    pending: frozenset[str] = NO_PLUGINS
    """Plugins that returned Pending: their events requeue the pod without backoff."""
    is_error: bool = False
    """An internal error (a plugin raised, a request failed): retried with the error backoff."""
    without_backoff: bool = False
    """A commit conflict: requeued to active at once, up to CONFLICTS_IN_A_ROW times; after that, the other fields decide."""
    message: str = ""
    """The message for people, shown by `entries`."""
    refusal: str = ""
    """The API server's message, if it refused the pod; repeated equal messages quarantine the pod."""


class QueueOutcome(msgspec.Struct, frozen=True):
    """The pod's queue state after a call. If GATED, `status` is the gate's refusal, for the pod's condition."""

    state: QueueState
    status: Status = SUCCESS
    quarantine_message: str = ""
    """If the pod was quarantined: the message for its owner."""


class Moved(msgspec.Struct, frozen=True):
    """The pods that a call on several pods has moved."""

    active: int = 0
    backoff: int = 0
    gated: tuple[tuple[Pod, Status], ...] = ()
    """Pods that are gated now with a new refusal: their conditions must be written."""


NOTHING_MOVED = Moved()


class ParkedPodFilter(msgspec.Struct, frozen=True):
    """Filters the parked pods that an event is for."""

    priority_max: float = math.inf
    parked_since_s: float = -math.inf
    """Only pods parked at this time or later."""


EVERY_POD = ParkedPodFilter()


class QueueEntry(msgspec.Struct, frozen=True):
    """One line of `multisched queue`."""

    uid: str
    pod: Pod
    state: QueueState
    plugins: tuple[str, ...]
    """Names of the plugins that refused the pod last; for a gated pod, of the gate."""
    message: str
    attempts: int
    since_s: float
    """When it entered this state."""
    retry_at_s: float | None
    """When it moves if no event occurs; None if time alone does not move it."""
    added_s: float
    first_active_s: float | None
    """When it could first have been scheduled: start of pod_scheduling_sli_duration_seconds."""
    queued_s: float = 0.0
    """When it was last queued, as QueueSort compares it."""
    is_quarantined: bool = False
    """The API server repeatedly refuses it with the same message."""
    waits_out_backoff: bool = False
    """The same as `Entry.waits_out_backoff`."""


class QueueStatistics(msgspec.Struct, frozen=True):
    """Counts of one queue at one moment, and counters since the start."""

    pending: Mapping[str, int]
    """pending_pods{queue}: active, backoff, unschedulable, gated."""
    in_flight: int
    """Pods with an attempt in progress, including leaving ones."""
    in_flight_events: int
    """Events kept for attempts in progress."""
    event_overflows: int
    """Times the event log was dropped because it was full."""
    unschedulable_by_plugin: Mapping[str, int]
    """unschedulable_pods{plugin}: pods parked as unschedulable or gated by each plugin."""
    incoming: Mapping[tuple[str, str], int]
    """queue_incoming_pods_total{queue, event}."""
    hint_calls: int
    """Queueing hints evaluated since the start."""
    passed_over: int = 0
    """Attempts given to other pods while retries waited for their share (`active_pods`)."""
    namespaces_retrying: int = 0
    """Namespaces with active retries."""
    quarantined: int = 0
    """Unschedulable pods in quarantine because the API server repeatedly refuses them."""
    quarantines: int = 0
    """Times a pod was quarantined."""
    bound_after_flush: int = 0
    """pod_scheduled_after_flush_total: bound in the attempt after a leftover flush; an event was missed."""
    gangs_reserving: int = 0
    """Gangs for which capacity is reserved."""
    reservations: int = 0
    """Times a gang's turn to reserve capacity began."""
    reservations_expired: int = 0
    """Turns that ended before the gang started."""
    namespaces_ahead: int = 0
    """Namespaces with retries that wait because they are ahead of their share."""


class Entry(msgspec.Struct, eq=False):
    """The queue's state of one pod."""

    uid: str
    pod: Pod
    order: int
    """Rises with each requeue; the last tie-break."""
    queued_s: float
    added_s: float
    state: QueueState = QueueState.ABSENT
    since_s: float = 0.0
    sort_key: tuple[Any, ...] | None = None
    ranks_as: Pod | None = None
    """The pod whose sort key it uses: the most important member of its gang. None: its own pod."""
    is_recovering: bool = False
    """It leads a partly placed gang: QueueSort compares it by RECOVERING_GANG_QUEUED_S, and `queued_s` stays as it is."""
    attempts: int = 0
    refusals: int = 0
    """Attempts that plugins refused; determines the backoff."""
    errors: int = 0
    """Consecutive errors; determines the error backoff."""
    conflicts: int = 0
    """Consecutive commit conflicts."""
    refusal: str = ""
    """The API server's last message."""
    equal_refusals: int = 0
    """How many times in a row the API server refused with this message."""
    rejectors: frozenset[str] = NO_PLUGINS
    pending: frozenset[str] = NO_PLUGINS
    message: str = ""
    was_flushed: bool = False
    """The leftover flush requeued it, and no attempt has failed since."""
    gate: Status = SUCCESS
    """The refusal of the gate that holds it; success if none does."""
    backoff_until_s: float = 0.0
    waits_out_backoff: bool = False
    """Only another attempt's undone assumptions may have helped its gang: it is not popped before its backoff ends."""
    has_new_follower: bool = False
    """A member has joined its gang, which it leads, during its current attempt."""
    first_active_s: float | None = None
    represents: ParkedClass | None = None
    """The class for which it is tried (`representatives`)."""
    transitions: list[tuple[float, str, QueueState]] = msgspec.field(default_factory=list)

    def rank_by_itself(self) -> None:
        """Sorts the entry by its own pod and time again, because it no longer leads a gang."""
        self.ranks_as, self.is_recovering, self.sort_key = None, False, None

    @property
    def ranks_since_s(self) -> float:
        """When it last came to the queue, as QueueSort compares it."""
        return RECOVERING_GANG_QUEUED_S if self.is_recovering else self.queued_s

    @property
    def schedulable_since_s(self) -> float:
        """When the pod could first have been scheduled."""
        return self.added_s if self.first_active_s is None else self.first_active_s

    @property
    def namespace(self) -> str:
        """The namespace of its pod; all pods of one entry share it."""
        return self.pod.namespace

    @property
    def failed_by_error(self) -> bool:
        return self.errors > 0

    @property
    def is_quarantined(self) -> bool:
        """True while it is parked because of the API server's refusals."""
        return self.state is QueueState.UNSCHEDULABLE and API_SERVER in self.rejectors

    def note_refusal(self, words: str) -> bool:
        """Counts the API server's refusal; returns True if the pod must be quarantined."""
        self.equal_refusals = self.equal_refusals + 1 if words == self.refusal else 1
        self.refusal = words
        return self.equal_refusals >= EQUAL_REFUSALS_MAX

    @property
    def is_retry(self) -> bool:
        """True after an attempt was refused, or failed by an error. Commit conflicts do not count."""
        return self.refusals > 0 or self.errors > 0

    @property
    def waits_for(self) -> tuple[frozenset[str], frozenset[str]]:
        """(rejector plugins, pending plugins) whose events requeue the pod."""
        if self.gate.is_success:
            return self.rejectors, self.pending
        gate = frozenset({self.gate.plugin})
        return (NO_PLUGINS, gate) if self.gate.code is Code.PENDING else (gate, NO_PLUGINS)

    def history(self) -> list[str]:
        """Returns the latest moves as text, oldest first."""
        return [f"{at_s:.3f}s {event} → {state}" for at_s, event, state in self.transitions]
