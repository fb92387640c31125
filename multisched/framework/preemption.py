"""What preemption is decided with, and the value that comes of it.

A PostFilter plugin gives the attempt's `DryRun` a rule. The rule says which pods may be displaced, which are given back
first, and what displacing the rest costs. The dry run answers with the rows on which the pod would fit so, the cost,
and the victims. Nothing is written: what is to be done, a `Preemption`, leaves the cycle as a value, and the shell
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

NOBODY: Final = np.iinfo(np.int64).max
"""The priority where no pod stands: more than any pod's, so that nothing can displace it."""

Costs = NDArray[np.float64]
"""float64[criteria, rows]: the first criterion decides most; less is better."""


class LabelSet(NamedTuple):
    """Namespace and labels, which many pods share; those who differ in volumes or affinity do not share it."""

    namespace: str
    labels: Mapping[str, str]
    one: Pod
    """One of these pods."""


class Nomination(NamedTuple):
    """A pod, and the node that is kept for it until its victims are gone."""

    pod: Pod
    node: str


class Preemption(msgspec.Struct, frozen=True):
    """Victims to be removed, for one pod, or for several that are to start together.

    Victims may stand where nobody is nominated: the rest of a gang that goes whole, or pods whose quota gives room back.
    """

    victims: Mapping[str, tuple[Pod, ...]]
    """Node -> its victims, the most important first; those that are being deleted already are among them."""
    nominations: tuple[Nomination, ...]
    """The preemptors, one at least."""
    plugin: str
    rank: int | None = None
    """Pods of a lower priority than this leave the preemptors their places meanwhile; None: than their own."""
    group: str = ""
    """What the preemptors are together, namespace/name, for events; empty for a single pod."""

    @property
    def every_victim(self) -> tuple[Pod, ...]:
        """Those of all nodes, node by node."""
        return tuple(victim for victims in self.victims.values() for victim in victims)

    def node_of(self, uid: str) -> str:
        """The node that is kept for this preemptor; empty for any other pod."""
        return next((node for pod, node in self.nominations if pod.uid == uid), "")


def preemption_of_one(pod: Pod, node: str, victims: tuple[Pod, ...], plugin: str) -> Preemption:
    """One pod is to have the place of others on one node."""
    return Preemption({node: victims}, (Nomination(pod, node),), plugin)


class PlacedPods(Protocol):
    """The pods on some rows side by side, the most important first: entry [k, i] is the k-th pod on `rows[i]`.

    More important is the higher priority, then the earlier start (source: kube-scheduler 1.36, util.MoreImportantPod).

    Border: the state keeps them (`PodColumns`), and no plugin sees the state.
    """

    rows: Rows
    priority: Int64
    """int64[k, rows]; NOBODY where fewer pods stand."""
    started_s: NDArray[np.float64]
    """float64[k, rows]: seconds since the epoch; infinite for a pod that has not started."""

    @property
    def label_set(self) -> Int32:
        """int32[k, rows]: index into `label_sets`."""
        ...

    @property
    def label_sets(self) -> Sequence[LabelSet]:
        """Grows only; another list stands for other numbers."""
        ...

    def pod(self, k: int, i: int) -> Pod:
        """The k-th pod on `rows[i]`; IndexError where none stands."""
        ...


class DisplacementRule(Protocol):
    """Whom a pod may displace. What it says of a row must depend on that row's pods alone, on `below` and on `mark`.

    Answers are remembered by plugin, by the rule's type and by the class of the pod. What a rule reads of the pod, and
    no plugin signs, belongs into `mark`.

    Border: a plugin says it (`LowerPriority`), and the cycle sees no plugin.
    """

    mark: Hashable
    """What the answers depend on besides the pods; equal marks of one plugin's rules of one type, equal answers."""
    below: int
    """Pods of this priority or a higher one are never displaceable: rows where no other stands are not looked at."""

    def displaceable(self, pods: PlacedPods) -> Bools:
        """bool[k, rows]"""
        ...

    def first(self, pods: PlacedPods, displaceable: Bools) -> Bools:
        """bool[k, rows]: those that are given back before the other displaceable ones, if any leaves the pod its room."""
        ...

    def costs(self, pods: PlacedPods, victims: Bools, first: Bools, whole_gangs: Int64) -> Costs:
        """Of rows that have victims, each.

        `whole_gangs`: int64[rows]: gangs that go whole there, whose members elsewhere are among `pods` then.
        """
        ...


class Candidates(msgspec.Struct, frozen=True):
    """What a dry run found on the rows that room could cure."""

    rows: Rows
    """Where the pod fits without its victims. A row may be there twice, with other victims."""
    costs: Costs
    victims_at: Callable[[int], Mapping[str, tuple[Pod, ...]]]
    """Position in `rows` -> its victims by node, the most important first. The row's own node comes first; others are of gangs
    that go whole."""
    undisplaceable: int
    """Rows on which nobody may be displaced."""
    refusals: Mapping[Status, int]
    """Why the pod does not fit even without all who may be displaced: the first refusing status, and on how many rows."""
    needless: Sequence[str] = ()
    """Nodes on which the pod fits although nobody is displaced: something else than room has refused it."""


class Fitting(NamedTuple):
    """Rows that take the pod as they are."""

    rows: Rows
    rejectors: frozenset[str]
    """The plugins that refuse the others."""


class DryRun(Protocol):
    """The filters of one failed attempt, run again on rows from which pods are taken away. Valid within the attempt.

    Border: the cycle does it (`AttemptDryRun`), and no plugin sees the cycle.
    """

    node_count: int
    """Rows of the domain: what the sentence counts to."""

    def candidates(self) -> Rows:
        """Rows refused in a way that room could cure: Unschedulable, not UnschedulableAndUnresolvable."""
        ...

    def fitting(self) -> Fitting:
        """Candidate rows that every Filter passes as they are, beside the pods nominated there: PreFilter refused the pod."""
        ...

    def fits_without(self, row: int, gone: Sequence[Pod]) -> bool:
        """Whether every Filter passes the row once these of its pods are gone, with the pods nominated there and without.

        Raises PluginFailure.
        """
        ...

    def displace(self, rule: DisplacementRule) -> Candidates:
        """On every candidate row: takes all the displaceable away, and gives back as many as leave the pod its room.

        The `first` before the others, the more important before the less. Members that their gangs cannot spare stay, as
        far as some row does without them and without any `first`. Else they may go, and the whole gang with them.
        Raises PluginFailure.
        """
        ...

    def displace_sparing(self, rule: DisplacementRule) -> Candidates:
        """The same, but members that their gangs cannot spare stay, whatever comes of it. Raises PluginFailure."""
        ...

    def rows_of_gangs(self, rule: DisplacementRule) -> Sequence[int]:
        """Candidate rows that could take the pod once some displaceable ones go that their gangs cannot spare.

        The cheapest first, as the pods of the row alone cost. Whether whole gangs may go is left open. Raises PluginFailure.
        """
        ...


class GroupVictims(msgspec.Struct, frozen=True):
    """What makes room for pods that start together."""

    victims: Mapping[str, tuple[Pod, ...]]
    """By node, the most important first."""
    nominations: tuple[Nomination, ...]
    """Each of the pods, with the node that it would get."""
    costs: NDArray[np.float64]
    """float64[criteria], as the rule counts them: less is better, the first decides most."""
    is_minimal: bool
    """Each victim is needed. False: the search was given up before that was known."""


class MemberVictims(Protocol):
    """Who goes for pods that start together, found for one of them after the other. Of one search.

    Border: a plugin says it, which knows who may go together.
    """

    def victims(self, pod: Pod, dry_run: DryRun) -> Sequence[Pod]:
        """For this one, as things stand once those before it have their places. Empty: nobody could make room for it."""
        ...

    def importance(self, units: Sequence[Sequence[Pod]]) -> Sequence[tuple[float, ...]]:
        """Of pods that go together, for each such unit: the greatest is given back first."""
        ...

    def cost(self, victims: Sequence[Pod]) -> Sequence[float]:
        """As `GroupVictims.costs`."""
        ...


class GroupDryRun(Protocol):
    """Pods that must all start, placed in thought while others are away. Valid within the attempt.

    A search yields where it pauses, and others may place pods. What it ends with was checked after its last pause.

    Border: the cycle does it (`GroupAttemptDryRun`), and no plugin sees the cycle.
    """

    name: str
    """Of the group, namespace/name."""

    def displace(self, rule: DisplacementRule) -> Generator[None, None, GroupVictims | None]:
        """Takes the displaceable away, on whatever nodes, and gives back as many as leave the pods their room.

        The order is that of `DryRun.displace`. None: the pods do not all fit even without them. Raises PluginFailure.
        """
        ...

    def displace_by_members(self, begin: Callable[[], MemberVictims]) -> Generator[None, None, GroupVictims | None]:
        """Asks for one pod after the other that finds no room, and gives back who is not needed once all have theirs.

        `begin`: a search from the beginning. A gang that loses more than it can spare counts as one. None: for some pod nobody
        could make room. Raises PluginFailure.
        """
        ...


class PreemptionsUnderWay(Protocol):
    """Who waits for victims to go."""

    def is_preempting(self, uid: str) -> bool:
        """True while a preemption for this pod is carried out: it must not be scheduled meanwhile."""
        ...


class NoPreemptions:
    """Where nothing carries out preemptions."""

    def is_preempting(self, uid: str) -> bool:
        return False


class Victims(Protocol):
    """The pods that this process has decided to remove, and whose deletion the watch has not shown yet (`Pod.is_victim`).

    Border: the shell decides when a removal has ended (`Removals`), and no plugin sees the shell.
    """

    version: int
    """Rises at each change."""

    def pods(self) -> Collection[Pod]: ...


class NoVictims:
    """Where nothing removes pods."""

    version = 0

    def pods(self) -> Collection[Pod]:
        return ()


@runtime_checkable
class PreemptingPlugin(Protocol):
    """A PostFilter plugin that counts how often it tried to make room, for the metric of that name.

    Extension point: metrics add up what the preempting plugins of a domain have tried.
    """

    name: str
    preemption_attempts: int


@runtime_checkable
class RankingPlugin(Protocol):
    """A PostFilter plugin whose nominated pods keep their places from pods of a higher priority, too.

    Extension point: asked about nominations that no preemption of this process has made, after a restart for instance.
    """

    name: str

    def nomination_rank(self, pod: Pod) -> int | None:
        """As `Preemption.rank`, of a pod that is nominated; None where the plugin has nothing to do with it."""
        ...
