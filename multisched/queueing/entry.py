"""One pod's record in the queue, and the values that go in and out of `PodQueue`.

An `Entry` is owned by one queue, whose parts change it: `places` says where it is, `requeue_judge` counts its failures, and
`PodQueue` does the rest. Everything else here is frozen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from multisched.framework.status import SUCCESS, Code, Status
from multisched.model.objects import Pod
from multisched.queueing.quarantine import API_SERVER, REFUSALS_ALIKE_MAX
from multisched.queueing.transitions import Place

STORY_STEPS = 8
"""Steps an entry remembers for the message of a QueueInvariantError."""

HEALING_S: Final = -1.0
"""When a gang that has lost members came to the queue: before all that have not begun."""

NOBODY: frozenset[str] = frozenset()


class Failure(msgspec.Struct, frozen=True):
    """How an attempt ended. Without any plugin's name it is an error, as upstream."""

    rejectors: frozenset[str] = NOBODY
    """Plugins that answered Unschedulable or UnschedulableAndUnresolvable."""
    pending: frozenset[str] = NOBODY
    """Plugins that answered Pending: their event brings the pod back without backoff."""
    is_error: bool = False
    """A failure of ours (a plugin raised, a request failed): retried after an error backoff of its own."""
    without_backoff: bool = False
    """A commit conflict: straight back to active, CONFLICTS_IN_A_ROW times at most, then as what else is said of it."""
    message: str = ""
    """The sentence for people, shown by `entries`."""
    refusal: str = ""
    """The API server's words, if it was the one who refused the pod; alike ones set it aside (`quarantined`)."""


class Placement(msgspec.Struct, frozen=True):
    """Where a call has put a pod. When GATED, `status` is the gate's refusal, for the pod's condition."""

    place: Place
    status: Status = SUCCESS
    set_aside: str = ""
    """Why, if the pod is set aside as quarantined: the sentence for its owner."""


class Moved(msgspec.Struct, frozen=True):
    """What a call that looks at many pods has moved."""

    active: int = 0
    backoff: int = 0
    gated: tuple[tuple[Pod, Status], ...] = ()
    """Pods that a gate holds now with another refusal than before: their condition is to be written."""


NOTHING_MOVED = Moved()


class Addressees(msgspec.Struct, frozen=True):
    """Which parked pods an event is for."""

    priority_max: float = math.inf
    parked_since_s: float = -math.inf
    """They were parked then or later."""


EVERY_POD = Addressees()


class QueueEntry(msgspec.Struct, frozen=True):
    """One line of `multisched queue`."""

    uid: str
    pod: Pod
    place: Place
    plugins: tuple[str, ...]
    """Who refused the pod last, by name; for a gated pod the gate."""
    message: str
    attempts: int
    since_s: float
    """When it came to this place."""
    retry_at_s: float | None
    """When it moves if nothing happens; None where time does not move it."""
    added_s: float
    first_active_s: float | None
    """When it could first have been scheduled: start of pod_scheduling_sli_duration_seconds."""
    queued_s: float = 0.0
    """When it last came to the queue, as QueueSort compares it."""
    is_quarantined: bool = False
    """Set aside: the API server refuses it again and again in the same words."""
    waits_out_backoff: bool = False
    """As `Entry.waits_out_backoff`."""


class QueueStatistics(msgspec.Struct, frozen=True):
    """Counts of one queue at one moment, and counters since the start."""

    pending: Mapping[str, int]
    """pending_pods{queue}: active, backoff, unschedulable, gated."""
    in_flight: int
    """Popped and not ended, leaving ones included."""
    in_flight_events: int
    """Events kept for attempts under way."""
    event_overflows: int
    """Times the event log was dropped because it was full."""
    unschedulable_by_plugin: Mapping[str, int]
    """unschedulable_pods{plugin}: pods parked as unschedulable or gated by each plugin."""
    incoming: Mapping[tuple[str, str], int]
    """queue_incoming_pods_total{queue, event}."""
    hint_calls: int
    """Queueing hints evaluated since the start."""
    passed_over: int = 0
    """Attempts given to others while retries waited for their share (`active_pods`)."""
    namespaces_retrying: int = 0
    """Namespaces with active retries."""
    quarantined: int = 0
    """Of those unschedulable: set aside since the API server refuses them again and again."""
    set_aside: int = 0
    """Times a pod was set aside as quarantined."""
    bound_after_flush: int = 0
    """pod_scheduled_after_flush_total: bound in the attempt that the leftover flush brought; some event was missed."""
    gangs_reserving: int = 0
    """Gangs for which room that becomes free is reserved."""
    reservations: int = 0
    """Times a gang began to reserve room."""
    reservations_expired: int = 0
    """Those of them that ended before the gang started."""
    namespaces_ahead: int = 0
    """Those of them that have had more than their share and wait for the others."""


class Entry(msgspec.Struct, eq=False):
    """All the queue knows about one pod."""

    uid: str
    pod: Pod
    order: int
    """Rises with each return; the last tie-break."""
    queued_s: float
    added_s: float
    place: Place = Place.ABSENT
    since_s: float = 0.0
    sort_key: tuple[Any, ...] | None = None
    ranks_as: Pod | None = None
    """By which pod QueueSort sees it: of a gang the most important. None: by its own."""
    is_healing: bool = False
    """It leads a gang of which some members stand: QueueSort sees it with HEALING_S, and `queued_s` stays for later."""
    attempts: int = 0
    refusals: int = 0
    """Attempts that plugins refused; sets the backoff."""
    errors: int = 0
    """Errors in a row; sets the error backoff."""
    conflicts: int = 0
    """Commit conflicts in a row."""
    refusal: str = ""
    """The API server's last words."""
    refusals_alike: int = 0
    """How often it has said them in a row."""
    rejectors: frozenset[str] = NOBODY
    pending: frozenset[str] = NOBODY
    message: str = ""
    was_flushed: bool = False
    """The leftover flush brought it back, and no attempt has failed since."""
    gate: Status = SUCCESS
    """The refusal of the gate that holds it; success when none does."""
    backoff_until_s: float = 0.0
    waits_out_backoff: bool = False
    """Only the end of an attempt that had paused may have helped its gang: it is not taken before its backoff is over."""
    first_active_s: float | None = None
    story: list[tuple[float, str, Place]] = msgspec.field(default_factory=list)

    def rank_by_itself(self) -> None:
        """It leads no gang any more: QueueSort sees it by its own pod, since it came itself."""
        self.ranks_as, self.is_healing, self.sort_key = None, False, None

    @property
    def ranks_since_s(self) -> float:
        """When it last came to the queue, as QueueSort compares it."""
        return HEALING_S if self.is_healing else self.queued_s

    @property
    def schedulable_since_s(self) -> float:
        """When the pod could first have been scheduled."""
        return self.added_s if self.first_active_s is None else self.first_active_s

    @property
    def namespace(self) -> str:
        """Whatever it stands for is of one namespace."""
        return self.pod.namespace

    @property
    def failed_by_error(self) -> bool:
        return self.errors > 0

    @property
    def is_quarantined(self) -> bool:
        """True while it is set aside for the API server's refusals."""
        return self.place is Place.UNSCHEDULABLE and API_SERVER in self.rejectors

    def note_refusal(self, words: str) -> bool:
        """Counts the API server's refusal; True if the pod is to be set aside for it."""
        self.refusals_alike = self.refusals_alike + 1 if words == self.refusal else 1
        self.refusal = words
        return self.refusals_alike >= REFUSALS_ALIKE_MAX

    @property
    def is_retry(self) -> bool:
        """True once an attempt was refused, or failed by an error. A commit conflict was nobody's refusal."""
        return self.refusals > 0 or self.errors > 0

    @property
    def waits_for(self) -> tuple[frozenset[str], frozenset[str]]:
        """(rejector plugins, pending plugins) whose events wake the pod."""
        if self.gate.is_success:
            return self.rejectors, self.pending
        gate = frozenset({self.gate.plugin})
        return (NOBODY, gate) if self.gate.code is Code.PENDING else (gate, NOBODY)

    def remember(self, now_s: float, event: str, place: Place) -> None:
        story = self.story
        story.append((now_s, event, place))
        if len(story) > STORY_STEPS:
            del story[0]

    def history(self) -> list[str]:
        """The story, oldest first."""
        return [f"{at_s:.3f}s {event} → {place}" for at_s, event, place in self.story]
