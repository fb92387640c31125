"""The documents: links, commands, files and names exist, and examples run."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import typer.main
from typer.testing import CliRunner

from multisched.cli.commands import app
from multisched.client.lease_term import LeaseState
from multisched.cycle.bind_outcome import Outcome, Step
from multisched.framework.ports import BindAnswer
from multisched.queueing.transitions import ALLOWED, QueueState
from multisched.state.cluster_cache import CacheCorruptedError, PodState
from multisched.testing.builders import make_cache, make_node, make_pod

ROOT: Final = Path(__file__).parents[2]
README_LINES_MAX: Final = 120
ARCHITECTURE_WORDS_MAX: Final = 1_800
FOLDER_FILES_MAX: Final = 3
"""Python files that a folder of the product may have without a README.md."""
FOLDER_LINES: Final = (10, 60)
GUIDES: Final = frozenset(
    {"domains/forecast", "domains/gpu", "domains/job", "multisched/simulate", "multisched/verify"}
)
"""Folders whose README.md is a guide for users as well, and may be longer."""
DOCUMENTS: Final = tuple(
    path
    for pattern in ("*.md", "docs/**/*.md", "multisched/**/*.md", "domains/**/*.md", "tests/**/*.md")
    for path in sorted(ROOT.glob(pattern))
)
PRODUCT: Final = ("multisched", "domains")
PRODUCT_FILES_MIN: Final = 50
"""Fewer Python files in a package of the product mean that they were looked for in the wrong place."""
FENCE: Final = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND: Final = re.compile(r"(?:^|^\$ |^PYTHONPATH=\. |^\.venv/bin/|\| )multisched ([^|><]+)")
"""At the beginning of a line, or behind a pipe: not the word in a sentence of the output or in a path."""
LINK: Final = re.compile(r"\]\(([^)\s]+)\)")

DOCUMENTS_OF_TODAY: Final = tuple(document for document in DOCUMENTS if document.name != "CHANGELOG.md")
"""A changelog names what is gone, too."""

each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
each_document_of_today = pytest.mark.parametrize(
    "document", DOCUMENTS_OF_TODAY, ids=lambda path: str(path.relative_to(ROOT))
)


def test_length_of_the_readme_is_limited() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= README_LINES_MAX


def test_length_of_the_architecture_is_limited() -> None:
    assert len((ROOT / "ARCHITECTURE.md").read_text("utf-8").split()) <= ARCHITECTURE_WORDS_MAX


# -- folders and files ---------------------------------------------------------------------------------------------------

FILE: Final = re.compile(r"`([\w./*-]+\.(?:py|md|yaml|toml|json|gz|csv|go|sh|txt)|[\w.-]+(?:/[\w.-]+)*/)(?::[^`]*)?`")
"""A file, or a folder with the slash at its end."""
NAMES_OF_FILES: Final = tuple(one for one in DOCUMENTS if one.parent != ROOT / "docs" and one.name != "CHANGELOG.md")


def test_every_folder_of_the_product_has_a_readme() -> None:
    folders = {path.parent for folder in ("multisched", "domains") for path in (ROOT / folder).rglob("*.py")}
    large = [folder for folder in folders if len(list(folder.glob("*.py"))) > FOLDER_FILES_MAX]
    assert len(large) > 30
    assert [str(folder.relative_to(ROOT)) for folder in large if not (folder / "README.md").exists()] == []


def test_length_of_a_folder_readme_is_limited() -> None:
    sizes = {
        str(path.parent.relative_to(ROOT)): len(path.read_text("utf-8").splitlines())
        for path in DOCUMENTS
        if path.is_relative_to(ROOT / "multisched") or path.is_relative_to(ROOT / "domains")
    }
    low, high = FOLDER_LINES
    assert {folder: size for folder, size in sizes.items() if folder not in GUIDES and not low <= size <= high} == {}


def missing_files(text: str, folder: Path) -> list[str]:
    """Files named in a document that are neither beside it nor below the root, the product, the tests, or the folders over it."""
    roots = {folder, *folder.parents, ROOT / "multisched", ROOT / "tests"}
    return [
        name
        for name in FILE.findall(FENCE.sub("", text))
        if not any(next(root.glob(name.rstrip("/")), None) for root in roots if root.is_relative_to(ROOT))
    ]


@pytest.mark.parametrize("document", NAMES_OF_FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_named_file_exists(document: Path) -> None:
    assert missing_files(document.read_text("utf-8"), document.parent) == []


def test_missing_file_is_detected() -> None:
    text = "`README.md` `cycle/results.py` `unit/test_docs.py` `gone.py` `state/gone.py:name` `*_source.py` `/api/` `state/`"
    assert missing_files(text, ROOT) == ["gone.py", "state/gone.py", "*_source.py"]
    assert missing_files("`*_source.py` `curves/capacity.py`", ROOT / "domains" / "forecast" / "history") == []


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
def test_every_relative_link_has_a_file_and_a_heading(document: Path) -> None:
    assert broken_links(document.read_text("utf-8"), document.parent) == []


def test_broken_link_is_detected() -> None:
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


@cache
def program() -> Any:
    """Returns the command with all its groups; to build it takes a tenth of a second."""
    return typer.main.get_command(app)


def why_unknown(words: list[str]) -> str:
    """Which word of a command line is no command or option; empty if all are."""
    command = program()
    rest = iter(words)
    for word in rest:
        if word.startswith("-") and word != "-":
            name, equals, _ = word.partition("=")
            option = next((one for one in command.params if name in one.opts), None)
            if option is None:
                return f"{command.name} has no option {name}"
            if not equals and not option.is_flag:
                next(rest, "")  # its value
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
def test_wrong_command_is_detected(line: str, why: str) -> None:
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
    every = set(leaves(program(), "multisched"))
    assert len(every) > 15
    assert {path for path in every if f"`{path}`" not in text and f"`{path} " not in text} == set()


# -- names ---------------------------------------------------------------------------------------------------------------


@cache
def words_of_the_program() -> frozenset[str]:
    """Returns all string literals that look like the name of a metric."""
    files = (path for folder in PRODUCT for path in (ROOT / folder).rglob("*.py"))
    return frozenset(word for path in files for word in re.findall(r'"([a-z_]+)"', path.read_text("utf-8")))


def unknown_metrics(text: str) -> set[str]:
    named = set(re.findall(r"`multisched_([a-z_]+[a-z])", text))
    known = words_of_the_program()
    return {name for name in named if not {name, name.removesuffix("_total")} & known}


@each_document_of_today
def test_every_named_metric_exists(document: Path) -> None:
    text = document.read_text("utf-8").replace("`multisched_verify_…`", "").replace("`multisched_forecast_…`", "")
    assert unknown_metrics(text) == set()


def test_unknown_metric_is_detected() -> None:
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


@each_document_of_today
def test_every_name_of_the_framework_can_be_imported(document: Path) -> None:
    assert unknown_names(document.read_text("utf-8")) == set()


def test_unknown_name_is_detected() -> None:
    assert unknown_names("`multisched.cli` `multisched.cli.main` `multisched.cli.luck` `multisched.luck.app`") == {
        "multisched.cli.luck",
        "multisched.luck.app",
    }


# -- diagrams of states --------------------------------------------------------------------------------------------------


def diagrams() -> list[str]:
    return [block for _, block in FENCE.findall((ROOT / "ARCHITECTURE.md").read_text("utf-8"))]


def test_diagram_of_the_queue_equals_its_transition_table() -> None:
    drawn = re.findall(r"^([A-Z_]+) +-> ([A-Z_ ]+)$", "\n".join(diagrams()), re.MULTILINE)
    assert {(QueueState[origin], QueueState[target]) for origin, targets in drawn for target in targets.split()} == set(
        ALLOWED
    )


CACHE_STEPS: Final = (
    "assume",
    "place on the same node",
    "place on another node",
    "forget",
    "revise",
    "answered",
    "remove",
)
UNASSUMED: Final = "unassumed"
CACHE_STATES: Final = (UNASSUMED, *(state.name for state in PodState))


def drawn_in_the_cache() -> dict[tuple[str, str], str]:
    """(state, step) -> the state after it, as ARCHITECTURE.md has them."""
    found: dict[tuple[str, str], str] = {}
    lines = re.findall(rf"^((?:{'|'.join(CACHE_STATES)})\b.*?)  +(.+?) +-> (\w+)$", "\n".join(diagrams()), re.MULTILINE)
    for states, steps, after in lines:
        for step in steps.partition(":")[0].split(", "):
            named = [one for one in CACHE_STEPS if one.startswith(step)]
            assert named, step
            found |= {(state, one): after for state in states.split() for one in named}
    return found


def taken_in_the_cache(state: str, step: str) -> str:
    """The state after a step; empty: it is forbidden."""
    cache = make_cache([make_node("here"), make_node("there")])
    pod = make_pod("p")
    if state != UNASSUMED:
        cache.assume(pod, 0)
    if state == PodState.CONFIRMED.name:
        cache.place(msgspec.structs.replace(pod, node="here"))
    steps: dict[str, Callable[[], object]] = {
        "assume": lambda: cache.assume(pod, 0),
        "place on the same node": lambda: cache.place(msgspec.structs.replace(pod, node="here")),
        "place on another node": lambda: cache.place(msgspec.structs.replace(pod, node="there")),
        "forget": lambda: cache.forget(pod.uid),
        "revise": lambda: cache.revise(pod),
        "answered": lambda: cache.answered(pod.uid, 1.0),
        "remove": lambda: cache.remove(pod.uid),
    }
    try:
        steps[step]()
    except (CacheCorruptedError, KeyError):
        return ""
    entry = cache.placed(pod.uid)
    return UNASSUMED if entry is None else entry.state.name


def test_diagram_of_the_cache_equals_its_behaviour() -> None:
    drawn = drawn_in_the_cache()
    taken = {(state, step): taken_in_the_cache(state, step) for state in CACHE_STATES for step in CACHE_STEPS}
    assert {step: after for step, after in taken.items() if after} == drawn
    assert [step for step, after in taken.items() if not after] == [
        (UNASSUMED, "revise"),
        ("ASSUMED", "assume"),
        ("CONFIRMED", "assume"),
        ("CONFIRMED", "place on another node"),
    ]


@pytest.mark.parametrize("names", [PodState, BindAnswer, Outcome, Step, LeaseState], ids=lambda kind: kind.__name__)
def test_the_diagrams_name_every_state_and_answer(names: type[Enum]) -> None:
    assert {one.name for one in names} - set(re.findall(r"[A-Z_]+", "\n".join(diagrams()))) == set()


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
    assert "valid" in called("config", "validate", str(example / "teams.yaml"))

    label = "example.com/team"
    nodes = (node("of-red", {label: "red"}), node("of-blue", {label: "blue"}), node("of-nobody", {}))
    red = explained(example, "teams.yaml", pending("red", {label: "red"}), *nodes)
    assert re.search(r"of-red .*TeamNodes 100x5", red)
    assert "TeamNodes: node(s) belonged to another team (Unschedulable)  [of-blue]" in red


def test_vectorised_example_avoids_edge_nodes(example: Path) -> None:
    text = (example / "teams.yaml").read_text().replace("team_nodes:make_team_nodes", "spares_the_edge:SparesTheEdge")
    (example / "edge.yaml").write_text(re.sub(r" +args: .*\n", "", text))

    said = explained(example, "edge.yaml", pending("web", {}), node("edge", {"tier": "edge"}), node("core", {}))
    assert re.search(r"core .*SparesTheEdge 100x5", said)
    assert re.search(r"edge .*SparesTheEdge 0x5", said)


def test_the_test_of_the_guide_passes(example: Path) -> None:
    module = importlib.import_module("test_team_nodes")
    assert Path(str(module.__file__)).parent == example
    module.test_a_node_of_a_team_takes_pods_of_that_team_only()


def test_command_of_the_guide_runs_and_reports_a_missing_plugin(example: Path) -> None:
    text = (ROOT / "docs" / "plugins.md").read_text("utf-8")
    (entry,) = re.findall(r'"multisched\.commands"\]\n(.+)\n', text)
    metadata = example / "teams-1.dist-info"
    metadata.mkdir()
    (metadata / "entry_points.txt").write_text(f"[multisched.commands]\n{entry.replace(chr(34), '')}\n")
    dump = example / "dump.json"
    dump.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [node("a", {})]}))

    assert "List the nodes of a team." in called("teams", "--help")
    result = CliRunner().invoke(app, ["teams", "nodes", "red", "--snapshot", str(dump)])
    assert (result.exit_code, result.stderr) == (2, f"multisched: {dump}: no plugin serves the view teams\n")


def test_configurations_in_the_guides_are_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    found = 0
    for name in ("users.md", "operators.md"):
        for language, block in FENCE.findall((ROOT / "docs" / name).read_text("utf-8")):
            if language == "yaml" and "kind: MultischedConfiguration" in block:
                found += 1
                file = tmp_path / f"{name}-{found}.yaml"
                file.write_text(block.replace("/etc/multisched/history", "config/examples/simulate"), "utf-8")
                assert "valid" in called("config", "validate", str(file))
    assert found == 3


def test_readme_transcripts_have_no_names_of_a_single_run() -> None:
    """Names of pods and nodes, and amounts of milli-CPU, follow from where one run has put pods."""
    blocks = re.findall(
        r"^```console demo\n(.*?)^```$", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    assert blocks
    assert re.findall(r"work-[0-9]+|-[a-z0-9]{10}-[a-z0-9]{5}|[0-9]+m\b", "".join(blocks)) == []
