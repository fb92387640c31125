"""The interfaces of preemption, and the value that is its result.

A PostFilter plugin passes a rule to the attempt's `DryRun`. The rule says which pods may be displaced, which are
reprieved first, and what displacing the others costs. The dry run returns the rows on which the pod would then fit,
with costs and victims. Nothing is written: the result, a `Preemption`, leaves the cycle as a value, and the shell
carries it out (`shell/preemptor.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Hashable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, runtime_checkable

import msgspec
import numpy as np
from numpy.typing import NDArray

from multisched.framework.node_view import Bools, Int32, Int64, Rows
from multisched.framework.status import Status
from multisched.model.objects import Pod

ABOVE_EVERY_PRIORITY: Final = np.iinfo(np.int64).max
"""Priority of an empty entry: above every pod's, so that it is never displaceable."""

Costs = NDArray[np.float64]
"""float64[criteria, rows]: earlier criteria take precedence; less is better."""


class LabelSet(NamedTuple):
    """Namespace and labels, shared by many pods. Pods that differ in volumes or affinity have different label sets."""

    namespace: str
    labels: Mapping[str, str]
    one: Pod
    """One of these pods."""


class Nomination(NamedTuple):
    """A pod, and the node nominated for it until its victims are deleted."""

    pod: Pod
    node: str


class Preemption(msgspec.Struct, frozen=True):
    """The victims to evict for one pod, or for several that start together.

    Victims may be on nodes without a nomination: other members of a gang that is evicted whole, or pods whose quota is
    reclaimed.
    """

    victims: Mapping[str, tuple[Pod, ...]]
    """Node -> its victims, most important first, including victims that are already being deleted."""
    nominations: tuple[Nomination, ...]
    """The preemptors, at least one."""
    plugin: str
    rank: int | None = None
    """Pods below this priority respect the nominations; None: pods below the preemptor's own priority."""
    group: str = ""
    """Name of the group of preemptors, namespace/name, for events; empty for a single pod."""

    @property
    def every_victim(self) -> tuple[Pod, ...]:
        """The victims of all nodes, node by node."""
        return tuple(victim for victims in self.victims.values() for victim in victims)

    def node_of(self, uid: str) -> str:
        """Returns the node nominated for this preemptor; empty for any other pod."""
        return next((node for pod, node in self.nominations if pod.uid == uid), "")


def preemption_of_one(pod: Pod, node: str, victims: tuple[Pod, ...], plugin: str) -> Preemption:
    """Returns the preemption of victims on one node for one pod."""
    return Preemption({node: victims}, (Nomination(pod, node),), plugin)


class PlacedPods(Protocol):
    """The pods on some rows in columns, most important first: entry [k, i] is the k-th pod on `rows[i]`.

    A pod with higher priority is more important, then the one that started earlier (source: kube-scheduler 1.36,
    util.MoreImportantPod).

    A Protocol because no plugin imports the state; implemented by the state (`PodColumns`).
    """

    rows: Rows
    priority: Int64
    """int64[k, rows]; ABOVE_EVERY_PRIORITY if the row has fewer pods."""
    started_s: NDArray[np.float64]
    """float64[k, rows]: seconds since the epoch; infinite for a pod that has not started."""

    @property
    def label_set(self) -> Int32:
        """int32[k, rows]: index into `label_sets`."""
        ...

    @property
    def label_sets(self) -> Sequence[LabelSet]:
        """Only grows; a new list object means a new numbering."""
        ...

    def pod(self, k: int, i: int) -> Pod:
        """Returns the k-th pod on `rows[i]`. Raises IndexError if there is none."""
        ...

    def pause(self) -> None:
        """Must be called before each part of a computation over many pods or label sets.

        It may raise an exception that ends the search for now (see `DryRun`); the results of earlier parts should be kept.
        """
        ...


class DisplacementRule(Protocol):
    """Which pods a pod may displace. Its answers for a row must depend only on that row's pods, on `below` and on `mark`.

    Answers are cached by plugin, by the rule's type and by the class of the pod. Whatever else the rule reads of the
    pod must be part of `mark`.

    A Protocol because the cycle imports no plugin; implemented by a plugin (`LowerPriority`).
    """

    mark: Hashable
    """The inputs of the answers besides the pods: rules of one plugin and type with equal marks give equal answers."""
    below: int
    """Pods of this or a higher priority are never displaceable: rows that have only such pods are skipped."""

    def displaceable(self, pods: PlacedPods) -> Bools:
        """bool[k, rows]"""
        ...

    def first(self, pods: PlacedPods, displaceable: Bools) -> Bools:
        """Returns bool[k, rows]: those that are reprieved before the other displaceable ones, if the pod still fits."""
        ...

    def costs(self, pods: PlacedPods, victims: Bools, first: Bools, whole_gangs: Int64) -> Costs:
        """Returns the cost of each row; every row has victims.

        `whole_gangs`: int64[rows]: gangs that are evicted whole there; `pods` then includes their members on other
        rows.
        """
        ...


class Candidates(msgspec.Struct, frozen=True):
    """The result of a dry run on the rows where evictions could help."""

    rows: Rows
    """Where the pod fits without the victims. A row may occur twice, with different victims."""
    costs: Costs
    victims_at: Callable[[int], Mapping[str, tuple[Pod, ...]]]
    """Index into `rows` -> its victims by node, most important first. The row's own node comes first; the others have
    members of gangs that are evicted whole.
    """
    undisplaceable: int
    """Rows without a displaceable pod."""
    refusals: Mapping[Status, int]
    """Why the pod does not fit even without all displaceable pods: the first refusing status -> number of rows."""
    needless: Sequence[str] = ()
    """Nodes on which the pod fits without any eviction: it was refused for another reason than capacity."""

    def best(self) -> int:
        """Returns the index of the row with the lowest costs, of equal ones the first. There must be a row."""
        left = np.arange(len(self.rows))
        for criterion in self.costs:
            here = criterion[left]
            left = left[here == here.min()]
            if len(left) == 1:
                break
        return int(left[0])


class Fitting(NamedTuple):
    """Rows on which the pod fits without any eviction."""

    rows: Rows
    rejectors: frozenset[str]
    """The plugins that refused the other rows."""


class DryRun(Protocol):
    """The filters of one failed attempt, run again on rows without some of their pods. Valid within the call of PostFilter.

    A search over many rows may take longer than one step. It is then interrupted, other pods are scheduled, and PostFilter is
    called again with a new dry run, which knows the results of the rows that have not changed since. So PostFilter must change
    nothing before the dry run has answered. The candidate with the lowest costs has been tested in the last step.

    A Protocol because no plugin imports the cycle; implemented by the cycle (`AttemptDryRun`).
    """

    node_count: int
    """Rows of the domain, for the message."""
    candidate_count: int
    """Number of `candidates`, which costs less than the rows."""

    def candidates(self) -> Rows:
        """Returns the rows whose refusal evictions could resolve: Unschedulable, not UnschedulableAndUnresolvable."""
        ...

    def fitting(self) -> Fitting:
        """Returns the candidate rows that pass every Filter unchanged, with the pods nominated there. Used if PreFilter refused the pod."""
        ...

    def fits_without(self, row: int, removed: Sequence[Pod]) -> bool:
        """Reports whether the row passes every Filter without these of its pods, both with the pods nominated there and without.

        Raises PluginFailure.
        """
        ...

    def displace(self, rule: DisplacementRule) -> Candidates:
        """Removes all displaceable pods from every candidate row, and reprieves as many as possible while the pod still fits.

        `first` pods are reprieved before the others, more important ones before less important ones. Members that their
        gangs cannot spare are kept if some row fits without evicting them or any `first` pod. Otherwise they may be
        evicted, with their whole gang. Raises PluginFailure.
        """
        ...

    def displace_sparing(self, rule: DisplacementRule) -> Candidates:
        """Like `displace`, but never evicts members that their gangs cannot spare. Raises PluginFailure."""
        ...

    def rows_of_gangs(self, rule: DisplacementRule) -> Sequence[int]:
        """Returns candidate rows that would fit the pod if displaceable members that their gangs cannot spare were evicted.

        Cheapest first, counting only the pods of the row. Does not check whether the whole gangs may be evicted. Raises
        PluginFailure.
        """
        ...


class GroupVictims(msgspec.Struct, frozen=True):
    """The victims for pods that start together."""

    victims: Mapping[str, tuple[Pod, ...]]
    """Node -> victims, most important first."""
    nominations: tuple[Nomination, ...]
    """Each of the pods, with the node that it would get."""
    costs: NDArray[np.float64]
    """float64[criteria], as the rule counts them: less is better, earlier criteria take precedence."""
    is_minimal: bool
    """Each victim is needed. False: the search was stopped before that was known."""


class MemberVictims(Protocol):
    """Chooses the victims for pods that start together, one pod after the other. Belongs to one search.

    A Protocol because the plugin that implements it knows which pods may be evicted together.
    """

    @property
    def rule(self) -> DisplacementRule:
        """The rule by which it searches. What the rule reads of all pods is computed, with pauses, before the first search."""
        ...

    def victims(self, pod: Pod, dry_run: DryRun) -> Sequence[Pod]:
        """Returns the victims for this pod, given that the pods before it are placed. Empty: no eviction makes it fit."""
        ...

    def importance(self, units: Sequence[Sequence[Pod]]) -> Sequence[tuple[float, ...]]:
        """Returns the importance of each unit of pods that are evicted together: the greatest is reprieved first."""
        ...

    def cost(self, victims: Sequence[Pod]) -> Sequence[float]:
        """Returns the costs, as `GroupVictims.costs`."""
        ...


class GroupDryRun(Protocol):
    """A trial placement of pods that must all start, while other pods are removed. Valid within the attempt.

    A search yields at pauses, during which other pods may be placed. Its result was checked after the last pause.

    A Protocol because no plugin imports the cycle; implemented by the cycle (`GroupAttemptDryRun`).
    """

    name: str
    """NAMESPACE/NAME of the group."""

    def displace(self, rule: DisplacementRule) -> Generator[None, None, GroupVictims | None]:
        """Removes the displaceable pods from all nodes, and reprieves as many as possible while the group still fits.

        The order is that of `DryRun.displace`. None: the group does not fit even without them. Raises PluginFailure.
        """
        ...

    def displace_by_members(self, begin: Callable[[], MemberVictims]) -> Generator[None, None, GroupVictims | None]:
        """Chooses victims for each pod that does not fit, then reprieves those that are not needed once all pods are placed.

        `begin`: starts a new search. A gang that loses more than it can spare counts as one unit. None: some pod cannot
        be made to fit. Raises PluginFailure.
        """
        ...


class PreemptionsInProgress(Protocol):
    """The pods whose preemptions are in progress."""

    def is_preempting(self, uid: str) -> bool:
        """Reports whether a preemption for this pod is in progress: the pod must not be scheduled meanwhile."""
        ...


class NoPreemptions:
    """A `PreemptionsInProgress` of processes that preempt nothing."""

    def is_preempting(self, uid: str) -> bool:
        return False


class Victims(Protocol):
    """Pods that this process decided to evict and whose deletion the watch has not shown yet (`Pod.is_victim`).

    A Protocol because no plugin imports the shell; implemented by the shell (`Removals`), which decides when an eviction has ended.
    """

    version: int
    """Rises at each change."""

    def pods(self) -> Collection[Pod]: ...


class NoVictims:
    """A `Victims` of processes that evict nothing."""

    version = 0

    def pods(self) -> Collection[Pod]:
        return ()


@runtime_checkable
class PreemptingPlugin(Protocol):
    """A PostFilter plugin that counts its preemption attempts, for the metric of that name.

    Extension point; metrics sum up the attempts of a domain's preempting plugins.
    """

    name: str
    preemption_attempts: int


@runtime_checkable
class RankingPlugin(Protocol):
    """A PostFilter plugin whose nominated pods also keep their nodes from pods of a higher priority.

    Extension point; called for nominations without a preemption of this process, for example after a restart.
    """

    name: str

    def nomination_rank(self, pod: Pod) -> int | None:
        """Returns `Preemption.rank` for a nominated pod; None if the plugin does not handle the pod."""
        ...
