"""Checks binds to the units of ResourcePolicies over the history of the API server (I16), by plain arithmetic.

Only certain cases are judged. A policy, a node or a pod that is gone counts for KNOWN_S as it was before, too; a bind to a later unit is
judged LATER_S after it, when binds that were in flight to earlier units are known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import orjson

from multisched.cluster.api.watch import WatchStream
from multisched.cluster.base.request import ApiRequest
from multisched.model.objects import CPU, MEMORY, Node, Pod
from multisched.model.wire import Response
from tests.kit.world.definitions import RESOURCE_POLICY
from tests.kit.world.labels import UNIT
from tests.kit.world.unit_workloads import COST

KNOWN_S: Final = 6.0
"""Time within which each leader sees a change."""
LATER_S: Final = 4.0
"""Longer than a bind is in flight."""
SLACK_S: Final = 2.0
"""Two deadlines that differ by less may be in any order: they are compared by whole seconds."""
_POD: Final = re.compile(r"^/api/v1/namespaces/([^/]+)/pods/([^/?]+)(/binding|/eviction|/status)?(\?|$)")
_POLICY: Final = re.compile(
    rf"^/apis/{re.escape(RESOURCE_POLICY.group)}/{RESOURCE_POLICY.version}/namespaces/[^/]+/resourcepolicies(/|\?|$)"
)
_JOB: Final = re.compile(r"^/apis/batch/v1/namespaces/[^/]+/jobs(/|\?|$)")


@dataclass(frozen=True, slots=True)
class _Policy:
    """One version of a policy. `changed_s`: when it was written."""

    spec: Mapping[str, Any]
    changed_s: float

    @property
    def units(self) -> Sequence[Mapping[str, Any]]:
        found: Sequence[Mapping[str, Any]] = self.spec["units"]
        return found

    @property
    def following(self) -> str:
        return str(self.spec.get("whenTryNextUnits", {}).get("policy", "LackResourceOrExceedMax"))

    def group_of(self, pod: Pod) -> tuple[str, ...]:
        return tuple(pod.labels.get(key, "") for key in self.spec.get("matchLabelKeys", ()))


@dataclass(slots=True)
class _Doubt:
    """A bind to a later unit although an earlier one seemed to have room."""

    due_s: float
    pod: Pod
    earlier: int
    rooms: dict[str, tuple[int, int, int]]
    """Node -> milli of CPU, bytes of memory and pods that were certainly free."""
    places: float
    """How many more pods of the group the unit may have; inf without a max."""
    is_waiting: bool
    """The policy does not let the pod go on while the unit is not full, whether it has room or not."""
    policy: _Policy
    later: int = 0


@dataclass(slots=True)
class _Seen:
    """A pod on a node, as last seen there."""

    pod: Pod
    at_s: float
    since_s: float = field(default=0.0)


class UnitHistory:
    """A `server.Interceptor`. A scenario may switch off what it makes uncertain."""

    def __init__(
        self,
        pods: Callable[[], Mapping[str, Pod]],
        nodes: Callable[[], Mapping[str, Node]],
        now_s: Callable[[], float],
        report_violation: Callable[[str], None],
    ) -> None:
        """`now_s`: epoch seconds."""
        self._pods, self._nodes, self._now_s, self._report = pods, nodes, now_s, report_violation
        self._policies: dict[str, _Policy] = {}
        self._seen: dict[str, _Seen] = {}
        self._deleting_since_s: dict[str, float] = {}
        self.is_used: Callable[[str], bool] = lambda node: True
        """Reports whether a leader may use the node: the next one withholds it for a while."""
        self._used_since_s: dict[str, float] = {}
        self._doubts: list[_Doubt] = []
        self._deadlines: dict[str, float] = {}
        """uid of a Job -> the end of its activeDeadlineSeconds."""
        self.is_order_sure = True
        """False: a leader may use only some nodes, or binds are late."""
        self.ordered: str = ""
        """Value of the label `app` of pods that wait for single slots, and must be bound by their deadlines."""
        self.judged = 0
        """Number of binds whose order was judged, to a later unit or by deadline."""

    # -- requests ----------------------------------------------------------------------------------------------------------

    def before(self, request: ApiRequest) -> Response | None:
        match = _POD.match(request.path)
        if request.method == "POST" and match is not None and match[3] == "/eviction":
            pod = self._pods().get(f"{match[1]}/{match[2]}")
            if pod is not None and UNIT in pod.labels and pod.owner is None:
                self._report(f"I16: {pod.name} is evicted, and no controller creates it again")
        if request.method == "PATCH" and match is not None and COST.encode() in (request.body or b""):
            self._report(f"I16: the deletion cost of {match[2]} is written by PATCH")
        return None

    def after(self, request: ApiRequest, answer: Response | WatchStream) -> Response | WatchStream:
        if not isinstance(answer, Response) or answer.status not in (200, 201):
            return answer
        match = _POD.match(request.path)
        if request.method == "POST" and match is not None and match[3] == "/binding":
            pod = self._pods().get(f"{match[1]}/{match[2]}")
            if pod is not None and UNIT in pod.labels:
                self._bound(pod, orjson.loads(request.body or b"{}"))
        elif _POLICY.match(request.path) is not None and request.method != "GET":
            self._policy_written(request.method, request.path, answer)
        elif _JOB.match(request.path) is not None and request.method in ("POST", "PATCH"):
            job = orjson.loads(answer.body)
            started = job.get("status", {}).get("startTime") or job["metadata"]["creationTimestamp"]
            limit = job["spec"].get("activeDeadlineSeconds")
            if limit is not None:
                self._deadlines[job["metadata"]["uid"]] = datetime.fromisoformat(started).timestamp() + limit
        return answer

    def _policy_written(self, method: str, path: str, answer: Response) -> None:
        if method == "DELETE":
            self._policies.pop(path.rpartition("/")[2].partition("?")[0], None)
            return
        document = orjson.loads(answer.body)
        self._policies[document["metadata"]["name"]] = _Policy(document["spec"], self._now_s())

    # -- binds -------------------------------------------------------------------------------------------------------------

    def _bound(self, pod: Pod, binding: Mapping[str, Any]) -> None:
        """Checks a bind that took effect."""
        self.look()
        node = self._nodes().get(pod.node)
        self._judge_cost(pod, binding.get("metadata", {}).get("annotations") or {})
        for doubt in self._doubts:
            self._settle(doubt, pod)
        if self.ordered and pod.labels.get("app") == self.ordered:
            self._judge_deadline(pod)
        policy = self._policy_of(pod)
        if policy is None or node is None or self._now_s() - policy.changed_s < KNOWN_S:
            return
        at = next((n for n, unit in enumerate(policy.units) if _has_node(unit, node)), len(policy.units))
        if at < len(policy.units):
            self._judge_max(pod, policy, at)
        if self.is_order_sure:
            for earlier in range(at):
                self._doubt(pod, policy, earlier)
            self._judge_timeout(pod, policy, at)
            self._judge_terminating(pod, policy, at)

    def _judge_cost(self, pod: Pod, written: Mapping[str, str]) -> None:
        cost = written.get(COST)
        if cost is None:
            return
        if pod.owner is None or pod.owner.kind != "ReplicaSet":
            self._report(f"I16: {pod.name} gets a deletion cost, and is of no ReplicaSet")
        seen = self._seen.get(f"pending/{pod.uid}")
        if seen is not None and COST in seen.pod.annotations:
            self._report(f"I16: the deletion cost {cost} is written over that of the user of {pod.name}")
        if not re.fullmatch(r"0|-?[1-9][0-9]{0,9}", cost) or not -(2**31) <= int(cost) < 2**31:
            self._report(f"I16: the deletion cost {cost[:20]} of {pod.name} is no int32")

    def _judge_max(self, pod: Pod, policy: _Policy, at: int) -> None:
        unit = policy.units[at]
        wanted = unit.get("podLabels") or {}
        if any(pod.labels.get(key) != value for key, value in wanted.items()):
            self._report(f"I16: {pod.name} is bound to units[{at}] without its podLabels")
        most = unit.get("max")
        if most is None:
            return
        count = sum(
            one.uid != pod.uid and self._counts(one, policy, at, pod)
            for one in self._pods().values()
            if not one.is_terminal
        )
        if count >= most:
            self._report(f"I16: {pod.name} is bound to units[{at}], where {count} of {most} pods of its group are")

    def _counts(self, one: Pod, policy: _Policy, at: int, pod: Pod) -> bool:
        """Reports whether `one` certainly counts for the max of the unit with the group of `pod`."""
        unit, node = policy.units[at], self._nodes().get(one.node)
        if node is None or not _has_node(unit, node) or self._policy_of(one) is not policy:
            return False
        if one.is_deleting and policy.spec.get("ignoreTerminatingPod", True):
            return False
        is_carried = all(one.labels.get(key) == value for key, value in (unit.get("podLabels") or {}).items())
        return is_carried and policy.group_of(one) == policy.group_of(pod)

    def _doubt(self, pod: Pod, policy: _Policy, at: int) -> None:
        """Notes a bind to a later unit if this one seems to be open for the pod."""
        unit, now_s = policy.units[at], self._now_s()
        most = unit.get("max")
        on_unit = [
            seen.pod
            for key, seen in self._seen.items()
            if not key.startswith("pending/")
            and seen.pod.uid != pod.uid
            and (node := self._nodes().get(seen.pod.node)) is not None
            and _has_node(unit, node)
        ]
        group = policy.group_of(pod)
        places = float("inf") if most is None else most - sum(policy.group_of(one) == group for one in on_unit)
        if places <= 0 or unit.get("maxResources"):
            return
        rooms: dict[str, tuple[int, int, int]] = {}
        for node in self._nodes().values():
            is_known = now_s - self._used_since_s.get(node.name, now_s) >= KNOWN_S
            if not is_known or not _has_node(unit, node) or _is_virtual(node) or node.is_unschedulable:
                continue
            there = [one for one in on_unit if one.node == node.name]
            there += [one for one in self._pods().values() if one.nominated_node == node.name and not one.node]
            room = tuple(
                node.allocatable.get(of, 0) - sum(one.requests.get(of, 0) for one in there) for of in (CPU, MEMORY)
            )
            rooms[node.name] = room[0], room[1], node.allocatable.get("pods", 0) - len(there)
        is_waiting = policy.following == "ExceedMax" and most is not None
        self._doubts.append(_Doubt(now_s + LATER_S, pod, at, rooms, places, is_waiting, policy))

    def _settle(self, doubt: _Doubt, bound: Pod) -> None:
        """Takes a bind into account that may have been in flight at the time of the doubt."""
        room, node = doubt.rooms.get(bound.node), self._nodes().get(bound.node)
        if room is not None:
            asked = bound.requests
            doubt.rooms[bound.node] = room[0] - asked.get(CPU, 0), room[1] - asked.get(MEMORY, 0), room[2] - 1
        is_in = node is not None and _has_node(doubt.policy.units[doubt.earlier], node)
        if is_in and doubt.policy.group_of(bound) == doubt.policy.group_of(doubt.pod):
            doubt.places -= 1

    def _conclude(self, doubt: _Doubt) -> None:
        self.judged += 1
        pod, policy = doubt.pod, self._policy_of(doubt.pod)
        if doubt.places <= 0 or policy is not doubt.policy:
            return
        asked = pod.requests.get(CPU, 0), pod.requests.get(MEMORY, 0), 1
        for node, room in doubt.rooms.items():
            if all(free >= need for free, need in zip(room, asked, strict=True)):
                self._report(
                    f"I16: {pod.name} is in a later unit, and {node} of units[{doubt.earlier}] has room for it"
                )
                return
        if doubt.is_waiting:
            self._report(f"I16: {pod.name} is in a later unit, and units[{doubt.earlier}] has not its max (ExceedMax)")

    def _judge_timeout(self, pod: Pod, policy: _Policy, at: int) -> None:
        if policy.following != "Timeout" or not at or any("max" in unit for unit in policy.units[:at]):
            return
        self.judged += 1
        timeout_s = float(str(policy.spec["whenTryNextUnits"]["timeout"]).removesuffix("s"))
        age_s = self._now_s() - pod.created_s
        if age_s < at * timeout_s - 0.01:
            self._report(f"I16: {pod.name} is in units[{at}] {age_s:.1f} s after its creation (Timeout)")

    def _judge_terminating(self, pod: Pod, policy: _Policy, at: int) -> None:
        """A pod does not go on from a unit without a max while pods of it are terminating."""
        if not policy.following.lower().endswith("noterminating"):
            return
        for earlier, unit in enumerate(policy.units[:at]):
            for one in self._pods().values() if "max" not in unit else ():
                node, since_s = self._nodes().get(one.node), self._deleting_since_s.get(one.uid)
                is_in = node is not None and _has_node(unit, node) and self._policy_of(one) is policy
                if is_in and since_s is not None and self._now_s() - since_s >= KNOWN_S:
                    self._report(f"I16: {pod.name} goes on from units[{earlier}], where {one.name} is terminating")
                    return

    def _judge_deadline(self, pod: Pod) -> None:
        """Checks that no pod that has waited as long has an earlier deadline."""
        self.judged += 1
        for one in self._pods().values():
            seen = self._seen.get(f"pending/{one.uid}")
            waited_s = 0.0 if seen is None else self._now_s() - seen.since_s
            is_like = one.labels.get("app") == self.ordered and one.spec.priority == pod.spec.priority
            if one.node or one.is_deleting or not is_like or waited_s < KNOWN_S:
                continue
            if self._deadline_of(one) + SLACK_S < self._deadline_of(pod):
                by_s = self._deadline_of(pod) - self._deadline_of(one)
                self._report(f"I16: {pod.name} is bound before {one.name}, whose deadline is {by_s:.0f} s earlier")

    def _deadline_of(self, pod: Pod) -> float:
        text = pod.annotations.get("multisched.io/deadline")
        if text is not None:
            return datetime.fromisoformat(text).timestamp()
        of_job = None if pod.owner is None else self._deadlines.get(pod.owner.uid)
        return of_job if of_job is not None else pod.created_s + 3600.0

    # -- what is known -----------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Notes which pods are on which nodes, and judges doubts that are due. Called regularly."""
        now_s = self._now_s()
        for pod in self._pods().values():
            if UNIT not in pod.labels or pod.is_terminal:
                continue
            key = pod.uid if pod.node else f"pending/{pod.uid}"
            before = self._seen.get(key)
            self._seen[key] = _Seen(pod, now_s, now_s if before is None else before.since_s)
            if pod.is_deleting:
                self._deleting_since_s.setdefault(pod.uid, now_s)
        used = [name for name in self._nodes() if self.is_used(name)]
        self._used_since_s = {name: self._used_since_s.get(name, now_s) for name in used}
        self._seen = {key: seen for key, seen in self._seen.items() if now_s - seen.at_s < KNOWN_S}
        due = [doubt for doubt in self._doubts if doubt.due_s <= now_s]
        self._doubts = [doubt for doubt in self._doubts if doubt.due_s > now_s]
        for doubt in due:
            self._conclude(doubt)

    def _policy_of(self, pod: Pod) -> _Policy | None:
        """Returns the only policy that selects the pod."""
        found = [
            policy
            for policy in self._policies.values()
            if all(pod.labels.get(key) == value for key, value in policy.spec["selector"].items())
        ]
        return found[0] if len(found) == 1 else None


def _is_virtual(node: Node) -> bool:
    return node.labels.get("type") == "virtual-kubelet"


def _has_node(unit: Mapping[str, Any], node: Node) -> bool:
    if unit.get("resource") and _is_virtual(node) != (unit["resource"] in ("eci", "acs")):
        return False
    return all(node.labels.get(key) == value for key, value in (unit.get("nodeSelector") or {}).items())
