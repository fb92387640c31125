"""Clusters as kubectl prints them, small and at random, in which a pod often does not fit; and fixes applied to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from datetime import UTC, datetime
from functools import cache
from typing import Any

import msgspec
import orjson
from hypothesis import strategies as st

from multisched.config import loading
from multisched.config.schema import Configuration
from multisched.observe.explain_view import ExplainQuery, Fix, PodView
from multisched.testing.builders import Document, container, node_document, pod_document
from multisched.whatif.explain_trial import DumpExplanations
from multisched.whatif.sandbox import DumpedCluster

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CONFIGURATION = """
apiVersion: multisched.io/v1
kind: MultischedConfiguration
domains: [{name: all, schedulerNames: [default-scheduler], nodes: {rule: rest}}]
"""
ASKED = ExplainQuery("default", "late", with_fixes=True)


@cache
def configuration() -> Configuration:
    """Frozen, and the same for all."""
    return loading.parse(CONFIGURATION, "test")


def small_pod(name: str, *, cpu: str = "100m", ports: Sequence[Document] = (), **fields: Any) -> Document:
    """A pod that asks for something, so that it can be told to ask for less."""
    return pod_document(name, container(cpu=cpu, ports=list(ports)), **fields)


def dump_of(*documents: Document, configured: Configuration | None = None) -> DumpExplanations:
    items = [msgspec.Raw(orjson.dumps(document)) for document in documents]
    return DumpExplanations(configured or configuration(), DumpedCluster(items, NOW))


def explained(*documents: Document, query: ExplainQuery = ASKED) -> PodView:
    return dump_of(*documents).pod(query)


def outcome(*documents: Document) -> tuple[str, str]:
    """What an attempt for `late` comes to: placed or refused, and where."""
    view = explained(*documents, query=ExplainQuery("default", "late"))
    assert view.now is not None
    return view.now.outcome, view.now.node


def applied(documents: list[Document], fix: Fix) -> list[Document]:
    """The cluster after somebody has done what the fix says, done to the objects as a person would."""
    found = deepcopy(documents)
    late = next(one for one in found if one["metadata"]["name"] == "late")
    spec, change = late["spec"], fix.change
    match fix.kind:
        case "gate":
            spec["schedulingGates"] = [gate for gate in spec["schedulingGates"] if gate["name"] not in change["remove"]]
        case "request":
            amount = f"{change['to']}m" if change["resource"] == "cpu" else str(change["to"])
            spec["containers"][0]["resources"]["requests"][change["resource"]] = amount
        case "annotation":
            late["metadata"]["annotations"][change["annotation"]] = str(change["to"])
        case "toleration":
            spec["tolerations"] = [*spec.get("tolerations", ()), change["toleration"]]
        case "selector":
            del spec["nodeSelector"][change["nodeSelector"]]
        case "affinity":
            _loosen(spec["affinity"]["nodeAffinity"], change)
        case "spread":
            constraint = spec["topologySpreadConstraints"][change["constraint"]]
            constraint.update({key: value for key, value in change.items() if key != "constraint"})
        case "pod affinity":
            ((rule, at),) = change.items()
            del spec["affinity"][rule]["requiredDuringSchedulingIgnoredDuringExecution"][at]
        case "host port":
            ports = spec["containers"][0]["ports"]
            spec["containers"][0]["ports"] = [port for port in ports if port["hostPort"] != change["hostPort"]]
        case "scheduler":
            spec["schedulerName"] = change["schedulerName"]
        case "node":
            _change_node(found, change)
        case "victim":
            found = [one for one in found if one["metadata"]["name"] != change["name"]]
        case _:
            raise AssertionError(fix)
    return found


def _loosen(affinity: Document, change: Mapping[str, Any]) -> None:
    required = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
    if change["term"] is None:
        del affinity["requiredDuringSchedulingIgnoredDuringExecution"]
    else:
        del required["nodeSelectorTerms"][change["term"]]["matchExpressions"][change["expression"]]


def _change_node(documents: list[Document], change: Mapping[str, Any]) -> None:
    name = change.get("node") or change["uncordon"]
    node = next(one for one in documents if one["kind"] == "Node" and one["metadata"]["name"] == name)
    if "uncordon" in change:
        node["spec"]["unschedulable"] = False
    elif "taint" in change:
        node["spec"]["taints"] = [taint for taint in node["spec"]["taints"] if taint["key"] != change["taint"]]
    elif change["value"] is None:
        del node["metadata"]["labels"][change["label"]]
    else:
        node["metadata"]["labels"][change["label"]] = change["value"]


ZONE = "topology.kubernetes.io/zone"
KEYS, VALUES = ("disk", ZONE), ("a", "b")


@st.composite
def requirements(draw: st.DrawFn) -> Document:
    operator = draw(st.sampled_from(("In", "NotIn", "Exists", "DoesNotExist")))
    values = [draw(st.sampled_from(VALUES))] if operator in ("In", "NotIn") else []
    return {"key": draw(st.sampled_from(KEYS)), "operator": operator, "values": values}


@st.composite
def clusters(draw: st.DrawFn) -> list[Document]:
    """One to five nodes, what runs on them, and the pod `late`, which is hard to please."""
    documents: list[Document] = []
    names = [f"n{index}" for index in range(draw(st.integers(1, 5)))]
    for name in names:
        labels = draw(st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES)))
        node = node_document(name, cpu=draw(st.sampled_from(("1", "2", "4"))), labels=labels)
        if draw(st.integers(0, 3)) == 0:
            node["spec"]["unschedulable"] = True
        taints = draw(st.lists(st.sampled_from(("team", "gpu")), max_size=2, unique=True))
        effects = st.sampled_from(("NoSchedule", "NoExecute", "PreferNoSchedule"))
        node["spec"]["taints"] = [{"key": key, "value": "x", "effect": draw(effects)} for key in taints]
        documents.append(node)
    for index in range(draw(st.integers(0, 6))):
        ports = [{"containerPort": 80, "hostPort": 80}] if draw(st.booleans()) else []
        app, cpu = draw(st.sampled_from(("web", "db"))), draw(st.sampled_from(("200m", "900m", "1800m")))
        where, priority = draw(st.sampled_from(names)), draw(st.sampled_from((0, 10)))
        documents.append(
            small_pod(f"run-{index}", cpu=cpu, node=where, priority=priority, ports=ports, labels={"app": app})
        )
    return [*documents, draw(hard_pods())]


@st.composite
def hard_pods(draw: st.DrawFn) -> Document:
    spec: Document = {}
    if draw(st.booleans()):
        spec["nodeSelector"] = draw(st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES), min_size=1))
    affinity: Document = {}
    if draw(st.integers(0, 3)) == 0:
        terms = [{"matchExpressions": draw(st.lists(requirements(), min_size=1, max_size=2))}]
        affinity["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    selector = {"matchLabels": {"app": draw(st.sampled_from(("web", "db")))}}
    if draw(st.integers(0, 3)) == 0:
        rule = draw(st.sampled_from(("podAffinity", "podAntiAffinity")))
        key = draw(st.sampled_from(("kubernetes.io/hostname", ZONE)))
        affinity[rule] = {
            "requiredDuringSchedulingIgnoredDuringExecution": [{"labelSelector": selector, "topologyKey": key}]
        }
    if affinity:
        spec["affinity"] = affinity
    if draw(st.integers(0, 3)) == 0:
        constraint = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule"}
        spec["topologySpreadConstraints"] = [{**constraint, "labelSelector": selector}]
    if draw(st.integers(0, 5)) == 0:
        spec["schedulingGates"] = [{"name": "example.com/quota"}]
    if draw(st.booleans()):
        spec["ports"] = [{"containerPort": 80, "hostPort": 80}]
    return small_pod("late", cpu=draw(st.sampled_from(("100m", "1", "3", "8"))), labels={"app": "web"}, **spec)
