"""Protocols of the outside world: time, binding, events, pod conditions, leases, extenders.

The core decides; whatever touches network, clock or chance stands behind one of these. `multisched.client` implements
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
    """The only source of time. Decisions use `monotonic`; `now` is for what people and the API read."""

    def monotonic(self) -> float:
        """Seconds; never goes back."""
        ...

    def now(self) -> datetime:
        """UTC, timezone-aware."""
        ...


class BindAnswer(Enum):
    """What one POST of pods/binding is known to have done (reference: reliability 3)."""

    CREATED = auto()
    """201: the pod is bound to the node we named."""
    NOT_FOUND = auto()
    """404: the pod is gone."""
    CONFLICT = auto()
    """409: bound, deleting, gated or of another uid; only a read of the pod tells which."""
    THROTTLED = auto()
    """429: nothing happened; ask again after `retry_after_s`."""
    DENIED = auto()
    """401 or 403 after one renewal of the credentials: nothing happened."""
    REJECTED = auto()
    """Another definite 4xx (400, 422, a webhook's refusal): nothing happened."""
    NOT_SENT = auto()
    """The connection could not be opened: nothing happened."""
    UNKNOWN = auto()
    """5xx, timeout, reset: it may have been bound, may still be, or not."""
    DELEGATED = auto()
    """Somebody else was asked to bind and says that it did: a read of the pod tells, and `message` if it did not."""


class BindRequest(msgspec.Struct, frozen=True):
    """One pod to one node. The uid is sent as a precondition: an old decision never binds a new pod of the same name."""

    namespace: str
    name: str
    uid: str
    node: str
    annotations: Mapping[str, str] = msgspec.field(default_factory=dict)
    is_void: Callable[[], bool] = lambda: False
    """Asked once more by whoever has made the request wait after it was decided to send it: True, it must not be sent."""


class BindReply(msgspec.Struct, frozen=True):
    """The answer to one POST; `message` is the server's sentence, truncated."""

    answer: BindAnswer
    retry_after_s: float = 0.0
    message: str = ""


class PodTruth(msgspec.Struct, frozen=True):
    """What a consistent read of one pod says about where it is."""

    uid: str
    node: str
    """Empty while unbound."""
    is_deleting: bool
    is_gated: bool


class Binder(Protocol):
    """Posts bindings and reads pods; never retries by itself: the outcome machine in `cycle` decides that."""

    async def post(self, request: BindRequest, *, timeout_s: float) -> BindReply:
        """One POST with a server-side deadline (`?timeout=`) of `timeout_s`. Never raises for anything a server can do."""
        ...

    async def read(self, namespace: str, name: str, *, timeout_s: float) -> PodTruth | None:
        """A consistent read. None: no such pod. Raises UnreachableError when no definite answer came."""
        ...


class UnreachableError(Exception):
    """The API server gave no definite answer to a read."""


class ObjectRef(msgspec.Struct, frozen=True):
    """Names one API object, in events and in logs."""

    kind: str
    namespace: str
    name: str
    uid: str
    api_version: str = "v1"


def pod_ref(pod: Pod) -> ObjectRef:
    """The pod as events, conditions and writes name it."""
    return ObjectRef("Pod", pod.namespace, pod.name, pod.uid)


class Event(msgspec.Struct, frozen=True):
    """An events.k8s.io/v1 Event in our own words. `note` is cut at 1,024 bytes, as upstream."""

    regarding: ObjectRef
    type: str
    """Normal or Warning."""
    reason: str
    action: str
    note: str
    reporter: str
    """The schedulerName that speaks: events say who decided."""
    related: ObjectRef | None = None
    """Another object the event is about, such as the pod for which this one was preempted."""


class EventSink(Protocol):
    """Takes events without waiting; may aggregate, delay and, when full, drop and count them. Never slows a bind."""

    def record(self, event: Event) -> None: ...


class Condition(msgspec.Struct, frozen=True):
    """The PodScheduled condition of a pod that could not be placed."""

    status: str
    reason: str
    """Unschedulable, SchedulingGated or SchedulerError, unless a plugin has given another one (`Status.condition_reason`)."""
    message: str
    type: str = "PodScheduled"
    nominated_node: str | None = None
    """status.nominatedNodeName, written along; empty takes it away, None leaves it as it is."""


class ConditionWriter(Protocol):
    """Writes pod conditions in the background, newest per pod only; droppable, counted, never slowing a bind."""

    def write(self, pod: ObjectRef, condition: Condition, lease: LeaseHolder) -> None:
        """`lease`: of the pod's domain; nothing is sent while it is not held."""
        ...

    def drop(self, uid: str) -> None:
        """What has not been written of this pod is not true any more: it has a node."""
        ...

    def end_nomination(self, uid: str) -> None:
        """The pod is promised its node no more: a nomination that is not written yet never is, one on its way is taken back."""
        ...


class WriteAnswer(Enum):
    """What one write to a pod is known to have done."""

    DONE = auto()
    GONE = auto()
    """There is no pod of this name and uid any more."""
    THROTTLED = auto()
    """429: nothing happened; ask again after `retry_after_s`."""
    REFUSED = auto()
    """Another definite answer (403, 422, a webhook): nothing happened."""
    UNKNOWN = auto()
    """5xx, timeout, reset: it may have been done. Safe to send again: it names the pod's uid."""


class WriteReply(msgspec.Struct, frozen=True):
    """The answer to one write; `message` is the server's sentence, truncated."""

    answer: WriteAnswer
    retry_after_s: float = 0.0
    message: str = ""


class PodWriter(Protocol):
    """What preemption writes.

    Each call is one request with the pod's uid as precondition, and a deadline that the server keeps too. So a write
    that a lost leader left behind removes no victim. Never raises for anything a server can do.
    """

    async def mark_victim(self, pod: ObjectRef, message: str, *, timeout_s: float) -> WriteReply:
        """Adds the condition DisruptionTarget, reason PreemptionByScheduler."""
        ...

    async def delete(self, pod: ObjectRef, *, timeout_s: float) -> WriteReply:
        """Deletes the pod with its own grace period."""
        ...

    async def clear_nomination(self, pod: ObjectRef, *, timeout_s: float) -> WriteReply:
        """Takes status.nominatedNodeName away."""
        ...


class LeaseHolder(Protocol):
    """Leadership of one domain, judged by the local monotonic clock only."""

    def may_bind(self) -> bool:
        """True while the lease is held and its local deadline has not passed. Asked immediately before every bind POST (I9)."""
        ...


class VolumeAnswer(Enum):
    """What one write to a volume or a claim is known to have done."""

    DONE = auto()
    """Written; `VolumeReply.version` is the object's new version."""
    CONFLICT = auto()
    """409: the object has changed since the version that was named, or has another uid."""
    NOT_FOUND = auto()
    REFUSED = auto()
    """Another definite answer (403, 422, a webhook): nothing happened."""
    UNKNOWN = auto()
    """429, 5xx, timeout, reset: not known to have been written. Safe to send again: it names the version it changes."""


class VolumeReply(msgspec.Struct, frozen=True):
    """The answer to one write; `message` is the server's sentence, truncated."""

    answer: VolumeAnswer
    version: Version = NO_VERSION
    """resourceVersion after the write; NO_VERSION where it is not known."""
    message: str = ""


class VolumeWriter(Protocol):
    """Writes what the scheduler decided about volumes; the persistent volume controller and provisioners do the rest.

    Each write is one PATCH with uid and resourceVersion as preconditions. So a decision made of an older object never
    overwrites a newer one, and a repeated write does no harm. Never raises for anything a server can do.
    """

    async def bind_volume(
        self, volume: ObjectRef, version: Version, claim: ObjectRef, *, claim_version: Version, is_by_scheduler: bool
    ) -> VolumeReply:
        """Sets spec.claimRef of a volume; `is_by_scheduler`: notes that no user had bound it (bound-by-controller)."""
        ...

    async def select_node(self, claim: ObjectRef, version: Version, node: str) -> VolumeReply:
        """Names the node for which a claim's volume is to be provisioned (volume.kubernetes.io/selected-node)."""
        ...


class ExtenderTrust(msgspec.Struct, frozen=True):
    """How an https extender is trusted, and who we are to it. PEM; data goes before files."""

    is_insecure: bool = False
    """Takes any certificate."""
    server_name: str = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    ca_data: bytes = b""
    cert_data: bytes = b""
    key_data: bytes = b""


class ExtenderSettings(msgspec.Struct, frozen=True):
    """One HTTP extender, as kube-scheduler's configuration has it. An empty verb is not asked."""

    url: str
    filter_verb: str = ""
    prioritize_verb: str = ""
    preempt_verb: str = ""
    bind_verb: str = ""
    weight: int = 1
    timeout_s: float = 5.0
    is_node_cache_capable: bool = False
    """It knows the nodes: it is sent their names only."""
    managed_resources: frozenset[str] = frozenset()
    """It is asked about pods that request one of these only; empty: about every pod."""
    is_ignorable: bool = False
    trust: ExtenderTrust = ExtenderTrust()


class ExtenderError(Exception):
    """An extender gave no usable answer; the message names the extender, the verb and what was wrong."""

    def __init__(self, message: str, *, was_sent: bool = True) -> None:
        super().__init__(message)
        self.was_sent = was_sent
        """False: the extender has certainly not seen the request."""


class ExtenderClient(Protocol):
    """HTTP to one extender."""

    settings: ExtenderSettings

    async def post(self, verb: str, body: bytes, *, answer_bytes_max: int) -> bytes:
        """The body of a 200 within the extender's timeout. Raises ExtenderError for anything else."""
        ...

    async def close(self) -> None: ...


class Documents(Protocol):
    """Objects as the API server has them, whole: what extenders are sent."""

    async def pod(self, namespace: str, name: str) -> bytes | None:
        """The pod's JSON; None: no such pod. Raises UnreachableError."""
        ...

    def node(self, name: str) -> bytes:
        """The node's JSON, without what only the API server reads; the bare name for a node that is not kept."""
        ...
