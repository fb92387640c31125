"""Checks loans over the history of the API server (I17), by plain arithmetic. It uses no part of the loans.

Only the program writes annotations of pods by their status; a notice that is written by another path is forged. A binding is judged by
the pods that its sender knew of when it decided (`BindChecker`). What the lender needs is known by its waiting pods; which node a gang
needs is not known, so each of its pool counts.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import combinations
from typing import Any, Final

import orjson

from multisched.cluster.api.watch import WatchStream
from multisched.cluster.base.request import ApiRequest
from multisched.model.objects import CPU, Node, Pod
from multisched.model.wire import Response
from tests.kit.checkers.api.write_log import POD_PATH
from tests.kit.settings.setting import LOAN_DEADLINE_S, LOAN_GRACE_S, LOAN_NOTICE_S, LoanTerms
from tests.kit.world.gang_plans import ACK
from tests.kit.world.gang_workloads import POOL
from tests.kit.world.labels import LOAN
from tests.kit.world.loan_workloads import IDLE_REQUEST, NOTICE, ON_LOAN, OWN, RETRIES_LEFT
from tests.kit.world.pooled_workloads import CHECKPOINT

LATE_MAX_S: Final = 1.1
"""A notice may be shorter by so much: it counts from when it was sent, and the write may arrive later."""
KNOWN_S: Final = 3.0
"""An eviction is needless only if nothing needed it for so long: what ended last may not be known yet."""
BOUND_S: Final = 5.0
"""Time from a decision until its bind takes effect."""
MEASURED_S: Final = 65.0
"""Two steps of half a minute in which use is measured, after which the last one counts certainly."""
KEPT_FROM_HELD, KEPT_FROM_NEW = 10, 20
"""Percentages of a node that are kept for a rise of use before an hour of its use is known: pods on loan go only for the first, and
none is added into the second.
"""
WHOLE_SECOND_S: Final = 1.0
"""Start times and ends of notices have whole seconds."""
SPARED_RETRIES: Final = 1
COMPARED_MAX: Final = 10
"""With so many pods, every set of them is compared with the evicted one."""


@dataclass(slots=True)
class _Notice:
    """The notice on one pod."""

    due_s: float
    since_s: float
    """When the server stored a notice on the pod first."""


@dataclass(slots=True)
class _Workload:
    """What was seen of the pods of one workload."""

    evicted_s: dict[str, float] = field(default_factory=dict)
    """uid -> time of its eviction."""
    notices: int = 0
    withdrawn: int = 0


@dataclass(frozen=True, slots=True)
class _Choice:
    """The pods of a node when the first of them got a notice."""

    now_s: float
    pods: tuple[Pod, ...]


class LoanHistory:
    """A `server.Interceptor`."""

    def __init__(
        self,
        pods: Callable[[], Mapping[str, Pod]],
        nodes: Callable[[], Mapping[str, Node]],
        now_s: Callable[[], float],
        report_violation: Callable[[str], None],
        terms: Sequence[LoanTerms],
    ) -> None:
        """`now_s`: epoch seconds. `terms`: in file order."""
        self._pods, self._nodes, self._now_s, self._report = pods, nodes, now_s, report_violation
        self._schedulers = list(dict.fromkeys(f"{one.borrower}-scheduler" for one in terms))
        self._terms = {(f"{one.borrower}-scheduler", one.lent): one for one in terms}
        """(schedulerName, value of the label LOAN of the node) -> terms."""
        self._notices: dict[str, _Notice] = {}
        """uid -> the notice that the program wrote, and that is on the pod now."""
        self._workloads: dict[str, _Workload] = defaultdict(_Workload)
        self._removals: dict[str, Pod] = {}
        """Path of an eviction or deletion in progress -> its pod."""
        self._excess: dict[tuple[str, str], deque[tuple[float, int]]] = defaultdict(deque)
        """(node, schedulerName) -> times and the excess that there was at most, of the last KNOWN_S."""
        self._choices: dict[str, _Choice] = {}
        """Node -> the pods among which the first notices were chosen since `watch_choice`."""
        self._watched: set[str] = set()
        self._uses: dict[str, list[tuple[float, int]]] = {}
        """Node -> times and CPU that its pods use from then on."""
        self.judged = 0
        """Number of judged binds of borrowers."""

    # -- for scenarios -----------------------------------------------------------------------------------------------------

    def evicted(self, workload: str) -> int:
        """Returns how many of its pods were evicted."""
        return len(self._workloads[workload].evicted_s)

    def notices(self, workload: str) -> int:
        """Returns how many notices its pods got."""
        return self._workloads[workload].notices

    def withdrawn(self, workload: str) -> int:
        return self._workloads[workload].withdrawn

    def with_notice(self, workload: str) -> int:
        """Returns how many of its pods that are not being deleted have a notice now."""
        return sum(pod.uid in self._notices for pod in self._members(workload))

    def in_part(self) -> list[str]:
        """Returns gangs below their minimum of which members run that ran when another one was evicted."""
        found = []
        for name, workload in sorted(self._workloads.items()):
            members = [pod for pod in self._members(name) if pod.node and _minimum(pod)]
            evicted_s = max(workload.evicted_s.values(), default=0.0)
            is_old = any((pod.started_s or math.inf) < evicted_s for pod in members)
            if is_old and len(members) < _minimum(members[0]):
                found.append(name)
        return found

    def held_too_much(self, node: str) -> int:
        """Returns the CPU that borrowers hold on the node beyond their loans, with what waiting pods of the lender need."""
        return sum(max(0, self._excess_of(self._nodes()[node], one)) for one in self._schedulers)

    def used(self, node: str, milli: int) -> None:
        """Notes what pods of the lender use on a node from now on."""
        self._uses.setdefault(node, []).append((self._now_s(), milli))

    def offers(self, node: str, percent: int, kept_percent: int) -> tuple[int, int]:
        """Returns the least and the most idle CPU that may be offered there: by any use that may have been measured last.

        `kept_percent`: KEPT_FROM_HELD or KEPT_FROM_NEW.
        """
        allocatable, uses = self._nodes()[node].allocatable[CPU], self._uses.get(node, [])
        since_s = self._now_s() - MEASURED_S
        last = max((at for at, (at_s, _) in enumerate(uses) if at_s <= since_s), default=0)
        found = [allocatable * (percent - kept_percent) // 100 - milli for _, milli in uses[last:]]
        return min(found, default=0), max(found, default=0)

    def watch_choice(self, node: str) -> None:
        """Remembers among which pods of the node the first notices are chosen."""
        self._watched.add(node)
        self._choices.pop(node, None)

    def fault_of_choice(self, node: str, milli: int) -> str:
        """Returns what is wrong with the pods that were evicted since `watch_choice` to free this CPU; empty for nothing.

        Some other set of pods is cheaper if it has fewer pods that should be spared, or fewer core-seconds are lost.
        """
        found = self._choices.get(node)
        if found is None:
            return "no pod got a notice"
        evicted = {uid for one in self._workloads.values() for uid in one.evicted_s}
        chosen = [pod for pod in found.pods if pod.uid in evicted]
        assert len(found.pods) <= COMPARED_MAX, "too many pods to compare"
        sets = (some for count in range(len(found.pods) + 1) for some in combinations(found.pods, count))
        best = min((some for some in sets if _milli(some) >= milli), key=lambda some: _cost(some, found.now_s))
        if _milli(chosen) < milli:
            return f"{_milli(chosen)}m are freed, and {milli}m are needed"
        (spared, lost), (spared_least, lost_least) = _cost(chosen, found.now_s), _cost(best, found.now_s)
        slack = 2 * WHOLE_SECOND_S * sum(pod.requests.get(CPU, 0) for pod in found.pods) / 1000.0
        if spared > spared_least or (spared == spared_least and lost > lost_least + slack):
            names = ", ".join(pod.name for pod in chosen)
            return f"{names} are evicted ({spared} to spare, {lost:.0f} core-seconds) and not {', '.join(p.name for p in best)}"
        return ""

    def _members(self, workload: str) -> list[Pod]:
        return [pod for pod in self._pods().values() if _is_of(pod, workload) and not pod.is_deleting]

    # -- requests ----------------------------------------------------------------------------------------------------------

    def before(self, request: ApiRequest) -> Response | None:
        match = POD_PATH.match(request.path)
        if match is not None and _removes(request, match[3]):
            pod = self._pods().get(f"{match[1]}/{match[2]}")
            if pod is not None and LOAN in pod.labels:
                self._removals[request.path] = pod
        return None

    def after(self, request: ApiRequest, answer: Response | WatchStream) -> Response | WatchStream:
        match = POD_PATH.match(request.path)
        if match is None or not isinstance(answer, Response):
            return answer
        if _removes(request, match[3]):
            pod = self._removals.pop(request.path, None)
            if pod is not None:
                is_done = answer.status in (200, 201, 202)
                self._judge(pod, is_done=is_done, is_deletion=request.method == "DELETE")
        elif request.method == "PATCH" and answer.status == 200 and NOTICE.encode() in (request.body or b""):
            self._written(orjson.loads(answer.body), by_program=match[3] == "/status")
        return answer

    def _written(self, pod: dict[str, Any], *, by_program: bool) -> None:
        metadata = pod["metadata"]
        uid, labels = metadata["uid"], metadata.get("labels") or {}
        if not by_program:
            return
        if labels.get(LOAN) != ON_LOAN:
            self._report(f"I17: a notice was written on {metadata['name']}, which is not on loan")
            return
        workload, before = self._workloads[labels["workload"]], self._notices.get(uid)
        text = (metadata.get("annotations") or {}).get(NOTICE)
        if text is None:
            if before is not None:
                workload.withdrawn += 1
                del self._notices[uid]
            return
        due_s, now_s = datetime.fromisoformat(text).timestamp(), self._now_s()
        if before is None:
            workload.notices += 1
            if due_s < now_s + LOAN_NOTICE_S - LATE_MAX_S - WHOLE_SECOND_S:
                self._report(f"I17: {metadata['name']} gets a notice that ends in {due_s - now_s:.1f} s")
            self._see_choice(pod["spec"].get("nodeName", ""))
        self._notices[uid] = _Notice(due_s, now_s if before is None else before.since_s)

    def _see_choice(self, node: str) -> None:
        if node in self._watched and node not in self._choices:
            pods = self._on(node)
            self._choices[node] = _Choice(
                self._now_s(), tuple(pod for pod in pods if pod.labels.get(LOAN) == ON_LOAN and not pod.is_deleting)
            )

    # -- judging evictions -------------------------------------------------------------------------------------------------

    def _judge(self, pod: Pod, *, is_done: bool, is_deletion: bool) -> None:
        """Checks an eviction, or a deletion by the program, also one that the server refuses."""
        workload, notice, now_s = self._workloads[pod.labels["workload"]], self._notices.get(pod.uid), self._now_s()
        how = "deleted" if is_deletion else "evicted"
        if pod.labels[LOAN] != ON_LOAN:
            self._report(f"I17: {pod.name} of the lender is {how}")
            return
        if notice is None:
            self._report(f"I17: {pod.name} is {how} without a notice")
            return
        given_s = now_s - notice.since_s
        if given_s < LOAN_NOTICE_S - LATE_MAX_S - WHOLE_SECOND_S:
            self._report(f"I17: {pod.name} is {how} {given_s:.1f} s after its notice")
        if now_s < notice.due_s - 0.01:
            self._report(f"I17: {pod.name} is {how} {notice.due_s - now_s:.1f} s before the end of its notice")
        evicted_s = workload.evicted_s.get(pod.uid)
        if is_deletion:
            from_s = LOAN_DEADLINE_S - LOAN_GRACE_S - LATE_MAX_S - WHOLE_SECOND_S
            is_overdue = given_s >= from_s or (evicted_s is not None and now_s >= evicted_s + LOAN_GRACE_S - LATE_MAX_S)
            if not is_overdue:
                self._report(f"I17: {pod.name} is deleted against its budget {given_s:.1f} s after its notice")
        has_begun = any(at_s > (pod.started_s or now_s) for at_s in workload.evicted_s.values())
        if evicted_s is None and not pod.is_deleting and not (_minimum(pod) and has_begun):
            self._judge_need(pod)
        if is_done:
            workload.evicted_s.setdefault(pod.uid, now_s)

    def _judge_need(self, pod: Pod) -> None:
        """Checks that something needed the eviction within the last KNOWN_S."""
        nodes = self._nodes()
        found = [nodes[pod.node]] if pod.node in nodes else []
        if _minimum(pod):  # a member on another node may have had to go
            found = [node for node in nodes.values() if _pool_of(pod, node)]
        for node in found:
            known = self._excess[node.name, pod.spec.scheduler_name]
            if self._excess_of(node, pod.spec.scheduler_name) > 0 or any(excess > 0 for _, excess in known):
                return
        self._report(f"I17: {pod.name} is evicted, and nothing needed it for {KNOWN_S:g} s")

    def look(self) -> None:
        """Notes how much borrowers hold too much. Called regularly."""
        now_s = self._now_s()
        for node in self._nodes().values():
            for scheduler in self._schedulers if LOAN in node.labels else ():
                known = self._excess[node.name, scheduler]
                known.append((now_s, self._excess_of(node, scheduler)))
                while known[0][0] < now_s - KNOWN_S:
                    known.popleft()

    def _excess_of(self, node: Node, scheduler: str) -> int:
        """Returns the CPU that pods of a borrower that are not being deleted hold too much at most."""
        pods = self._on(node.name)
        mine = sum(
            one.requests.get(CPU, 0) for one in pods if one.spec.scheduler_name == scheduler and not one.is_deleting
        )
        terms, now_s = self._terms.get((scheduler, node.labels[LOAN])), self._now_s()
        if terms is None or not terms.may_lend(now_s + KNOWN_S):
            return mine
        if terms.is_idle:
            return _idle_milli(one for one in pods if not one.is_deleting) - max(
                0, self.offers(node.name, terms.share_percent, KEPT_FROM_HELD)[0]
            )
        others = _milli(one for one in pods if one.spec.scheduler_name not in self._schedulers)
        before = self._schedulers[: self._schedulers.index(scheduler)]
        first = _milli(one for one in pods if one.spec.scheduler_name in before)
        needed = _milli(
            one for one in self._pods().values() if one.labels.get(LOAN) == OWN and not one.node and _pool_of(one, node)
        )
        unused = node.allocatable[CPU] - others - needed
        return mine - max(0, min(_limit(terms, unused), unused - first))

    def _on(self, node: str) -> list[Pod]:
        return [pod for pod in self._pods().values() if pod.node == node and not pod.is_terminal]

    # -- judging binds -----------------------------------------------------------------------------------------------------

    def bound(self, pod: Pod, name: str, known: Iterable[Pod]) -> None:
        """Checks a bind. `known`: pods on nodes that its sender knew of, sized as it knew them."""
        node = self._nodes().get(name)
        if node is None or LOAN not in node.labels or pod.spec.scheduler_name not in self._schedulers:
            return
        terms, now_s = self._terms.get((pod.spec.scheduler_name, node.labels[LOAN])), self._now_s()
        if terms is None or not any(terms.may_lend(at_s) for at_s in (now_s, now_s - BOUND_S)):
            self._report(f"I17: {pod.name} is bound to {name}, which lends nothing to it at this time")
            return
        self.judged += 1
        pods = [one for one in known if one.node == name]
        if terms.is_idle or IDLE_REQUEST in pod.annotations:
            held, offer = _idle_milli([*pods, pod]), self.offers(name, terms.share_percent, KEPT_FROM_NEW)[1]
            if not terms.is_idle or held > offer or _milli([pod]):
                self._report(
                    f"I17: {pod.name} is bound to {name}, where {held}m idle CPU is held, and {offer}m offered"
                )
            return
        mine = _milli(one for one in pods if one.spec.scheduler_name == pod.spec.scheduler_name) + _milli([pod])
        unused = node.allocatable[CPU] - _milli(one for one in pods if one.spec.scheduler_name not in self._schedulers)
        limit = _limit(terms, unused)
        if mine > limit:
            self._report(
                f"I17: {pod.name} is bound to {name}, where {terms.borrower} then holds {mine}m and may hold {limit}m"
            )


def _limit(terms: LoanTerms, unused: int) -> int:
    return max(0, unused) * terms.share_percent // 100 - terms.headroom_milli


def _milli(pods: Iterable[Pod]) -> int:
    return sum(pod.requests.get(CPU, 0) for pod in pods)


def _idle_milli(pods: Iterable[Pod]) -> int:
    """Returns the idle CPU that the pods want; all write it in thousandths."""
    texts = (pod.annotations.get(IDLE_REQUEST, "cpu=0m") for pod in pods)
    return sum(int(text.removeprefix("cpu=").removesuffix("m")) for text in texts)


def _minimum(pod: Pod) -> int:
    """Returns the minimum of the pod's gang; 0 for a single pod."""
    return int(pod.labels.get(f"{ACK}min-available", "0"))


def _is_of(pod: Pod, workload: str) -> bool:
    return LOAN in pod.labels and pod.labels.get("workload") == workload


def _pool_of(pod: Pod, node: Node) -> bool:
    """Reports whether the pod may use nodes of this pool."""
    return POOL in node.labels and pod.labels.get("workload", "").startswith(f"{node.labels[POOL]}-")


def _removes(request: ApiRequest, part: str | None) -> bool:
    """Reports whether the program evicts or deletes a pod: nobody else sets preconditions."""
    is_eviction = request.method == "POST" and part == "/eviction"
    return is_eviction or (request.method == "DELETE" and part is None and b"preconditions" in (request.body or b""))


def _cost(pods: Iterable[Pod], now_s: float) -> tuple[int, float]:
    """Returns how many of the pods should be spared, and the core-seconds that are lost without them."""
    pods = list(pods)
    return sum(_is_spared(pod) for pod in pods), sum(_lost(pod, now_s) for pod in pods)


def _is_spared(pod: Pod) -> bool:
    text = pod.annotations.get(RETRIES_LEFT)
    return text is not None and int(text) <= SPARED_RETRIES


def _lost(pod: Pod, now_s: float) -> float:
    began_s = pod.started_s or now_s
    if CHECKPOINT in pod.annotations:
        began_s = max(began_s, datetime.fromisoformat(pod.annotations[CHECKPOINT]).timestamp())
    return (now_s - began_s) * pod.requests.get(CPU, 0) / 1000.0
