"""Bad configuration: every problem at once, each with its place and what was probably meant."""

from __future__ import annotations

import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.config import loading
from multisched.config.document import ConfigError
from multisched.config.plugins import plugin_registry

HEAD = "apiVersion: multisched.io/v1\nkind: MultischedConfiguration\n"


def problems(text: str) -> list[str]:
    """Each problem as it is printed."""
    with pytest.raises(ConfigError) as caught:
        loading.parse(text, "f.yaml")
    return [str(problem) for problem in caught.value.problems]


def test_all_problems_of_a_file_are_reported_in_one_run() -> None:
    told = problems(
        """\
apiVersion: multisched.io/v2
kind: MultischedConfiguration
domain: []
domains:
  - name: forecast
    profile:
      queueSort: NodeName
      plugins:
        enabled:
          - {name: NodeAffinty, weight: 2.5}
    queue: {initialBackoff: 5, maxBackof: 10s}
  - name: qos
    schedulerNames: [forecast-scheduler]
  - name: other
    loans: [{from: qoss}]
lease: {duration: 5s}
server: {port: abc}
"""
    )
    assert told == [
        "f.yaml:1:13: apiVersion: 'multisched.io/v2' is not known here; write multisched.io/v1",
        "f.yaml:3:1: domain: unknown key (did you mean domains?)",
        "f.yaml:10:20: domains[0].profile.plugins.enabled[0].name: 'NodeAffinty' is not a plugin (did you mean NodeAffinity?)",
        "f.yaml:10:41: domains[0].profile.plugins.enabled[0].weight: must be a valid integer, got 2.5",
        'f.yaml:11:29: domains[0].queue.initialBackoff: a duration needs a unit, for instance "5s"',
        "f.yaml:11:32: domains[0].queue.maxBackof: unknown key (did you mean maxBackoff?)",
        (
            "f.yaml:13:22: domains[1].schedulerNames[0]: schedulerName 'forecast-scheduler' is already used by"
            " domains[0].name; use another one"
        ),
        "f.yaml:15:20: domains[2].loans[0].from: no domain is named 'qoss' (did you mean qos?)",
        "f.yaml:16:8: lease: duration must be longer than renewDeadline",
        "f.yaml:17:16: server.port: must be a valid integer, got 'abc'",
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "f.yaml:1:1: the file is empty; `multisched config default` prints one to start from"),
        ("- 1", "f.yaml:1:1: must be an object, got a list"),
        ("a: &x 1", "f.yaml:1:4: anchors are refused; write the value out where it is used"),
        ("a: *x", "f.yaml:1:4: aliases are refused; write the value out"),
        ("a: !!python/name:os.system", "f.yaml:1:4: tags are refused; remove tag:yaml.org,2002:python/name:os.system"),
        (f"{HEAD}---\n{HEAD}", "f.yaml:3:1: a second document starts here; one file holds one configuration"),
        ("[" * 40, "f.yaml:1:33: nested deeper than 32 levels"),
        ("a: [1", "f.yaml:2:1: not YAML: did not find expected ',' or ']'"),
        ("a: \x07", "f.yaml:1:1: not YAML: unacceptable character #x0007: control characters are not allowed"),
        ("#" * 1_048_577, "f.yaml:1:1: the file has 1048577 bytes; at most 1048576 are read"),
    ],
)
def test_text_that_is_not_a_plain_document_is_refused(text: str, told: str) -> None:
    assert problems(text) == [told]


def test_duplicate_key_is_refused_with_both_positions() -> None:
    assert problems(f"{HEAD}logging: {{}}\nlogging: {{}}\n") == [
        "f.yaml:4:1: logging: duplicate key, first in line 3; remove one"
    ]


@pytest.mark.parametrize(
    ("part", "told"),
    [
        ("domains: []", "f.yaml:3:10: domains: needs at least 1"),
        ("domains: [{name: Qos}]", "is not a name of this kind"),
        ('domains: [{name: "qos\\n"}]', "is not a name of this kind"),
        ("domains: [{name: a, schedulerNames: a}]", "f.yaml:3:37: domains[0].schedulerNames: must be a list, got 'a'"),
        (
            f"lease: {{namespace: {'n' * 64}}}",
            "f.yaml:3:20: lease.namespace: is too long; its length must be at most 63",
        ),
        ("domains: [{}]", "f.yaml:3:11: domains[0].name: is missing"),
        ("server: {bindAddress: 0.0.0.0}", "without tls, bindAddress must be loopback, got 0.0.0.0"),
        ("server: {bindAddress: localhost}", "'localhost' is not an IP address"),
        ("server: {port: 9000, probePort: 9000}", "probePort must differ from port (9000)"),
        ("server: {tls: {certFile: a}}", "certFile and keyFile must be set together"),
        ("server: {bindAddress: 0.0.0.0, tls: {selfSigned: true}, authentication: false}", "on loopback only"),
        ("client: {bindTimeout: 6s}", "client.bindTimeout must not be longer than"),
        ("lease: {renewDeadline: 2s}", "renewDeadline must be longer than 1.2 times retryPeriod"),
        ("lease: {duration: 15500ms}", "duration must be whole seconds"),
        ("verify: {every: 9s}", "verify: every must be at least 10s, since each run lists all pods; got 9s"),
        ("verify: {every: 10}", "verify.every: a duration needs a unit"),
        ("logging: {level: warn}", "write debug, info, warning or error (did you mean warning?)"),
        ("logging: {level: off}", "f.yaml:3:18: logging.level: false is not known here"),
        ("lease: {enabled: 1}", "f.yaml:3:18: lease.enabled: must be a valid boolean, got 1"),
        ('lease: {enabled: "true"}', "lease.enabled: must be a valid boolean, got 'true'; remove the quotes"),
        (
            'server: {port: "10260"}',
            "f.yaml:3:16: server.port: must be a valid integer, got '10260'; remove the quotes",
        ),
        ("server: {port: }", "server.port: must be a valid integer, got null; remove the key, or write a value"),
        ("server: ", "f.yaml:3:8: server: must be an object, got null; remove the key, or write a value"),
        ("server: {port: -1}", "server.port: must be greater than or equal to 0, got -1"),
        ("server: {port: 65536}", "server.port: must be less than or equal to 65535, got 65536"),
        ("server: {port: [1]}", "server.port: must be a valid integer, got a list"),
        (f"server: {{port: {'p' * 99}}}", f"server.port: must be a valid integer, got '{'p' * 79}…"),
        (
            "domains: [{name: a, schedulerNames: [null]}]",
            "schedulerNames[0]: must be a valid string, got null; remove the item, or write a value",
        ),
        (
            "domains: [{name: a, nodes: {selector: {matchLabels: {a: 1}}}}]",
            "matchLabels.a: must be a valid string, got 1; write it in quotes",
        ),
        (
            "domains: [{name: a, nodes: {selector: {matchLabels: {'': x}}}}]",
            'f.yaml:3:54: domains[0].nodes.selector.matchLabels."": the key is too short; its length must be at least 1, got 0',
        ),
        ("domains: [{name: a, queue: {initialBackoff: 1m}}]", "initialBackoff is longer than maxBackoff"),
        ("domains: [{name: a, nodes: {selector: {}}}]", "selects every node"),
        (
            "domains: [{name: a, nodes: {selector: {pool: web}}}]",
            "nodes.selector.pool: unknown key; a label belongs under matchLabels: {pool: …}",
        ),
        (
            "domains: [{name: a, profile: {plugins: {disabled: [{name: NodePorts}]}}}]",
            "plugins.disabled[0]: must be a name without keys; write NodePorts",
        ),
        (
            "domains: [{name: a, profile: {plugins: {enabled: [NodePorts]}}}]",
            "plugins.enabled[0]: must have keys; write {name: NodePorts}",
        ),
        (
            "domains: [{name: a, policy: {tolerations: [{key: a, effect: NoShedule}]}}]",
            'write "", NoSchedule, PreferNoSchedule or NoExecute (did you mean NoSchedule?)',
        ),
        ("domains: [{name: a, nodes: {rule: rest, selector: {matchLabels: {a: b}}}}]", "mutually exclusive"),
        ("domains: [{name: a, loans: [{from: a}]}]", "a domain cannot lend to itself"),
        *(
            (f"domains: [{{name: a}}, {{name: b, loans: [{{from: a, {loan}}}]}}]", f"domains[1].loans[0]{told}")
            for loan, told in (
                ("sharePercent: 101", ".sharePercent: "),
                ("sharePercent: 0", ".sharePercent: "),
                ("headroom: {cpu: many}", ": headroom.cpu: "),
                ("headroom: {cpu: '-1'}", ": headroom.cpu: '-1' is negative"),
                ("timeZone: Mars", ": timeZone: 'Mars' is not a known time zone"),
                ("hours: [{from: '9:00', to: '09:00'}]", ".hours[0]: never opens: to equals from"),
                ("hours: [{from: '24:00', to: '06:00'}]", '.hours[0]: from is "24:00"'),
                ("hours: [{from: '25:00', to: '06:00'}]", ".hours[0].from: "),
                ("hours: [{from: '22:00', to: '06:00', days: [someday]}]", ".hours[0].days[0]: "),
                ("return: {notice: 1m, grace: 30s, deadline: 1m}", ".return: deadline is shorter than notice + grace"),
                ("return: {grace: 30s}", ".return.notice: "),
                ("return: {notice: 1m, evictionsPerOwner: 0}", ".return.evictionsPerOwner: "),
                ("foreignReservePercent: 100", ".foreignReservePercent: must be less than or equal to 99"),
                (
                    "kind: idle, return: {notice: 1m}, foreignReservePercent: 20",
                    ": foreignReservePercent: 20: kind idle lends what pods of the lender request",
                ),
                ("kind: idle", ": kind idle needs return"),
                ("kind: spare", ".kind: "),
            )
        ),
        (
            """domains: [{name: a, nodes: {rule: rest}, loans: [{from: b, sharePercent: 50}]},
                          {name: b, nodes: {rule: gpu}, loans: [{from: a}]}]""",
            "domains[0].loans: loans in a circle: a from b from a; remove one of these loans",
        ),
        (
            "domains: [{name: a, policy: {tolerations: [{key: k, pods: {}}]}}]",
            "domains[0].policy.tolerations[0].pods: selects no pod; set requests, annotations or a selector",
        ),
        (
            "domains: [{name: a, policy: {tolerations: [{key: k, pods: {requests: ['']}}]}}]",
            "domains[0].policy.tolerations[0].pods.requests[0]: ",
        ),
        (
            "domains: [{name: a, policy: {tolerations: [{key: k, pods: {selector: {}}}]}}]",
            "domains[0].policy.tolerations[0].pods.selector: selects every node or pod",
        ),
        (
            "domains: [{name: a, policy: {tolerations: [{key: k, pods: {resources: [cpu]}}]}}]",
            "domains[0].policy.tolerations[0].pods.resources: ",
        ),
        ("domains: [{name: a, profile: {queueSort: NodeName}}]", "does not order queues"),
        ("domains: [{name: a, profile: {plugins: {disabled: [QOSSort]}}}]", "exactly one plugin must order the queue"),
        ("domains: [{name: a, profile: {plugins: {enabled: [{name: 'a.b:C'}]}}}]", "cannot import a.b"),
    ],
)
def test_unworkable_setting_is_refused(part: str, told: str) -> None:
    (only,) = problems(f"{HEAD}{part}\n")
    assert told in only


@pytest.mark.parametrize(
    ("second", "what"),
    [
        ("{name: b}", "nodes by the rule 'rest'"),
        ("{name: forecast}", "nodes by the rule 'rest'"),
        ("{name: b, nodes: {rule: rest}}", "nodes by the rule 'rest'"),
    ],
)
def test_domains_without_selectors_that_claim_the_same_nodes_are_refused(second: str, what: str) -> None:
    (only,) = problems(f"{HEAD}domains: [{{name: a}}, {second}]\n")
    assert what in only
    assert "write loans: [{from: a}]" in only


def test_equal_selectors_are_found_in_any_notation() -> None:
    (only,) = problems(
        HEAD
        + """\
domains:
  - {name: a, nodes: {selector: {matchLabels: {pool: x}}}}
  - {name: b, nodes: {selector: {matchExpressions: [{key: pool, operator: In, values: [x, x]}]}}}
"""
    )
    assert "domain 'b' claims the same nodes, as domain 'a' does" in only


SSD = "matchLabels: {pool: x, disk: ssd}"


@pytest.mark.parametrize("other", [SSD, "matchExpressions: [{key: pool, operator: In, values: [x, y]}]"])
def test_overlapping_selectors_need_a_loan(other: str) -> None:
    text = (
        HEAD
        + f"""\
domains:
  - {{name: a, nodes: {{selector: {{matchLabels: {{pool: x}}}}}}}}
  - {{name: b, nodes: {{selector: {{{other}}}}}}}
"""
    )
    (only,) = problems(text)
    assert only.startswith("f.yaml:5:15: domains[1].nodes: domain 'b' claims some of the same nodes as domain 'a'")
    assert "loans: [{from: a}]" in only
    assert loading.parse(text.replace("{name: b,", "{name: b, loans: [{from: a}],"), "f").domain("b").loans


def test_duplicate_domain_or_scheduler_names_are_refused() -> None:
    told = problems(HEAD + "domains: [{name: gpu}, {name: gpu, nodes: {rule: labelled}}]\n")
    assert any("domain 'gpu' is already used by domains[0].name" in line for line in told)
    assert any("schedulerName 'gpu-scheduler' is already used by" in line for line in told)


def test_unreadable_file_is_one_problem(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    for path, told in ((tmp_path / "none", "cannot be read: No such file"), (tmp_path, "directory"), (binary, "UTF-8")):
        with pytest.raises(ConfigError, match=told):
            loading.load(path)


JSON_LIKE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(string.printable, max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(string.ascii_letters, max_size=12), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(part=st.sampled_from(["domains", "lease", "server", "client", "logging"]), value=JSON_LIKE)
def test_any_file_is_a_configuration_or_a_list_of_problems(part: str, value: object) -> None:
    import yaml

    text = HEAD + yaml.safe_dump({part: value}, allow_unicode=True)
    try:
        configuration = loading.parse(text, "f.yaml")
    except ConfigError as error:
        lines = [problem.line for problem in error.problems]
    else:
        lines = [len(configuration.domains)]
    assert lines
    assert min(lines) >= 1


@given(text=st.text(max_size=60))
def test_arbitrary_text_raises_only_configuration_errors(text: str) -> None:
    with pytest.raises(ConfigError):
        loading.parse(text, "f.yaml")


def test_args_and_points_are_checked_at_their_field() -> None:
    told = problems(
        f"""\
{HEAD}domains:
  - name: own
    profile:
      plugins:
        enabled:
          - name: NodeResourcesFit
            args:
              scoringStrategy:
                type: LeastAllocated
                resources: [{{name: cpu, weight: 101}}]
          - {{name: NodeAffinity, args: {{addedAffinty: {{}}}}}}
      points:
        score: [NodeAffinity, NodeName, NodeAfinity]
        filter: [NodePorts, NodePorts]
"""
    )
    at = "domains[0].profile"
    assert told == [
        f"f.yaml:12:49: {at}.plugins.enabled[0].args.scoringStrategy.resources[0].weight: 101 is not within 0..100",
        f"f.yaml:13:41: {at}.plugins.enabled[1].args.addedAffinty: unknown field; did you mean addedAffinity?",
        f"f.yaml:15:31: {at}.points.score[1]: NodeName has no Score; remove it here",
        f"f.yaml:15:41: {at}.points.score[2]: 'NodeAfinity' is not enabled in this profile (did you mean NodeAffinity?)",
        f"f.yaml:16:29: {at}.points.filter[1]: NodePorts is listed above already; remove one",
    ]


def one_plugin(entry: str, points: str = "") -> str:
    """A domain with one plugin more, or changed."""
    return f"{HEAD}domains:\n- name: forecast\n  profile:\n    plugins: {{enabled: [{entry}]}}\n{points}"


@pytest.mark.parametrize("plugin", plugin_registry().names())
def test_unknown_args_are_refused(plugin: str) -> None:
    args = "{noSuchSetting: 1}"
    told = [one for one in problems(one_plugin(f"{{name: {plugin}, args: {args}}}")) if ".args" in one]
    assert any("noSuchSetting: unknown field" in one or "args: takes no args; remove them" in one for one in told)


def test_args_of_a_plugin_without_args_are_refused_at_their_position() -> None:
    at = "domains[0].profile.plugins.enabled[0].args"
    told = one_plugin("{name: NodeName, args: {x: 1}}")
    assert problems(told) == [f"f.yaml:6:{told.splitlines()[5].index('args') + 1}: {at}: takes no args; remove them"]
    assert f"{at}: takes no args" in problems(one_plugin(f"{{name: '{__name__}:Plain', args: {{x: 1}}}}"))[0]
    loading.parse(one_plugin("{name: NodeName, args: {}}"), "f.yaml")


class Plain:
    """A plugin of somebody's own, without settings."""

    name = "Plain"

    def permit(self, cycle: object, pod: object, node: str) -> None: ...


@pytest.mark.parametrize(
    ("plugin", "point", "told"),
    [
        ("{name: PeakForecast}", "score", ""),
        ("{name: PeakForecast}", "filter", "PeakForecast has no Filter with these args; remove it here"),
        ("{name: PeakForecast, args: {mode: filter}}", "filter", ""),
        (
            "{name: PeakForecast, args: {mode: filter}}",
            "score",
            "PeakForecast has no Score with these args; remove it here",
        ),
        ("{name: PeakForecast, args: {mode: both}}", "score", ""),
        ("{name: VolumeBinding}", "score", "VolumeBinding has no Score with these args; remove it here"),
        (
            "{name: VolumeBinding, args: {shape: [{utilization: 0, score: 0}, {utilization: 100, score: 10}]}}",
            "score",
            "",
        ),
    ],
)
def test_extension_points_follow_the_plugin_args(plugin: str, point: str, told: str) -> None:
    name = plugin.split(",")[0].strip("{}").removeprefix("name: ")
    text = one_plugin(plugin, f"    points: {{{point}: [{name}]}}\n")
    if told:
        assert [one.partition(f"points.{point}[0]: ")[2] for one in problems(text)] == [told]
    else:
        loading.parse(text, "f.yaml")


@pytest.mark.parametrize(
    ("content", "why"),
    [("def x(:", "SyntaxError: invalid syntax"), ("raise RuntimeError('half done')", "RuntimeError: half done")],
)
def test_unimportable_module_is_a_problem_at_its_name(
    content: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"own_module_{len(content)}"
    (tmp_path / f"{name}.py").write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    (told,) = problems(one_plugin(f"{{name: '{name}:X'}}"))
    assert f"'{name}:X': cannot import {name}: {why}" in told


def makes_something(args: object) -> Nowhere:  # type: ignore[name-defined] # noqa: F821
    """A factory whose annotation cannot be looked up."""


def test_extension_points_of_an_untyped_factory_are_not_checked() -> None:
    entry = f"{{name: '{__name__}:makes_something'}}"
    loading.parse(one_plugin(entry, f"    points: {{score: ['{__name__}:makes_something']}}\n"), "f.yaml")


def test_extension_points_are_not_checked_with_invalid_args() -> None:
    (told,) = problems(one_plugin("{name: PeakForecast, args: {mode: nope}}", "    points: {filter: [PeakForecast]}\n"))
    assert "args.mode: 'nope' is not known" in told


def test_args_problems_are_reported_with_other_problems() -> None:
    told = problems(
        f"""\
{HEAD}domains:
  - name: own
    queue: {{initialBackof: 5s}}
    profile:
      plugins:
        enabled:
          - name: InterPodAffinity
            args: {{hardPodAffinityWeight: 101, ignorePreferredTermsOfExistingPods: 1}}
"""
    )
    at = "domains[0].profile.plugins.enabled[0].args"
    assert told == [
        "f.yaml:5:13: domains[0].queue.initialBackof: unknown key (did you mean initialBackoff?)",
        f"f.yaml:10:43: {at}.hardPodAffinityWeight: 101 is not within 0..100",
        f"f.yaml:10:84: {at}.ignorePreferredTermsOfExistingPods: is a number; write true or false",
    ]


@pytest.mark.parametrize(
    ("extenders", "told"),
    [
        (
            "[{urlPrefix: 'http://a', prioritizeVerb: p}]",
            "4:29: domains[0].extenders[0]: prioritizeVerb needs a weight of at least 1; set weight",
        ),
        (
            "[{urlPrefix: 'http://a'}]",
            "4:29: domains[0].extenders[0]: has no verb and would never be called; set a verb such as filterVerb, or remove the extender",
        ),
        (
            "[{urlPrefix: 'http://u:p@a', filterVerb: f}]",
            "4:41: domains[0].extenders[0].urlPrefix: contains credentials, which are never sent to an extender; remove them",
        ),
        (
            "[{urlPrefix: 'http://a', bindVerb: b}, {urlPrefix: 'http://b', bindVerb: b}]",
            "4:5: domains[0]: only one extender can bind; remove the other bindVerb",
        ),
        (
            "[{urlPrefix: 'http://a', filterVerb: f, managedResources: [{name: cpu}]}]",
            "4:94: domains[0].extenders[0].managedResources[0].name: 'cpu' is not an extended resource; write for example example.com/fpga",
        ),
        (
            "[{urlPrefix: 'https://a', filterVerb: f, tlsConfig: {insecure: true, caFile: /ca}}]",
            "4:80: domains[0].extenders[0].tlsConfig: insecure accepts any certificate, so a CA has no effect; remove one",
        ),
        (
            "[{urlPrefix: 'https://a', filterVerb: f, tlsConfig: {certFile: /cert}}]",
            "4:80: domains[0].extenders[0].tlsConfig: certificate and key must be set together; set both or neither",
        ),
        (
            "[{urlPrefix: 'https://a', filterVerb: f, tlsConfig: {caData: '???'}}]",
            "4:89: domains[0].extenders[0].tlsConfig.caData: is not base64",
        ),
    ],
)
def test_unusable_extender_is_reported_at_its_field(extenders: str, told: str) -> None:
    assert problems(f"{HEAD}domains:\n  - {{name: own, extenders: {extenders}}}\n") == [f"f.yaml:{told}"]
