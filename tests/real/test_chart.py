"""The chart of `deploy/helm`: the same objects as `deploy/base`, rights that follow the domains, and values that are checked."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from domains.forecast.settings.args import PeakSettings
from multisched import __version__
from multisched.config import loading
from tests.real.rendering import (
    BASE,
    CHART,
    DEPLOY,
    OVERLAYS,
    Object,
    RefusedError,
    configuration,
    kustomized,
    run,
    templated,
    the,
    tools,
)

INSTANCE = "app.kubernetes.io/instance"
CLUSTER_WIDE = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
"""kustomize does not know that they are, and gives them a namespace, which the API server takes away."""


def comparable(objects: Sequence[Object]) -> dict[tuple[str, str, str], Any]:
    """Without what has to differ or means nothing: labels, the order of volumes, the namespace itself."""
    found = {}
    for one in copy.deepcopy(list(objects)):
        if one["kind"] == "Namespace":
            continue
        metadata = one.pop("metadata")
        if one["kind"] == "ConfigMap":
            one["data"] = {"multisched.yaml": loading.parse(one["data"]["multisched.yaml"], "multisched.yaml")}
        if one["kind"] == "Deployment":
            template = one["spec"]["template"]
            labels = template["metadata"].pop("labels").items() & {("app.kubernetes.io/name", "multisched")}
            template["metadata"]["labels"] = sorted(labels)
            volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
            template["spec"]["volumes"] = volumes
            (container,) = template["spec"]["containers"]
            container["volumeMounts"] = {mount["name"]: mount for mount in container["volumeMounts"]}
        namespace = "" if one["kind"] in CLUSTER_WIDE else metadata.get("namespace", "")
        found[one["kind"], namespace, metadata["name"]] = _without_instance(one)
    return found


def _without_instance(part: Any) -> Any:
    if isinstance(part, Mapping):
        return {key: _without_instance(value) for key, value in part.items() if key != INSTANCE}
    return [_without_instance(value) for value in part] if isinstance(part, list) else part


def test_chart_installs_the_same_objects_as_the_base() -> None:
    chart, base = comparable(templated()), comparable(kustomized(BASE))
    assert chart.keys() == base.keys()
    for key in base:
        assert chart[key] == base[key], key


@pytest.mark.parametrize("folder", [BASE, *sorted(OVERLAYS.iterdir()), DEPLOY / "webhook"], ids=lambda one: one.name)
def test_changed_configuration_does_not_change_the_deployment(folder: Path, tmp_path: Path) -> None:
    """The program follows its file: a name or an annotation that changed with it would roll the Deployment."""
    copied = tmp_path / "deploy"
    shutil.copytree(DEPLOY, copied)
    changed = copied / folder.relative_to(DEPLOY)
    for file in copied.rglob("multisched.yaml"):
        file.write_text(file.read_text() + "verify: {every: 10m}\n")
    before, after = kustomized(folder), kustomized(changed)
    assert the(before, "Deployment") == the(after, "Deployment")
    assert configuration(before) != configuration(after)

    first, second = templated(), templated({"config": {"verify": {"every": "10m"}}})
    assert the(first, "Deployment") == the(second, "Deployment")
    assert configuration(first) != configuration(second)


def test_values_give_the_overlays() -> None:
    """What an overlay changes of the base can be had by values."""
    strict = comparable(templated({"spreadOverNodes": "DoNotSchedule"}))
    assert strict == comparable(kustomized(OVERLAYS / "two-replicas"))

    url = "http://prometheus-operated.monitoring.svc:9090"
    values: dict[str, Any] = {
        "forecast": {"prometheus": {"url": url}, "metricsApi": True},
        "resources": {"limits": {"memory": "2Gi"}},
        "networkPolicy": {"scrapers": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}},
    }
    chart, overlay = comparable(templated(values)), comparable(kustomized(OVERLAYS / "forecast"))
    policy = ("NetworkPolicy", "multisched-system", "multisched")
    assert chart.pop(policy)["spec"]["egress"] == overlay.pop(policy)["spec"]["egress"]
    assert chart == overlay

    values = {
        "replicaCount": 1,
        "repair": {"rights": False},
        "resources": {"requests": {"cpu": "100m", "memory": "160Mi"}},
    }
    assert comparable(templated(values)) == comparable(kustomized(OVERLAYS / "minimal"))


def test_webhook_equals_that_of_the_overlay() -> None:
    values = {"quotaWebhook": {"enabled": True, "certManagerCertificate": "multisched-system/multisched-webhook"}}
    objects = templated(values)
    assert comparable(objects) == comparable(kustomized(DEPLOY / "webhook"))
    annotation = {"cert-manager.io/inject-ca-from": "multisched-system/multisched-webhook"}
    assert the(objects, "ValidatingWebhookConfiguration", "multisched-quotas")["metadata"]["annotations"] == annotation

    second = templated({"quotaWebhook": {"enabled": True, "caBundle": "QQ=="}}, release="second", namespace="elsewhere")
    (webhook,) = the(second, "ValidatingWebhookConfiguration", "second-multisched-quotas")["webhooks"]
    service = webhook["clientConfig"]["service"]
    assert (service["name"], service["namespace"]) == ("second-multisched", "elsewhere")
    assert webhook["clientConfig"]["caBundle"] == "QQ=="


def test_chart_version_equals_that_of_the_program() -> None:
    assert f"version: {__version__}\nappVersion: {__version__}\n" in (CHART / "Chart.yaml").read_text()
    (container,) = the(kustomized(BASE), "Deployment")["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"multisched:{__version__}"


def test_helm_lint_accepts_the_chart() -> None:
    run([tools() / "helm", "lint", "--strict", "--namespace", "multisched-system", CHART])


def names_of(objects: Sequence[Object], role: str) -> list[str]:
    (names,) = {tuple(rule["resourceNames"]) for rule in the(objects, "Role", role)["rules"] if "resourceNames" in rule}
    return list(names)


def test_rights_follow_the_domains() -> None:
    domains = [
        {"name": "services", "profile": {"base": "forecast"}, "nodes": {"rule": "rest"}},
        {"name": "training", "nodes": {"rule": "gpu"}},
    ]
    objects = templated({"config": {"domains": domains, "lease": {"namePrefix": "ours"}}})
    assert names_of(objects, "multisched-leases") == ["ours-services", "ours-training"]
    assert names_of(objects, "multisched-repair") == ["ours-repair-services"]
    shown = loading.parse(configuration(objects), "multisched.yaml")
    assert [domain.name for domain in shown.domains] == ["services", "training"]

    none_repairs = templated({"config": {"domains": [{"name": "training"}]}})
    assert not [one for one in none_repairs if one["metadata"]["name"] == "multisched-repair"]
    assert "pods/eviction" in str(the(none_repairs, "ClusterRole")["rules"])
    assert "pods/eviction" not in str(the(templated({"repair": {"rights": False}}), "ClusterRole")["rules"])


def test_rights_to_leases_and_stored_objects_are_in_the_lease_namespace() -> None:
    objects = templated({"config": {"lease": {"namespace": "elections"}}})
    roles, bindings = ([one for one in objects if one["kind"] == kind] for kind in ("Role", "RoleBinding"))
    assert {one["metadata"]["name"] for one in roles} == {
        "multisched-leases",
        "multisched-quotas",
        "multisched-repair",
    }
    assert {one["metadata"]["namespace"] for one in (*roles, *bindings)} == {"elections"}
    assert {subject["namespace"] for one in bindings for subject in one["subjects"]} == {"multisched-system"}


def test_forecast_values_set_sources_and_repair() -> None:
    values = {
        "config": {"domains": [{"name": "services", "profile": {"base": "forecast"}}, {"name": "gpu"}]},
        "forecast": {
            "domain": "services",
            "prometheus": {"url": "https://prometheus.example:9090", "settings": {"answerBytesMax": 300_000_000}},
            "history": {"windowDays": 14},
            "args": {"mode": "both"},
        },
        "repair": {"settings": {"mode": "preview", "windows": [{"from": "02:00", "to": "05:00"}]}},
    }
    shown = loading.parse(configuration(templated(values)), "multisched.yaml")
    services, gpu = shown.domains
    (plugin,) = services.profile.plugins.enabled
    assert (plugin.name, gpu.profile.plugins.enabled) == ("PeakForecast", ())
    settings = PeakSettings.from_config(plugin.args or {})
    assert settings.learning is not None
    assert settings.learning.history is not None
    assert settings.learning.profiles_file == "/var/lib/multisched/profiles"
    assert [type(one).__name__ for one in settings.learning.history.sources] == ["PrometheusSettings"]
    assert settings.repair is not None


def test_server_and_ports_have_equal_values() -> None:
    server = {"port": 8443, "probePort": 8081, "tls": {"certFile": "/tls/tls.crt", "keyFile": "/tls/tls.key"}}
    objects = templated({"config": {"server": server}, "monitoring": {"serviceMonitor": {"enabled": True}}})
    shown = loading.parse(configuration(objects), "multisched.yaml").server
    (container,) = the(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert [port["containerPort"] for port in container["ports"]] == [shown.port, shown.probe_port] == [8443, 8081]
    assert [port["port"] for port in the(objects, "Service")["spec"]["ports"]] == [8443]
    assert not shown.tls.self_signed
    (endpoint,) = the(objects, "ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["tlsConfig"] == {"insecureSkipVerify": False, "serverName": "multisched.multisched-system.svc"}


def test_second_release_has_different_names() -> None:
    first, second = templated(), templated(release="second", namespace="elsewhere")

    assert not comparable(first).keys() & comparable(second).keys()
    assert "system:serviceaccount:multisched-system:multisched" not in str(second)
    assert "system:serviceaccount:elsewhere:second-multisched" in str(
        the(second, "ValidatingAdmissionPolicy", "second-multisched-gpu-bindings")
    )
    for binding in (one for one in second if one["kind"].endswith("RoleBinding")):
        assert [one["name"] for one in binding["subjects"]] == ["second-multisched"]
        assert binding["roleRef"]["name"] in {
            one["metadata"]["name"] for one in second if one["kind"] == binding["roleRef"]["kind"]
        }


def test_monitoring_is_installed_on_demand() -> None:
    kinds = {one["kind"] for one in templated()}
    assert not kinds & {"ServiceMonitor", "PrometheusRule"}
    readers = [{"kind": "ServiceAccount", "name": "prometheus-k8s", "namespace": "monitoring"}]
    monitoring = {
        "serviceMonitor": {"enabled": True, "labels": {"release": "kube-prometheus"}},
        "dashboards": {"enabled": True},
    }
    objects = templated({"monitoring": monitoring, "rbac": {"readers": readers}})
    monitor = the(objects, "ServiceMonitor")
    assert monitor["metadata"]["labels"]["release"] == "kube-prometheus"
    assert monitor["spec"]["selector"]["matchLabels"].items() <= the(objects, "Service")["metadata"]["labels"].items()
    assert the(objects, "ClusterRoleBinding", "multisched-readers")["subjects"] == readers


def test_alerts_and_dashboards_equal_those_of_deploy() -> None:
    objects = templated({"monitoring": {"rules": {"enabled": True}, "dashboards": {"enabled": True}}})
    monitoring = DEPLOY / "monitoring"
    alerts = [yaml.safe_load(path.read_text())["groups"] for path in monitoring.glob("alerts.yaml")]
    assert [one["spec"]["groups"] for one in objects if one["kind"] == "PrometheusRule"] == alerts
    shown = [one["data"] for one in objects if "grafana_dashboard" in one["metadata"]["labels"]]
    dashboards = {name: json.loads(text) for data in shown for name, text in data.items()}
    assert dashboards == {path.name: json.loads(path.read_text()) for path in monitoring.glob("dashboards/*.json")}


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"replicas": 3}, "replicas"),
        ({"image": {"digest": "latest"}}, "/image/digest"),
        ({"quotaWebhook": {"enabled": True}}, "set caBundle or certManagerCertificate"),
        ({"config": {"domains": [{"nam": "x"}]}}, "/config/domains/0"),
        ({"config": {"verify": {"evry": "10m"}}}, "/config/verify"),
        ({"config": {"apiVersion": "multisched.io/v1"}}, "apiVersion"),
        ({"forecast": {"prometheus": {"url": "prometheus:9090"}}}, "/forecast/prometheus/url"),
        ({"forecast": {"history": {"windowDays": 14}}}, "forecast.history: there is no source"),
        ({"forecast": {"domain": "frecast", "metricsApi": True}}, "forecast.domain: config.domains has no frecast"),
        (
            {
                "forecast": {"metricsApi": True},
                "config": {
                    "domains": [{"name": "forecast", "profile": {"plugins": {"enabled": [{"name": "PeakForecast"}]}}}]
                },
            },
            "config.domains has arguments of PeakForecast for forecast already",
        ),
    ],
)
def test_invalid_values_are_refused_by_name(values: dict[str, Any], told: str) -> None:
    with pytest.raises(RefusedError, match=told):
        templated(values)
