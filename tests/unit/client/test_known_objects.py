"""The version guard against a model that remembers everything."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.client.known_objects import TOMBSTONE_TTL_S, TOMBSTONES_MAX, KnownObjects, Observation, is_older


@pytest.mark.parametrize(
    ("version", "than", "expected"),
    [
        ("9", "10", True),
        ("10", "9", False),
        ("10", "10", False),
        ("99", "100", True),
        ("", "5", False),
        ("5", "", False),
        ("abc", "abd", False),
        ("1a", "2b", False),
        ("²", "30", False),
    ],
)
def test_only_integer_versions_are_ordered(version: str, than: str, expected: bool) -> None:
    assert is_older(version, than) is expected


@given(st.integers(0, 2**63), st.integers(0, 2**63))
def test_versions_are_ordered_as_integers(left: int, right: int) -> None:
    assert is_older(str(left), str(right)) == (left < right)


# One object name has a history of uids with rising versions; the server emits it in order. We observe a shuffled,
# duplicated subset. Whatever comes, the stored version never goes back and a buried uid never returns.
_histories = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["set", "gone"])), min_size=1, max_size=12)


def _emit(steps: list[tuple[str, str]]) -> list[tuple[str, str, str, str]]:
    """(kind, key, uid, version) as a real server would emit them: a new uid after each deletion."""
    lives: dict[str, int] = {}
    alive: set[str] = set()
    events = []
    for version, (key, action) in enumerate(steps, start=1):
        if action == "gone" and key in alive:
            alive.discard(key)
            events.append(("gone", key, f"{key}{lives[key]}", str(version)))
        elif action == "set":
            if key not in alive:
                lives[key] = lives.get(key, 0) + 1
                alive.add(key)
            events.append(("set", key, f"{key}{lives[key]}", str(version)))
    return events


@given(_histories, st.data())
def test_versions_never_decrease_and_deleted_uids_never_return(
    steps: list[tuple[str, str]], data: st.DataObject
) -> None:
    events = _emit(steps)
    seen = data.draw(st.lists(st.sampled_from(events), max_size=30)) if events else []
    known = KnownObjects()
    applied: dict[str, tuple[str, int]] = {}
    newest: dict[str, int] = {}
    buried: set[str] = set()
    for kind, key, uid, version in seen:
        if kind == "gone":
            verdict = known.remove(key, uid, version, 0.0)
            buried.add(uid)
            if verdict in (Observation.DELETE, Observation.REPLACE):
                buried.add(applied.pop(key)[0])
        else:
            old_uid = known.uid_of(key)
            verdict = known.observe(key, uid, version)
            if verdict is Observation.REPLACE:
                known.replace(key, uid, version, 0.0)
                buried.add(old_uid)
            if verdict in (Observation.UPSERT, Observation.REPLACE):
                assert uid not in buried
                assert newest.get(uid, 0) < int(version)
                newest[uid] = int(version)
                applied[key] = (uid, int(version))
    assert {key: uid for key, (uid, _) in applied.items()} == {key: known.uid_of(key) for key in applied}
    assert len(known) == len(applied)


@given(_histories)
def test_in_order_events_give_the_server_state(steps: list[tuple[str, str]]) -> None:
    truth: dict[str, str] = {}
    known = KnownObjects()
    for kind, key, uid, version in _emit(steps):
        if kind == "set":
            assert known.observe(key, uid, version) is Observation.UPSERT
            truth[key] = uid
        else:
            assert known.remove(key, uid, version, 0.0) is Observation.DELETE
            del truth[key]
    assert {key: known.uid_of(key) for key in "ab" if known.uid_of(key)} == truth


@given(st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 50)), st.sets(st.sampled_from("abcdef")))
def test_list_deletes_exactly_the_missing_objects(before: dict[str, int], listed: set[str]) -> None:
    known = KnownObjects()
    for key, version in before.items():
        known.observe(key, key, str(version))
    known.begin_replace()
    for key in listed:
        known.observe(key, key, "60")
    assert set(known.end_replace("60", 0.0)) == set(before) - listed
    assert len(known) == len(listed)


def test_incomplete_list_deletes_nothing() -> None:
    known = KnownObjects()
    known.observe("a", "a", "1")
    known.observe("b", "b", "1")
    known.begin_replace()
    known.observe("a", "a", "1")
    known.begin_replace()
    known.observe("b", "b", "1")
    assert known.end_replace("2", 0.0) == ["a"]


def test_object_that_left_the_selector_returns_only_if_newer() -> None:
    known = KnownObjects()
    known.observe("a", "u", "5")
    assert known.remove("a", "u", "7", 0.0) is Observation.DELETE
    assert known.observe("a", "u", "6") is Observation.STALE
    assert known.observe("a", "u", "7") is Observation.STALE
    assert known.observe("a", "u", "8") is Observation.UPSERT


@given(st.lists(st.integers(1, 20), min_size=1, max_size=5), st.integers(1, 20))
def test_only_newer_objects_return_after_deletions_in_any_order(deleted_at: list[int], version: int) -> None:
    known = KnownObjects()
    for at in deleted_at:
        known.remove("a", "u", str(at), 0.0)
    is_newer = version > max(deleted_at)
    assert known.observe("a", "u", str(version)) is (Observation.UPSERT if is_newer else Observation.STALE)


def test_deletion_of_an_unseen_successor_removes_the_known_object() -> None:
    known = KnownObjects()
    known.observe("a", "first", "5")
    assert known.remove("a", "second", "9", 0.0) is Observation.REPLACE
    assert known.observe("a", "first", "6") is Observation.STALE
    assert len(known) == 0


def test_opaque_versions_are_compared_by_equality_and_tombstone() -> None:
    known = KnownObjects()
    assert known.observe("a", "u", "x1") is Observation.UPSERT
    assert known.observe("a", "u", "x1") is Observation.DUPLICATE
    assert known.observe("a", "u", "x0") is Observation.UPSERT
    assert known.remove("a", "u", "x2", 0.0) is Observation.DELETE
    assert known.observe("a", "u", "x3") is Observation.STALE


def test_tombstones_are_limited_in_time_and_number() -> None:
    known = KnownObjects()
    known.remove("old", "old", "1", 0.0)
    known.remove("new", "new", "2", TOMBSTONE_TTL_S)
    assert known.tombstones == 1
    for number in range(TOMBSTONES_MAX + 10):
        known.remove("k", f"u{number}", "3", TOMBSTONE_TTL_S)
    assert known.tombstones == TOMBSTONES_MAX
