"""`multisched explain` as users and scripts meet it: on a dump, over a server that misbehaves, and with wrong arguments."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from multisched.cli.commands import app
from multisched.testing.builders import Document, node_document
from tests.unit.whatif.clusters import CONFIGURATION, small_pod

EXAMPLES = Path(__file__).parents[3] / "domains"
MANIFEST = {"kind": "Pod", "metadata": {"name": "new"}, "spec": small_pod("new")["spec"]}


def call(*arguments: str, stdin: str | None = None) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, arguments, input=stdin)
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIGURATION)
    return str(path)


@pytest.fixture
def manifest(tmp_path: Path) -> str:
    path = tmp_path / "pod.yaml"
    path.write_text(yaml.safe_dump(MANIFEST))
    return str(path)


def dump(*documents: Document) -> str:
    return json.dumps({"kind": "List", "apiVersion": "v1", "items": list(documents)})


def test_explain_on_a_dump_names_reason_and_fixes(tmp_path: Path, config: str) -> None:
    path = tmp_path / "dump.json"
    path.write_text(dump(node_document("n1", cpu="1"), small_pod("late", cpu="2")))
    code, text, _ = call("explain", "pod", "late", "--fix", "--snapshot", str(path), "--config", config)
    assert code == 0
    assert "0/1 nodes are available: 1 Insufficient cpu." in text
    assert "lower the cpu request from 2 to 1; it is then placed on n1" in text


def test_explain_reads_a_dump_from_a_pipe_and_prints_json(config: str) -> None:
    listed = dump(node_document("n1"), node_document("n2", cpu="100m"), small_pod("late", cpu="1"))
    arguments = ("explain", "pod", "default/late", "--node", "n2", "-o", "json", "--snapshot", "-", "--config", config)
    code, text, _ = call(*arguments, stdin=listed)
    assert code == 0
    view = json.loads(text)
    assert view["onNode"]["text"] == "It is not feasible: NodeResourcesFit: Insufficient cpu."
    assert view["now"]["winner"]["node"] == "n1"


def test_what_if_works_on_a_dump(tmp_path: Path, config: str, manifest: str) -> None:
    path = tmp_path / "dump.json"
    path.write_text(dump(node_document("n1")))
    asked = ("explain", "--what-if", "-f", manifest, "--replicas", "2", "--snapshot", str(path), "--config", config)
    code, text, _ = call(*asked)
    assert (code, text.splitlines()[0]) == (0, "Of 2 x default/new, 2 would be placed by domain all now")
    code, text, _ = call(*asked, "-o", "yaml")
    assert [one["node"] for one in yaml.safe_load(text)["placements"]] == ["n1", "n1"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("explain",), "write `explain pod NAMESPACE/NAME` or"),
        (("explain", "--what-if"), "or `explain --what-if -f FILE`"),
        (("explain", "--what-if", "-f", "/none.yaml"), "/none.yaml cannot be read: No such file"),
        (("explain", "--what-if", "pod", "a/b"), "--what-if and --file cannot be used with pod"),
        (("explain", "pod", "a/b/c"), "a/b/c: write NAMESPACE/NAME"),
        (("explain", "pod", "a/b", "--server", "ftp://x"), "write http://HOST:PORT"),
        (("explain", "pod", "a/b", "--snapshot", "/none.json"), "/none.json cannot be read: No such file"),
        (("explain", "pod", "a/b", "--snapshot", "-"), "is not a list of objects"),
        (("explain", "--what-if", "-f", "-", "--replicas", "0"), "--replicas"),
    ],
)
def test_invalid_query_is_a_usage_error(arguments: tuple[str, ...], message: str) -> None:
    code, _, errors = call(*arguments, stdin="nonsense")
    assert code == 2
    assert message in errors


def test_config_option_requires_a_dump(config: str) -> None:
    assert call("explain", "pod", "a/b", "--config", config)[0] == 2


def test_pod_of_an_unknown_scheduler_is_a_usage_error(tmp_path: Path) -> None:
    path = tmp_path / "dump.json"
    path.write_text(dump(node_document("n1"), small_pod("late")))
    code, _, errors = call("explain", "pod", "late", "--snapshot", str(path))
    assert code == 2
    assert "no domain serves schedulerName default-scheduler" in errors


def test_unknown_pod_of_a_dump_is_a_usage_error(tmp_path: Path, config: str) -> None:
    path = tmp_path / "dump.json"
    path.write_text(dump(node_document("n1")))
    assert call("explain", "pod", "late", "--snapshot", str(path), "--config", config)[0] == 2


def test_unknown_node_of_a_dump_is_a_usage_error(tmp_path: Path, config: str) -> None:
    path = tmp_path / "dump.json"
    path.write_text(dump(node_document("n1"), small_pod("late")))
    asked = ("explain", "pod", "late", "--node", "n2", "--snapshot", str(path), "--config", config)
    code, text, errors = call(*asked)
    assert (code, text) == (2, "")
    assert "node n2 is not known here: did you mean n1?" in errors


def test_query_without_a_server_exits_with_no_cluster() -> None:
    code, _, errors = call("explain", "pod", "a/b", "--server", "http://127.0.0.1:9")
    assert (code, "no multisched responds at http://127.0.0.1:9" in errors) == (3, True)


@pytest.mark.parametrize("domain", ["forecast", "gpu", "job"])
def test_what_if_accepts_the_example_of_each_domain(domain: str, tmp_path: Path) -> None:
    path, example = tmp_path / "dump.json", EXAMPLES / domain / "example.yaml"
    path.write_text(dump(node_document("n1")))
    code, text, errors = call("explain", "--what-if", "-f", str(example), "--snapshot", str(path))
    assert (code, errors) == (0, "")
    documents = [one for one in yaml.safe_load_all(example.read_text()) if one]
    assert [f"/{one['metadata']['name']}," in text for one in documents] == [True] * len(documents)


def test_file_without_objects_is_refused(tmp_path: Path) -> None:
    for written, message in (
        ("---\n", "it contains no object"),
        ("kind: Pod\n---\n5\n", "document 2 is not an object"),
    ):
        path = tmp_path / "file.yaml"
        path.write_text(written)
        code, _, errors = call("explain", "--what-if", "-f", str(path))
        assert (code, message in errors) == (2, True)
