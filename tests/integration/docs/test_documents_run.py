"""Every command of the documents runs, and prints what they say it prints; what cannot be run is listed with its reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.integration.docs import third_step
from tests.integration.docs.blocks import DOCUMENTS, FILES, MARKS, ROOT, Block, blocks_of
from tests.integration.docs.session import Session, masked, missing, running_demo

pytestmark = pytest.mark.slow

IN_A_DEPLOYMENT: Final = "asks one that is deployed: tests/real/test_port_forward.py"
NOT_RUN: Final = {
    ("README.md", "make demo"): "goes on until Ctrl-C, and is this suite: tests/integration/program/test_demo.py",
    ("CONTRIBUTING.md", "git clone"): "is what this test is part of",
    (
        "docs/quotas.md",
        "kubectl annotate elasticquotatrees",
    ): "lifts the limits that other commands need: tests/real/test_quota_admission.py",
    (
        "docs/operators.md",
        ".venv/bin/multisched run --kubeconfig FILE\n",
    ): "goes on; the quick start of README.md runs it",
    (
        "docs/operators.md",
        ".venv/bin/multisched run --kubeconfig FILE --config",
    ): "goes on: tests/integration/program/test_run_dry.py",
    ("docs/operators.md", "kubectl create clusterrolebinding"): IN_A_DEPLOYMENT,
    ("docs/operators.md", "multisched --context production queue"): IN_A_DEPLOYMENT,
    ("docs/operators.md", "kubectl create token"): IN_A_DEPLOYMENT,
    ("docs/operators.md", "multisched repair plan --apply"): "moves pods in a window: tests/integration/repair",
    ("docs/quotas.md", "$ kubectl apply -f broken.yaml"): "needs policies: tests/real/test_quota_admission.py",
    ("docs/quotas.md", "kubectl create secret tls"): "needs a certificate: tests/real/test_quota_admission.py",
}
"""Document and beginning of a block that is marked no-run -> why."""
OF_OTHERS: Final = {
    ("docs/operators.md", "Install"): "is run with real rollouts by tests/integration/kubectl/test_install.py"
}
"""Document and heading of blocks that are not run, however they are marked -> why."""
RUN: Final = tuple(
    path for path in DOCUMENTS if any(b.language in MARKS and b.mark != "no-run" for b in blocks_of(path))
)


def name_of(document: Path) -> str:
    return str(document.relative_to(ROOT))


def is_of_others(block: Block) -> bool:
    return (name_of(block.document), block.heading) in OF_OTHERS


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with running_demo(tmp_path_factory.mktemp("demo")) as variables:
        yield variables


@pytest.mark.parametrize("document", RUN, ids=name_of)
def test_document_commands_print_what_the_document_shows(
    document: Path, demo: Mapping[str, str], tmp_path: Path
) -> None:
    session = Session(tmp_path, demo)
    try:
        wrong = [text for block in blocks_of(document) if not is_of_others(block) and (text := session.run(block))]
    finally:
        session.end()
    assert not wrong, "\n".join(wrong)


def test_every_document_block_has_a_type() -> None:
    blocks = [block for document in DOCUMENTS for block in blocks_of(document)]
    assert len(blocks) > 60
    unknown = [
        f"{block.place}: {block.language} {block.mark}"
        for block in blocks
        if not is_of_others(block)
        and (block.mark not in MARKS.get(block.language, {""}) or block.language not in {*MARKS, *FILES, "text"})
    ]
    assert unknown == []


def test_blocks_that_are_not_run_have_a_reason() -> None:
    marked = [b for document in DOCUMENTS for b in blocks_of(document) if b.mark == "no-run" and not is_of_others(b)]
    found = {
        (name_of(block.document), begin) for block in marked for _, begin in NOT_RUN if block.text.startswith(begin)
    }
    assert len(marked) == len(NOT_RUN)
    assert found == NOT_RUN.keys()
    headings = {(name_of(b.document), b.heading) for document in DOCUMENTS for b in blocks_of(document)}
    assert OF_OTHERS.keys() <= headings


def test_walk_through_dump_equals_its_generator_output() -> None:
    assert third_step.DUMP.read_text() == third_step.dump()


# -- the checks themselves -----------------------------------------------------------------------------------------------


def test_failing_or_differing_command_is_detected(tmp_path: Path) -> None:
    session = Session(tmp_path, {"MULTISCHED_SERVER": "http://127.0.0.1:1", "KUBECONFIG": "none"})
    text = "# A\n```sh\nexport WORD=some\n```\n```sh\ntest $WORD = other\n```\n```console\n$ echo $WORD 12\nsome 7\n$ echo a\nb\n```\n"
    said = [session.run(block) for block in blocks_of(ROOT / "README.md", text)]
    assert [bool(one) for one in said] == [False, True, True]
    assert "README.md:5: exit code 1" in said[1]
    assert "$ echo a\nexit code 0, without\nb\nin\na" in said[2]
    assert "$ echo $WORD" not in said[2]


@pytest.mark.parametrize(
    ("expected", "output", "lacks"),
    [
        ("work-003 40 %\n", "work-117  3 %\n", []),
        ("one\n...\nthree\n", "one\ntwo\nthree\n", []),
        ("one\nthree\n", "three\none\n", ["three"]),
        ("peak 5 at Sat 20:00, from ...\n", "peak 4.2 at Mon 21:00, from files\n", []),
        ("  Mon  ▃▂▁█  4.4\n", "Tue  ▁▁▂▃  17\n", []),
        ("root  [####++  ]  4  -\n", "root [#] - 12\n", []),
        ("node is full\n", "node is empty\n", ["node is full"]),
    ],
)
def test_outputs_are_compared_without_numbers(expected: str, output: str, lacks: list[str]) -> None:
    assert missing(expected, output) == lacks


def test_words_are_compared() -> None:
    assert masked("The smallest fix: lower the cpu request from 40 to 31500m") == (
        "The smallest fix: lower the cpu request from N to N"
    )
