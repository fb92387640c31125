"""Admission policies of a simulated cluster: the API server refuses bindings, or claims, of some pods, always with the same
message.

Acts as an admission webhook, and judges the program by its responses alone. A pod that is refused with the same message may be
tried only a limited number of times, and once more for each change that might have helped (I10).
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from multisched.cluster.api.server import ApiServer
from multisched.cluster.api.watch import WatchStream
from multisched.cluster.base.request import ApiRequest
from multisched.model.cluster_objects import SELECTED_NODE_ANNOTATION
from multisched.model.wire import Response
from multisched.queueing.quarantine import EQUAL_REFUSALS_MAX
from tests.kit.world.api_user import NAMESPACE
from tests.kit.world.storage import DYNAMIC

REFUSED = 0.04
"""Share of pods that are refused."""
POLICY, COMPLIANT = "policy", "compliant"
"""The label of refused pods, and its value once the pod complies."""
OWNER, TENANT, NEVER = "owner", "tenant", "never"
"""What ends the refusal: a change of the pod; a change of its namespace; nothing."""
TRUSTED = "trusted"
"""The label that ends TENANT in a namespace."""

_BINDING = re.compile(r"/namespaces/default/pods/([^/]+)/binding")
_WITHOUT_RIGHTS = re.compile(r'" cannot \w+ resource "')
_CLAIM = re.compile(r"/namespaces/default/persistentvolumeclaims/data-([^/?]+)")
_NODE = re.compile(r"node-\d+")


@dataclass(slots=True)
class _Refusals:
    """Consecutive refusals of one pod with the same message."""

    words: str
    times: int = 0
    is_unsure: bool = False
    """A response was lost: the next refusal may belong to the lost request, and need not count."""


def is_unsure(answer: Response) -> bool:
    """Reports whether the response leaves open if the write was stored: from a failing server, or a proxy that timed out."""
    return answer.status >= 500 or answer.status == 408


class Policies:
    """A `server.Interceptor` that refuses requests, and counts refusals and changes."""

    def __init__(self, server: ApiServer, seed: int) -> None:
        self._store = server.store
        self._seed = seed
        self._rows: dict[tuple[str, str], _Refusals] = {}
        self._changes: Counter[str] = Counter()
        self._namespace_changes = 0
        self._kinds_readable = 0
        self._configurations = 0
        self.flushes: Callable[[], int] = lambda: 0
        """Returns how often parked pods have been flushed until now."""
        server.interceptors.append(self)

    def add_policy(self, pod: dict[str, Any]) -> dict[str, Any] | None:
        """Applies a policy to some pods, drawn by their name. Returns the pod's claim if the policy refuses that, for half of them."""
        name, spec = pod["metadata"]["name"], pod["spec"]
        rng = random.Random(f"{self._seed}/policy/{name}")
        is_plain = not {"nodeSelector", "schedulingGates", "volumes"} & spec.keys()
        # Pods with devices or licences may be bound by an extender, whose response is not the API server's.
        is_plain = is_plain and not any("limits" in one["resources"] for one in spec["containers"])
        if not is_plain or rng.random() >= REFUSED:
            return None
        pod["metadata"]["labels"][POLICY] = rng.choice((OWNER, TENANT, NEVER))
        if rng.random() < 0.5:
            return None
        spec["volumes"] = [{"name": "v0", "persistentVolumeClaim": {"claimName": f"data-{name}"}}]
        return {
            "metadata": {"name": f"data-{name}"},
            "spec": {
                "storageClassName": DYNAMIC,
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}},
            },
        }

    # -- requests to the API server --------------------------------------------------------------------------------

    def before(self, request: ApiRequest) -> Response | None:
        if request.body is None or request.method not in ("POST", "PATCH"):
            return None
        binding, claim = _BINDING.search(request.path), _CLAIM.search(request.path)
        if binding is not None and self.policy_of(binding[1]) and not self._has_claim(binding[1]):
            node = orjson.loads(request.body)["target"]["name"]
            return _refusal(422, f'pods "{binding[1]}" is forbidden: policy denied the binding to {node}')
        if claim is not None and SELECTED_NODE_ANNOTATION.encode() in request.body and self.policy_of(claim[1]):
            words = f'admission webhook "claims.example.com" denied the request: pod {claim[1]} has no quota'
            return _refusal(403, words)
        return None

    def after(self, request: ApiRequest, answer: Response | WatchStream) -> Response | WatchStream:
        return answer

    def policy_of(self, name: str) -> str:
        """Returns the policy that refuses the pod now; empty for none."""
        policy = self._labels("pods", f"{NAMESPACE}/{name}").get(POLICY, "")
        if policy == TENANT:
            return "" if TRUSTED in self._labels("namespaces", NAMESPACE) else policy
        return policy if policy in (OWNER, NEVER) else ""

    def condition_of(self, name: str) -> str:
        """Returns the message of the pod's condition."""
        pod = self._document("pods", f"{NAMESPACE}/{name}")
        found = pod.get("status", {}).get("conditions", []) if pod is not None else []
        return next((str(one.get("message")) for one in found if one["type"] == "PodScheduled"), "")

    def _has_claim(self, name: str) -> bool:
        return f"{NAMESPACE}/data-{name}" in self._store.collection("persistentvolumeclaims").objects

    def _labels(self, kind: str, key: str) -> Mapping[str, str]:
        stored = self._store.collection(kind).objects.get(key)
        return {} if stored is None else stored.labels

    def _document(self, kind: str, key: str) -> dict[str, Any] | None:
        stored = self._store.collection(kind).objects.get(key)
        return None if stored is None else dict(stored.document())

    # -- changes by users ------------------------------------------------------------------------------------------

    def pod_changed(self, uid: str) -> None:
        self._changes[uid] += 1

    def namespace_changed(self) -> None:
        self._namespace_changes += 1

    def kind_readable(self) -> None:
        """Records that a kind can be listed again: any pod may have waited for its objects."""
        self._kinds_readable += 1

    def configuration_changed(self) -> None:
        """Records a new configuration: each refused pod is tried once more by it."""
        self._configurations += 1

    # -- responses to a process ------------------------------------------------------------------------------------

    def on_pod_delivered(self, sender: str, uid: str) -> None:
        """Forgets responses about a claim of this name: they belong to an earlier pod."""
        self._rows.pop((sender, uid), None)

    def answered(self, sender: str, uid: str, answer: Response | None) -> str:
        """Records a response. Returns what is wrong with the attempt; empty for nothing.

        Responses that may differ next time neither count nor restart the count; `None`: the response was lost.
        """
        row = self._rows.setdefault((sender, uid), _Refusals(""))
        if answer is None or is_unsure(
            answer
        ):  # it may have been stored: the sender repeats the request, or reads the pod
            row.is_unsure = True
            return ""
        if answer.status in (0, 429):
            return ""
        was_unsure, row.is_unsure = row.is_unsure, False
        words = _NODE.sub("", orjson.loads(answer.body).get("message", "")) if answer.status >= 400 else ""
        if _WITHOUT_RIGHTS.search(words):
            return ""  # it concerns our permissions, not the pod
        if row.words != words:
            row.words, row.times = words, 0
        row.times += bool(words) and not was_unsure
        for_all = self._namespace_changes + self._kinds_readable + self._configurations
        may_be = EQUAL_REFUSALS_MAX + self._changes[uid] + for_all + self.flushes()
        return f"it was refused {row.times} times alike, and not set aside" if row.times > may_be else ""

    def uid_of_claimant(self, path: str) -> str:
        """Returns the uid of the pod whose claim a request is about; empty for others."""
        claim = _CLAIM.search(path)
        pod = self._document("pods", f"{NAMESPACE}/{claim[1]}") if claim is not None else None
        return str(pod["metadata"]["uid"]) if pod is not None else ""


def _refusal(code: int, words: str) -> Response:
    reason = "Forbidden" if code == 403 else "Invalid"
    status = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": words,
    }
    return Response(code, orjson.dumps(status))
