"""Who may read: asked of the API server, remembered for a while, refused in doubt."""

from __future__ import annotations

import pytest

from multisched.model.wire import AnswerLostError, Response
from multisched.observe.access import VERDICTS_MAX, DelegatedAuthenticator, Verdict
from tests.unit.observe.observe_kit import READER, STRANGER, HandClock, a_reviewer


async def test_a_verdict_is_asked_once_and_kept_for_a_minute() -> None:
    clock, reviewer = HandClock(), await a_reviewer()
    judge = DelegatedAuthenticator(reviewer, clock).judge
    assert await judge(READER, "get", "/metrics") is Verdict.ALLOWED
    clock.at_s = 59.9
    assert await judge(READER, "get", "/metrics") is Verdict.ALLOWED
    assert reviewer.paths == ["tokenreviews", "subjectaccessreviews"]
    clock.at_s = 60.0
    assert await judge(READER, "get", "/metrics") is Verdict.ALLOWED
    assert len(reviewer.paths) == 4


async def test_a_refusal_is_kept_for_half_a_minute() -> None:
    clock, reviewer = HandClock(), await a_reviewer()
    judge = DelegatedAuthenticator(reviewer, clock).judge
    assert await judge(STRANGER, "get", "/metrics") is Verdict.FORBIDDEN
    assert await judge("made-up", "get", "/metrics") is Verdict.UNAUTHENTICATED
    asked = len(reviewer.paths)
    clock.at_s = 29.9
    assert await judge(STRANGER, "get", "/metrics") is Verdict.FORBIDDEN
    assert await judge("made-up", "get", "/metrics") is Verdict.UNAUTHENTICATED
    assert len(reviewer.paths) == asked
    clock.at_s = 30.0
    assert await judge("made-up", "get", "/metrics") is Verdict.UNAUTHENTICATED
    assert len(reviewer.paths) == asked + 1


async def test_a_right_to_one_path_is_no_right_to_another() -> None:
    judge = DelegatedAuthenticator(await a_reviewer(), HandClock()).judge
    assert await judge(READER, "get", "/metrics") is Verdict.ALLOWED
    assert await judge(READER, "get", "/multisched/api/v1/queue") is Verdict.FORBIDDEN
    assert await judge(READER, "post", "/metrics") is Verdict.FORBIDDEN


@pytest.mark.parametrize(
    "instead",
    [
        AnswerLostError("silent"),
        Response(403, b"{}"),
        Response(500, b""),
        Response(201, b"<html>"),
        Response(201, b"[]"),
        Response(201, b'{"status": 1}'),
    ],
    ids=repr,
)
async def test_without_a_definite_yes_the_answer_is_no_and_is_not_remembered(instead: Response | Exception) -> None:
    reviewer = await a_reviewer()
    judge = DelegatedAuthenticator(reviewer, HandClock()).judge
    reviewer.instead = instead
    assert await judge(READER, "get", "/metrics") is Verdict.UNDECIDED
    reviewer.instead = None
    assert await judge(READER, "get", "/metrics") is Verdict.ALLOWED


@pytest.mark.parametrize(
    "body",
    [
        b'{"status": {"authenticated": "true", "user": {"username": "a"}}}',
        b'{"status": {"authenticated": true, "user": {}}}',
        b'{"status": {"user": {"username": "a"}}}',
    ],
)
async def test_half_an_authentication_is_none(body: bytes) -> None:
    reviewer = await a_reviewer()
    reviewer.instead = Response(201, body)
    assert await DelegatedAuthenticator(reviewer, HandClock()).judge("t", "get", "/") is Verdict.UNAUTHENTICATED


async def test_an_empty_or_endless_token_is_not_even_asked_about() -> None:
    reviewer = await a_reviewer()
    judge = DelegatedAuthenticator(reviewer, HandClock()).judge
    assert await judge("", "get", "/metrics") is Verdict.UNAUTHENTICATED
    assert await judge("x" * 20_000, "get", "/metrics") is Verdict.UNAUTHENTICATED
    assert reviewer.paths == []


async def test_a_flood_of_tokens_does_not_grow_the_cache_without_end() -> None:
    reviewer = await a_reviewer()
    authenticator = DelegatedAuthenticator(reviewer, HandClock())
    for number in range(VERDICTS_MAX + 10):
        await authenticator.judge(f"guess-{number}", "get", "/metrics")
    assert len(authenticator._users) == VERDICTS_MAX
