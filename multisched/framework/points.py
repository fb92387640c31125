"""Upstream's thirteen extension points, each a Protocol with its contract.

A plugin is an object with a `name` that implements one or more of these. In-tree plugins are vectorised: Filter and
Score are asked once about many rows. A plugin written for one node at a time wraps itself in `scalar.ScalarPlugin`.

Common rules. Everything but PreBind, Bind, PostBind and `response` is synchronous and pure: no I/O, no clock, no chance,
arguments are never changed (arrays are read-only). A plugin that raises, or answers with the wrong shape, costs its pod
one attempt. The runner turns it into an Error status with the plugin's name.

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
    """What a plugin sees of one scheduling attempt. `nodes` may be an overlay; never keep a reference past the call."""

    nodes: NodeView
    state: CycleState
    attempt: int = 1
    responses: Mapping[str, object] = msgspec.field(default_factory=dict)
    """Plugin name -> what its `response` returned in this attempt."""
    places: Rows | None = None
    """The domain's rows, whatever PreFilter narrowed them to, and those that only count for it; None: all rows of the table."""


class QueuedPod(msgspec.Struct, frozen=True):
    """A pod with its place in time, for QueueSort."""

    pod: Pod
    queued_s: float
    """Monotonic seconds at which it last came to the queue: renewed after each failed attempt, as upstream."""
    attempts: int = 0


class QueuedGang(msgspec.Struct, frozen=True):
    """Pods of gangs that start together: one entity in the queue, one attempt, one result."""

    members: tuple[QueuedPod, ...]
    """In the order in which they are decided: the most important first."""
    needs: Mapping[str, int]
    """Key of a gang -> how many of its members have to find a node in this attempt."""
    gang_of: Mapping[str, str]
    """uid of a member -> key of its gang."""
    topology: tuple[TopologyLevel, ...] = ()
    """Where they go together."""
    standing: tuple[str, ...] = ()
    """Nodes on which members stand already, where there is a topology."""
    overdue: str = ""
    """How long it has been waiting, for people, once that is longer than its timeout; empty before."""

    @property
    def name(self) -> str:
        """For messages: the keys of its gangs."""
        return " and ".join(sorted(self.needs))


Queued = QueuedPod | QueuedGang
"""What one attempt is about."""


@runtime_checkable
class Plugin(Protocol):
    """Anything with a name; extension points are recognised by the methods below."""

    name: str


@runtime_checkable
class PreEnqueuePlugin(Plugin, Protocol):
    """Decides whether a pod may enter the active queue at all."""

    def pre_enqueue(self, pod: Pod) -> Status:
        """Success admits; any rejection parks the pod as gated until an event this plugin registered."""
        ...


@runtime_checkable
class QueueSortPlugin(Plugin, Protocol):
    """Orders the active queue. Exactly one per domain."""

    def sort_key(self, entry: QueuedPod) -> tuple[Any, ...]:
        """Ascending: the smallest key is scheduled first. Must depend on the entry only."""
        ...


class PreFilterResult(msgspec.Struct, frozen=True):
    """Success, Skip (the plugin's Filter and AddPod/RemovePod are not called) or a rejection of the pod everywhere.

    `nodes` narrows the search to these names; several plugins' sets are intersected.
    """

    status: Status = SUCCESS
    nodes: frozenset[str] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.status, Status) or not isinstance(self.nodes, frozenset | None):
            raise TypeError("PreFilterResult takes a Status and a frozenset of node names, or None")


@runtime_checkable
class PreFilterPlugin(Plugin, Protocol):
    """Looks at the pod before any node: computes what Filter needs, may narrow the search or refuse the pod.

    Asked in every attempt. A plugin that depends on less than ATTEMPT and signs what it reads of a pod is asked once
    per class.
    """

    def pre_filter(self, cycle: CycleView, pod: Pod) -> PreFilterResult: ...


@runtime_checkable
class PreFilterExtensions(Plugin, Protocol):
    """Keeps PreFilter's state true while an overlay adds or removes pods (nominated pods, preemption dry runs)."""

    def add_pod(self, cycle: CycleView, pod: Pod, other: Pod, row: int) -> Status:
        """`other` now stands on `row` of `cycle.nodes`; update this plugin's values in `cycle.state` (copy on write)."""
        ...

    def remove_pod(self, cycle: CycleView, pod: Pod, other: Pod, row: int) -> Status:
        """`other` no longer stands on `row`."""
        ...


@runtime_checkable
class FilterPlugin(Plugin, Protocol):
    """Says which rows can take the pod.

    `Traits.wants_room_only` and `Traits.may_fail` are about it.
    """

    depends_on: Dependency
    reasons: ReasonTable
    """Turns this plugin's codes into statuses and sentences."""

    def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        """uint8[len(rows)]: 0 passes, else a code of `reasons`. Must give the same code per row for any choice of rows."""
        ...


class PostFilterResult(msgspec.Struct, frozen=True):
    """Success with the node to nominate, or a rejection whose reasons end the pod's message."""

    status: Status
    nominated_node: str | None = None
    """Empty: the pod loses its nomination; None: it stays as it is."""
    preemption: Preemption | None = None
    """Who must go for the pod; the shell removes them."""
    rejectors: frozenset[str] = frozenset()
    """Of a rejection: plugins whose events may help the pod, besides those that refused it before."""

    def __post_init__(self) -> None:
        if not isinstance(self.status, Status) or not isinstance(self.nominated_node, str | None):
            raise TypeError("PostFilterResult takes a Status and the name of a node, or None")
        if not isinstance(self.preemption, Preemption | None):
            raise TypeError("PostFilterResult takes a Preemption, or None")


class Refusals(Protocol):
    """Why no row was feasible, for PostFilter: node name -> the status of the first plugin that refused it.

    Border: the cycle has them (`cycle.preemption.post_filter`), and no plugin sees the cycle.
    """

    def status_of(self, node: str) -> Status:
        """Of a pod that PreFilter refused everywhere, its status for every name."""
        ...

    def nodes(self) -> Sequence[str]: ...

    def dry_run(self) -> DryRun:
        """For plugins that would make room by taking pods away."""
        ...


@runtime_checkable
class PostFilterPlugin(Plugin, Protocol):
    """Called when no row is feasible: may make room (preemption, reclaim). The first that succeeds ends the chain."""

    def post_filter(self, cycle: CycleView, pod: Pod, refusals: Refusals) -> PostFilterResult: ...


@runtime_checkable
class GroupPostFilterPlugin(Plugin, Protocol):
    """Called when pods that must start together do not all find a row: PostFilter for a group (upstream: PodGroupPostFilter)."""

    def post_filter_group(
        self, cycle: CycleView, pods: Sequence[Pod], dry_run: GroupDryRun
    ) -> Generator[None, None, PostFilterResult]:
        """`pods`: those that must all start, each with its nominated node. Success comes with a preemption for all of them.

        A generator: it hands on the pauses of the dry run (`found = yield from dry_run.displace(rule)`). During a pause other
        pods come and go.
        """
        ...


@runtime_checkable
class PreScorePlugin(Plugin, Protocol):
    """Looks at the pod and the feasible rows before scoring. Skip leaves out this plugin's Score.

    A plugin that depends on less than ATTEMPT is asked once per class of pods, and must go by the pod alone. It sees
    all rows in place of the feasible ones, unless `Traits.reads_feasible` (`CacheKeyPlugin`).
    """

    def pre_score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Status: ...


@runtime_checkable
class ScorePlugin(Plugin, Protocol):
    """Says how good each feasible row is."""

    depends_on: Dependency

    def score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        """int64[len(rows)]: raw scores, 0..MAX_SCORE unless NormalizeScore brings them there.

        Must give the same score per row for any choice of rows. A plugin that depends on less than ATTEMPT may be asked
        about rows that did not pass Filter. Its answers about those are not used.
        """
        ...


@runtime_checkable
class NormalizeScorePlugin(Plugin, Protocol):
    """Brings raw scores of all feasible rows of this attempt to 0..MAX_SCORE."""

    def normalize_score(self, cycle: CycleView, pod: Pod, raw: Scores) -> Scores:
        """int64[feasible rows] in, the same shape out; `raw` must not be changed.

        A plugin whose rule is "in proportion to the largest" uses `normalize.ByLargest` instead: same answers, cheaper.
        """
        ...


@runtime_checkable
class ReservePlugin(Plugin, Protocol):
    """Keeps a plugin's own account when a pod is assumed on a node."""

    def reserve(self, cycle: CycleView, pod: Pod, node: str) -> Status:
        """A rejection unreserves everything reserved so far, in reverse order, and forgets the pod."""
        ...

    def unreserve(self, cycle: CycleView, pod: Pod, node: str) -> None:
        """Undoes `reserve`. Idempotent, never fails, and may be called without `reserve` having been."""
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
        """May await. A rejection or an exception unreserves and forgets the pod.

        `Status.denied` for a write that the API server refused for good: the same again and again sets the pod aside.
        """
        ...


@runtime_checkable
class PreBindPreFlightPlugin(Plugin, Protocol):
    """Tells beforehand whether PreBind has work for this pod."""

    def pre_bind_pre_flight(self, cycle: CycleView, pod: Pod, node: str) -> Status:
        """Skip: PreBind is not called for this pod."""
        ...


@runtime_checkable
class BindPlugin(Plugin, Protocol):
    """Posts the binding. The first plugin that does not pass speaks for the pod; outcomes are resolved by the caller.

    It is given a timer, unless `Traits.keeps_deadline`.
    """

    async def bind(self, binder: Binder, request: BindRequest, *, timeout_s: float) -> BindReply | None:
        """One attempt at binding to `request.node`, never another. None passes to the next Bind plugin."""
        ...


@runtime_checkable
class PostBindPlugin(Plugin, Protocol):
    """Notified after a pod was bound; cannot change anything any more."""

    def post_bind(self, cycle: CycleView, pod: Pod, node: str) -> None: ...


@runtime_checkable
class EnqueueExtensions(Plugin, Protocol):
    """Names the events that may make a pod this plugin refused schedulable. A plugin without it is woken by any event.

    Pending pods that come and go are the exception: they reach only domains in which some plugin registered that.
    """

    def events_to_register(self) -> Sequence[EventRegistration]: ...
