"""GangRequests: the remote requests of plugins (such as extenders) about the members of a gang in one attempt, and their responses.

All members with a feasible node have their requests sent together, before the first member is assumed. If a member gets its first
feasible node only when others are placed, its requests are sent at that time, and the placed members stay assumed meanwhile, as during a
pause. A node that became feasible after the requests about a member were sent was not part of them, so it is refused (`NOT_ASKED`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from multisched.cycle.classes.cache import ClassCache
from multisched.cycle.classes.equivalence_class import EquivalenceClass
from multisched.cycle.classes.scores import NOWHERE
from multisched.cycle.preemption.nominated_pods import NominatedPodsFilter
from multisched.cycle.remote_responses import Choice, RemoteResponses
from multisched.cycle.results import Pause, Placed, RemoteRequest
from multisched.framework.gangs import GANG_PLUGIN
from multisched.framework.node_view import Bools, Rows, any_true
from multisched.framework.points import QueuedPod
from multisched.framework.runner import PluginFailure
from multisched.framework.status import Status
from multisched.model.objects import Pod
from multisched.state.cluster_cache import ClusterCache
from multisched.state.domain_rows import DomainRows

LATER_MAX: Final = 32
"""Maximum number of calls of `later` in one attempt that send requests. Further calls return False."""

RemoteRefusals = Sequence[tuple[str, Status]]
"""(node name, why it is refused) of nodes that pass all other filters: a remote plugin refused the node, or was not asked about it
(`NOT_ASKED`)."""
NOT_ASKED: Final = Status.unschedulable("node(s) became feasible while remote requests about others were in flight").by(
    GANG_PLUGIN
)
Answers = Mapping[str, object | PluginFailure]
Asking = Generator[Sequence[RemoteRequest] | Pause, Any, bool]
"""Yields remote requests and pauses."""


class Asked(msgspec.Struct, frozen=True):
    """The remote requests about one member; empty if no plugin has any."""

    requests: Sequence[RemoteRequest]
    rows: Rows
    generation: int
    rejectors: frozenset[str]
    """Plugins that refused the other rows when the requests were made. Events may have arrived for them during the wait."""


class GangRequests:
    """The requests of one attempt, with the responses."""

    def __init__(
        self,
        cache: ClusterCache,
        rows: DomainRows,
        classes: ClassCache,
        nominated: NominatedPodsFilter,
        remote: RemoteResponses,
    ) -> None:
        self._cache = cache
        self._rows = rows
        self._classes = classes
        self._nominated = nominated
        self._remote = remote
        self._asked: dict[str, Asked] = {}
        self._answers: dict[str, object | PluginFailure] = {}
        self._later: set[str] = set()
        """UIDs of members for which `later` was called in the current try."""
        self._rounds = 0
        self.are_any = remote.are_any
        """True if some plugin may have requests."""

    def of(self, uid: str) -> Asked | None:
        """Returns the requests about a member; None if plugins were not asked whether they have any."""
        return self._asked.get(uid)

    def before_all(self, members: Iterable[QueuedPod], is_pause_due: Callable[[], bool]) -> Asking:
        """Sends the requests about all members with a feasible node. Returns whether any were sent."""
        if not self.are_any:
            return False
        requests = list[RemoteRequest]()
        for entry in members:
            if is_pause_due():
                yield Pause()
            requests += self._note(entry)
        return (yield from self._ask(requests))

    def later(self, members: Iterable[QueuedPod], placed: Sequence[Placed]) -> Asking:
        """Sends the requests about members that have a feasible node now that others are placed. Returns whether any can be decided now."""
        self._rounds += 1
        if self._rounds > LATER_MAX:
            return False
        members = list(members)
        self._later.update(entry.pod.uid for entry in members)
        requests = [request for entry in members for request in self._note(entry)]
        if requests:
            yield Pause(placed)  # the caller keeps these members assumed while it waits for the responses
            yield from self._ask(requests)
        return any(entry.pod.uid in self._asked for entry in members)

    def forget_later(self) -> None:
        """Forgets the requests sent by `later`, because they depended on placed members. Called before each try."""
        for uid in self._later:
            self._asked.pop(uid, None)
        self._later.clear()

    def _ask(self, requests: Sequence[RemoteRequest]) -> Asking:
        if requests:
            answers: Answers = yield requests
            self._answers |= answers
        return bool(requests)

    def _note(self, entry: QueuedPod) -> Sequence[RemoteRequest]:
        """Records and returns the requests about a member. Records nothing if no node is feasible now."""
        pod, attempt = entry.pod, entry.attempts
        try:
            pod_class = self._classes.find(pod, attempt)
            if pod_class.refusal is not None or not any_true(pod_class.feasible):
                return ()
            requests = [replace(one, uid=pod.uid) for one in self._remote.requests(pod_class, pod)]
            blocked = self._nominated.blocked(pod_class, pod, attempt, everywhere=True)
        except PluginFailure:
            return ()  # reported when the member is decided
        self._asked[pod.uid] = _asked(requests, pod_class, blocked.values(), self._rows.generation)
        return requests

    def choice(
        self, pod: Pod, pod_class: EquivalenceClass, feasible: Bools, asked: Asked
    ) -> tuple[Choice, list[tuple[str, Status]]]:
        """Returns the rows that remain feasible after the responses, with their scores, and the refused nodes. Raises PluginFailure."""
        is_asked = np.isin(pod_class.rows, asked.rows)
        nodes = map(self._cache.nodes.node, pod_class.rows[feasible & ~is_asked].tolist())
        remote_refusals = [(node.name, NOT_ASKED) for node in nodes]
        feasible = feasible & is_asked
        if asked.generation != self._rows.generation:
            feasible &= self._rows.stayed_since(pod_class.rows, asked.generation)
        self._classes.score(pod_class)
        choice = Choice(pod_class.rows, feasible, np.where(feasible, pod_class.total, NOWHERE).astype(np.int64))
        said = {one.plugin.name: self._answers[one.key] for one in asked.requests if one.key in self._answers}
        view = replace(pod_class.view, responses=self._remote.settled(asked.requests, said))
        remote_refusals += self._remote.refuse(choice, view, pod)
        if any_true(choice.feasible):
            self._remote.add_scores(choice, view, pod)
        return choice, remote_refusals


def _asked(
    requests: Sequence[RemoteRequest], pod_class: EquivalenceClass, blocked: Iterable[Status], generation: int
) -> Asked:
    """`blocked`: why rows are refused when nominated pods are counted."""
    refusing = {column.plugin.name for column in pod_class.filters if any_true(column.codes != 0)}
    rejectors = frozenset(refusing.union(pod_class.narrowed_by, (status.plugin for status in blocked)))
    return Asked(requests, pod_class.rows[pod_class.feasible], generation, rejectors)
