"""The three profiles: they build, say what they should, and their manifests ask for what they show."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from domains.gpu.cards import Mode
from domains.gpu.dialects import demands_of
from multisched.config.plugins import enabled_plugins, plugin_registry
from multisched.config.schema import DomainConfig, NodeRule, Policy
from multisched.config.structure import from_plain
from multisched.framework.registry import PluginSet, build_profile
from multisched.model.selectors import Taint
from multisched.testing.builders import make_context, make_pod

DOMAINS = ("forecast", "gpu", "job")
FOLDERS = Path(__file__).parents[3] / "domains"


def profile_module(domain: str) -> ModuleType:
    return importlib.import_module(f"domains.{domain}.profile")


def built(domain: str) -> PluginSet:
    return build_profile(profile_module(domain).PROFILE, plugin_registry(), make_context(domain=domain))


def manifests(domain: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDERS / domain / "example.yaml").read_text()))


def pod_templates(domain: str) -> list[dict[str, Any]]:
    found = []
    for manifest in manifests(domain):
        spec = manifest["spec"]
        spec = spec["jobTemplate"]["spec"] if manifest["kind"] == "CronJob" else spec
        found.append(spec.get("template", manifest))
    return found


@pytest.mark.parametrize(("domain", "order"), [("forecast", "QOSSort"), ("gpu", "QOSSort"), ("job", "DeadlineSort")])
def test_shipped_profile_builds_and_sorts_its_queue(domain: str, order: str) -> None:
    plugins = built(domain)

    assert plugins.queue_sort.name == order
    assert {"NodeResourcesFit", "TaintToleration", "NodePorts"} <= {p.name for p in plugins.filter}
    assert [p.name for p in plugins.bind] == ["DefaultBinder"]


def test_each_domain_has_its_own_score_plugin() -> None:
    scores = {domain: {p.name: built(domain).uses[p.name].weight for p in built(domain).score} for domain in DOMAINS}

    default = {
        "TaintToleration": 3,
        "NodeAffinity": 2,
        "NodeResourcesFit": 1,
        "PodTopologySpread": 2,
        "InterPodAffinity": 2,
        "NodeResourcesBalancedAllocation": 1,
        "ImageLocality": 1,
    }
    by_requests = {"NodeResourcesFit", "NodeResourcesBalancedAllocation"}
    even = {"PeakForecast": 10, "PodTopologySpread": 1}
    assert scores["forecast"] == {name: default[name] for name in default.keys() - by_requests} | even
    by_cards = {"GpuShare": 10, "GpuTopology": 20}
    assert scores["gpu"] == {name: default[name] for name in default.keys() - by_requests} | by_cards
    assert scores["job"] == {"TaintToleration": 3, "NodeAffinity": 2, "NodeResourcesFit": 1, "ResourcePolicy": 1}


def test_tide_runs_only_if_enabled_and_before_preemption() -> None:
    settings = {"inference": {"namespaces": ["serving"]}}
    enabled = [{"name": "GpuTide", "args": settings}, {"name": "NodeName"}]
    plain = from_plain({"name": "gpu", "profile": {"base": "gpu"}}, DomainConfig)
    tide = from_plain({"name": "gpu", "profile": {"base": "gpu", "plugins": {"enabled": enabled}}}, DomainConfig)
    before, after = (list(enabled_plugins(domain, plugin_registry())) for domain in (plain, tide))
    assert "GpuTide" not in before
    assert after.index("GpuTide") + 1 == after.index("DefaultPreemption")
    assert [name for name in after if name != "GpuTide"] == before


@pytest.mark.parametrize("domain", DOMAINS)
def test_policy_and_tolerations_of_a_domain_are_equal(domain: str) -> None:
    module = profile_module(domain)

    assert from_plain(module.POLICY, Policy).compile() == module.TOLERATIONS
    assert NodeRule(module.NODES)


@pytest.mark.parametrize(
    ("domain", "taint"),
    [
        ("job", Taint("virtual-kubelet.io/provider", "alibabacloud", "NoSchedule")),
        ("gpu", Taint("nvidia.com/gpu", "present", "NoSchedule")),
    ],
)
def test_pods_of_a_domain_tolerate_only_the_taint_of_its_nodes(domain: str, taint: Taint) -> None:
    tolerations = profile_module(domain).TOLERATIONS

    assert any(t.tolerates(taint) for t in tolerations)
    assert not any(t.tolerates(Taint("maintenance", "", "NoSchedule")) for t in tolerations)
    assert not any(t.tolerates(Taint(taint.key, taint.value, "NoExecute")) for t in tolerations)


@pytest.mark.parametrize("domain", DOMAINS)
def test_example_manifests_name_their_scheduler(domain: str) -> None:
    templates = pod_templates(domain)

    assert templates
    assert {t["spec"]["schedulerName"] for t in templates} == {profile_module(domain).SCHEDULER_NAME}


def test_gpu_manifests_have_valid_gpu_requests() -> None:
    kinds = set()
    for template in pod_templates("gpu"):
        limits = template["spec"]["containers"][0].get("resources", {}).get("limits", {})
        requests = {name: int(text) for name, text in limits.items() if name == "nvidia.com/gpu"}
        demands = demands_of(make_pod("p", extra=requests, annotations=template["metadata"].get("annotations", {})))
        assert demands
        assert demands.problem == ""
        kinds.add(demands.by_mode[Mode.WHOLE].is_whole)
    assert kinds == {True, False}


def test_virtual_nodes_need_no_toleration_in_the_job_manifests() -> None:
    assert all("tolerations" not in template["spec"] for template in pod_templates("job"))
