"""Upstream's thirteen extension points, each a Protocol with its contract.

A plugin is an object with a `name` that implements one or more of these. In-tree plugins are vectorized: one call of
Filter or Score covers many rows. A plugin written for one node at a time is wrapped in `scalar.ScalarPlugin`.

Common rules. Everything except PreBind, Bind and `response` is synchronous: no I/O, no clock, no randomness, and
arguments are never changed (arrays are read-only). A plugin that raises, or returns the wrong shape,
costs its pod one attempt: the runner turns it into an Error status with the plugin's name.

Order in one attempt: PreEnqueue · QueueSort · PreFilter · Filter · (PostFilter) · PreScore · Score · NormalizeScore ·
commit · Reserve · Permit · PreBind · Bind · PostBind.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec

from multisched.framework.cycle_state import CycleState
from multisched.framework.dependency import Dependency
from multisched.framework.events import EventRegistration
from multisched.framework.node_view import Codes, NodeView, Rows, Scores
from multisched.framework.ports import Binder, BindReply, BindRequest
from multisched.framework.preemption import DryRun, GroupDryRun, Preemption
from multisched.framework.reasons import ReasonTable
from multisched.framework.status import SUCCESS, Status
from multisched.model.gang import TopologyLevel
from multisched.model.objects import Pod


class CycleView(msgspec.Struct):
    """The state of one scheduling attempt for plugins. `nodes` may be an overlay; never keep a reference past the call."""

    nodes: NodeView
    state: CycleState
    attempt: int = 1
    responses: Mapping[str, object] = msgspec.field(default_factory=dict)
    """Plugin name -> what its `response` returned in this attempt."""
    places: Rows | None = None
    """The domain's rows, before any narrowing by PreFilter, plus rows on which only the pods count; None: all rows of the table."""


class QueuedPod(msgspec.Struct, frozen=True):
    """A pod with its queue times, for QueueSort."""

    pod: Pod
    queued_s: float
    """Monotonic seconds at which it was last added to the queue: renewed after each failed attempt, as upstream."""
    attempts: int = 0


class QueuedGang(msgspec.Struct, frozen=True):
    """Pods of gangs that start together: one queue entry, one attempt, one result."""

    members: tuple[QueuedPod, ...]
    """In scheduling order: the most important first."""
    needs: Mapping[str, int]
    """Key of a gang -> number of its members that must find a node in this attempt."""
    gang_of: Mapping[str, str]
    """uid of a member -> key of its gang."""
    topology: tuple[TopologyLevel, ...] = ()
    """The topology levels that constrain their placement."""
    member_nodes: tuple[str, ...] = ()
    """Nodes of members that are already placed; only if there is a topology."""
    overdue: str = ""
    """How long the gang has been waiting, as a text for people, if longer than its timeout; else empty."""

    @property
    def name(self) -> str:
        """The keys of its gangs, for messages."""
        return " and ".join(sorted(self.needs))


Queued = QueuedPod | QueuedGang
"""The subject of one attempt."""


@runtime_checkable
class Plugin(Protocol):
    """Any object with a name; extension points are detected by the methods below."""

    name: str


@runtime_checkable
class PreEnqueuePlugin(Plugin, Protocol):
    """Decides whether a pod may enter the active queue."""

    def pre_enqueue(self, pod: Pod) -> Status:
        """Returns Success to admit the pod; a rejection parks it as gated until an event that this plugin registered."""
        ...


@runtime_checkable
class QueueSortPlugin(Plugin, Protocol):
    """Orders the active queue. Exactly one per domain."""

    def sort_key(self, entry: QueuedPod) -> tuple[Any, ...]:
        """Returns the sort key: the smallest is scheduled first. Must depend on the entry only."""
        ...


class PreFilterResult(msgspec.Struct, frozen=True):
    """Success, Skip (the plugin's Filter and AddPod/RemovePod are not called) or a rejection of the pod on all nodes.

    `nodes` narrows the search to these names; the sets of several plugins are intersected.
    """

    status: Status = SUCCESS
    nodes: frozenset[str] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.status, Status) or not isinstance(self.nodes, frozenset | None):
            raise TypeError("PreFilterResult takes a Status and a frozenset of node names, or None")


@runtime_checkable
class PreFilterPlugin(Plugin, Protocol):
    """Runs before any node is evaluated: computes what Filter needs, may narrow the search or reject the pod.

    Called in every attempt; only once per class for a plugin whose `depends_on` is not ATTEMPT and that signs what it reads of a
    pod.
    """

    def pre_filter(self, cycle: CycleView, pod: Pod) -> PreFilterResult: ...


@runtime_checkable
class PreFilterExtensions(Plugin, Protocol):
    """Updates PreFilter's state while an overlay adds or removes pods (nominated pods, preemption dry runs)."""

    def add_pod(self, cycle: CycleView, pod: Pod, other: Pod, row: int) -> Status:
        """Handles that `other` was added to `row` of `cycle.nodes`: updates this plugin's values in `cycle.state` (copy on write)."""
        ...

    def remove_pod(self, cycle: CycleView, pod: Pod, other: Pod, row: int) -> Status:
        """Handles that `other` was removed from `row`."""
        ...


@runtime_checkable
class FilterPlugin(Plugin, Protocol):
    """Decides which rows can take the pod.

    `Traits.wants_room_only` and `Traits.may_fail` apply to it.
    """

    depends_on: Dependency
    reasons: ReasonTable
    """Maps this plugin's codes to statuses."""

    def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        """Returns uint8[len(rows)]: 0 passes, else a code of `reasons`. A row's code must not depend on the other rows passed."""
        ...


class PostFilterResult(msgspec.Struct, frozen=True):
    """Success with the node to nominate, or a rejection whose reasons end the pod's message."""

    status: Status
    nominated_node: str | None = None
    """Empty: the nomination is cleared; None: it is left unchanged."""
    preemption: Preemption | None = None
    """The victims to evict; the shell evicts them."""
    rejectors: frozenset[str] = frozenset()
    """For a rejection: plugins whose events may help the pod, besides those that refused it before."""
    is_tried_again: bool = False
    """For a rejection of a single pod: the plugin's own answers for the pod have changed, so it is attempted again at once. The caller
    guarantees that this ends.
    """

    def __post_init__(self) -> None:
        if not isinstance(self.status, Status) or not isinstance(self.nominated_node, str | None):
            raise TypeError("PostFilterResult takes a Status and the name of a node, or None")
        if not isinstance(self.preemption, Preemption | None):
            raise TypeError("PostFilterResult takes a Preemption, or None")


class Refusals(Protocol):
    """Why no row was feasible, for PostFilter: node name -> the status of the first plugin that refused it.

    A Protocol because no plugin imports the cycle; implemented by the cycle (`cycle.preemption.post_filter`).
    """

    def status_of(self, node: str) -> Status:
        """Returns the node's status. If PreFilter refused the pod everywhere, its status for any name."""
        ...

    def nodes(self) -> Sequence[str]: ...

    def dry_run(self) -> DryRun:
        """Returns the dry run, for plugins that make room by evicting pods."""
        ...


@runtime_checkable
class PostFilterPlugin(Plugin, Protocol):
    """Called if no row is feasible: may make room (preemption, reclaim). The first plugin that succeeds ends the chain.

    Called again if its dry run was interrupted (`DryRun`).
    """

    def post_filter(self, cycle: CycleView, pod: Pod, refusals: Refusals) -> PostFilterResult: ...


@runtime_checkable
class GroupPostFilterPlugin(Plugin, Protocol):
    """Called if pods that must start together do not all find a row: PostFilter for a group (upstream: PodGroupPostFilter)."""

    def post_filter_group(
        self, cycle: CycleView, pods: Sequence[Pod], dry_run: GroupDryRun
    ) -> Generator[None, None, PostFilterResult]:
        """Searches for victims. `pods`: those that must all start, with their nominated nodes. Success has a preemption for all of them.

        A generator: it passes on the pauses of the dry run (`found = yield from dry_run.displace(rule)`). During a
        pause other pods may be added or removed.
        """
        ...


@runtime_checkable
class PreScorePlugin(Plugin, Protocol):
    """Runs before scoring, with the feasible rows. Skip leaves out this plugin's Score.

    For a plugin whose `depends_on` is not ATTEMPT, it runs once per class of pods and must depend on the pod alone: it gets all rows
    instead of the feasible ones, unless the plugin has `Traits.reads_feasible` (`CacheKeyPlugin`).
    """

    def pre_score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Status: ...


@runtime_checkable
class ScorePlugin(Plugin, Protocol):
    """Scores feasible rows."""

    depends_on: Dependency

    def score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        """Returns int64[len(rows)]: raw scores, in 0..MAX_SCORE unless NormalizeScore maps them there.

        A row's score must not depend on the other rows passed. A plugin whose `depends_on` is not ATTEMPT may be called
        for rows that did not pass Filter. Its scores for those are not used.
        """
        ...


@runtime_checkable
class NormalizeScorePlugin(Plugin, Protocol):
    """Maps the raw scores of all feasible rows of this attempt to 0..MAX_SCORE."""

    def normalize_score(self, cycle: CycleView, pod: Pod, raw: Scores) -> Scores:
        """Returns the normalized scores, int64[feasible rows] like `raw`, which must not be changed.

        A plugin that scales in proportion to the largest uses `normalize.ByLargest` instead: same results, cheaper.
        """
        ...


@runtime_checkable
class ReservePlugin(Plugin, Protocol):
    """Updates a plugin's own accounts when a pod is assumed on a node."""

    def reserve(self, cycle: CycleView, pod: Pod, node: str) -> Status:
        """Reserves. After a rejection everything reserved so far is unreserved in reverse order, and the pod is forgotten."""
        ...

    def unreserve(self, cycle: CycleView, pod: Pod, node: str) -> None:
        """Undoes `reserve`. Idempotent, never fails, and may be called without a preceding `reserve`."""
        ...


class PermitResult(msgspec.Struct, frozen=True):
    """Allow at once (Success), reject, or Wait for at most `timeout_s` seconds."""

    status: Status
    timeout_s: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.status, Status) or not isinstance(self.timeout_s, int | float):
            raise TypeError("PermitResult takes a Status and a number of seconds")
        if not self.timeout_s >= 0:
            raise ValueError(f"PermitResult: timeout_s must be >= 0, got {self.timeout_s}")


@runtime_checkable
class PermitPlugin(Plugin, Protocol):
    """The last gate before binding: allows, rejects or holds an assumed pod."""

    def permit(self, cycle: CycleView, pod: Pod, node: str) -> PermitResult: ...


@runtime_checkable
class PreBindPlugin(Plugin, Protocol):
    """Work that must be done before the pod is bound, for instance on a volume. Runs in a task per pod."""

    async def pre_bind(self, cycle: CycleView, pod: Pod, node: str) -> Status:
        """Does the work; may await. After a rejection or an exception the pod is unreserved and forgotten.

        Return `Status.denied` if the API server permanently refused a write: if that repeats, the pod is quarantined.
        """
        ...


@runtime_checkable
class PreBindPreFlightPlugin(Plugin, Protocol):
    """Tells in advance whether PreBind has work for this pod."""

    def pre_bind_pre_flight(self, cycle: CycleView, pod: Pod, node: str) -> Status:
        """Returns Skip if PreBind need not be called for this pod."""
        ...


@runtime_checkable
class BindPlugin(Plugin, Protocol):
    """Posts the binding. The first plugin that does not return None handles the pod; the caller resolves the outcome.

    The caller sets a timer, unless the plugin has `Traits.keeps_deadline`.
    """

    async def bind(self, binder: Binder, request: BindRequest, *, timeout_s: float) -> BindReply | None:
        """Makes one attempt at binding to `request.node`, never to another node. None: the next Bind plugin is called."""
        ...


@runtime_checkable
class PostBindPlugin(Plugin, Protocol):
    """Called after a pod was bound; cannot change the result."""

    def post_bind(self, cycle: CycleView, pod: Pod, node: str) -> None: ...


@runtime_checkable
class EnqueueExtensions(Plugin, Protocol):
    """Names the events that may make a pod refused by this plugin schedulable. Without it, any event requeues the pod.

    Additions and deletions of pending pods are the exception: they are delivered only in domains where a plugin
    registered them.
    """

    def events_to_register(self) -> Sequence[EventRegistration]: ...
