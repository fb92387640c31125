"""The documents of HTTP extenders: what is written, field by field, and what is read, whatever the case of its names."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from multisched.plugins.extender.messages import (
    ANSWER_BYTES_MAX,
    ANSWER_BYTES_MIN,
    SCORE_MAX,
    FilterAnswer,
    answer_bytes_max,
    arguments,
    binding_arguments,
    read_binding_answer,
    read_filter_answer,
    read_priorities,
)
from multisched.plugins.extender.preemption import (
    Victims,
    meta_arguments,
    read_preemption_answer,
    whole_arguments,
)

POD = b'{"metadata":{"name":"p"}}'
LONG = "x" * 600
OFFERED = {"n1": Victims(("a", "b"), 1), "n2": Victims(("c", "gone"), 0)}


def read_preemption(body: bytes) -> dict[str, Victims]:
    return asyncio.run(read_preemption_answer(body))


CASES: list[Callable[[str], str]] = [str, str.lower, str.upper]


def named(document: Any, case: Callable[[str], str]) -> Any:
    """The document with its fields' names in another case; node names, which are lower case, are as they were."""
    if isinstance(document, dict):
        return {key if key.startswith("n1") else case(key): named(value, case) for key, value in document.items()}
    return [named(one, case) for one in document] if isinstance(document, list) else document


@pytest.mark.parametrize(
    ("written", "document"),
    [
        (
            arguments(POD, ["n1", 'n"2'], None),
            {"Pod": {"metadata": {"name": "p"}}, "Nodes": None, "NodeNames": ["n1", 'n"2']},
        ),
        (
            arguments(POD, ["n1"], [b'{"a":1}', b'{"b":2}']),
            {
                "Pod": {"metadata": {"name": "p"}},
                "Nodes": {"metadata": {}, "items": [{"a": 1}, {"b": 2}]},
                "NodeNames": None,
            },
        ),
        (
            binding_arguments("team", "p", "uid-p", "n1"),
            {"PodName": "p", "PodNamespace": "team", "PodUID": "uid-p", "Node": "n1"},
        ),
        (
            asyncio.run(meta_arguments(POD, OFFERED)),
            {
                "Pod": {"metadata": {"name": "p"}},
                "NodeNameToVictims": None,
                "NodeNameToMetaVictims": {
                    "n1": {"Pods": [{"UID": "a"}, {"UID": "b"}], "NumPDBViolations": 1},
                    "n2": {"Pods": [{"UID": "c"}, {"UID": "gone"}], "NumPDBViolations": 0},
                },
            },
        ),
        (
            whole_arguments(POD, OFFERED, {uid: b'{"is":"%b"}' % uid.encode() for uid in "abc"}),
            {
                "Pod": {"metadata": {"name": "p"}},
                "NodeNameToVictims": {
                    "n1": {"Pods": [{"is": "a"}, {"is": "b"}], "NumPDBViolations": 1},
                    "n2": {"Pods": [{"is": "c"}], "NumPDBViolations": 0},
                },
                "NodeNameToMetaVictims": None,
            },
        ),
    ],
    ids=["names", "whole nodes", "binding", "victims by uid", "whole victims"],
)
def test_requests_have_the_upstream_fields(written: bytes, document: dict[str, Any]) -> None:
    assert orjson.loads(written) == document


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("document", "found"),
    [
        ({}, FilterAnswer(None, None, {}, {}, "")),
        ({"Nodes": {"items": [{"metadata": {"name": "n1"}}, {}]}}, FilterAnswer(("n1", ""), None, {}, {}, "")),
        ({"Nodes": {"items": None}}, FilterAnswer((), None, {}, {}, "")),
        ({"NodeNames": ["n1", "n2"]}, FilterAnswer(None, ("n1", "n2"), {}, {}, "")),
        ({"FailedNodes": {"n1": LONG}}, FilterAnswer(None, None, {"n1": LONG[:512]}, {}, "")),
        ({"FailedAndUnresolvableNodes": {"n1": LONG}}, FilterAnswer(None, None, {}, {"n1": LONG[:512]}, "")),
        ({"Error": LONG}, FilterAnswer(None, None, {}, {}, LONG[:512])),
        (dict.fromkeys(("Nodes", "NodeNames", "FailedNodes", "Error")), FilterAnswer(None, None, {}, {}, "")),
    ],
)
def test_filter_responses_are_decoded(
    case: Callable[[str], str], document: dict[str, Any], found: FilterAnswer
) -> None:
    top = {case(name): value for name, value in document.items()}
    assert read_filter_answer(orjson.dumps(top)) == found
    assert read_filter_answer(b"null") == FilterAnswer(None, None, {}, {}, "")


@pytest.mark.parametrize("case", CASES)
def test_scores_are_decoded_and_summed_per_host(case: Callable[[str], str]) -> None:
    scores = [
        {"Host": "n1", "Score": 3},
        {"Host": "n1", "Score": 4},
        {"Host": "n2", "Score": SCORE_MAX},
        {"Host": "n3", "Score": -SCORE_MAX},
        {"Host": "n4"},
        {"Score": 5},
    ]
    found = read_priorities(orjson.dumps(named(scores, case)))
    assert found == {"n1": 7, "n2": SCORE_MAX, "n3": -SCORE_MAX, "n4": 0, "": 5}
    assert read_priorities(b"null") == {}


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (
            {"Host": "n" * 99, "Score": SCORE_MAX + 1},
            f"gave {SCORE_MAX + 1} for the host {'n' * 64!r}; scores are 0..10",
        ),
        ({"Host": "n1", "Score": -SCORE_MAX - 1}, f"gave {-SCORE_MAX - 1} for the host 'n1'; scores are 0..10"),
        ({"Host": "n1", "Score": True}, "gave 'True' for the host 'n1'; a score is a whole number"),
        ({"Host": "n1", "Score": "9" * 99}, f"gave {'9' * 32!r} for the host 'n1'; a score is a whole number"),
        ({"Host": ["n1"], "Score": 1}, "gave '1' for the host \"['n1']\"; a score is a whole number"),
    ],
)
def test_invalid_scores_are_reported_with_their_host(item: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - compared as a whole
        read_priorities(orjson.dumps([item]))
    assert str(refused.value) == words


def test_score_sums_beyond_the_limit_are_refused() -> None:
    told = f"gave {2 * SCORE_MAX} for the host 'n1'; scores are 0..10"
    with pytest.raises(ValueError, match=f"^{re.escape(told)}$"):
        read_priorities(orjson.dumps([{"Host": "n1", "Score": SCORE_MAX}] * 2))


@pytest.mark.parametrize("case", CASES)
def test_binding_and_preemption_responses_are_decoded(case: Callable[[str], str]) -> None:
    assert read_binding_answer(orjson.dumps({case("Error"): LONG})) == LONG[:512]
    assert read_binding_answer(b"{}") == read_binding_answer(b"null") == ""
    victims = {"n1": {"Pods": [{"UID": "a"}, {}], "NumPDBViolations": 2}, "n1b": {"Pods": None}, "n1c": None}
    document = named({"NodeNameToMetaVictims": victims}, case)
    assert read_preemption(orjson.dumps(document)) == {
        "n1": Victims(("a", ""), 2),
        "n1b": Victims((), 0),
        "n1c": Victims((), 0),
    }
    assert read_preemption(b"null") == read_preemption(b"{}") == {}


@pytest.mark.parametrize("read", [read_filter_answer, read_priorities, read_binding_answer, read_preemption])
def test_invalid_response_is_reported(read: Callable[[bytes], object]) -> None:
    with pytest.raises(ValueError, match=r"^sent a response that cannot be decoded: "):
        read(b"<html>")


def test_invalid_field_is_named() -> None:
    with pytest.raises(
        ValueError,
        match=r"^sent a response that cannot be decoded: Expected `array \| null`, got `int` .*\(in nodenames\)$",
    ):
        read_filter_answer(b'{"NodeNames":7}')


@pytest.mark.parametrize(
    ("sent", "allowed"),
    [
        (0, ANSWER_BYTES_MIN),
        (1000, ANSWER_BYTES_MIN + 2000),
        ((ANSWER_BYTES_MAX - ANSWER_BYTES_MIN) // 2, ANSWER_BYTES_MAX),
        (ANSWER_BYTES_MAX, ANSWER_BYTES_MAX),
    ],
)
def test_response_size_limit_is_twice_the_request_up_to_a_cap(sent: int, allowed: int) -> None:
    assert answer_bytes_max(bytes(sent)) == allowed
