"""The nodes on which a DaemonSet needs a pod, and the pod for a node.

Pure rules over documents. Called by the DaemonSet controller. Source: pkg/controller/daemon
(daemon_controller.go, util/daemonset_util.go; 1.36).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from multisched.cluster.client.object_client import DAEMON_SETS, Document
from multisched.cluster.controllers.controlled_pods import pod_from_template
from multisched.cluster.controllers.revisions import REVISION_LABEL
from multisched.model.decode import Decoder
from multisched.model.objects import PodSpec
from multisched.model.selectors import Taint

_NAME_FIELD = "metadata.name"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_TOLERATED = (
    ("not-ready", "NoExecute"),
    ("unreachable", "NoExecute"),
    ("disk-pressure", "NoSchedule"),
    ("memory-pressure", "NoSchedule"),
    ("pid-pressure", "NoSchedule"),
    ("unschedulable", "NoSchedule"),
)
_TOLERATED_ON_HOST_NETWORK = (("network-unavailable", "NoSchedule"),)


@dataclass(frozen=True, slots=True)
class NodeVerdict:
    """Whether a node should have a daemon pod."""

    may_start: bool
    may_stay: bool
    """Whether an existing pod may stay: the node matches its node selector and affinity, and has no untolerated NoExecute taint."""


class NodeRule:
    """The rule of one DaemonSet that decides which nodes have a daemon; decoded once for all nodes."""

    def __init__(self, daemon_set: Document) -> None:
        self._node_name = daemon_set["spec"]["template"]["spec"].get("nodeName") or ""
        template = _with_tolerations(daemon_set["spec"]["template"]["spec"])
        pod = {"metadata": {"name": "daemon", "namespace": "default", "uid": "daemon"}, "spec": template}
        self._spec: PodSpec = Decoder().pod(orjson.dumps(pod)).spec

    def verdict(self, node: Document) -> NodeVerdict:
        name, labels = node["metadata"]["name"], node["metadata"].get("labels") or {}
        if (self._node_name and self._node_name != name) or not self._selects(labels, name):
            return NodeVerdict(may_start=False, may_stay=False)
        harmful = [
            taint
            for taint in (Taint(t["key"], t.get("value") or "", t["effect"]) for t in node["spec"]["taints"])
            if taint.effect in ("NoSchedule", "NoExecute")
            and not any(toleration.tolerates(taint) for toleration in self._spec.tolerations)
        ]
        return NodeVerdict(may_start=not harmful, may_stay=all(t.effect != "NoExecute" for t in harmful))

    def _selects(self, labels: Mapping[str, str], name: str) -> bool:
        affinity = self._spec.affinity
        is_selected = all(r.matches_value(labels.get(r.key)) for r in affinity.node_selector)
        return is_selected and (affinity.required is None or affinity.required.matches(labels, name))


def new_pod(daemon_set: Document, node: str, *, revision_hash: str) -> Document:
    """Builds the pod for one node; its node affinity allows only that node, and the scheduler binds it."""
    template = daemon_set["spec"]["template"]
    pod = pod_from_template(template, owner=daemon_set, resource=DAEMON_SETS)
    pod["metadata"]["labels"][REVISION_LABEL] = revision_hash
    spec = _with_tolerations(template["spec"])
    affinity = dict(spec.get("affinity") or {})
    node_affinity = dict(affinity.get("nodeAffinity") or {})
    pinned = [{"key": _NAME_FIELD, "operator": "In", "values": [node]}]
    # Replaces the template's terms, which `NodeRule` has checked.
    node_affinity[_REQUIRED] = {"nodeSelectorTerms": [{"matchFields": pinned}]}
    return {**pod, "spec": {**spec, "affinity": {**affinity, "nodeAffinity": node_affinity}}}


def node_of(pod: Document) -> str:
    """Returns the node of a daemon, or the node that its affinity names; empty if neither is set."""
    if pod["spec"].get("nodeName"):
        return str(pod["spec"]["nodeName"])
    required = ((pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}).get(_REQUIRED) or {}
    for term in required.get("nodeSelectorTerms") or ():
        for field in term.get("matchFields") or ():
            if field.get("key") == _NAME_FIELD and field.get("operator") == "In" and len(field["values"]) == 1:
                return str(field["values"][0])
    return ""


def _with_tolerations(spec: Document) -> Document:
    """Returns a pod spec with the tolerations of daemons, so that node problems do not evict them."""
    wanted = _TOLERATED + (_TOLERATED_ON_HOST_NETWORK if spec.get("hostNetwork") else ())
    added = [{"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": effect} for key, effect in wanted]
    replaced = {(toleration["key"], toleration["effect"]) for toleration in added}
    own = [
        toleration
        for toleration in spec.get("tolerations") or ()
        if toleration.get("operator") != "Exists" or (toleration.get("key"), toleration.get("effect")) not in replaced
    ]
    return {**spec, "tolerations": [*own, *added]}
