"""answer.py over a file of problems of which some are none: each is named, and the others are answered."""

from __future__ import annotations

import io
from typing import Any

import orjson
import pytest

from multisched.model.decode import Decoder
from tests.conformance.answer import answer_line, print_answers
from tests.conformance.generate import problem

ANSWERABLE = problem("resources", 1)


def answered(line: bytes) -> dict[str, Any]:
    return answer_line(line, 7, Decoder())


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[1, 2]", "a problem is an object, not list"),
        (b'{"nodes": []}', "the problem has no pod"),
        (orjson.dumps({**ANSWERABLE, "nodes": [3]}), "DecodeError"),
        (orjson.dumps({**ANSWERABLE, "pods": [{"metadata": 3}]}), "DecodeError"),
        (orjson.dumps({**ANSWERABLE, "services": 7}), "TypeError"),
        (orjson.dumps({**ANSWERABLE, "profile": {"kind": "x"}}), "ConfigError"),
    ],
)
def test_unanswerable_line_gets_an_error_with_the_reason(line: bytes, text: str) -> None:
    assert text in answered(line)["raised"]


def test_line_without_an_id_is_identified_by_its_number() -> None:
    assert answered(b"{")["id"] == "line-7"
    assert answered(orjson.dumps({k: v for k, v in ANSWERABLE.items() if k != "id"}))["id"] == "line-7"


def test_lists_that_are_missing_or_null_are_empty() -> None:
    bare = {"id": "bare", "nodes": None, "pod": ANSWERABLE["pod"]}
    assert answered(orjson.dumps(bare))["fitError"] == "no nodes available to schedule pods"


def test_unreadable_pod_gives_an_answer_with_an_error() -> None:
    pod = {**ANSWERABLE["pod"], "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "oops"}}}]}}
    found = answered(orjson.dumps({**ANSWERABLE, "pod": pod}))
    assert found["error"].startswith("the pod cannot be scheduled: ")
    assert "raised" not in found


def test_bad_lines_are_reported_and_the_others_answered(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    good = orjson.dumps(ANSWERABLE)
    is_whole = print_answers(io.BytesIO(b"\n".join([good, b"no", b"", good])), warm=False)
    told = capsysbinary.readouterr()
    first, second, third = (orjson.loads(line) for line in told.out.splitlines())
    assert not is_whole
    assert first == third == answered(good)
    assert second["raised"]
    assert told.err.startswith(b"line 2, problem 'line-2': not JSON")
