"""The documents: short where they promise it, links that lead somewhere, commands and names that exist, examples that run."""

from __future__ import annotations

import ast
import importlib
import json
import re
import shlex
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import typer.main
from typer.testing import CliRunner

from multisched.cli.main import app

ROOT: Final = Path(__file__).parents[2]
README_LINES_MAX: Final = 120
DOCUMENTS: Final = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
FENCE: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND: Final = re.compile(r"(?:^|^\$ |^PYTHONPATH=\. |^\.venv/bin/|\| )multisched ([^|><]+)")
"""At the beginning of a line, or behind a pipe: not the word in a sentence of the output or in a path."""
LINK: Final = re.compile(r"\]\(([^)\s]+)\)")

each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)


def test_the_readme_fits_a_screen_or_two() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= README_LINES_MAX


# -- links ---------------------------------------------------------------------------------------------------------------


def anchors(text: str) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(text: str, folder: Path) -> list[str]:
    """Relative links of a document in `folder` that lead to no file, or to no heading of it."""
    found = []
    for link in LINK.findall(FENCE.sub("", text)):
        path, _, anchor = link.partition("#")
        target = folder / path
        if "://" in link or (target.exists() and not anchor):
            continue
        if not target.exists() or anchor not in anchors(target.read_text("utf-8") if path else text):
            found.append(link)
    return found


@each_document
def test_every_relative_link_leads_to_a_file_and_a_heading(document: Path) -> None:
    assert broken_links(document.read_text("utf-8"), document.parent) == []


def test_a_broken_link_would_be_seen() -> None:
    text = "# One\n[file](README.md) [anchor](#one) [gone](gone.md) [no heading](#two) [nor there](README.md#nothing)\n"
    assert broken_links(text, ROOT) == ["gone.md", "#two", "README.md#nothing"]


# -- commands ------------------------------------------------------------------------------------------------------------


def commands_in(text: str) -> Iterator[list[str]]:
    """The words after `multisched` of each command in a fenced block, without comments, pipes and redirections."""
    for _, block in FENCE.findall(text):
        for line in block.splitlines():
            if called := COMMAND.search(line.partition(" # ")[0]):
                yield shlex.split(called[1])


def below(command: Any) -> dict[str, Any]:
    """The commands of a group, those that domains bring among them."""
    if not hasattr(command, "list_commands"):
        return {}
    return {name: command.get_command(None, name) for name in command.list_commands(None)}


def why_unknown(words: list[str]) -> str:
    """Which word of a command line is no command or option; empty if all are."""
    command: Any = typer.main.get_command(app)
    for word in words:
        if word.startswith("-") and word != "-":
            name = word.partition("=")[0]
            if name not in {one for parameter in command.params for one in parameter.opts}:
                return f"{command.name} has no option {name}"
        elif word in (known := below(command)):
            command = known[word]
        elif known and not command.invoke_without_command:
            return f"{command.name} has no command {word}"
    return ""


@each_document
def test_every_command_in_a_block_exists_with_its_options(document: Path) -> None:
    unknown = {" ".join(words): why_unknown(words) for words in commands_in(document.read_text("utf-8"))}
    assert {line: why for line, why in unknown.items() if why} == {}


def test_commands_are_found_in_the_documents() -> None:
    found = {words[0] for document in DOCUMENTS for words in commands_in(document.read_text("utf-8"))}
    assert {"cluster", "run", "queue", "explain", "forecast", "repair", "simulate", "verify", "config"} <= found


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("multisched guess", "multisched has no command guess"),
        (".venv/bin/multisched forecast weeks  # of all", "forecast has no command weeks"),
        ("kubectl get pods | multisched verify --snapshot - --lax >x", "verify has no option --lax"),
        ("multisched explain pod default/web --fix", ""),
        ("multisched explain --what-if -f pod.yaml --replicas 5", ""),
    ],
)
def test_a_wrong_command_would_be_seen(line: str, why: str) -> None:
    (words,) = commands_in(f"```sh\n{line}\n```\n")
    assert why_unknown(words) == why


def leaves(command: Any, path: str) -> Iterator[str]:
    known = below(command)
    if not known:
        yield path
    for name, one in known.items():
        yield from leaves(one, f"{path} {name}")


def test_the_reference_names_every_command() -> None:
    text = (ROOT / "docs" / "reference.md").read_text("utf-8")
    every = set(leaves(typer.main.get_command(app), "multisched"))
    assert len(every) > 15
    assert {path for path in every if f"`{path}`" not in text and f"`{path} " not in text} == set()


# -- names ---------------------------------------------------------------------------------------------------------------


@cache
def texts_of_the_program() -> frozenset[str]:
    """All string constants."""
    trees = (
        ast.parse(path.read_text("utf-8"))
        for folder in ("multisched", "domains")
        for path in (ROOT / folder).rglob("*.py")
    )
    return frozenset(
        n.value for tree in trees for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)
    )


def unknown_metrics(text: str) -> set[str]:
    named = set(re.findall(r"`multisched_([a-z_]+[a-z])", text))
    known = texts_of_the_program()
    return {name for name in named if not {name, name.removesuffix("_total")} & known}


@each_document
def test_every_metric_is_one_of_the_program(document: Path) -> None:
    text = document.read_text("utf-8").replace("`multisched_verify_…`", "").replace("`multisched_forecast_…`", "")
    assert unknown_metrics(text) == set()


def test_a_metric_that_is_none_would_be_seen() -> None:
    assert unknown_metrics("`multisched_lease_held`, `multisched_events_total`, `multisched_luck`") == {"luck"}


def unknown_names(text: str) -> set[str]:
    """`multisched.module` and `multisched.module.Name` that cannot be imported."""
    found = set()
    for name in re.findall(r"`(multisched(?:\.\w+)+)`", text):
        module, _, attribute = name.rpartition(".")
        try:
            if not hasattr(importlib.import_module(module), attribute):
                importlib.import_module(name)
        except ImportError:
            found.add(name)
    return found


@each_document
def test_every_name_of_the_framework_can_be_imported(document: Path) -> None:
    assert unknown_names(document.read_text("utf-8")) == set()


def test_a_name_that_is_none_would_be_seen() -> None:
    assert unknown_names("`multisched.cli` `multisched.cli.main` `multisched.cli.luck` `multisched.luck.app`") == {
        "multisched.cli.luck",
        "multisched.luck.app",
    }


# -- the example of the guide for plugins --------------------------------------------------------------------------------


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the files of the guide, on the path of Python."""
    for _, block in FENCE.findall((ROOT / "docs" / "plugins.md").read_text("utf-8")):
        if named := re.match(r"# (\S+\.(?:py|yaml))\n", block):
            (tmp_path / named[1]).write_text(block, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in ("team_nodes", "test_team_nodes", "spares_the_edge", "team_commands"):
        sys.modules.pop(name, None)


def node(name: str, labels: dict[str, str]) -> dict[str, Any]:
    amounts = {"cpu": "4", "memory": "8Gi", "pods": "110"}
    metadata = {"name": name, "uid": name, "resourceVersion": "1", "labels": labels}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {}, "status": {"allocatable": amounts}}


def pending(name: str, labels: dict[str, str]) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default", "uid": name, "resourceVersion": "1", "labels": labels}
    spec = {"schedulerName": "forecast-scheduler", "containers": [{"name": "main", "image": "pause"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}


def called(*words: str) -> str:
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    return result.output


def explained(folder: Path, configuration: str, pod: dict[str, Any], *nodes: dict[str, Any]) -> str:
    """What `explain pod` says of it on these nodes."""
    dump = folder / "dump.json"
    dump.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [*nodes, pod]}))
    name = pod["metadata"]["name"]
    return called("explain", "pod", name, "--snapshot", str(dump), "--config", str(folder / configuration))


def test_the_example_places_pods_by_their_team(example: Path) -> None:
    assert "good" in called("config", "validate", str(example / "teams.yaml"))

    label = "example.com/team"
    nodes = (node("of-red", {label: "red"}), node("of-blue", {label: "blue"}), node("of-nobody", {}))
    red = explained(example, "teams.yaml", pending("red", {label: "red"}), *nodes)
    assert re.search(r"of-red .*TeamNodes 100x5", red)
    assert "TeamNodes: node(s) belonged to another team (Unschedulable)  [of-blue]" in red


def test_the_vectorised_example_spares_the_edge(example: Path) -> None:
    text = (example / "teams.yaml").read_text().replace("team_nodes:make_team_nodes", "spares_the_edge:SparesTheEdge")
    (example / "edge.yaml").write_text(re.sub(r" +args: .*\n", "", text))

    said = explained(example, "edge.yaml", pending("web", {}), node("edge", {"tier": "edge"}), node("core", {}))
    assert re.search(r"core .*SparesTheEdge 100x5", said)
    assert re.search(r"edge .*SparesTheEdge 0x5", said)


def test_the_test_of_the_guide_passes(example: Path) -> None:
    module = importlib.import_module("test_team_nodes")
    assert Path(str(module.__file__)).parent == example
    module.test_a_node_of_a_team_takes_pods_of_that_team_only()


def test_the_command_of_the_guide_asks_whom_it_is_told(example: Path) -> None:
    text = (ROOT / "docs" / "plugins.md").read_text("utf-8")
    (entry,) = re.findall(r'"multisched\.commands"\]\n(.+)\n', text)
    metadata = example / "teams-1.dist-info"
    metadata.mkdir()
    (metadata / "entry_points.txt").write_text(f"[multisched.commands]\n{entry.replace(chr(34), '')}\n")
    dump = example / "dump.json"
    dump.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [node("a", {})]}))

    assert "List the nodes of a team." in called("teams", "--help")
    result = CliRunner().invoke(app, ["teams", "nodes", "red", "--snapshot", str(dump)])
    assert (result.exit_code, result.stderr) == (1, f"multisched: {dump}: no plugin here shows teams\n")


def test_the_configurations_of_the_guides_are_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    found = 0
    for name in ("users.md", "operators.md"):
        for language, block in FENCE.findall((ROOT / "docs" / name).read_text("utf-8")):
            if language == "yaml" and "kind: MultischedConfiguration" in block:
                found += 1
                file = tmp_path / f"{name}-{found}.yaml"
                file.write_text(block.replace("/etc/multisched/history", "config/examples/simulate"), "utf-8")
                assert "good" in called("config", "validate", str(file))
    assert found == 2
