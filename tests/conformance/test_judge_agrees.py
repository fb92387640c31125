"""The judge of `multisched verify` against kube-scheduler's recorded answers, node by node.

A pod bound where kube-scheduler would let it go must be clean, and one bound where a filter refuses it must be named for
that filter's rule. What kube-scheduler goes by and a judge of bound pods cannot is listed here, each with its reason.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

import pytest

from multisched.verify import Finding, Judge
from tests.conformance.families import CLAIMED
from tests.conformance.vectors import recorded_answers, recorded_problems

FIELDS = {
    "namespaces": "Namespace",
    "nodes": "Node",
    "storageClasses": "StorageClass",
    "csiNodes": "CSINode",
    "pvs": "PersistentVolume",
    "pvcs": "PersistentVolumeClaim",
    "volumeAttachments": "VolumeAttachment",
    "pods": "Pod",
}
RULES = {
    "NodeResourcesFit": "resources",
    "NodePorts": "hostPorts",
    "TaintToleration": "taints",
    "NodeUnschedulable": "taints",
    "NodeAffinity": "nodeAffinity",
    "PodTopologySpread": "topologySpread",
    "VolumeBinding": "volumes",
    "VolumeZone": "volumes",
    "NodeVolumeLimits": "volumes",
    "VolumeRestrictions": "volumes",
}
AFFINITY = "node(s) didn't match pod affinity rules"

NOMINATED = "room that is kept for a nominated pod: nothing of it stands there"
ENFORCED = "addedAffinity is a setting of the scheduler, not a rule of the pod"
ANSWERS = recorded_answers()
PROBLEMS: dict[str, list[dict[str, Any]]] = defaultdict(list)
for _problem in recorded_problems():
    PROBLEMS[_problem["family"]].append(_problem)


def rule_of(refusal: Mapping[str, Any]) -> str:
    if refusal["plugin"] == "InterPodAffinity":
        return "podAffinity" if AFFINITY in refusal["reasons"] else "podAntiAffinity"
    return RULES[refusal["plugin"]]


def excuse(problem: Mapping[str, Any], node: str, refusal: Mapping[str, Any]) -> str:
    """Why the judge may let stand what kube-scheduler refuses; empty: it may not."""
    if "node(s) didn't match scheduler-enforced node affinity" in refusal["reasons"]:
        return ENFORCED
    nominated = any(
        not pod["spec"].get("nodeName") and (pod.get("status") or {}).get("nominatedNodeName") == node
        for pod in problem["pods"]
    )
    return NOMINATED if nominated and refusal["plugin"] == "NodeResourcesFit" else ""


def judged(problem: Mapping[str, Any]) -> dict[str, list[Finding]]:
    """Node -> what speaks against the problem's pod there."""
    told = Judge()
    for field, kind in FIELDS.items():
        for document in problem.get(field) or ():
            told.add(kind, document)
    names = [node["metadata"]["name"] for node in problem["nodes"]]
    found = {name: told.bind(problem["pod"], name) for name in names}
    assert not told.problems
    return found


def is_delayed(finding: Finding) -> bool:
    """A claim that waits for its first pod: the scheduler binds it before it binds the pod, and here nobody does."""
    return finding.rule == "volumes" and finding.message.endswith("is not bound to a volume")


@pytest.mark.parametrize("family", CLAIMED)
def test_judge_refuses_the_same_nodes_as_kube_scheduler(family: str) -> None:
    wrong: list[tuple[str, str, object, list[Finding]]] = []
    for problem in PROBLEMS[family]:
        answer = ANSWERS[problem["id"]]
        if "error" in answer:
            continue
        for node, findings in judged(problem).items():
            rules = {finding.rule for finding in findings}
            if node in answer["feasible"]:
                told = [finding for finding in findings if not is_delayed(finding)]
                if told:
                    wrong.append((problem["id"], node, "is right", told))
                continue
            refusal = (
                answer["rejected"].get(node) or answer.get("preFilter") or {"plugin": "NodeAffinity", "reasons": []}
            )
            if rule_of(refusal) not in rules and not excuse(problem, node, refusal):
                wrong.append((problem["id"], node, refusal, findings))
    assert wrong == []


def test_number_of_each_exception_is_as_documented() -> None:
    used: Counter[str] = Counter()
    for problem in (one for problems in PROBLEMS.values() for one in problems):
        refusals = ANSWERS[problem["id"]]["rejected"]
        excused = {node: why for node, refusal in refusals.items() if (why := excuse(problem, node, refusal))}
        found = judged(problem) if excused else {}
        for node, why in excused.items():
            used[why] += rule_of(refusals[node]) not in {finding.rule for finding in found[node]}
    assert used == {NOMINATED: 16, ENFORCED: 33}
