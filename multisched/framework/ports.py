"""Protocols for everything outside the process: time, bindings, events, pod conditions, leases, extenders.

Everything that touches the network, a clock or randomness is behind one of these. `multisched.client` implements
them over a Transport, `tests/kit` under a virtual clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from enum import Enum, auto
from typing import Protocol

import msgspec

from multisched.model.objects import Pod
from multisched.model.version import NO_VERSION, Version


class Clock(Protocol):
    """The only source of time. Decisions use `monotonic`; `now` is for people and the API."""

    def monotonic(self) -> float:
        """Returns seconds; never decreases."""
        ...

    def now(self) -> datetime:
        """Returns UTC, timezone-aware."""
        ...


class BindAnswer(Enum):
    """The known effect of one POST of pods/binding."""

    CREATED = auto()
    """201: the pod is bound to the requested node."""
    NOT_FOUND = auto()
    """404: the pod does not exist."""
    CONFLICT = auto()
    """409: bound, deleting, gated or of another uid; only a read of the pod can tell."""
    THROTTLED = auto()
    """429: nothing happened; retry after `retry_after_s`."""
    DENIED = auto()
    """401 or 403 after one renewal of the credentials: nothing happened."""
    REJECTED = auto()
    """Another definite 4xx (400, 422, a webhook's refusal): nothing happened."""
    NOT_SENT = auto()
    """The connection could not be opened: nothing happened."""
    UNKNOWN = auto()
    """5xx, timeout, reset: the pod may be bound now, may be bound later, or not at all."""
    DELEGATED = auto()
    """An extender reports that it bound the pod. Only a read of the pod can confirm it; `message` applies if it is not bound."""


class BindRequest(msgspec.Struct, frozen=True):
    """Binds one pod to one node. The uid is sent as a precondition: an old decision never binds a new pod of the same name."""

    namespace: str
    name: str
    uid: str
    node: str
    annotations: Mapping[str, str] = msgspec.field(default_factory=dict)
    is_void: Callable[[], bool] = lambda: False
    """Called again by code that delayed the request after the send was decided. True: the request must not be sent."""
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)


class BindReply(msgspec.Struct, frozen=True):
    """The response to one POST; `message` is the server's message, truncated."""

    answer: BindAnswer
    retry_after_s: float = 0.0
    message: str = ""


class PodTruth(msgspec.Struct, frozen=True):
    """The placement of one pod, from a consistent read."""

    uid: str
    node: str
    """Empty while unbound."""
    is_deleting: bool
    is_gated: bool


class Binder(Protocol):
    """Posts bindings and reads pods; never retries by itself: the outcome machine in `cycle` decides that."""

    async def post(self, request: BindRequest, *, timeout_s: float) -> BindReply:
        """Sends one POST with a server-side deadline (`?timeout=`) of `timeout_s`. Never raises, whatever the server does."""
        ...

    async def read(self, namespace: str, name: str, *, timeout_s: float) -> PodTruth | None:
        """Reads the pod consistently. None: no such pod. Raises UnreachableError if no definite response came."""
        ...


class UnreachableError(Exception):
    """The API server gave no definite response to a read."""


class ObjectRef(msgspec.Struct, frozen=True):
    """Names one API object, in events and in logs."""

    kind: str
    namespace: str
    name: str
    uid: str
    api_version: str = "v1"


def pod_ref(pod: Pod) -> ObjectRef:
    """Returns the reference to the pod for events, conditions and writes."""
    return ObjectRef("Pod", pod.namespace, pod.name, pod.uid)


class Event(msgspec.Struct, frozen=True):
    """An events.k8s.io/v1 Event. `note` is cut at 1,024 bytes, as upstream."""

    regarding: ObjectRef
    type: str
    """Normal or Warning."""
    reason: str
    action: str
    note: str
    reporter: str
    """The schedulerName that made the decision."""
    related: ObjectRef | None = None
    """Another object the event is about, such as the pod for which this one was preempted."""


class EventSink(Protocol):
    """Takes events without waiting; may aggregate, delay and, when full, drop and count them. Never slows a bind."""

    def record(self, event: Event) -> None: ...


class Condition(msgspec.Struct, frozen=True):
    """The PodScheduled condition of a pod that could not be placed."""

    status: str
    reason: str
    """Unschedulable, SchedulingGated or SchedulerError, unless a plugin set another one (`Status.condition_reason`)."""
    message: str
    type: str = "PodScheduled"
    nominated_node: str | None = None
    """status.nominatedNodeName to write with it; empty removes it, None leaves it unchanged."""


class ConditionWriter(Protocol):
    """Writes pod conditions in the background, only the newest per pod. May drop and count them; never slows a bind."""

    def write(self, pod: ObjectRef, condition: Condition, lease: LeaseHolder) -> None:
        """Queues a condition. `lease`: of the pod's domain; nothing is sent while it is not held."""
        ...

    def drop(self, uid: str) -> None:
        """Drops the pod's unwritten condition: the pod has a node now."""
        ...

    def end_nomination(self, uid: str) -> None:
        """Withdraws the pod's nomination: an unwritten one is dropped, one in flight is cleared afterwards."""
        ...


class WriteAnswer(Enum):
    """The known effect of one write to a pod."""

    DONE = auto()
    GONE = auto()
    """There is no pod of this name and uid any more."""
    THROTTLED = auto()
    """429: nothing happened; retry after `retry_after_s`."""
    REFUSED = auto()
    """Another definite answer (403, 422, a webhook): nothing happened."""
    UNKNOWN = auto()
    """5xx, timeout, reset: it may have been done. Safe to retry: it names the pod's uid."""


class WriteReply(msgspec.Struct, frozen=True):
    """The response to one write; `message` is the server's message, truncated."""

    answer: WriteAnswer
    retry_after_s: float = 0.0
    message: str = ""


class PodWriter(Protocol):
    """The writes of preemption, and annotations of pods.

    Each call is one request with the pod's uid as precondition, and a deadline that the server enforces too. So a
    delayed write of a former leader evicts no victim. Never raises, whatever the server does.
    """

    async def mark_victim(self, pod: ObjectRef, message: str, *, timeout_s: float) -> WriteReply:
        """Adds the condition DisruptionTarget, reason PreemptionByScheduler."""
        ...

    async def delete(self, pod: ObjectRef, *, timeout_s: float, grace_s: int | None = None) -> WriteReply:
        """Deletes the pod. `grace_s`: grace period; None: that of the pod's spec."""
        ...

    async def clear_nomination(self, pod: ObjectRef, *, timeout_s: float) -> WriteReply:
        """Removes status.nominatedNodeName."""
        ...

    async def annotate(self, pod: ObjectRef, annotations: Mapping[str, str | None], *, timeout_s: float) -> WriteReply:
        """Sets these annotations, and removes those that are None. Other annotations are unchanged."""
        ...


class LeaseHolder(Protocol):
    """Leadership of one domain, judged by the local monotonic clock only."""

    def may_bind(self) -> bool:
        """Reports whether the lease is held and its local deadline has not passed. Called immediately before every bind POST (I9)."""
        ...


class VolumeAnswer(Enum):
    """The known effect of one write to a volume or a claim."""

    DONE = auto()
    """Written; `VolumeReply.version` is the object's new version."""
    CONFLICT = auto()
    """409: the object has changed since the given version, or has another uid."""
    NOT_FOUND = auto()
    REFUSED = auto()
    """Another definite answer (403, 422, a webhook): nothing happened."""
    UNKNOWN = auto()
    """429, 5xx, timeout, reset: it may have been written. Safe to retry: it names the version it changes."""


class VolumeReply(msgspec.Struct, frozen=True):
    """The response to one write; `message` is the server's message, truncated."""

    answer: VolumeAnswer
    version: Version = NO_VERSION
    """resourceVersion after the write; NO_VERSION if unknown."""
    message: str = ""


class VolumeWriter(Protocol):
    """Writes the scheduler's decisions about volumes; the persistent volume controller and provisioners do the rest.

    Each write is one PATCH with uid and resourceVersion as preconditions. So a decision based on an older object never
    overwrites a newer one, and repeating a write is safe. Never raises, whatever the server does.
    """

    async def bind_volume(
        self, volume: ObjectRef, version: Version, claim: ObjectRef, *, claim_version: Version, is_by_scheduler: bool
    ) -> VolumeReply:
        """Sets spec.claimRef of a volume; `is_by_scheduler`: records that no user had bound it (bound-by-controller)."""
        ...

    async def select_node(self, claim: ObjectRef, version: Version, node: str) -> VolumeReply:
        """Names the node for which a claim's volume is to be provisioned (volume.kubernetes.io/selected-node)."""
        ...


class LockAnswer(Enum):
    """The known effect of one change of a node's lock."""

    DONE = auto()
    KEPT = auto()
    """The caller left the lock as it is, for example because another pod holds it."""
    NOT_FOUND = auto()
    """There is no such node."""
    REFUSED = auto()
    """Another definite answer (403, 422, a webhook): nothing happened."""
    UNKNOWN = auto()
    """Not leading, 429, 5xx, timeout, or too many conflicts: it may have been written. Safe to retry: a compare-and-set."""


class LockReply(msgspec.Struct, frozen=True):
    """The result of one change; `message` is the server's message, truncated."""

    answer: LockAnswer
    message: str = ""


class LockHolder(msgspec.Struct, frozen=True):
    """The pod that a lock names, from a consistent read."""

    node: str
    """Empty while unbound."""
    phase: str
    scheduler_name: str


class NodeLocks(Protocol):
    """Locks of nodes: annotations that schedulers write, and that device plugins read and remove."""

    @property
    def may_write(self) -> bool:
        """Reports whether the domain's lease is held. While it is not, `change` writes nothing."""
        ...

    async def change(self, node: str, key: str, wanted: Callable[[str, datetime], str | None]) -> LockReply:
        """Changes an annotation of a node as a compare-and-set on the node's version. Never raises, whatever the server does.

        `wanted` gets the current text (empty: there is none) and the time, and returns the new text (empty: removed), or
        None to leave it. It is called again if the node has changed in between.
        """
        ...

    async def holder(self, namespace: str, name: str) -> LockHolder | None:
        """Reads the pod consistently. None: no such pod. Raises UnreachableError if no definite response came."""
        ...


class ExtenderTrust(msgspec.Struct, frozen=True):
    """TLS trust and client identity for an HTTPS extender. PEM; data takes precedence over files."""

    is_insecure: bool = False
    """Accepts any certificate."""
    server_name: str = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    ca_data: bytes = b""
    cert_data: bytes = b""
    key_data: bytes = b""


class ExtenderSettings(msgspec.Struct, frozen=True):
    """One HTTP extender, as in kube-scheduler's configuration. An empty verb is not called."""

    url: str
    filter_verb: str = ""
    prioritize_verb: str = ""
    preempt_verb: str = ""
    bind_verb: str = ""
    weight: int = 1
    timeout_s: float = 5.0
    is_node_cache_capable: bool = False
    """The extender caches nodes: only node names are sent."""
    managed_resources: frozenset[str] = frozenset()
    """It is called only for pods that request one of these; empty: for every pod."""
    is_ignorable: bool = False
    trust: ExtenderTrust = ExtenderTrust()


class ExtenderError(Exception):
    """An extender or a hook gave no usable response; the message names the extender, the verb and the problem."""

    def __init__(self, message: str, *, was_sent: bool = True) -> None:
        super().__init__(message)
        self.was_sent = was_sent
        """False: the request certainly did not reach the extender."""


class ExtenderClient(Protocol):
    """HTTP to one extender, or to one hook of a plugin."""

    settings: ExtenderSettings

    async def post(self, verb: str, body: bytes, *, answer_bytes_max: int) -> bytes:
        """Returns the body of a 200 within the extender's timeout. Raises ExtenderError for anything else."""
        ...

    async def close(self) -> None: ...


class Documents(Protocol):
    """Complete objects as stored in the API server: what extenders are sent."""

    async def pod(self, namespace: str, name: str) -> bytes | None:
        """Returns the pod's JSON; None: no such pod. Raises UnreachableError."""
        ...

    def node(self, name: str) -> bytes:
        """Returns the node's JSON without fields that only the API server reads; only the name for a node without a stored document."""
        ...
