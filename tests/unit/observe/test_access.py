"""Who may read: asked of the API server, remembered for a while, refused in doubt."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from multisched.model.wire import AnswerLostError, Response
from multisched.observe.access import (
    ALLOWED_KEPT_S,
    REVIEWS_BURST,
    STRANGER_REVIEWS_AT_ONCE,
    AccessDecision,
    DelegatedAuthenticator,
)
from tests.unit.observe.observe_kit import READER, STRANGER, HandClock, Reviewer, a_reviewer


async def test_access_decision_is_cached_for_a_minute() -> None:
    clock, reviewer = HandClock(), await a_reviewer()
    judge = DelegatedAuthenticator(reviewer, clock).judge
    assert await judge(READER, "get", "/metrics") is AccessDecision.ALLOWED
    clock.at_s = 59.9
    assert await judge(READER, "get", "/metrics") is AccessDecision.ALLOWED
    assert reviewer.paths == ["tokenreviews", "subjectaccessreviews"]
    clock.at_s = 60.0
    assert await judge(READER, "get", "/metrics") is AccessDecision.ALLOWED
    assert len(reviewer.paths) == 4


async def test_refused_access_is_cached_for_half_a_minute() -> None:
    clock, reviewer = HandClock(), await a_reviewer()
    judge = DelegatedAuthenticator(reviewer, clock).judge
    assert await judge(STRANGER, "get", "/metrics") is AccessDecision.FORBIDDEN
    assert await judge("made-up", "get", "/metrics") is AccessDecision.UNAUTHENTICATED
    asked = len(reviewer.paths)
    clock.at_s = 29.9
    assert await judge(STRANGER, "get", "/metrics") is AccessDecision.FORBIDDEN
    assert await judge("made-up", "get", "/metrics") is AccessDecision.UNAUTHENTICATED
    assert len(reviewer.paths) == asked
    clock.at_s = 30.0
    assert await judge("made-up", "get", "/metrics") is AccessDecision.UNAUTHENTICATED
    assert len(reviewer.paths) == asked + 1


async def test_permission_for_one_path_does_not_cover_another() -> None:
    judge = DelegatedAuthenticator(await a_reviewer(), HandClock()).judge
    assert await judge(READER, "get", "/metrics") is AccessDecision.ALLOWED
    assert await judge(READER, "get", "/multisched/api/v1/queue") is AccessDecision.FORBIDDEN
    assert await judge(READER, "post", "/metrics") is AccessDecision.FORBIDDEN


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
async def test_undecided_access_is_refused_and_not_cached(instead: Response | Exception) -> None:
    reviewer = await a_reviewer()
    judge = DelegatedAuthenticator(reviewer, HandClock()).judge
    reviewer.instead = instead
    assert await judge(READER, "get", "/metrics") is AccessDecision.UNDECIDED
    reviewer.instead = None
    assert await judge(READER, "get", "/metrics") is AccessDecision.ALLOWED


@pytest.mark.parametrize(
    "body",
    [
        b'{"status": {"authenticated": "true", "user": {"username": "a"}}}',
        b'{"status": {"authenticated": true, "user": {}}}',
        b'{"status": {"user": {"username": "a"}}}',
        b'{"status": {"authenticated": true, "user": {"username": "a", "extra": {"scopes": "none"}}}}',
    ],
)
async def test_incomplete_authentication_is_refused(body: bytes) -> None:
    reviewer = await a_reviewer()
    reviewer.instead = Response(201, body)
    assert await DelegatedAuthenticator(reviewer, HandClock()).judge("t", "get", "/") is AccessDecision.UNAUTHENTICATED


async def test_empty_or_oversized_token_is_refused_without_a_review() -> None:
    reviewer = await a_reviewer()
    judge = DelegatedAuthenticator(reviewer, HandClock()).judge
    assert await judge("", "get", "/metrics") is AccessDecision.UNAUTHENTICATED
    assert await judge("x" * 20_000, "get", "/metrics") is AccessDecision.UNAUTHENTICATED
    assert reviewer.paths == []


async def test_unknown_tokens_are_rate_limited_and_do_not_block_known_users() -> None:
    clock, reviewer = HandClock(), await a_reviewer()
    judge = DelegatedAuthenticator(reviewer, clock).judge
    assert await judge(READER, "get", "/metrics") is AccessDecision.ALLOWED
    del reviewer.paths[:]
    verdicts = [await judge(f"guess-{number}", "get", "/metrics") for number in range(1000)]
    assert verdicts.count(AccessDecision.UNAUTHENTICATED) == len(reviewer.paths) == REVIEWS_BURST - 1
    assert verdicts[-1] is AccessDecision.TOO_MANY
    clock.at_s = ALLOWED_KEPT_S
    for number in range(1000):
        await judge(f"another-{number}", "get", "/metrics")
    assert await judge(READER, "get", "/metrics") is AccessDecision.ALLOWED


async def test_token_flood_evicts_no_used_cache_entry() -> None:
    clock, reviewer = HandClock(), await a_reviewer()
    judge = DelegatedAuthenticator(reviewer, clock).judge
    assert await judge(READER, "get", "/metrics") is AccessDecision.ALLOWED
    reviewer.instead = _authenticated({"username": "minter"})
    for second in range(1, 300):
        clock.at_s = float(second)
        for number in range(20):
            await judge(f"{second}-{number}", "get", "/")
        if second % 30 == 0:
            reviewer.instead = None
            assert await judge(READER, "get", "/metrics") is AccessDecision.ALLOWED
            reviewer.instead = _authenticated({"username": "minter"})


async def test_known_user_has_a_rate_and_a_cache_limit() -> None:
    clock, reviewer = HandClock(), await a_reviewer()
    judge = DelegatedAuthenticator(reviewer, clock).judge
    assert await judge(STRANGER, "get", "/metrics") is AccessDecision.FORBIDDEN
    verdicts = [await judge(STRANGER, "get", f"/{number}") for number in range(1000)]
    assert verdicts.count(AccessDecision.FORBIDDEN) == REVIEWS_BURST - 1
    assert verdicts[-1] is AccessDecision.TOO_MANY
    assert await judge(READER, "get", "/metrics") is AccessDecision.ALLOWED


async def test_concurrent_reviews_are_limited_separately_for_known_users() -> None:
    slow = SlowReviewer(await a_reviewer())
    judge = DelegatedAuthenticator(slow, HandClock()).judge
    slow.may_answer.set()
    assert await judge(READER, "get", "/metrics") is AccessDecision.ALLOWED
    slow.may_answer.clear()
    async with asyncio.TaskGroup() as group:
        guesses = [group.create_task(judge(f"guess-{number}", "get", "/metrics")) for number in range(15)]
        await slow.under_way(STRANGER_REVIEWS_AT_ONCE)
        other = group.create_task(judge(READER, "get", "/another"))
        await slow.under_way(STRANGER_REVIEWS_AT_ONCE + 1)
        slow.may_answer.set()
    assert {guess.result() for guess in guesses} == {AccessDecision.UNAUTHENTICATED}
    assert other.result() is AccessDecision.FORBIDDEN
    assert slow.most == STRANGER_REVIEWS_AT_ONCE + 1


async def test_access_review_has_all_user_attributes() -> None:
    reviewer = await a_reviewer()
    user = {"username": "robot", "uid": "7", "groups": ["a", "b"], "extra": {"example.org/scopes": ["read", "none"]}}
    reviewer.instead = _authenticated(user)
    await DelegatedAuthenticator(reviewer, HandClock()).judge("t", "get", "/metrics")
    spec = reviewer.bodies[-1]["spec"]
    assert reviewer.paths[-1] == "subjectaccessreviews"
    assert (spec["user"], spec["uid"], spec["groups"], spec["extra"]) == ("robot", "7", ["a", "b"], user["extra"])


def _authenticated(user: Mapping[str, object]) -> Response:
    return Response(201, orjson.dumps({"status": {"authenticated": True, "user": user}}))


class SlowReviewer:
    """Answers when it may."""

    def __init__(self, reviewer: Reviewer) -> None:
        self._reviewer = reviewer
        self._count, self._changed = 0, asyncio.Event()
        self.may_answer = asyncio.Event()
        self.most = 0

    async def request(self, method: str, path: str, **rest: Any) -> Response:
        self._count += 1
        self.most = max(self.most, self._count)
        self._changed.set()
        await self.may_answer.wait()
        try:
            return await self._reviewer.request(method, path, **rest)
        finally:
            self._count -= 1

    def stream(self, path: str, **rest: Any) -> Any:
        return self._reviewer.stream(path, **rest)

    async def under_way(self, count: int) -> None:
        while self._count < count:
            self._changed.clear()
            await self._changed.wait()
