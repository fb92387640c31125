"""Notices of the tide: what is written on pods, and what is believed of what is found there."""

from __future__ import annotations

from typing import Any

import msgspec
import orjson
import pytest

from domains.gpu.dialects.own import TIDE_HOOK, TIDE_NOTICE
from domains.gpu.tide.gang_notices import ADOPT_S, LATE_S, GangNotices
from domains.gpu.tide.notices import (
    FOR_CHARS_MAX,
    NOTICE_MAX_S,
    SKEW_MAX_S,
    Notice,
    NoticeError,
    notice_of,
    read_notice,
)
from multisched.model.job_progress import CHECKPOINT, RETRIES_LEFT, checkpoint_s, retries_left
from multisched.model.objects import Pod
from multisched.testing.builders import make_pod

NOW_S = 1_800_000_000.0
NOTICE_S = 60.0
NOTICE = Notice(gang="ml/train", issued_s=NOW_S, deadline_s=NOW_S + NOTICE_S, for_demand="inference: 4 cards", pods=2)


def member(name: str, notice: Notice | None = None, **annotations: str) -> Pod:
    written = {} if notice is None else {TIDE_NOTICE: notice.text}
    return make_pod(name, uid=name, node="a", annotations={**written, **annotations})


def changed(**fields: Any) -> str:
    return orjson.dumps({**orjson.loads(NOTICE.text), **fields}).decode()


def test_notice_is_read_as_it_was_written() -> None:
    overriding = msgspec.structs.replace(NOTICE, overrides_min_run_time=True)
    assert read_notice(NOTICE.text, "ml/train", NOW_S) == NOTICE
    assert read_notice(overriding.text, "ml/train", NOW_S) == overriding
    assert orjson.loads(NOTICE.text)["deadline"] == "2027-01-15T08:01:00.000000Z"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[" * 500,
        "null",
        '{"deadline": 7}',
        changed(deadline="tomorrow"),
        changed(deadline="2027-01-15T08:01:00"),
        changed(deadline="2027-01-15T07:59:59Z"),
        changed(issued="9999-12-31T23:59:59+00:00", deadline="9999-12-31T23:59:59.5+00:00"),
        changed(id="0" * 16),
        changed(**{"for": "another"}),
        changed(**{"for": "x\u202ey"}),
        changed(**{"for": "x" * (FOR_CHARS_MAX + 1)}),
        changed(padding="x" * 2000),
        "\udc80",
        msgspec.structs.replace(NOTICE, deadline_s=NOW_S + NOTICE_MAX_S + 1).text,
        msgspec.structs.replace(NOTICE, issued_s=NOW_S + SKEW_MAX_S + 1, deadline_s=NOW_S + SKEW_MAX_S + 9).text,
        msgspec.structs.replace(NOTICE, gang="ml/other").text,
    ],
)
def test_other_texts_are_no_notice_and_are_reported(text: str) -> None:
    with pytest.raises(NoticeError):
        read_notice(text, "ml/train", NOW_S)
    found = notice_of("ml/train", {"a": {TIDE_NOTICE: text}}, NOW_S)
    assert found.notice is None
    assert found.problems.keys() == ({"a"} if text else set()), "an empty annotation is none"


def test_the_latest_deadline_counts_and_members_without_it_lack_it() -> None:
    later = msgspec.structs.replace(NOTICE, deadline_s=NOTICE.deadline_s + 30)
    written = {
        "a": {TIDE_NOTICE: NOTICE.text},
        "b": {TIDE_NOTICE: later.text, TIDE_HOOK: later.id},
        "c": {TIDE_NOTICE: "?"},
        "d": {},
    }
    found = notice_of("ml/train", written, NOW_S)
    assert (found.notice, found.lacking, found.is_hook_called) == (later, frozenset({"a", "c", "d"}), True)
    assert later.id == NOTICE.id, "the hook knows it by one name"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("2027-01-15T08:00:00Z", NOW_S), ("2027-01-15T08:00:00", None), ("now", None), ("9" * 99, None)],
)
def test_checkpoint_is_a_time_or_nothing(text: str, expected: float | None) -> None:
    assert checkpoint_s({CHECKPOINT: text}) == expected


@pytest.mark.parametrize(("text", "expected"), [("3", 3), ("-1", None), ("²", None), ("9" * 99, None), ("", None)])
def test_retries_are_a_number_or_nothing(text: str, expected: int | None) -> None:
    assert retries_left({RETRIES_LEFT: text}) == expected


# -- what a process remembers ----------------------------------------------------------------------------------------------


def leading(since_s: float = NOW_S) -> GangNotices:
    notices = GangNotices(NOTICE_S)
    notices.led_since_s = since_s
    return notices


def test_new_leader_adopts_a_notice_with_its_deadline() -> None:
    pods = (member("a", NOTICE, **{TIDE_HOOK: NOTICE.id}), member("b", NOTICE))
    given = leading().see("ml/train", pods, NOW_S + 10)
    assert given is not None
    assert (given.is_hook_done, given.lacking(pods), given.is_evicting) == (True, [], False)
    assert given.ready_s(pods, NOW_S + 10, NOTICE_S) == NOTICE.deadline_s


def test_partly_written_notice_moves_its_deadline_when_it_is_completed_late() -> None:
    notices, pods = leading(NOW_S + 40), (member("a", NOTICE), member("b"))
    given = notices.see("ml/train", pods, NOW_S + 40)
    assert given is not None
    assert given.lacking(pods) == [pods[1]]
    assert given.ready_s(pods, NOW_S + 40, NOTICE_S) == NOW_S + 40 + NOTICE_S
    notices.for_late_members(given, pods, NOW_S + 40)
    assert (given.notice.deadline_s, given.notice.id, given.written_s) == (NOW_S + 40 + NOTICE_S, NOTICE.id, {})
    given.written_s = {"a": NOW_S + 40}
    notices.for_late_members(given, pods, NOW_S + 40 + LATE_S)
    assert given.notice.deadline_s == NOW_S + 40 + NOTICE_S, "a moment later is not late"


def test_pod_that_joins_a_gang_under_notice_does_not_move_the_deadline() -> None:
    pods = (member("a", NOTICE), msgspec.structs.replace(member("b"), created_s=NOW_S + 30))
    notices = leading(NOW_S)
    given = notices.see("ml/train", pods, NOW_S)
    assert given is not None
    assert given.lacking(pods) == [pods[1]]
    notices.for_late_members(given, pods, NOW_S + 50)
    assert given.notice == NOTICE
    assert given.ready_s(pods, NOW_S + 50, NOTICE_S) == NOTICE.deadline_s


def test_forged_text_is_reported_once() -> None:
    notices, pods = leading(), (member("a", NOTICE),)
    notices.see("ml/train", pods, NOW_S + ADOPT_S + 1)
    del notices.foreign["a"]
    notices.see("ml/train", pods, NOW_S + ADOPT_S + 1)
    assert notices.foreign == {}
    later = msgspec.structs.replace(NOTICE, deadline_s=NOTICE.deadline_s + 1)
    notices.see("ml/train", (member("a", later),), NOW_S + ADOPT_S + 1)
    assert notices.foreign.keys() == {"a"}


def test_members_that_are_missing_after_the_deadline_show_a_begun_eviction() -> None:
    for at_s, has_begun in ((NOTICE.deadline_s - 1, False), (NOTICE.deadline_s, True)):
        given = leading(at_s).see("ml/train", (member("a", NOTICE),), at_s)
        assert given is not None
        assert (given.is_evicting, given.is_hook_done) == (has_begun, has_begun)


def test_members_without_the_notice_show_that_no_eviction_has_begun() -> None:
    """The former leader died between two members: the other one gets the notice first, so that the gang does not stay in part."""
    at_s = NOTICE.deadline_s + 1
    given = leading(at_s).see("ml/train", (member("a", NOTICE), member("b")), at_s)
    assert given is not None
    assert not given.is_evicting
    assert [pod.uid for pod in given.lacking((member("a", NOTICE), member("b")))] == ["b"]


def test_notice_that_appears_later_is_forged() -> None:
    notices, pods = leading(), (member("a", NOTICE), member("b"))
    assert notices.see("ml/train", pods, NOW_S + ADOPT_S + 1) is None
    assert notices.foreign.keys() == {"a"}


def test_leader_believes_its_own_notice_whatever_is_written_over_it() -> None:
    notices = leading()
    given = notices.give(NOTICE)
    given.written_s = {"a": NOW_S}
    forged = msgspec.structs.replace(NOTICE, deadline_s=NOW_S + NOTICE_MAX_S)
    assert notices.see("ml/train", (member("a", forged),), NOW_S + ADOPT_S + 1) is given
    assert notices.see("ml/train", (member("a"),), NOW_S + ADOPT_S + 1) is given


def test_withdrawn_notice_is_not_adopted_again_while_the_watch_still_shows_it() -> None:
    notices, pods = leading(), (member("a", NOTICE),)
    given = notices.see("ml/train", pods, NOW_S)
    assert given is not None
    notices.withdrawn(given, NOW_S)
    assert notices.see("ml/train", pods, NOW_S + 1) is None
    assert notices.foreign == {}


def test_standby_reads_notices_anew_each_time() -> None:
    notices = GangNotices(NOTICE_S)
    assert notices.see("ml/train", (member("a", NOTICE),), NOW_S) is not None
    assert notices.see("ml/train", (member("a"),), NOW_S + 3600) is None
    assert notices.given == {}


def test_gang_without_members_is_dropped() -> None:
    notices = leading()
    notices.give(NOTICE)
    assert notices.drop_ended(["ml/train"]) == []
    assert notices.drop_ended([]) == ["ml/train"]
