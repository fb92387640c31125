"""Checks the evictions of the tide over the history of the API server (I15), by plain arithmetic. It uses no part of the tide.

Only the program writes annotations of pods by their status; a notice that is written by another path is forged. In these runs only
the tide uses the Eviction API: preemption deletes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import orjson

from multisched.cluster.api.watch import WatchStream
from multisched.cluster.base.request import ApiRequest
from multisched.model.objects import Node, Pod
from multisched.model.wire import Response
from tests.kit.checkers.api.write_log import POD_PATH
from tests.kit.checkers.reference_rules import matches_node_affinity
from tests.kit.world.labels import TIDE
from tests.kit.world.tide_workloads import NOTICE, SERVING, TRAINING

LATE_MAX_S: Final = 1.1
"""A notice may be shorter by so much: its deadline counts from when it was issued, and a write of a former leader may arrive later."""
WHOLE_SECOND_S: Final = 1.0
"""Start times of pods have whole seconds."""


@dataclass(slots=True)
class _Notice:
    """The notice on one pod."""

    id: str
    issued_s: float
    deadline_s: float
    overrides: bool
    since_s: float
    """When the server stored its id on the pod first."""


@dataclass(slots=True)
class _Gang:
    """What was seen of one gang, by the name of its workload."""

    evicted_s: dict[str, float] = field(default_factory=dict)
    """uid -> time of its eviction."""
    withdrawn: set[str] = field(default_factory=set)
    """Ids of notices that the program removed from a member."""
    notices: int = 0
    """Notices that the program wrote on a first member."""


class TideHistory:
    """A `server.Interceptor`."""

    def __init__(
        self,
        pods: Callable[[], Mapping[str, Pod]],
        nodes: Callable[[], Mapping[str, Node]],
        now_s: Callable[[], float],
        report_violation: Callable[[str], None],
        *,
        notice_s: float,
        min_run_s: float,
    ) -> None:
        """`now_s`: epoch seconds."""
        self._pods, self._nodes, self._now_s, self._report = pods, nodes, now_s, report_violation
        self._notice_s, self._min_run_s = notice_s, min_run_s
        self._notices: dict[str, _Notice] = {}
        """uid -> the notice that the program wrote, and that is on the pod now."""
        self._gangs: dict[str, _Gang] = defaultdict(_Gang)
        self._protected: set[str] = set()
        self.is_frozen = False
        """All processes have seen a configuration that freezes the tide."""
        self._victims: dict[str, Pod] = {}
        """Path of an eviction in progress -> its pod."""

    # -- for scenarios -----------------------------------------------------------------------------------------------------

    def protect(self, workload: str) -> None:
        """Notes that no pod of the workload may be evicted."""
        self._protected.add(workload)

    def evicted(self, workload: str) -> int:
        """Returns how many of its pods were evicted."""
        return len(self._gangs[workload].evicted_s)

    def notices(self, workload: str) -> int:
        """Returns how many notices the workload got."""
        return self._gangs[workload].notices

    def was_withdrawn(self, workload: str) -> bool:
        return bool(self._gangs[workload].withdrawn)

    def with_notice(self, workload: str) -> int:
        """Returns how many of its pods that are not being deleted have a notice now."""
        return sum(pod.uid in self._notices for pod in self._members(workload))

    def in_part(self) -> list[str]:
        """Returns gangs of which members are there that ran when another one was evicted."""
        return [
            name
            for name, gang in sorted(self._gangs.items())
            if any(
                (pod.started_s or math.inf) < max(gang.evicted_s.values(), default=0.0) for pod in self._members(name)
            )
        ]

    def _members(self, workload: str) -> list[Pod]:
        return [
            pod
            for pod in self._pods().values()
            if TIDE in pod.labels and pod.labels.get("workload") == workload and not pod.is_deleting
        ]

    # -- requests ----------------------------------------------------------------------------------------------------------

    def before(self, request: ApiRequest) -> Response | None:
        match = POD_PATH.match(request.path)
        if request.method == "POST" and match is not None and match[3] == "/eviction":
            pod = self._pods().get(f"{match[1]}/{match[2]}")
            if pod is not None and not pod.is_deleting:
                self._victims[request.path] = pod
        return None

    def after(self, request: ApiRequest, answer: Response | WatchStream) -> Response | WatchStream:
        match = POD_PATH.match(request.path)
        if match is None or not isinstance(answer, Response):
            return answer
        if request.method == "POST" and match[3] == "/eviction":
            pod = self._victims.pop(request.path, None)
            if pod is not None:
                self._judge(pod, is_done=answer.status in (200, 201))
        elif request.method == "PATCH" and answer.status == 200 and NOTICE.encode() in (request.body or b""):
            self._written(orjson.loads(answer.body), by_program=match[3] == "/status")
        return answer

    def _written(self, pod: dict[str, Any], *, by_program: bool) -> None:
        metadata = pod["metadata"]
        uid, labels = metadata["uid"], metadata.get("labels") or {}
        if TIDE not in labels:
            self._report(f"I15: a notice was written on {metadata['name']}, which is no training of the tide")
            return
        gang, before = self._gangs[labels["workload"]], self._notices.get(uid)
        text = (metadata.get("annotations") or {}).get(NOTICE)
        if not by_program:
            return
        if text is None:
            if before is not None:
                gang.withdrawn.add(before.id)
                del self._notices[uid]
            return
        found = orjson.loads(text)
        issued_s, deadline_s = _seconds(found["issued"]), _seconds(found["deadline"])
        is_same = before is not None and before.id == found["id"]
        since_s = before.since_s if is_same and before is not None else self._now_s()
        others = [self._notices.get(one.uid) for one in self._members(labels["workload"])]
        if not any(one is not None and one.id == found["id"] for one in others):
            gang.notices += 1
            self._judge_notice(labels["workload"], issued_s, overrides=bool(found.get("overridesMinRunTime")))
        self._notices[uid] = _Notice(found["id"], issued_s, deadline_s, bool(found.get("overridesMinRunTime")), since_s)

    # -- judging -----------------------------------------------------------------------------------------------------------

    def _judge_notice(self, workload: str, issued_s: float, *, overrides: bool) -> None:
        """Checks a notice when its first member gets it."""
        members = [pod for pod in self._members(workload) if pod.node]
        started_s = max((pod.started_s or self._now_s() for pod in members), default=0.0)
        if not overrides and issued_s - started_s < self._min_run_s - WHOLE_SECOND_S:
            self._report(
                f"I15: {workload} gets a notice {issued_s - started_s:.1f} s after its start, without an override"
            )
        if self.is_frozen:
            self._report(f"I15: {workload} gets a notice of a frozen tide")
        if workload in self._protected:
            self._report(f"I15: {workload} gets a notice although it may not be evicted")
        nodes = [self._nodes()[pod.node] for pod in members if pod.node in self._nodes()]
        serving = [one for one in self._pods().values() if one.labels.get(TIDE) == SERVING and not one.is_deleting]
        if not any(matches_node_affinity(one, node) for one in serving for node in nodes):
            self._report(f"I15: {workload} gets a notice, and no inference can use its cards")

    def _judge(self, pod: Pod, *, is_done: bool) -> None:
        """Checks an eviction, also one that the server refuses."""
        workload = pod.labels.get("workload", "")
        gang, notice, now_s = self._gangs[workload], self._notices.get(pod.uid), self._now_s()
        members = self._members(workload)
        began = any(at_s > (pod.started_s or now_s) for at_s in gang.evicted_s.values())
        if pod.labels.get(TIDE) != TRAINING or workload in self._protected:
            self._report(f"I15: {pod.name} is evicted, which may not be")
        if notice is None:
            self._report(f"I15: {pod.name} is evicted without a notice")
            return
        if notice.id in gang.withdrawn:
            self._report(f"I15: {pod.name} is evicted after its notice was withdrawn")
        for one in [] if began else members:
            known = self._notices.get(one.uid)
            had_it = one.created_s <= notice.issued_s
            if known is None and had_it and one.node:
                self._report(f"I15: {pod.name} is evicted before {one.name} of its gang has a notice")
            elif known is not None and had_it and now_s - known.since_s < self._notice_s - LATE_MAX_S:
                self._report(f"I15: {pod.name} is evicted {now_s - known.since_s:.1f} s after the notice on {one.name}")
        if now_s < notice.deadline_s - 0.01:
            self._report(f"I15: {pod.name} is evicted {notice.deadline_s - now_s:.1f} s before its deadline")
        if self.is_frozen and not began:
            self._report(f"I15: {pod.name} is evicted by a frozen tide")
        if is_done:
            gang.evicted_s[pod.uid] = now_s


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
