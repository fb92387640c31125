"""The thirteen extension points, each a Protocol with its contract, and the small extras around them.

A plugin is an object with a `name` that implements one or more of these. In-tree plugins are vectorised: Filter and
Score are asked once about many rows. A plugin written for one node at a time wraps itself in `scalar.ScalarPlugin`.

Common rules. Everything but PreBind, Bind, PostBind and `answer` is synchronous and pure: no I/O, no clock, no chance,
arguments are never changed (arrays are read-only). A plugin that raises, or answers with the wrong shape, costs its pod
one attempt: the runner turns it into an Error status with the plugin's name.

Order in one attempt: PreEnqueue · QueueSort · PreFilter · Filter · (PostFilter) · PreScore · Score · NormalizeScore ·
commit · Reserve · Permit · PreBind · Bind · PostBind.
"""

from __future__ import annotations

import random
import re
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import msgspec

from multisched.framework.cycle_state import CycleState
from multisched.framework.events import EventRegistration
from multisched.framework.ledger import Ledger
from multisched.framework.measures import Measures, Meters
from multisched.framework.node_view import Bools, Codes, NodeView, Rows, Scores
from multisched.framework.normalize import MAX_SCORE as MAX_SCORE
from multisched.framework.objects_view import ObjectsView
from multisched.framework.ports import Binder, BindReply, BindRequest, Clock, VolumeWriter
from multisched.framework.preemption import DryRun, NoPreemptions, Preemption, PreemptionsUnderWay
from multisched.framework.reasons import ReasonTable
from multisched.framework.status import SUCCESS, Status
from multisched.model.objects import Pod

if TYPE_CHECKING:
    from multisched.framework.moving import Mover

T = TypeVar("T")


class Dependency(Enum):
    """What a plugin's Filter codes or raw scores are computed from; says when a cached answer must be renewed."""

    NODE = "node"
    """The row's node object and the pod's class only."""
    NODES = "nodes"
    """Any node object and the number of nodes, no pods: renewed for all rows when a node object changes."""
    ROW = "row"
    """The row's node object and the pods on it."""
    CLUSTER = "cluster"
    """NODES and ROW together."""
    STAMP = "stamp"
    """What the plugin's stamp says (`StampPlugin`), and node objects: renewed for all rows when either moved."""
    ROW_AND_STAMP = "row and stamp"
    """ROW and STAMP together: renewed where a row changed, and for all rows when the stamp or a node object moved."""
    ATTEMPT = "attempt"
    """Anything else (an answer from outside, chance): asked for all rows in every attempt."""

    def __init__(self, value: str) -> None:
        self.reads_pods = value in ("row", "cluster", "stamp", "row and stamp", "attempt")
        """True if a pod that comes to a row or leaves it may change the answer there."""
        self.reads_all_nodes = value in ("nodes", "cluster")
        self.reads_stamp = value in ("stamp", "row and stamp")


class Isolation(Enum):
    """Where a plugin's Filter and Score run. In-tree plugins run inline; code that may hang should not."""

    INLINE = "inline"
    THREAD = "thread"
    PROCESS = "process"


class CycleView(msgspec.Struct):
    """What a plugin sees of one scheduling attempt. `nodes` may be an overlay; never keep a reference past the call."""

    nodes: NodeView
    state: CycleState
    attempt: int = 1
    answers: Mapping[str, object] = msgspec.field(default_factory=dict)
    """Plugin name -> what its `answer` returned in this attempt."""
    places: Rows | None = None
    """The domain's rows, whatever PreFilter narrowed them to, and those that only count for it; None: all rows of the table."""


class QueuedPod(msgspec.Struct, frozen=True):
    """A pod with its place in time, for QueueSort."""

    pod: Pod
    queued_s: float
    """Monotonic seconds at which it last came to the queue: renewed after each failed attempt, as upstream."""
    attempts: int = 0


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

    Asked in every attempt, unless the plugin says that it depends on less than ATTEMPT and signs what it reads of a pod:
    then once per class.
    """

    def pre_filter(self, cycle: CycleView, pod: Pod) -> PreFilterResult: ...


@runtime_checkable
class PreFilterExtensions(Plugin, Protocol):
    """Keeps PreFilter's state true while an overlay adds or removes pods (nominated pods, preemption dry runs, gangs)."""

    def add_pod(self, cycle: CycleView, pod: Pod, other: Pod, row: int) -> Status:
        """`other` now stands on `row` of `cycle.nodes`; update this plugin's values in `cycle.state` (copy on write)."""
        ...

    def remove_pod(self, cycle: CycleView, pod: Pod, other: Pod, row: int) -> Status:
        """`other` no longer stands on `row`."""
        ...


class Heed(msgspec.Struct, frozen=True):
    """Which other pods make a difference to what a plugin's Filter says of a pod."""

    mark: Hashable
    """What `matters` hangs on besides the other pod; equal marks, equal answers about pods that stand on nodes."""
    matters: Callable[[Pod], bool]
    """False: wherever that pod comes or goes, Filter says the same. Goes by its namespace, labels and spec."""
    stand_on: Callable[[Rows], Bools] | None = None
    """bool[rows]: where pods that matter may stand, for a plugin that keeps books of them; then `matters` is asked only
    about pods that stand nowhere, and may go by anything."""
    is_by_row: bool = False
    """Only pods on the row itself make a difference to what is said of it."""


@runtime_checkable
class HeedingPlugin(Plugin, Protocol):
    """A Filter that reads other pods and can tell which. Preemption then takes all others away without asking it again:
    a plugin without this is asked row by row, which takes a thousand times as long."""

    def heed(self, cycle: CycleView, pod: Pod) -> Heed: ...


@runtime_checkable
class FilterPlugin(Plugin, Protocol):
    """Says which rows can take the pod.

    One that depends on ROW and reads nothing of a row's pods but requested amounts, their number and host ports, so that
    a pod more never makes a refused row pass, says so by an attribute `wants_room_only = True`: preemption then looks at
    thousands of rows at once with it.

    One that has codes for Code.ERROR says so by `may_fail = True`: where no filter before it refuses such a row, the whole
    attempt fails with that status, as upstream's does.
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

    def __post_init__(self) -> None:
        if not isinstance(self.status, Status) or not isinstance(self.nominated_node, str | None):
            raise TypeError("PostFilterResult takes a Status and the name of a node, or None")
        if not isinstance(self.preemption, Preemption | None):
            raise TypeError("PostFilterResult takes a Preemption, or None")


class Refusals(Protocol):
    """Why no row was feasible, for PostFilter: node name -> the status of the first plugin that refused it."""

    def status_of(self, node: str) -> Status: ...

    def nodes(self) -> Sequence[str]: ...

    def dry_run(self) -> DryRun:
        """For plugins that would make room by taking pods away."""
        ...


@runtime_checkable
class PostFilterPlugin(Plugin, Protocol):
    """Called when no row is feasible: may make room (preemption, reclaim). The first that succeeds ends the chain."""

    def post_filter(self, cycle: CycleView, pod: Pod, refusals: Refusals) -> PostFilterResult: ...


@runtime_checkable
class PreScorePlugin(Plugin, Protocol):
    """Looks at the pod and the feasible rows before scoring. Skip leaves out this plugin's Score.

    A plugin that depends on less than ATTEMPT is asked once per class of pods, and must go by the pod alone: it is shown all
    rows in place of the feasible ones, unless it sets `reads_feasible` (`StampPlugin`).
    """

    def pre_score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Status: ...


@runtime_checkable
class ScorePlugin(Plugin, Protocol):
    """Says how good each feasible row is."""

    depends_on: Dependency

    def score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        """int64[len(rows)]: raw scores, 0..MAX_SCORE unless NormalizeScore brings them there.

        Must give the same score per row for any choice of rows. A plugin that depends on less than ATTEMPT may be asked
        about rows that did not pass Filter; what it says of those is not used.
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
    """Keeps a plugin's own books when a pod is assumed on a node."""

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
            raise ValueError(f"PermitResult: {self.timeout_s} s is no time to wait")


@runtime_checkable
class PermitPlugin(Plugin, Protocol):
    """The last gate before binding: allows, rejects or holds an assumed pod."""

    def permit(self, cycle: CycleView, pod: Pod, node: str) -> PermitResult: ...


@runtime_checkable
class PreBindPlugin(Plugin, Protocol):
    """Work that must be done before the pod is bound, for instance on a volume. Runs in a bind worker."""

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

    One that waits for nothing but `binder`, which ends by its deadline, may say `keeps_deadline = True`: others get a timer.
    """

    async def bind(self, binder: Binder, request: BindRequest, *, timeout_s: float) -> BindReply | None:
        """One attempt at binding to `request.node`, never another. None passes to the next Bind plugin."""
        ...


@runtime_checkable
class PostBindPlugin(Plugin, Protocol):
    """Told after a pod was bound; cannot change anything any more."""

    def post_bind(self, cycle: CycleView, pod: Pod, node: str) -> None: ...


@runtime_checkable
class EnqueueExtensions(Plugin, Protocol):
    """Names the events that may make a pod this plugin refused schedulable. A plugin without it is woken by any event.

    Pending pods that come and go are the exception: they are told only to domains in which some plugin registered that.
    """

    def events_to_register(self) -> Sequence[EventRegistration]: ...


@runtime_checkable
class SignPlugin(Plugin, Protocol):
    """What Filter and Score of this plugin read of a pod, beyond what always counts.

    Namespace and priority always count. Labels, annotations, owner and nominated node count only where a plugin puts
    them into its fragment: pods of a thousand Jobs differ in their labels and in nothing that places them. Pods with
    equal signatures get equal codes and raw scores. A Filter or Score plugin without `sign` makes each pod a class of
    its own. One that reads nothing of a pod but its spec says so by an attribute `signs_spec_only = True`: its fragment
    is then made once per spec, which the pods of a workload share, and not for each pod.
    """

    def sign(self, pod: Pod) -> Hashable | None:
        """A hashable fragment; None: this pod cannot be signed."""
        ...


class TwoStamps(NamedTuple):
    """What a StampPlugin's answers hang on, apart for both sides. None: it has nothing to say there of such pods now.

    A class is begun anew when one side falls silent, or speaks.
    """

    filters: Hashable | None
    """For PreFilter, which says Skip where this is None, and Filter."""
    scores: Hashable | None
    """The same for PreScore and Score."""


@runtime_checkable
class StampPlugin(Plugin, Protocol):
    """A plugin whose answers hang on more than rows and nodes: counts of pods, objects, a ledger (DESIGN 4.3).

    It depends on `Dependency.STAMP` or `ROW_AND_STAMP`, signs its pods, and names by `stamp` what the rest hangs on, cheaply:
    it is asked in every attempt about a pod of each class it speaks about. While the stamp stands still its answers are
    kept. When it moved, PreFilter, Filter, PreScore and Score are asked again, in that order, about all rows.

    PreFilter's state stays in the class's CycleState from one attempt to the next, so a plugin may bring what it wrote up to
    date instead of making it anew. It is always asked about the pod at hand, whose signature is the class's. A plugin that
    sets `reads_feasible = True` has PreScore and Score asked again also when other rows became feasible, and Score about
    feasible rows only.
    """

    def stamp(self, cycle: CycleView, pod: Pod) -> Hashable | None:
        """Equal stamps: no reason for other answers. None: it has nothing to say of pods with this signature, now or ever.

        After None no point of Filter or Score is called for the class, which therefore costs nothing. With `TwoStamps` only that
        side is asked again whose stamp moved.
        """
        ...


@runtime_checkable
class TracingPlugin(Plugin, Protocol):
    """A StampPlugin on `Dependency.STAMP` that can tell which rows a moved stamp concerns: Filter is asked about those alone."""

    def moved_rows(self, cycle: CycleView, pod: Pod) -> Rows | None:
        """Rows of the table, ascending: all whose code may be another than when this was asked last. None: any row's may, as
        always for a state in `cycle.state` about which it was not asked yet.

        Asked after PreFilter; Filter's codes of a class are renewed where it says.
        """
        ...


@runtime_checkable
class GroupingPlugin(Plugin, Protocol):
    """A StampPlugin on `Dependency.STAMP` that goes by topology domains: it says the same of rows with the same labels.

    It is then asked about one row of each group in place of all. Its NormalizeScore, if it has one, sees one row of each group
    that has feasible rows, so it must go by which raw scores there are and not by how often; ByLargest will not do.
    """

    def groups_by(self, cycle: CycleView, pod: Pod) -> tuple[str, ...] | None:
        """The keys of all node labels by which its codes and raw scores differ; None: they differ by more than labels.

        The same for all pods of a class, as long as the stamp is not None.
        """
        ...


@runtime_checkable
class CatchUpPlugin(Plugin, Protocol):
    """A plugin that counts incrementally what many events may change at once: the first lists, a relist, a rollout.

    The shell lets it count ahead while no cycle runs, so that no pod's attempt has to do it all. Filter and the other points
    must still be right whenever they are asked.
    """

    def catch_up(self) -> bool:
        """Counts a piece, some ten milliseconds' worth; True if there is more. Cheap when nothing changed."""
        ...


@runtime_checkable
class AskingPlugin(Plugin, Protocol):
    """A plugin whose Filter or Score needs an answer from outside. Those must depend on `Dependency.ATTEMPT`.

    The cycle stops after all other filters; the shell awaits `answer` within `answer_timeout_s` while other cycles go
    on; then this plugin's Filter and Score run with `cycle.answers[self.name]`. At commit Filter runs again on a row that
    changed meanwhile; a plugin whose answer does not cover such a row has `recheck`, with Filter's signature, for that.
    """

    answer_timeout_s: float

    def ask(self, cycle: CycleView, pod: Pod, rows: Rows) -> object | None:
        """The question about the rows that passed so far, self-contained (no views); None: no answer needed."""
        ...

    def answer(self, question: object) -> Awaitable[object]:
        """Asks outside. An exception or timeout is this plugin's Error status for the pod."""
        ...


@runtime_checkable
class TellingPlugin(Plugin, Protocol):
    """A plugin that knows more of a node than a score can say: `explain` repeats it."""

    def tell(self, pod: Pod, row: int) -> str:
        """What it knows of the row for the pod as things are now, as the end of a sentence; empty: nothing."""
        ...


@runtime_checkable
class HandoverPlugin(Plugin, Protocol):
    """A plugin that learned more than its configuration and the cluster say: a rehearsal takes it over, to answer as it would."""

    def hand_over(self) -> object:
        """What another instance with the same args needs to say the same; immutable, for it is read in a thread. Cheap."""
        ...

    def take_over(self, handed: object) -> None:
        """What `hand_over` of the other one gave; called before any node or pod is told."""
        ...


METRIC_SERIES_MAX = 256
"""Of one metric of one plugin."""
_METRIC_NAME = re.compile(r"[a-z][a-z0-9_]*\Z")


class PluginMetric(msgspec.Struct, frozen=True):
    """One metric at one moment, as plain numbers: the program adds the prefix `multisched_` and the label `domain`.

    Label values come from a set that is small and known, never names of pods, nodes or services. ValueError for what cannot be shown.
    """

    name: str
    """As `forecast_refits`; of a counter without `_total`, which is added. Beginning with a word of the plugin's own."""
    text: str
    values: Mapping[tuple[str, ...], float]
    """Label values -> number; what is missing is not shown."""
    labels: tuple[str, ...] = ()
    is_counter: bool = False
    """It only grows, from the start of the process; else a gauge."""

    def __post_init__(self) -> None:
        if not all(map(_METRIC_NAME.match, (self.name, *self.labels))) or "domain" in self.labels:
            raise ValueError(f"metric {self.name!r} {self.labels}: write a-z, 0-9 and _; the label domain is added")
        if len(self.values) > METRIC_SERIES_MAX:
            raise ValueError(f"metric {self.name}: {len(self.values)} series, more than {METRIC_SERIES_MAX}")
        if any(len(values) != len(self.labels) for values in self.values):
            raise ValueError(f"metric {self.name}: a value for each of {self.labels}")


@runtime_checkable
class MetricsPlugin(Plugin, Protocol):
    """A plugin that counts or knows something worth watching."""

    def metrics(self, now_s: float) -> Sequence[PluginMetric]:
        """Everything at this moment (epoch seconds), the same names each time. Asked at each scrape, on the loop: within milliseconds."""
        ...


@runtime_checkable
class HealthPlugin(Plugin, Protocol):
    """A plugin whose own work may fail while it goes on with what it has: `/readyz?verbose` says so beside a check that stays good."""

    def health(self, now_s: float) -> str:
        """How it goes, in one sentence; empty: nothing to say. Cheap."""
        ...


class InThread(Protocol):
    """Runs what computes for seconds beside the loop."""

    async def __call__(self, work: Callable[[], T]) -> T:
        """What `work` returns or raises. It is left to itself, and what it returns is dropped, when the caller is cancelled."""
        ...


class ProcessPorts(msgspec.Struct, frozen=True):
    """What an `Assistant` works with, in its own process."""

    meters: Meters
    in_thread: InThread


class Assistant(Protocol):
    """What a duty has made in a process of its own, so that nothing it computes takes the interpreter from the cycles.

    Made by a function (`module:name`) of its settings, which are pickled, and of ProcessPorts. The process has a loop, low priority
    and a bound on its memory; it ends with the program, whatever it does.
    """

    async def answer(self, question: Any) -> object:
        """To one question at a time; both are pickled. What it raises ends the process; a refusal is better a value."""
        ...


class DutyProcessError(Exception):
    """The process of a duty died, was killed or raised; the next question finds a new one, which remembers nothing."""


class DutyProcess(Protocol):
    """The duty's end of it."""

    async def ask(self, question: object) -> Any:
        """What the assistant answers. Starts the process if there is none, and kills it when the caller is cancelled.

        Raises DutyProcessError.
        """
        ...


class DutyPorts(msgspec.Struct, frozen=True):
    """What a background duty works with: time, chance, a thread, processes, and hands to move pods with."""

    clock: Clock
    rng: random.Random
    in_thread: InThread
    process: Callable[[str, object], DutyProcess] | None = None
    """(`module:name` of the function, its settings) -> a process, not yet started, which ends with the duty at the latest. None:
    there are none, as in virtual time; whoever would ask computes by `in_thread`."""
    mover: Mover | None = None
    """None where nothing may be moved."""


@runtime_checkable
class DutyPlugin(Plugin, Protocol):
    """A plugin with a duty of its own beside the cycles, such as learning from history.

    The shell starts it once nodes and pods have been listed, and keeps it running: one that raises or returns is told and begun
    again after a while. It shares the loop with everything else: it may wait as it likes, and computes for milliseconds at a time
    only.
    """

    async def carry_out(self, ports: DutyPorts) -> None:
        """Until cancelled."""
        ...


class WaitingPods(Protocol):
    """Pods held by Permit, for plugins that decide about several at once (coscheduling)."""

    def waiting(self) -> Sequence[Pod]:
        """Pods of this domain that wait now."""
        ...

    def allow(self, uid: str, plugin: str) -> bool:
        """This plugin's wait for that pod is over; False if it does not wait. Binding starts when no plugin waits."""
        ...

    def reject(self, uid: str, plugin: str, reason: str) -> bool:
        """The pod is unreserved, forgotten and requeued; False if it does not wait."""
        ...


class PluginContext(msgspec.Struct, frozen=True):
    """What a plugin may keep from its construction: read views and the two ways to act on others."""

    domain: str
    nodes: NodeView
    waiting_pods: WaitingPods
    hold: Ledgers
    """Where a plugin registers the ledgers it owns."""
    objects: ObjectsView
    """Services, volumes, claims, …: the kinds that enabled plugins declare by `reads_objects`; see objects_view."""
    volume_writer: VolumeWriter | None = None
    """How VolumeBinding's PreBind writes; None where nothing may be written (what-if, conformance)."""
    preemptions: PreemptionsUnderWay = msgspec.field(default_factory=NoPreemptions)
    """Whose victims are being removed at this moment."""
    measures: Measures | None = None
    """How a plugin comes to what is measured; None where nobody may be asked (what-if, conformance)."""
    rows: Callable[[], Rows] | None = None
    """The domain's rows as they are now, ascending; None: all rows of the table."""
    scheduler_names: frozenset[str] | None = None
    """The schedulerNames that the domains of this program serve, all together; None: every name is one of them."""


class Ledgers(Protocol):
    """The ledgers of the process, shared by all domains."""

    def register(self, ledger: Ledger) -> Ledger:
        """Adds the ledger, or returns the one already registered under its name."""
        ...
