"""What a good configuration means: defaults, completion, profiles, durations, and the printed files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from multisched.config import loading
from multisched.config import print as config_print
from multisched.config.kube.points import DEFAULT_PLUGINS
from multisched.config.plugins import base_profile, plugin_registry, resolve_profile
from multisched.config.schema import Configuration, NodeRule
from multisched.config.sections import format_duration, parse_duration
from multisched.framework.registry import PluginUse
from multisched.model.limited_toleration import tolerations_for
from multisched.model.objects import Pod
from multisched.model.selectors import Toleration
from multisched.testing.builders import make_pod

ROOT = Path(__file__).parents[3]
HEAD = "apiVersion: multisched.io/v1\nkind: MultischedConfiguration\n"


def parse(text: str) -> Configuration:
    return loading.parse(HEAD + text, "f.yaml")


def plugins_of(configuration: Configuration, domain: str) -> dict[str, PluginUse]:
    profile = resolve_profile(configuration.domain(domain), plugin_registry())
    return {use.name: use for use in profile.plugins}


def test_configuration_without_a_file_serves_three_domains() -> None:
    configuration = loading.default()
    assert [(d.name, d.scheduler_names, d.nodes.rule) for d in configuration.domains] == [
        ("forecast", ("forecast-scheduler",), NodeRule.REST),
        ("gpu", ("gpu-scheduler",), NodeRule.GPU),
        ("job", ("job-scheduler",), NodeRule.VIRTUAL),
    ]
    assert (
        Toleration("virtual-kubelet.io/provider", "Exists", "", "NoSchedule")
        in configuration.domain("job").policy.compile()
    )
    lease = configuration.lease
    assert (lease.duration_s, lease.renew_deadline_s, lease.retry_period_s) == (15.0, 10.0, 2.0)


def test_user_domain_starts_from_kube_scheduler_plugins() -> None:
    """And from the plugins of quotas, before preemption, and of gangs, last, as upstream's feature gate would add it."""
    names = [use.name for use in base_profile("default").plugins]
    assert names.index("ElasticQuota") + 1 == names.index("DefaultPreemption")
    *uses, gangs = [use for use in base_profile("default").plugins if use.name != "ElasticQuota"]
    assert gangs.name == "GangScheduling"
    wanted = {"QOSSort" if name == "PrioritySort" else name: weight for name, weight in DEFAULT_PLUGINS.items()}
    assert [use.name for use in uses] == list(wanted)
    # Upstream's DynamicResources prefers devices, which nothing here offers.
    assert {use.name: use.weight for use in uses} == wanted | {"DynamicResources": 1}


@pytest.mark.parametrize(
    ("pod", "is_given"),
    [
        (make_pod("whole", extra={"nvidia.com/gpu": 1}), True),
        (make_pod("fraction", annotations={"multisched.io/gpu-milli": "250"}), True),
        (make_pod("cpu", cpu_milli=90_000), False),
        (make_pod("none", extra={"nvidia.com/gpu": 0}), False),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_gpu_taints_are_tolerated_by_pods_that_need_gpus(pod: Pod, is_given: bool) -> None:
    added = tolerations_for(pod, loading.default().domain("gpu").policy.compile())

    assert [(t.key, t.effect) for t in added] == ([("nvidia.com/gpu", "NoSchedule")] if is_given else [])


def test_toleration_applies_to_all_or_selected_pods() -> None:
    added = (
        parse(
            """\
domains:
  - name: job
    policy:
      tolerations:
        - {key: everybody, operator: Exists}
        - key: some
          operator: Exists
          pods:
            annotations: [example.com/burst]
            selector: {matchExpressions: [{key: tier, operator: In, values: [batch]}]}
"""
        )
        .domain("job")
        .policy.compile()
    )

    def keys(pod: Pod) -> list[str]:
        return [t.key for t in tolerations_for(pod, added)]

    assert keys(make_pod("plain", cpu_milli=1)) == ["everybody"]
    assert keys(make_pod("marked", annotations={"example.com/burst": ""})) == ["everybody", "some"]
    assert keys(make_pod("labelled", labels={"tier": "batch"})) == ["everybody", "some"]
    assert keys(make_pod("other", labels={"tier": "web"})) == ["everybody"]


def test_minimal_file_means_the_defaults() -> None:
    assert parse("") == loading.default()


def test_printed_default_equals_the_defaults_and_the_repository_file() -> None:
    text = config_print.configuration_text(loading.default())
    assert (ROOT / "config/default.yaml").read_text() == text, "run: multisched config default > config/default.yaml"
    printed = loading.parse(text, "default.yaml")
    for domain in loading.default().domains:
        assert plugins_of(printed, domain.name) == plugins_of(loading.default(), domain.name)
        assert printed.domain(domain.name) == replace(domain, profile=printed.domain(domain.name).profile)
    assert printed.lease == loading.default().lease


def test_printed_schema_equals_the_repository_file() -> None:
    text = config_print.schema_text()
    assert (ROOT / "config/schema.json").read_text() == text, "run: multisched config schema > config/schema.json"
    schema = json.loads(text)
    assert schema["properties"]["apiVersion"]["const"] == "multisched.io/v1"
    assert schema["$defs"]["Queue"]["properties"]["initialBackoff"]["default"] == "1s"
    assert schema["additionalProperties"] is False


@pytest.mark.parametrize("path", sorted((ROOT / "config/examples").glob("*.yaml")), ids=lambda path: path.name)
def test_every_example_configuration_is_valid(path: Path) -> None:
    assert loading.load(path).domains


def test_fourth_scheduler_needs_configuration_only() -> None:
    configuration = loading.load(ROOT / "config/examples/qos-scheduler.yaml")
    qos = configuration.domain("qos")
    assert qos.scheduler_names == ("qos-scheduler",)
    assert list(plugins_of(configuration, "qos")).count("QOSSort") == 1
    assert "PrioritySort" not in plugins_of(configuration, "qos")


def test_queue_sort_replaces_that_of_the_base() -> None:
    configuration = parse("domains: [{name: a, profile: {queueSort: PrioritySort}}]\n")
    uses = plugins_of(configuration, "a")
    assert "PrioritySort" in uses
    assert "QOSSort" not in uses


def test_enabled_changes_only_named_plugins() -> None:
    configuration = parse(
        """\
domains:
  - name: forecast
    profile:
      plugins:
        disabled: [ImageLocality]
        enabled:
          - {name: NodeAffinity, weight: 7}
          - {name: TaintToleration, isolation: thread, timeout: 250ms}
"""
    )
    before, after = plugins_of(loading.default(), "forecast"), plugins_of(configuration, "forecast")
    assert list(after) == [name for name in before if name != "ImageLocality"]
    assert after["NodeAffinity"].weight == 7
    assert after["NodeAffinity"].args == before["NodeAffinity"].args
    assert (after["TaintToleration"].weight, after["TaintToleration"].timeout_s) == (3, 0.25)


def test_disabling_all_makes_enabled_the_whole_profile() -> None:
    configuration = parse(
        "domains: [{name: a, profile: {plugins: {disabled: ['*'], enabled: [{name: QOSSort}, {name: DefaultBinder}]}}}]"
    )
    assert list(plugins_of(configuration, "a")) == ["QOSSort", "DefaultBinder"]


def test_policy_in_the_file_replaces_the_default_of_the_domain() -> None:
    assert parse("domains: [{name: job, policy: {tolerations: []}}]").domain("job").policy.compile() == ()


def test_configuration_values_are_immutable() -> None:
    with pytest.raises(AttributeError, match="immutable"):
        loading.default().lease.duration_s = 1.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10s", 10.0),
        ("500ms", 0.5),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("1.5s", 1.5),
        ("1m1ms", 60.001),
        ("24h", 86400.0),
    ],
)
def test_durations_are_parsed_in_user_notation(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "10", "s", "-1s", "1 s", "1d", "1s1m", "25h", "1e3s", "٣s", None, True, 5, 0.5, "9" * 40]
)
def test_invalid_durations_are_refused(text: object) -> None:
    with pytest.raises(ValueError, match=r"duration|24h"):
        parse_duration(text)


@given(st.integers(min_value=1, max_value=86_400_000))
def test_printed_duration_parses_to_the_same_value(milliseconds: int) -> None:
    assert parse_duration(format_duration(milliseconds / 1000)) == pytest.approx(milliseconds / 1000)


def test_default_file_is_plain_yaml() -> None:
    assert yaml.safe_load((ROOT / "config/default.yaml").read_text())["kind"] == "MultischedConfiguration"


def test_extender_managed_resources_are_ignored_by_fit_but_scored() -> None:
    configuration = loading.load(ROOT / "config/examples/extender.yaml")
    profile = resolve_profile(configuration.domain("fpga"), plugin_registry())
    uses = {use.name: use for use in profile.plugins}
    assert uses["NodeResourcesFit"].args == {"ignoredResources": ["example.com/fpga"]}
    assert profile.points == {"Score": ("NodeResourcesFit", "NodeResourcesBalancedAllocation")}
    (extender,) = configuration.domain("fpga").extenders
    assert (extender.http_timeout_s, extender.weight, extender.is_tls) == (0.5, 3, True)


FIT_WITH_ARGS = (
    "{name: NodeResourcesFit, args: {ignoredResources: [example.com/a], scoringStrategy: {type: MostAllocated}}}"
)


@pytest.mark.parametrize(
    ("profile", "ignored"),
    [
        ("enabled: []", {"nvidia.com/gpumem", "nvidia.com/gpucores"}),
        (f"enabled: [{FIT_WITH_ARGS}]", {"example.com/a", "nvidia.com/gpumem", "nvidia.com/gpucores"}),
        (f"enabled: [{FIT_WITH_ARGS}], disabled: [GpuShare]", {"example.com/a"}),
    ],
)
def test_resources_that_a_plugin_manages_are_ignored_by_fit(profile: str, ignored: set[str]) -> None:
    """Whatever args NodeResourcesFit has, as long as the plugin is in the profile."""
    configuration = parse(f"domains:\n  - {{name: gpu, profile: {{plugins: {{{profile}}}}}}}\n")
    args = plugins_of(configuration, "gpu")["NodeResourcesFit"].args
    names = set(args.get("ignoredResources", ()))
    assert names & {"example.com/a", "nvidia.com/gpumem", "nvidia.com/gpucores"} == ignored
    assert ("scoringStrategy" in args) == ("scoringStrategy" in profile)


def test_printed_profile_does_not_repeat_what_plugins_manage() -> None:
    assert "ignoredResources" not in config_print.configuration_text(loading.default())
