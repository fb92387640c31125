"""kubectl's reading commands: get in every form, watch, selectors, describe, events, discovery, explain."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from tests.integration.kubectl.conftest import Document, Kubectl, config_map, deployment, pod, rows


def test_a_table_has_the_columns_of_its_kind(ctl: Kubectl, node: str) -> None:
    ctl("apply", "-f", "-", stdin=pod("a", on=node))
    ctl("wait", "--for=condition=Ready", "pod/a", "--timeout=60s")

    [row] = rows(ctl("get", "pods"))
    assert row["NAME"] == "a"
    assert (row["READY"], row["STATUS"], row["RESTARTS"]) == ("1/1", "Running", "0")
    assert re.fullmatch(r"\d+s", row["AGE"])
    [wide] = rows(ctl("get", "pods", "-o", "wide"))
    assert wide["NODE"] == node
    assert re.fullmatch(r"[\d.]+", wide["IP"])
    [of_node] = [row for row in rows(ctl("get", "nodes")) if row["NAME"] == node]
    assert (of_node["STATUS"], of_node["VERSION"]) == ("Ready", "v1.36.3")


def test_the_same_object_in_every_output(ctl: Kubectl) -> None:
    ctl("create", "configmap", "c", "--from-literal=k=v")

    as_json = json.loads(ctl("get", "configmap", "c", "-o", "json"))
    assert as_json["kind"] == "ConfigMap"
    assert as_json["data"] == {"k": "v"}
    assert yaml.safe_load(ctl("get", "configmap", "c", "-o", "yaml")) == as_json
    assert ctl("get", "cm/c", "-o", "name") == "configmap/c\n"
    assert ctl("get", "cm", "c", "-o", "jsonpath={.data.k}") == "v"
    assert ctl("get", "cm", "c", "-o", "custom-columns=VALUE:.data.k").split() == ["VALUE", "v"]
    assert ctl("get", "cm", "c", "-o", "go-template={{.metadata.name}}") == "c"


def test_selectors_by_label_and_field(ctl: Kubectl, node: str) -> None:
    for document in (pod("a", on=node, tier="front"), pod("b", tier="back"), pod("c", tier="back", env="test")):
        ctl("create", "-f", "-", stdin=document)

    assert ctl.names("pods", "-l", "tier=back") == ["pod/b", "pod/c"]
    assert ctl.names("pods", "-l", "tier=back,!env") == ["pod/b"]
    assert ctl.names("pods", "-l", "tier in (front, back),env=test") == ["pod/c"]
    assert ctl.names("pods", "--field-selector", f"spec.nodeName={node}") == ["pod/a"]
    assert ctl.names("pods", "--field-selector", "spec.nodeName=") == ["pod/b", "pod/c"]
    assert ctl.names("pods", "--field-selector", "metadata.name!=b,status.phase=Pending", "-l", "tier") == ["pod/c"]
    assert [row["TIER"] for row in rows(ctl("get", "pods", "-L", "tier"))] == ["front", "back", "back"]
    assert "not supported" in ctl.fails("get", "pods", "--field-selector", "spec.nonsense=1")


def test_all_namespaces_and_several_kinds_at_once(ctl: Kubectl) -> None:
    ctl("create", "-f", "-", stdin=pod("a"))
    ctl("create", "configmap", "c")

    assert {"NAMESPACE", "NAME"} <= set(rows(ctl("get", "pods", "-A"))[0])
    assert (ctl.namespace, "a") in {(row["NAMESPACE"], row["NAME"]) for row in rows(ctl("get", "pods", "-A"))}
    assert ctl.names("pods,configmaps") == ["pod/a", "configmap/c"] or "configmap/c" in ctl.names("pods,configmaps")
    assert ctl.names("pod/a", "configmap/c") == ["pod/a", "configmap/c"]
    assert "pod/a" in ctl.names("all")


def test_sorting_pages_and_absence(ctl: Kubectl) -> None:
    for name in ("b", "c", "a"):
        ctl("create", "configmap", f"x-{name}", "--from-literal", f"k={name}")

    found = ctl.names("configmaps", "--chunk-size=1")
    assert [name for name in found if "/x-" in name] == ["configmap/x-a", "configmap/x-b", "configmap/x-c"]
    by_age = ctl.names("configmaps", "--sort-by=.metadata.resourceVersion")
    assert [name for name in by_age if "/x-" in name] == ["configmap/x-b", "configmap/x-c", "configmap/x-a"]
    assert 'configmaps "none" not found' in ctl.fails("get", "configmap", "none")
    assert ctl("get", "configmap", "none", "--ignore-not-found") == ""
    assert ctl.get("configmap", "x-b")["data"] == {"k": "b"}


def test_watch_shows_each_change(ctl: Kubectl, node: str) -> None:
    ctl("create", "-f", "-", stdin=pod("before", on=node))
    ctl("wait", "--for=condition=Ready", "pod/before", "--timeout=60s")
    with ctl.start("get", "pods", "--watch", "-o", "name") as watch:
        assert watch.stdout is not None
        try:
            assert watch.stdout.readline() == "pod/before\n"
            ctl("create", "-f", "-", stdin=pod("after"))
            assert watch.stdout.readline() == "pod/after\n"
        finally:
            watch.kill()


def test_watch_events_and_watch_only(ctl: Kubectl) -> None:
    ctl("create", "configmap", "old")
    with ctl.start("get", "configmaps", "--watch-only", "--output-watch-events", "--no-headers") as watch:
        assert watch.stdout is not None
        try:
            seen: list[list[str]] = []
            for number in range(100):
                # The watch begins when it begins: changes are made until it has shown one.
                ctl("label", "configmap", "old", f"n={number}", "--overwrite")
                if number == 0:
                    continue
                seen.append(watch.stdout.readline().split()[:2])
                break
            ctl("delete", "configmap", "old")
            while seen[-1][0] != "DELETED":
                seen.append(watch.stdout.readline().split()[:2])
        finally:
            watch.kill()
    assert {kind for kind, _ in seen} <= {"MODIFIED", "DELETED"}
    assert {name for _, name in seen} == {"old"}


def test_describe_pod_shows_node_requests_and_events(ctl: Kubectl, node: str) -> None:
    ctl("apply", "-f", "-", stdin=pod("a", on=node))
    ctl("wait", "--for=condition=Ready", "pod/a", "--timeout=60s")
    event: Document = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "a.1", "namespace": ctl.namespace},
        "involvedObject": {"kind": "Pod", "namespace": ctl.namespace, "name": "a", "apiVersion": "v1"},
        "reason": "Told",
        "message": "a story about a",
        "type": "Normal",
        "count": 1,
        "firstTimestamp": "2030-01-01T00:00:00Z",
        "lastTimestamp": "2030-01-01T00:00:00Z",
        "source": {"component": "test"},
    }
    event["involvedObject"]["uid"] = ctl.get("pod", "a")["metadata"]["uid"]
    ctl("create", "-f", "-", stdin=event)

    text = ctl("describe", "pod", "a")
    assert re.search(rf"^Node: +{node}/", text, re.M)
    assert re.search(r"^Status: +Running", text, re.M)
    assert re.search(r"cpu: +100m", text)
    assert re.search(r"^QoS Class: +Burstable", text, re.M)
    assert re.search(r"Ready +True", text)
    assert "a story about a" in text
    assert "a story about a" in ctl("get", "events")
    assert "a story about a" in ctl("events", "--for", "pod/a")
    assert ctl("get", "events", "--field-selector", "involvedObject.name=other") == ""
    assert "Told" in ctl("get", "events", "--field-selector", "reason=Told,involvedObject.kind=Pod")
    assert "a story about a" in ctl("get", "events.events.k8s.io", "-o", "yaml")


def test_describe_node_sums_its_pods(ctl: Kubectl, node: str) -> None:
    for name in ("a", "b"):
        ctl("create", "-f", "-", stdin=pod(name, on=node))

    text = ctl("describe", "node", node)
    assert re.search(rf"{ctl.namespace} +a +100m", text)
    assert re.search(r"^ +cpu +200m \(2%\)", text, re.M)
    assert re.search(r"Ready +True", text)
    assert re.search(r"^Unschedulable: +false", text, re.M)


@pytest.mark.parametrize("kind", ["deployment", "replicaset", "namespace", "configmap"])
def test_describe_of_other_kinds(ctl: Kubectl, kind: str) -> None:
    ctl("create", "-f", "-", stdin=deployment("web"))
    ctl("create", "-f", "-", stdin=config_map("settings", colour="blue"))
    ctl("wait", "--for=create", "rs", "-l", "app=web", "--timeout=60s")

    if kind == "namespace":
        assert re.search(r"^Status: +Active", ctl("describe", "ns", ctl.namespace), re.M)
    elif kind == "configmap":
        assert "blue" in ctl("describe", kind, "settings")
    else:
        assert "app=web" in ctl("describe", kind, "-l", "app=web")


def test_discovery(ctl: Kubectl) -> None:
    versions = ctl("api-versions").split()
    assert {"v1", "apps/v1", "batch/v1", "policy/v1", "coordination.k8s.io/v1", "scheduling.k8s.io/v1"} <= set(versions)
    resources = {(row["NAME"], row["APIVERSION"]): row for row in rows(ctl("api-resources"))}
    assert resources["pods", "v1"]["SHORTNAMES"] == "po"
    assert resources["pods", "v1"]["NAMESPACED"] == "true"
    assert resources["nodes", "v1"]["NAMESPACED"] == "false"
    assert resources["deployments", "apps/v1"]["KIND"] == "Deployment"
    assert "pods" in ctl("api-resources", "--verbs=list,watch", "--namespaced", "-o", "name").split()
    assert "cronjobs.batch" in ctl("api-resources", "--api-group=batch", "-o", "name").split()
    assert "Server Version: v1.36" in ctl("version")


def test_explain_knows_the_fields(ctl: Kubectl) -> None:
    text = ctl("explain", "pod.spec.schedulerName")
    assert "schedulerName" in text
    assert "string" in text
    assert "replicas" in ctl("explain", "deployment.spec")
    assert "nodeSelectorTerms" in ctl(
        "explain", "pod.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
    )
    assert "topologyKey" in ctl("explain", "pod.spec.topologySpreadConstraints", "--recursive")
    assert 'field "nonsense" does not exist' in ctl.fails("explain", "pod.spec.nonsense")


@pytest.mark.parametrize(
    "arguments", [("logs", "a"), ("exec", "a", "--", "true"), ("attach", "a"), ("port-forward", "pod/a", "18080:80")]
)
def test_commands_that_need_a_kubelet_report_it(ctl: Kubectl, node: str, arguments: tuple[str, ...]) -> None:
    """There is no container behind a fake node: an error that names the reason, at once, and no hang."""
    ctl("apply", "-f", "-", stdin=pod("a", on=node))
    ctl("wait", "--for=condition=Ready", "pod/a", "--timeout=60s")
    assert re.search(r"error|Error", ctl.fails(*arguments))
