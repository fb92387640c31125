"""`multisched quota` as users and scripts meet it: bars at 80 columns, exit codes, files that are no quotas, and nothing half written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from multisched.cli.commands import app
from multisched.cli.quota_tree import BAR, bar
from multisched.model.quota_tree import read_tree
from multisched.plugins.quota.level_use import Use
from tests.unit.model.quotas import test_kueue, test_volcano
from tests.unit.model.quotas.quota_documents import flat, linked
from tests.unit.plugins.quota.trees import Json, acks_example, leaf
from tests.unit.plugins.quota.trees import node as level
from tests.unit.whatif.quota_clusters import node, quota_tree, walk_through


def call(*arguments: str, stdin: str | None = None) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["quota", *arguments], input=stdin)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def dump(documents: Sequence[Any]) -> str:
    return json.dumps({"kind": "List", "apiVersion": "v1", "items": list(documents)})


def manifests(*documents: Json) -> str:
    return yaml.safe_dump_all(documents, sort_keys=False)


# -- tree ----------------------------------------------------------------------------------------------------------------

FIRST_LINES = """\
In force: ElasticQuotaTree kube-system/teams (scheduling.sigs.k8s.io/v1beta1)
  RESOURCE        0                  MAX   USED    MIN    MAX BORROWED   LENT
root
  cpu             [####################]     40     40     40        -      -
  memory          [....................]      0   40Gi   40Gi        -      -
  nvidia.com/gpu  [....................]      0      4      4        -      -
root.a
  cpu             [##########+++++     ]     30     20     40       10      -
"""


def test_quota_tree_shows_a_bar_per_resource_and_level() -> None:
    code, text, errors = call("tree", "--snapshot", "-", stdin=dump(walk_through(3, 3, 2, 0)))
    assert (code, errors) == (0, "")
    assert text.startswith(FIRST_LINES)
    assert (
        "root.b.4  namespace4\n  cpu             [----------          ]      0     10     20        -     10\n" in text
    )
    assert text.endswith("# used of its min   + borrowed   - lent   . idle   blank up to its max\n")
    assert max(map(len, text.splitlines())) <= 80


def test_long_names_are_shortened_at_80_columns_by_default() -> None:
    namespaces = [f"a-namespace-with-a-long-name-{number}" for number in range(5)]
    resource = "example.com/a-device-with-a-long-name"
    root = level("root", {resource: 4}, {resource: 4}, level("a", {}, {}, namespaces=namespaces))
    listed = dump([node(), quota_tree(root)])
    assert max(map(len, call("tree", "--snapshot", "-", stdin=listed)[1].splitlines())) == 80
    wide = call("tree", "--snapshot", "-", "-o", "wide", stdin=listed)[1]
    assert resource in wide
    assert ", ".join(namespaces) in wide
    assert "REQUESTED FAIR SHARE" in wide


def test_json_output_is_a_complete_document() -> None:
    for output, load in (("json", json.loads), ("yaml", yaml.safe_load)):
        code, text, _ = call("tree", "--snapshot", "-", "-o", output, stdin=dump(walk_through(4)))
        found = load(text)
        assert code == 0
        assert [one["path"] for one in found["levels"]][:3] == ["root", "root.a", "root.a.1"]


def test_unenforced_quotas_are_not_shown_as_in_force(tmp_path: Path) -> None:
    cluster = walk_through(4)
    tree = next(one for one in cluster if one["kind"] == "ElasticQuotaTree")
    code, text, _ = call(
        "tree", "--snapshot", "-", stdin=dump([{**one, "status": {}} if one is tree else one for one in cluster])
    )
    assert code == 1
    assert text.startswith("Not enforced: ElasticQuotaTree kube-system/teams")
    assert "Note: no scheduler has set its status to in force" in text
    config = tmp_path / "config.yaml"
    profile = "profile: {plugins: {disabled: [ElasticQuota]}}"
    config.write_text(f"{HEAD}domains:\n- {{name: tests, schedulerNames: [tests], {profile}}}\n")
    code, text, _ = call("tree", "--snapshot", "-", "--config", str(config), stdin=dump(cluster))
    assert code == 1
    assert f"Note: no domain of {config} has the plugin ElasticQuota in its profile" in text


def test_exit_code_is_0_without_quotas_and_1_for_an_ineffective_object() -> None:
    assert call("tree", "--snapshot", "-", stdin=dump([node()])) == (0, "No quota is in force\n", "")
    broken = quota_tree(level("root", {"cpu": 5}, {"cpu": 4}))
    code, text, errors = call("tree", "--snapshot", "-", stdin=dump([node(), broken]))
    assert (code, errors) == (1, ""), "the report says it once"
    assert "No effect: kube-system/teams: not in force: root.min.cpu: min 5 is over max 4" in text


def test_exit_code_is_2_for_bad_dumps_and_two_clusters_and_3_for_none(tmp_path: Path) -> None:
    assert call("tree", "--snapshot", "-", stdin="[]")[0] == 2
    assert call("tree", "--snapshot", str(tmp_path / "none.json"))[0] == 2
    code, _, errors = call("tree", "--snapshot", "-", "--context", "other", stdin=dump([]))
    assert (code, "excludes" in errors) == (2, True)
    assert call("tree", "--kubeconfig", str(tmp_path / "none"))[0] == 3


amounts = st.integers(0, 10**12)


@given(amounts, amounts, st.none() | amounts, amounts)
def test_bar_has_a_fixed_width_for_any_values(used: int, least: int, most: int | None, lent: int) -> None:
    borrowed = max(0, used - least)
    use = Use(used, least, most, borrowed, min(lent, max(0, least - used)), used, used)
    text = bar(use)
    assert len(text) == BAR
    assert text == "".join(sorted(text, key="#+-. ".index))
    assert ("#" in text) == (use.used > borrowed)
    whole = max(use.max or 0, use.min, use.used)
    assert (" " in text) == (max(use.min, use.used) < whole or not whole)


HEAD = "apiVersion: multisched.io/v1\nkind: MultischedConfiguration\n"


# -- lint ----------------------------------------------------------------------------------------------------------------


def test_lint_exits_0_for_a_valid_tree_and_1_for_a_violated_rule(tmp_path: Path) -> None:
    path = tmp_path / "teams.yaml"
    path.write_text(manifests(quota_tree(acks_example())))
    assert call("lint", str(path), "--offline") == (0, f"{path}: 0 problems, 0 warnings\n", "")
    path.write_text(manifests(quota_tree(level("root", {"cpu": 5}, {"cpu": 4}, leaf("a", 1, 2, "a")))))
    code, text, _ = call("lint", str(path), "--offline")
    assert code == 1
    assert text.splitlines()[0] == (
        f"{path}:11: ElasticQuotaTree kube-system/teams: root.min.cpu: min 5 is over max 4; lower min or raise max of root"
    )
    assert text.splitlines()[-1] == f"{path}: 1 problem, 0 warnings"


def test_lint_reports_all_findings_with_their_line(tmp_path: Path) -> None:
    path = tmp_path / "teams.yaml"
    path.write_text(
        """apiVersion: scheduling.sigs.k8s.io/v1beta1
kind: ElasticQuotaTree
metadata: {name: teams, namespace: kube-system}
spec:
  root:
    name: root
    min: {cpu: 4}
    max: {cpu: 4}
    children:
      - name: web
        min:
          cpu: 9
          nvidia.com/gpu: some
        maxx: {cpu: 4}
        namespaces: [Team]
      - name: web
        max: {cpu: 5}
"""
    )
    code, text, _ = call("lint", str(path), "--offline")
    assert code == 1
    found = [
        line.removeprefix(f"{path}:").partition(": ElasticQuotaTree kube-system/teams: ") for line in text.splitlines()
    ]
    assert {(place, rest.partition(": ")[0]) for place, middle, rest in found if middle} == {
        ("7", "root.min.cpu"),
        ("13", "root.web.min.nvidia.com/gpu"),
        ("14", "warning"),
        ("15", "root.web.namespaces"),
        ("16", "root.children[1].name"),
        ("17", "root.web.max.cpu"),
    }
    assert text.splitlines()[-1] == f"{path}: 5 problems, 1 warning"


def test_invalid_objects_are_reported_for_all_documents_at_once(tmp_path: Path) -> None:
    path = tmp_path / "teams.yaml"
    path.write_text("kind: ElasticQuotaTree\n---\napiVersion: v1\n")
    code, _, errors = call("lint", str(path), "--offline")
    assert code == 2
    assert [line.split(":")[1] for line in errors.splitlines() if "teams.yaml" in line] == ["1", "3"]


def test_lint_lists_pods_that_would_be_evicted(tmp_path: Path) -> None:
    path = tmp_path / "teams.yaml"
    path.write_text(manifests(quota_tree(acks_example())))
    listed = dump(walk_through(3, 3, 2, 0))
    code, text, _ = call("lint", str(path), "--snapshot", "-", stdin=listed)
    assert code == 0
    assert "2 pods would be evicted:" in text
    row = next(line for line in text.splitlines() if "namespace1/pod-2" in line)
    assert row.split()[:4] == ["root.a.1", "namespace1/pod-2", "n", "namespace4/pod-0"]
    found = json.loads(call("lint", str(path), "--snapshot", "-", "-o", "json", stdin=listed)[1])
    assert [one["pod"] for one in found["evictions"]] == ["namespace1/pod-2", "namespace2/pod-2"]
    assert set(found["evictions"][0]) == {"leaf", "pod", "node", "preemptor", "preemptorLeaf", "why"}
    assert found["problems"] == []
    calm = call("lint", str(path), "--snapshot", "-", stdin=dump(walk_through(2, 2, 2, 2)))[1]
    assert "No pod would be evicted" in calm


def test_lint_prints_problems_as_json(tmp_path: Path) -> None:
    path = tmp_path / "quotas.yaml"
    path.write_text(manifests(flat("a", 1, 2), flat("b", 3, 2)))
    code, text, _ = call("lint", str(path), "--offline", "-o", "json")
    found = json.loads(text)
    assert (code, found["evictions"]) == (1, None)
    (problem,) = found["problems"]
    assert problem["object"] == "ElasticQuota b/quota"
    assert problem["path"] == "spec.min.cpu"
    assert problem["location"].startswith(f"{path}:")


def test_duplicate_object_is_reported_with_the_first_position(tmp_path: Path) -> None:
    path = tmp_path / "quotas.yaml"
    path.write_text(manifests(flat("a", 1, 2), flat("a", 1, 2)))
    found = json.loads(call("lint", str(path), "--offline", "-o", "json")[1])
    assert [(one["location"], one["text"]) for one in found["problems"]] == [
        (f"{path}:4", "the object is given twice")
    ], "the line of metadata.name"


# -- convert -------------------------------------------------------------------------------------------------------------

KUEUE = [
    test_kueue.queue("web", "all", [test_kueue.quota("cpu", 9, 3)], stopPolicy="Hold"),
    test_kueue.local("web", "web"),
]
VOLCANO = [test_volcano.queue("web", deserved={"cpu": 4}, capability={"cpu": 9}), test_volcano.namespace("web", "web")]
KOORDINATOR = [linked("web", 2, 8, namespaces=["web"])]


@pytest.mark.parametrize(
    ("documents", "least"),
    [(KUEUE, 9), (VOLCANO, 4), (KOORDINATOR, 2), ([flat("web", 3, 8)], 3), ([quota_tree(acks_example())], None)],
    ids=["kueue", "volcano", "koordinator", "scheduler-plugins", "ack"],
)  # fmt: skip
def test_each_quota_api_is_converted_to_a_valid_tree(documents: list[Json], least: int | None, tmp_path: Path) -> None:
    code, text, _ = call("convert", "-", stdin=manifests(*documents))
    assert code == 0
    tree, problems = read_tree(yaml.safe_load(text)["spec"]["root"])
    assert problems == ()
    assert tree is not None
    if least is not None:
        assert tree.nodes[tree.leaf_of["web"]].min == {"cpu": least * 1000}
    path = tmp_path / "tree.yaml"
    path.write_text(text)
    assert call("lint", str(path), "--offline")[0] == 0


def test_conversion_losses_are_on_stderr_and_at_the_head_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "queues.yaml"
    path.write_text(manifests(*KUEUE))
    lost = "spec.stopPolicy: not converted; an ElasticQuotaTree has no such field"
    code, text, errors = call("convert", str(path))
    assert (code, errors) == (0, f"{path}:13: ClusterQueue web: {lost}\n")
    head = " ".join(line.lstrip("# ") for line in text.splitlines() if line.startswith("#"))
    assert f"Converted from {path} by `multisched quota convert`." in head
    assert "ClusterQueue web: spec.stopPolicy:" in head
    code, out, err = call("convert", str(path), "--strict", "-o", str(tmp_path / "tree.yaml"))
    assert (code, out, (tmp_path / "tree.yaml").exists()) == (1, "", False)
    assert "nothing is written: the lines above list what is not converted" in err
    code, text, _ = call("convert", str(path), "-o", "json")
    assert json.loads(text)["kind"] == "ElasticQuotaTree"


def test_cluster_total_limits_a_root_without_a_max() -> None:
    text = call("convert", "-", "--total", "cpu=40,memory=64Gi", stdin=manifests(*VOLCANO))[1]
    assert yaml.safe_load(text)["spec"]["root"]["max"] == {"cpu": "40", "memory": "64Gi"}
    code, _, errors = call("convert", "-", "--total", "cpu=many", stdin=manifests(*VOLCANO))
    assert (code, "--total.cpu: 'many' is not an amount" in errors) == (2, True)


def test_conversion_file_is_written_completely_or_not_at_all(tmp_path: Path) -> None:
    source, target = tmp_path / "queues.yaml", tmp_path / "tree.yaml"
    source.write_text(manifests(*KUEUE))
    assert call("convert", str(source), "-o", str(target))[0] == 0
    before = target.read_text()
    assert yaml.safe_load(before)["kind"] == "ElasticQuotaTree"
    source.write_text(manifests(*KUEUE, test_kueue.queue("bad", "", [test_kueue.quota("cpu", "much")])))
    code, text, errors = call("convert", str(source), "-o", str(target))
    assert (code, text) == (1, "")
    line = next(at for at, text in enumerate(source.read_text().splitlines(), 1) if "much" in text)
    assert f"{source}:{line}: ClusterQueue bad: spec.resourceGroups[0].flavors[0].resources[0].nominalQuota: " in errors
    assert "'much' is not an amount; write for example 500m, 40 or 64Gi" in errors
    assert target.read_text() == before
    assert sorted(one.name for one in tmp_path.iterdir()) == ["queues.yaml", "tree.yaml"]
    assert call("convert", str(target), "-o", str(target))[0] == 2
    assert call("convert", str(target), "-o", str(tmp_path / "none" / "tree.yaml"))[0] == 2


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "-:1:1: it contains no object"),
        ("---\n---\n", "-:1:1: it contains no object"),
        ("- 1\n", "-:1:1: this is not an object"),
        ("a: [1\n", "-:2:1: not YAML"),
        ("kind: ElasticQuota\n", "-:1:1: apiVersion: this is missing"),
        ("apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n", "-:1:1: Pod p is not a quota; give ElasticQuotaTree"),
        ("apiVersion: v1\nkind: Namespace\nmetadata: {name: p}\n", "-:1:1: there is no quota; give ElasticQuotaTree"),
        ("apiVersion: v1\nkind: List\nitems: [5]\n", "-:3:9: items[0]: this is not an object"),
        ("a: &x 1\nb: *x\n", "-:1:4: anchors are refused"),
        ("apiVersion: v1\nkind: A\nkind: B\n", "-:3:1: kind: duplicate key, first in line 2"),
        (
            manifests(flat("a", 1, 2), linked("b", 1, 2)),
            "-:12:1: the API of this object is ElasticQuota of Koordinator, but that of -:1 is ElasticQuota of scheduler-plugins",
        ),
    ],
)
def test_file_without_quotas_exits_2_with_the_position(text: str, error: str) -> None:
    for command in (("convert",), ("lint", "--offline")):
        code, output, errors = call(*command, "-", stdin=text)
        assert (code, output) == (2, "")
        assert errors.startswith(error)


def test_binary_file_exits_2(tmp_path: Path) -> None:
    path = tmp_path / "bytes.yaml"
    path.write_bytes(b"\xff\xfe")
    assert call("convert", str(path))[0] == 2
