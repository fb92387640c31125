"""KubeSchedulerConfiguration to ours: what is converted, what is told, and what is refused."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from multisched.cli import convert as cli_convert
from multisched.config import loading
from multisched.config.document import ConfigError
from multisched.config.kube.convert import Conversion, convert, profile_of
from multisched.config.kube.points import DEFAULT_PLUGINS, NEEDS
from multisched.config.kube.schema import POINTS
from multisched.config.nodes import NodeRouter
from multisched.config.plugins import plugin_registry, points_of, resolve_profile
from multisched.framework.registry import Profile
from multisched.model.objects import Node
from multisched.plugins.args_readers import ARGS_READERS

HEAD = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
HERE = frozenset(plugin_registry().names())


@cache
def points_here(plugin: str) -> frozenset[str]:
    return frozenset(points_of(plugin_registry().factory(plugin)))


DEFAULTS = [name for name in DEFAULT_PLUGINS if name in HERE]
DEFAULT_SCORES = [
    name for name in DEFAULTS if "Score" in points_here(name)
]  # fmt: skip

Document = dict[str, Any]


def kube(**fields: object) -> Document:
    return {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration", **fields}


def one_profile(plugins: Document | None = None, **fields: object) -> Document:
    return kube(profiles=[{"plugins": plugins or {}, **fields}])


def names(*plugins: str) -> list[Document]:
    return [{"name": name} for name in plugins]


def at(profile: Profile, point: str) -> list[str]:
    """The plugins that run at a point."""
    if point in profile.points:
        return list(profile.points[point])
    return [use.name for use in profile.plugins if point in points_here(use.name)]


def weights(profile: Profile) -> dict[str, int]:
    uses = {use.name: use for use in profile.plugins}
    return {name: uses[name].weight for name in at(profile, "Score")}


def told(conversion: Conversion) -> list[str]:
    return [str(finding).removeprefix("k.yaml:") for finding in conversion.findings]


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        convert(text, "k.yaml")
    return [str(problem) for problem in caught.value.problems]


# ---- plugins


def test_missing_file_gives_upstream_plugins_order_and_weights() -> None:
    profile = profile_of()

    assert [use.name for use in profile.plugins] == DEFAULTS
    assert profile.points == {}
    assert at(profile, "QueueSort") == ["PrioritySort"]
    assert weights(profile) == {name: DEFAULT_PLUGINS[name] for name in DEFAULT_SCORES}


def test_minimal_file_equals_no_file() -> None:
    assert profile_of(kube()) == profile_of(kube(profiles=[{}])) == profile_of()
    assert convert(HEAD, "k.yaml").configuration.domains[0].scheduler_names == ("default-scheduler",)


@pytest.mark.parametrize(
    ("multi_point", "expected"),
    [
        ({"disabled": names("NodeName")}, [name for name in DEFAULTS if name != "NodeName"]),
        ({"disabled": names("*"), "enabled": names("PrioritySort", "DefaultBinder")}, ["PrioritySort", "DefaultBinder"]),
        ({"enabled": [{"name": "TaintToleration", "weight": 5}]}, DEFAULTS),
        ({"disabled": names("NodeName"), "enabled": names("NodeName")}, [*(n for n in DEFAULTS if n != "NodeName"), "NodeName"]),
        ({"enabled": names("GpuShare")}, [*DEFAULTS, "GpuShare"]),
    ],
)  # fmt: skip
def test_multi_point_changes_defaults_in_place(multi_point: Document, expected: list[str]) -> None:
    assert [use.name for use in profile_of(one_profile({"multiPoint": multi_point})).plugins] == expected


def test_default_reenabled_without_a_weight_has_weight_one() -> None:
    assert (
        weights(profile_of(one_profile({"multiPoint": {"enabled": names("TaintToleration")}})))["TaintToleration"] == 1
    )


@pytest.mark.parametrize(
    ("score", "expected"),
    [
        ({"disabled": names("ImageLocality")}, [n for n in DEFAULT_SCORES if n != "ImageLocality"]),
        ({"disabled": names("*")}, []),
        ({"disabled": names("*"), "enabled": names("NodeAffinity")}, ["NodeAffinity"]),
        (
            {"enabled": names("ImageLocality", "TaintToleration")},
            [
                "ImageLocality",
                "TaintToleration",
                *(n for n in DEFAULT_SCORES if n not in ("ImageLocality", "TaintToleration")),
            ],
        ),
        (
            {"disabled": names("TaintToleration"), "enabled": names("TaintToleration")},
            [*(n for n in DEFAULT_SCORES if n != "TaintToleration"), "TaintToleration"],
        ),
    ],
)
def test_point_overrides_multi_point_in_upstream_order(score: Document, expected: list[str]) -> None:
    assert at(profile_of(one_profile({"score": score})), "Score") == expected


def test_score_weight_overrides_multi_point_weight() -> None:
    found = weights(
        profile_of(
            one_profile(
                {
                    "multiPoint": {"enabled": [{"name": "NodeAffinity", "weight": 4}, {"name": "ImageLocality", "weight": 3}]},
                    "score": {"enabled": [{"name": "NodeAffinity", "weight": 900}]},
                }
            )
        )
    )  # fmt: skip
    assert (found["NodeAffinity"], found["ImageLocality"], found["TaintToleration"]) == (900, 3, 3)


def test_plugin_enabled_at_one_point_runs_only_there() -> None:
    profile = profile_of(
        one_profile(
            {
                "multiPoint": {"disabled": names("*"), "enabled": names("PrioritySort", "DefaultBinder")},
                "filter": {"enabled": names("TaintToleration", "NodeAffinity")},
            }
        )
    )
    assert at(profile, "Filter") == ["TaintToleration", "NodeAffinity"]
    assert all(at(profile, point) == [] for point in ("PreFilter", "PreScore", "Score"))


def test_configuration_that_fails_every_pod_upstream_is_fixed_with_a_warning() -> None:
    text = """\
profiles:
  - plugins:
      preFilter: {disabled: [{name: InterPodAffinity}, {name: NodePorts}, {name: NodeAffinity}]}
      preScore: {disabled: [{name: "*"}], enabled: [{name: PodTopologySpread}]}
"""
    conversion = convert(HEAD + text, "k.yaml")
    lines = [line for line in told(conversion) if "makes every pod fail" in line]
    tail = "which makes every pod fail in kube-scheduler; here it runs at both"
    assert lines == [
        f"5:7: warning: profiles[0].plugins.filter: NodePorts runs at filter and not at preFilter, {tail}",
        f"5:7: warning: profiles[0].plugins.filter: InterPodAffinity runs at filter and not at preFilter, {tail}",
        f"5:7: warning: profiles[0].plugins.score: TaintToleration runs at score and not at preScore, {tail}",
        f"5:7: warning: profiles[0].plugins.score: InterPodAffinity runs at score and not at preScore, {tail}",
    ]
    profile = resolve_profile(conversion.configuration.domains[0], plugin_registry())
    assert "InterPodAffinity" in at(profile, "PreFilter")
    assert "NodeAffinity" not in at(profile, "PreFilter")
    assert at(profile, "PreScore") == ["PodTopologySpread", "TaintToleration", "InterPodAffinity"]


_SETS = st.fixed_dictionaries(
    {
        "enabled": st.lists(st.sampled_from(DEFAULTS), unique=True, max_size=4).map(lambda n: names(*n)),
        "disabled": st.lists(st.sampled_from([*DEFAULTS, "*"]), unique=True, max_size=3).map(lambda n: names(*n)),
    }
)


@given(st.dictionaries(st.sampled_from(["multiPoint", "filter", "preFilter", "score", "reserve"]), _SETS))
def test_converted_points_equal_the_enabled_plugins(sets: Document) -> None:
    fixed = {"queueSort": {"enabled": names("PrioritySort"), "disabled": names("*")}}
    fixed["bind"] = {"enabled": names("DefaultBinder"), "disabled": names("*")}
    profile = profile_of(one_profile({**sets, **fixed}))
    multi = _chosen(sets.get("multiPoint", {}), DEFAULTS)
    for point in ("filter", "preFilter", "score", "reserve"):
        pascal = point[0].upper() + point[1:]
        having = [name for name in DEFAULTS if pascal in points_here(name)]
        disabled = {entry["name"] for entry in sets.get(point, {}).get("disabled", [])}
        explicit = [e["name"] for e in sets.get(point, {}).get("enabled", []) if e["name"] in having]
        spread = [n for n in multi if n in having and n not in disabled and "*" not in disabled]
        first = [name for name in explicit if name in spread]
        rest = [name for name in spread if name not in explicit]
        expected = [*first, *rest, *(name for name in explicit if name not in first)]
        found = at(profile, pascal)
        assert found[: len(expected)] == expected
        assert set(found[len(expected) :]) <= (NEEDS["filter"][1] if point == "preFilter" else set())


def _chosen(multi_point: Document, defaults: list[str]) -> list[str]:
    disabled = {entry["name"] for entry in multi_point.get("disabled", [])}
    kept = [name for name in defaults if name not in disabled and "*" not in disabled]
    return [*kept, *(e["name"] for e in multi_point.get("enabled", []) if e["name"] not in kept)]


def test_arguments_are_converted_without_their_type() -> None:
    args = {"kind": "NodeResourcesFitArgs", "scoringStrategy": {"type": "MostAllocated"}}
    profile = profile_of(one_profile(pluginConfig=[{"name": "NodeResourcesFit", "args": args}]))
    found = {use.name: use.args for use in profile.plugins if use.args}
    assert found == {"NodeResourcesFit": {"scoringStrategy": {"type": "MostAllocated"}}}


def test_resources_managed_by_an_extender_are_ignored_by_the_scheduler() -> None:
    managed = [{"name": "example.com/a", "ignoredByScheduler": True}, {"name": "example.com/b"}]
    extenders = [{"urlPrefix": "http://127.0.0.1:1", "filterVerb": "filter", "managedResources": managed}]
    config_of_fit = [{"name": "NodeResourcesFit", "args": {"ignoredResources": ["example.com/c"]}}]
    profile = profile_of(kube(profiles=[{"pluginConfig": config_of_fit}], extenders=extenders))
    assert next(use.args for use in profile.plugins if use.name == "NodeResourcesFit") == {
        "ignoredResources": ["example.com/a"]
    }
    told = convert(json.dumps(kube(profiles=[{"pluginConfig": config_of_fit}], extenders=extenders)), "k").findings
    assert any("ignoredByScheduler" in str(finding) for finding in told)


def test_profile_is_found_by_its_scheduler_name() -> None:
    document = kube(
        profiles=[
            {"schedulerName": "one"},
            {"schedulerName": "two", "plugins": {"score": {"disabled": names("*")}}},
        ]
    )
    assert at(profile_of(document, "two"), "Score") == []
    assert at(profile_of(document), "Score") == DEFAULT_SCORES
    with pytest.raises(KeyError):
        profile_of(document, "three")


# ---- domains


def test_every_profile_gets_all_nodes_and_keeps_its_name() -> None:
    text = HEAD + "profiles: [{schedulerName: default-scheduler}, {schedulerName: gpu}, {schedulerName: a.b}]\n"
    configuration = convert(text, "k.yaml").configuration
    router = NodeRouter(configuration)
    nodes = [
        Node("plain", "u1", 1),
        Node("gpus", "u2", 1, allocatable={"nvidia.com/gpu": 8}),
        Node("virtual", "u3", 1, labels={"type": "virtual-kubelet"}),
    ]

    assert [d.name for d in configuration.domains] == ["default-scheduler", "gpu-profile", "a-b"]
    assert [d.scheduler_names for d in configuration.domains] == [("default-scheduler",), ("gpu",), ("a.b",)]
    assert all(router.usable_by(domain.name)(node) for domain in configuration.domains for node in nodes)
    assert all(domain.policy.tolerations == () for domain in configuration.domains)


def test_settings_outside_the_profiles_are_converted() -> None:
    configuration = convert(
        HEAD
        + """\
podInitialBackoffSeconds: 2
podMaxBackoffSeconds: 90
leaderElection: {leaseDuration: 20s, renewDeadline: 18s, retryPeriod: 1.5s, resourceNamespace: team}
clientConnection: {qps: 99.5}
extenders:
  - urlPrefix: https://extender.team.svc:8888/scheduler
    filterVerb: filter
    prioritizeVerb: prioritize
    bindVerb: bind
    preemptVerb: preempt
    weight: 7
    enableHTTPS: true
    httpTimeout: 1.5s
    nodeCacheCapable: true
    ignorable: true
    managedResources: [{name: example.com/fpga}]
""",
        "k.yaml",
    ).configuration
    queue, lease, client = configuration.domains[0].queue, configuration.lease, configuration.client
    (extender,) = configuration.domains[0].extenders

    assert (queue.initial_backoff_s, queue.max_backoff_s) == (2.0, 90.0)
    assert (lease.duration_s, lease.renew_deadline_s, lease.retry_period_s) == (20.0, 18.0, 1.5)
    assert (lease.enabled, lease.namespace) == (True, "team")
    assert (client.writes_per_second, client.bind_timeout_s) == (100, 2.0)
    assert (extender.filter_verb, extender.prioritize_verb, extender.weight) == ("filter", "prioritize", 7)
    assert (extender.bind_verb, extender.preempt_verb, extender.http_timeout_s) == ("bind", "preempt", 1.5)
    assert extender.node_cache_capable
    assert extender.ignorable
    assert extender.tls_config.insecure
    assert [r.name for r in extender.managed_resources] == ["example.com/fpga"]


def test_leader_election_can_be_disabled() -> None:
    text = HEAD + "leaderElection: {leaderElect: false, leaseDuration: 1s}\n"
    assert convert(text, "k.yaml").configuration.lease.enabled is False


# ---- what is told


def test_unconverted_settings_are_named_with_line_and_reason() -> None:
    conversion = convert(
        HEAD
        + """\
parallelism: 32
percentageOfNodesToScore: 30
delayCacheUntilActive: true
enableProfiling: false
leaderElection: {resourceName: kube-scheduler}
clientConnection:
  kubeconfig: /etc/kubernetes/scheduler.conf
  contentType: application/vnd.kubernetes.protobuf
  burst: 200
profiles:
  - schedulerName: default-scheduler
    plugins:
      multiPoint: {enabled: [{name: NodeAfinity}], disabled: [{name: DynamicResources}]}
    pluginConfig:
      - {name: NodeAfinity, args: {a: 1}}
      - {name: NodeName, args: {a: 1}}
      - {name: DefaultPreemption, args: {minCandidateNodesPercentage: 50}}
""",
        "k.yaml",
    )
    about_others = [line for line in told(conversion) if "enabled by default" in line]
    assert [line for line in told(conversion) if line not in about_others] == [
        "3:1: note: parallelism: has no effect: all nodes are evaluated in one vector operation, without goroutines",
        "4:1: warning: percentageOfNodesToScore: 30: all nodes are evaluated, as with 100",
        "5:1: warning: delayCacheUntilActive: a standby always fills its caches: it takes over faster and uses the memory",
        "6:1: note: enableProfiling: there are no profiling endpoints; attach py-spy to the process",
        "7:18: note: leaderElection.resourceName: the Lease is named kube-scheduler-DOMAIN, after the first domain",
        (
            "9:3: warning: clientConnection.kubeconfig: must be set on the command line:"
            " multisched run --kubeconfig /etc/kubernetes/scheduler.conf"
        ),
        "10:3: note: clientConnection.contentType: multisched uses JSON for the API server",
        "11:3: warning: clientConnection.burst: has no counterpart: the API server's 429 responses limit the rate",
        (
            "13:5: note: profiles[0].schedulerName: kube-scheduler must stop serving default-scheduler before multisched"
            " runs with this file; otherwise both schedule the same pods independently and may overcommit nodes"
        ),
        (
            "15:30: warning: profiles[0].plugins.multiPoint.enabled[0]: NodeAfinity is not a plugin of kube-scheduler 1.36"
            " (did you mean NodeAffinity?); it is left out: add it as package.module:Class once it is ported"
        ),
        "17:29: warning: profiles[0].pluginConfig[0].args: NodeAfinity is not known here; its arguments are left out",
        "18:26: warning: profiles[0].pluginConfig[1].args: NodeName takes no arguments; its arguments are left out",
        (
            "19:35: note: profiles[0].pluginConfig[2].args: no effect: every candidate node is examined,"
            " as upstream does at 100 percent"
        ),
    ]
    assert conversion.findings.has_warnings


def test_different_defaults_are_notes() -> None:
    conversion = convert(HEAD, "k.yaml")
    assert any("percentageOfNodesToScore: is 0 or not set" in line for line in told(conversion))
    assert any("resource claims" in line for line in told(conversion))
    assert not conversion.findings.has_warnings


def test_defaults_written_by_kube_scheduler_equal_no_file() -> None:
    text = (Path(__file__).parent / "kube_defaults.yaml").read_text()
    conversion = convert(text, "k.yaml")
    profile, default = profile_of(conversion_source(text)), profile_of()

    assert not conversion.findings.has_warnings
    assert [(use.name, use.weight) for use in profile.plugins] == [(use.name, use.weight) for use in default.plugins]
    assert profile.points == default.points == {}
    for use in profile.plugins:
        reader = ARGS_READERS.get(use.name)
        assert reader is None or reader(use.args, "args") == reader({}, "args")
    ours, shortest = conversion.configuration, convert(HEAD, "k.yaml").configuration
    assert (ours.client, ours.domains[0].queue) == (shortest.client, shortest.domains[0].queue)
    assert ours.lease == replace(shortest.lease, namespace="kube-system", name_prefix="kube-scheduler")


def conversion_source(text: str) -> Document:
    document = yaml.safe_load(text)
    assert isinstance(document, dict)
    return document


def test_percentage_of_100_gives_no_note() -> None:
    for text in ("percentageOfNodesToScore: 100\n", "profiles: [{percentageOfNodesToScore: 100}]\n"):
        assert not any("percentageOfNodesToScore" in line for line in told(convert(HEAD + text, "k.yaml")))


def test_unknown_queue_sort_or_binder_is_replaced_with_a_warning() -> None:
    conversion = convert(
        HEAD
        + """\
profiles:
  - plugins:
      queueSort: {enabled: [{name: MySort}], disabled: [{name: "*"}]}
      bind: {enabled: [{name: MyBinder}], disabled: [{name: "*"}]}
""",
        "k.yaml",
    )
    lines = told(conversion)
    assert "5:7: warning: profiles[0].plugins.queueSort: MySort is not known here; PrioritySort replaces it" in lines
    assert "6:7: warning: profiles[0].plugins.bind: MySort is not known here; DefaultBinder replaces it" not in lines
    assert "6:7: warning: profiles[0].plugins.bind: MyBinder is not known here; DefaultBinder replaces it" in lines
    domain = conversion.data["domains"][0]
    assert {"PrioritySort", "DefaultBinder"} <= {entry["name"] for entry in domain["profile"]["plugins"]["enabled"]}


# ---- plugins of other projects


def test_coscheduling_and_capacity_scheduling_are_replaced() -> None:
    """As the documentation of scheduler-plugins enables them."""
    conversion = convert(
        HEAD
        + """\
profiles:
  - schedulerName: batch
    plugins:
      multiPoint: {enabled: [{name: Coscheduling}]}
      queueSort: {enabled: [{name: Coscheduling}], disabled: [{name: "*"}]}
      preFilter: {enabled: [{name: CapacityScheduling}]}
      postFilter: {enabled: [{name: CapacityScheduling}], disabled: [{name: "*"}]}
      reserve: {enabled: [{name: CapacityScheduling}]}
    pluginConfig:
      - {name: Coscheduling, args: {permitWaitingTimeSeconds: 10}}
""",
        "k.yaml",
    )
    profile = resolve_profile(conversion.configuration.domains[0], plugin_registry())
    assert at(profile, "QueueSort") == ["PrioritySort"]
    assert at(profile, "PostFilter") == ["ElasticQuota", "DefaultPreemption"]
    assert {"GangScheduling", "ElasticQuota"} <= set(at(profile, "PreEnqueue"))
    lines = [line for line in told(conversion) if "Coscheduling" in line or "CapacityScheduling" in line]
    assert [line.split(", which")[0] for line in lines] == [
        "6:30: note: profiles[0].plugins.multiPoint.enabled[0]: Coscheduling becomes GangScheduling",
        "8:29: note: profiles[0].plugins.preFilter.enabled[0]: CapacityScheduling becomes ElasticQuota",
    ]
    assert [line for line in told(conversion) if ": warning: " in line] == [
        (
            "12:37: warning: profiles[0].pluginConfig[0].args.permitWaitingTimeSeconds: has no counterpart;"
            " the gang's own timeout applies, 600 s by default"
        )
    ]


def test_koordinator_profile_keeps_gangs_and_quotas() -> None:
    """Its ElasticQuota has the name of ours, and other arguments."""
    conversion = convert(
        HEAD
        + """\
profiles:
  - schedulerName: koord-scheduler
    plugins:
      queueSort: {enabled: [{name: Coscheduling}], disabled: [{name: "*"}]}
      permit: {enabled: [{name: Coscheduling}]}
      preFilter: {enabled: [{name: ElasticQuota}]}
      postFilter: {enabled: [{name: ElasticQuota}]}
    pluginConfig:
      - name: ElasticQuota
        args: {kind: ElasticQuotaArgs, quotaGroupNamespace: koordinator-system, hookPlugins: []}
""",
        "k.yaml",
    )
    profile = resolve_profile(conversion.configuration.domains[0], plugin_registry())
    assert "GangScheduling" in at(profile, "PreEnqueue")
    assert at(profile, "PostFilter")[0] == "ElasticQuota"
    assert [line.split(": warning: ")[1] for line in told(conversion) if ": warning: " in line] == [
        "profiles[0].pluginConfig[0].args.quotaGroupNamespace: has no counterpart: a pod without a quota is not limited",
        "profiles[0].pluginConfig[0].args.hookPlugins: is not converted",
    ]


# ---- what is refused


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "profiles: [{schedulerNam: a}]\n",
            "3:13: profiles[0].schedulerNam: unknown key (did you mean schedulerName?)",
        ),
        ("percentageOfNodesToScore: 101\n", "3:27: percentageOfNodesToScore: must be less than or equal to 100, got 101"),
        ("parallelism: 0\n", "3:14: parallelism: must be greater than or equal to 1, got 0"),
        (
            "podInitialBackoffSeconds: 20\n",
            "1:1: podMaxBackoffSeconds must not be shorter than podInitialBackoffSeconds",
        ),
        (
            "profiles: [{schedulerName: a}, {schedulerName: a}]\n",
            "3:48: profiles[1].schedulerName: 'a' is already used by profiles[0]; each profile needs its own",
        ),
        (
            "profiles: [{schedulerName: a}, {}]\n",
            "3:32: profiles[1].schedulerName: is missing; with several profiles, each needs its own",
        ),
        (
            "profiles: [{plugins: {filter: {enabled: [{name: EBSLimits}]}}}]\n",
            (
                "3:49: profiles[0].plugins.filter.enabled[0].name: EBSLimits was removed in"
                " kubescheduler.config.k8s.io/v1; use NodeVolumeLimits"
            ),
        ),
        (
            "profiles: [{plugins: {score: {enabled: [{name: NodeAffinity}, {name: NodeAffinity}]}}}]\n",
            "3:63: profiles[0].plugins.score.enabled[1]: is listed twice; remove one",
        ),
        (
            "profiles: [{pluginConfig: [{name: InterPodAffinity, args: {hardPodAffinityWeight: 101}}]}]\n",
            "3:83: profiles[0].pluginConfig[0].args.hardPodAffinityWeight: 101 is not within 0..100",
        ),
        (
            "profiles: [{pluginConfig: [{name: NodeAffinity, args: {kind: NodeResourcesFitArgs}}]}]\n",
            "3:62: profiles[0].pluginConfig[0].args.kind: 'NodeResourcesFitArgs' does not match the plugin; write NodeAffinityArgs",
        ),
        (
            "profiles: [{pluginConfig: [{name: NodeAffinity}, {name: NodeAffinity}]}]\n",
            "3:57: profiles[0].pluginConfig[1].name: NodeAffinity has two entries of arguments; remove one",
        ),
        (
            "profiles: [{plugins: {queueSort: {disabled: [{name: '*'}]}}}]\n",
            "3:34: profiles[0].plugins.queueSort: no plugin orders the queue; enable PrioritySort",
        ),
        (
            "profiles: [{plugins: {bind: {disabled: [{name: DefaultBinder}]}}}]\n",
            "3:29: profiles[0].plugins.bind: no plugin binds; enable DefaultBinder",
        ),
        (
            "profiles: [{plugins: {queueSort: {enabled: [{name: QOSSort}]}}}]\n",
            "3:34: profiles[0].plugins.queueSort: PrioritySort and QOSSort order the queue; keep one of them",
        ),
        (
            "extenders: [{urlPrefix: 'http://a', prioritizeVerb: p}]\n",
            "3:13: extenders[0]: prioritizeVerb needs a positive weight; set weight",
        ),
        (
            "extenders: [{urlPrefix: 'http://a', bindVerb: b}, {urlPrefix: 'http://b', bindVerb: b}]\n",
            "1:1: 2 extenders have a bindVerb; only one can bind",
        ),
        (
            "extenders: [{urlPrefix: 'http://a', filterVerb: f, managedResources: [{name: cpu}]}]\n",
            "3:78: extenders[0].managedResources[0].name: 'cpu' is not an extended resource name",
        ),
        (
            "extenders: [{urlPrefix: 'ftp://a', filterVerb: f}]\n",
            (
                "3:25: extenders[0].urlPrefix: 'ftp://a' is not a valid extender URL;"
                " write for example http://127.0.0.1:8888/scheduler"
            ),
        ),
        ("leaderElection: {leaseDuration: 5s}\n", "3:17: leaderElection: leaseDuration must be longer than renewDeadline"),
        (
            "leaderElection: {resourceLock: endpoints}\n",
            "3:17: leaderElection: resourceLock 'endpoints' is not supported; write leases",
        ),
        (
            "leaderElection: {retryPeriod: 2}\n",
            '3:31: leaderElection.retryPeriod: a duration must be a text, for example "5s"',
        ),
        (
            "profiles: [{schedulerName: Upper}]\n",
            (
                "3:28: profiles[0].schedulerName: 'Upper' is not a valid schedulerName for multisched;"
                " write at most 63 characters of a-z, 0-9, - and ."
            ),
        ),
    ],
)  # fmt: skip
def test_values_refused_upstream_are_refused_with_path_and_line(text: str, expected: str) -> None:
    assert problems(HEAD + text) == [f"k.yaml:{expected}"]


def test_argument_problems_are_reported_with_other_problems() -> None:
    told = problems(
        f"""\
{HEAD}parallelism: 0
profiles:
  - plugins:
      score: {{enabled: [{{name: NodeName}}, {{name: NodeName}}, {{name: NodeName}}]}}
    pluginConfig:
      - name: DefaultPreemption
        args: {{apiVersion: kubescheduler.config.k8s.io/v1beta3, minCandidateNodesPercentage: 101}}
      - name: PodTopologySpread
        args:
          defaultingType: List
          defaultConstraints: [{{maxSkew: 0, topologyKey: zone, whenUnsatisfiable: Never}}]
"""
    )
    at = "profiles[0].pluginConfig"
    parallelism, *args = told
    assert parallelism == "k.yaml:3:14: parallelism: must be greater than or equal to 1, got 0"
    assert args == [
        (
            f"k.yaml:9:28: {at}[0].args.apiVersion: 'kubescheduler.config.k8s.io/v1beta3' does not match the plugin;"
            " write kubescheduler.config.k8s.io/v1"
        ),
        f"k.yaml:9:94: {at}[0].args.minCandidateNodesPercentage: 101 is not within 0..100",
        f"k.yaml:13:42: {at}[1].args.defaultConstraints[0].maxSkew: 0 is not within 1..2147483647",
        (
            f"k.yaml:13:83: {at}[1].args.defaultConstraints[0].whenUnsatisfiable: 'Never' is not known;"
            " write one of DoNotSchedule, ScheduleAnyway"
        ),
    ]


def test_repeated_plugins_are_reported_with_argument_problems() -> None:
    text = "[{name: NodeAffinity}, {name: NodeAffinity}, {name: NodeAffinity}]"
    args = "[{name: InterPodAffinity, args: {hardPodAffinityWeight: 101}}]"
    told = problems(f"{HEAD}profiles: [{{plugins: {{score: {{enabled: {text}}}}}, pluginConfig: {args}}}]\n")
    assert [problem.split(": ")[1] for problem in told] == [
        "profiles[0].plugins.score.enabled[1]",
        "profiles[0].plugins.score.enabled[2]",
        "profiles[0].pluginConfig[0].args.hardPodAffinityWeight",
    ]


def test_another_kind_of_file_is_refused_with_the_expected_kind() -> None:
    assert problems("apiVersion: multisched.io/v1\nkind: MultischedConfiguration\n") == [
        "k.yaml:1:13: apiVersion: 'multisched.io/v1' is not known here; write kubescheduler.config.k8s.io/v1",
        "k.yaml:2:7: kind: 'MultischedConfiguration' is not known here; write KubeSchedulerConfiguration",
    ]


def test_removed_api_versions_are_named_with_the_current_one() -> None:
    assert problems("apiVersion: kubescheduler.config.k8s.io/v1beta3\nkind: KubeSchedulerConfiguration\n") == [
        (
            "k.yaml:1:13: apiVersion: kube-scheduler 1.36 no longer reads v1beta3;"
            " its fields are nearly those of v1: write kubescheduler.config.k8s.io/v1"
        )
    ]


# ---- the printed file


def test_printed_file_equals_the_conversion_and_has_its_findings() -> None:
    text = (
        HEAD
        + "profiles: [{schedulerName: a}, {schedulerName: b}]\nextenders: [{urlPrefix: 'http://h:1', filterVerb: f}]\n"
    )
    conversion = convert(text, "k.yaml")
    printed = cli_convert.as_yaml(conversion, "k.yaml")

    assert loading.parse(printed, "k.yaml") == conversion.configuration
    assert "# Converted from k.yaml by `multisched config convert`." in printed
    comments = " ".join(line.lstrip("# ") for line in printed.splitlines() if line.startswith("#"))
    assert all(finding.text in comments for finding in conversion.findings)
    assert json.loads(cli_convert.as_json(conversion))["configuration"] == yaml.safe_load(printed)


def _problems_or_none(text: str) -> bool:
    """True if the text is converted, or refused with words."""
    try:
        convert(text, "k.yaml")
    except ConfigError as error:
        return all(problem.message for problem in error.problems) and bool(error.problems)
    return True


@given(st.text(max_size=200))
def test_arbitrary_text_is_at_worst_refused(text: str) -> None:
    assert _problems_or_none(text)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "enabled", *POINTS]), inner),
    max_leaves=8,
)
_FIELDS = ("profiles", "extenders", "leaderElection", "clientConnection", "parallelism", "podMaxBackoffSeconds")


@given(st.dictionaries(st.sampled_from(_FIELDS), _JSON, max_size=3), _JSON)
def test_arbitrary_documents_are_at_worst_refused(fields: Document, plugins: object) -> None:
    for document in (kube(**fields), one_profile(), kube(profiles=[{"plugins": plugins}])):
        assert _problems_or_none(json.dumps(document))


SHAPE = {
    "name": "VolumeBinding",
    "args": {"shape": [{"utilization": 0, "score": 0}, {"utilization": 100, "score": 10}]},
}


def test_volume_binding_scores_only_with_a_shape() -> None:
    without = profile_of(one_profile({"score": {"disabled": names("VolumeBinding")}}))
    assert "Score" not in without.points
    weighed = {"score": {"enabled": [{"name": "VolumeBinding", "weight": 7}]}}
    scored = profile_of(one_profile(weighed, pluginConfig=[SHAPE]))
    assert [use.weight for use in scored.plugins if use.name == "VolumeBinding"] == [7]
    barred = profile_of(one_profile({"score": {"disabled": names("VolumeBinding")}}, pluginConfig=[SHAPE]))
    assert "VolumeBinding" not in barred.points["Score"]
