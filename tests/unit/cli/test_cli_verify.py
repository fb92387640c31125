"""`multisched verify` as users and scripts meet it: exit codes, forms of output, wrong arguments."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from multisched.cli.commands import app
from tests.unit.verify.clusters import GPU, Told, affinity, make_node, make_pod, term

CONFIGURATION = "apiVersion: multisched.io/v1\nkind: MultischedConfiguration\n"


def call(*arguments: str, stdin: str | None = None) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["verify", *arguments], input=stdin)
    return result.exit_code, result.stdout, result.stderr


def dump(*objects: Told) -> str:
    return json.dumps({"kind": "List", "apiVersion": "v1", "items": [d | {"kind": kind} for kind, d in objects]})


CLEAN = dump(make_node("n1"), make_pod("fits", "n1", requests={"cpu": "1"}))
OVER = dump(make_node("n1"), make_pod("large", "n1", requests={"cpu": "5"}))
ONCE = dump(make_node("n1"), make_pod("alone", "n1", affinity=affinity(term())))


def test_verify_exits_0_for_a_clean_cluster_and_1_for_a_violation() -> None:
    assert call("--snapshot", "-", stdin=CLEAN)[0] == 0
    code, text, _ = call("--snapshot", "-", stdin=OVER)
    assert code == 1
    hint, blank, head, row = text.splitlines()[:4]
    assert (hint.split(":")[:2], blank) == (["not judged", " domain"], "")
    assert "needs --config FILE" in hint
    assert head.split() == ["POD", "NODE", "RULE", "MESSAGE"]
    assert row.split()[:3] == ["default/large", "n1", "resources"]
    assert "1 violation, 0 that may have been right once; 1 pod on 1 node" in text


def test_verify_json_has_all_findings(tmp_path: Path) -> None:
    path = tmp_path / "dump.json"
    path.write_text(OVER)
    code, text, _ = call("--snapshot", str(path), "-o", "json")
    assert code == 1
    assert json.loads(text) == {
        "violations": [
            {
                "pod": "default/large",
                "node": "n1",
                "rule": "resources",
                "message": "with it, the node's pods request 5000 of 4000 milli-CPU cpu",
            }
        ],
        "maybe": [],
        "unreadable": [],
        "notJudged": [{"rule": "domain", "reason": "needs --config FILE, which also has tolerations that domains add"}],
        "checked": {"nodes": 1, "pods": 1, "unreadable": 0},
    }


def test_possible_violations_are_separate_and_fail_only_with_strict() -> None:
    code, text, _ = call("--snapshot", "-", "-o", "json", stdin=ONCE)
    found = json.loads(text)
    assert (code, found["violations"], [one["rule"] for one in found["maybe"]]) == (0, [], ["podAffinity"])
    assert call("--snapshot", "-", "--strict", stdin=ONCE)[0] == 1
    assert "May have been right when the pod was placed:" in call("--snapshot", "-", stdin=ONCE)[1]


def tainted(*pods: str) -> str:
    return dump(
        make_node("n1", more={"pods": "100"}, taints=[{"key": "dedicated", "effect": "NoSchedule"}]),
        *(make_pod(pod, "n1") for pod in pods),
    )


@pytest.mark.parametrize(("pods", "rows"), [(3, ["p0", "p1", "p2"]), (4, ["p0 and 3 more"]), (74, ["p0 and 73 more"])])
def test_pods_with_one_rule_and_reason_share_a_row(pods: int, rows: list[str]) -> None:
    names = [f"p{number}" for number in range(pods)]
    _, text, _ = call("--snapshot", "-", stdin=tainted(*names))
    told = [line.split("   ")[0] for line in text.splitlines() if line.startswith("default/")]
    assert told == [f"default/{row}" for row in rows]
    assert f"{pods} that may have been right once" in text
    assert ("--all names every pod" in text) == (pods > 3)

    _, text, _ = call("--snapshot", "-", "--all", stdin=tainted(*names))
    assert text.count("default/p") == pods
    assert "--all" not in text
    assert len(json.loads(call("--snapshot", "-", "-o", "json", stdin=tainted(*names))[1])["maybe"]) == pods


def test_pods_with_other_reasons_have_their_own_rows() -> None:
    listed = dump(make_node("n1"), *(make_pod(f"p{size}", "n1", requests={"cpu": str(size)}) for size in (5, 6, 7, 8)))
    assert call("--snapshot", "-", stdin=listed)[1].count("resources") == 4


def test_verify_with_a_configuration_checks_domains(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(CONFIGURATION)
    pod = make_pod("lost", "n1", schedulerName="forecast-scheduler")
    listed = dump(make_node("n1", more={GPU: "4"}), pod)
    assert call("--snapshot", "-", stdin=listed)[0] == 0
    code, text, _ = call("--snapshot", "-", "--config", str(config), stdin=listed)
    assert (code, "the node belongs to domain gpu" in text) == (1, True)


def test_unreadable_objects_are_listed_without_failing() -> None:
    odd = make_pod("odd", "n1", requests={"cpu": "lots"})
    code, text, _ = call("--snapshot", "-", stdin=dump(make_node("n1"), odd))
    assert code == 0
    assert "unreadable: pod default/odd: requests.cpu: 'lots' is not a quantity" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--snapshot", "-"), "-: it is not JSON (line 1, column 1"),
        (("--snapshot", "/none.json"), "/none.json cannot be read: No such file"),
        (("--snapshot", "-", "--kubeconfig", "k"), "--snapshot excludes --kubeconfig"),
        (("--snapshot", "-", "--config", "/none.yaml"), "/none.yaml"),
        (("--snapshot", "-", "-o", "xml"), "'xml' is not one of"),
    ],
)
def test_verify_exits_2_for_bad_input(arguments: tuple[str, ...], message: str) -> None:
    code, text, errors = call(*arguments, stdin="nonsense")
    assert (code, text) == (2, "")
    assert message in errors


def test_verify_exits_3_without_a_cluster(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n"
        "clusters: [{name: c, cluster: {server: 'http://127.0.0.1:9'}}]\n"
        "users: [{name: c, user: {token: t}}]\ncontexts: [{name: c, context: {cluster: c, user: c}}]\n"
    )
    assert call("--kubeconfig", str(kubeconfig))[0] == 3
