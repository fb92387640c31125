"""The merge patch from the status that stands to the one that is wanted."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.client.status_patch import digest_of, merged_conditions, own_part, patch_between, plain
from multisched.cluster.patching.patch import merge
from multisched.framework.object_status import ObjectCondition, ObjectStatus

THEN, NOW = "2026-01-01T00:00:00Z", "2026-01-01T00:05:00Z"
READY = ObjectCondition("Ready", "True", "AllBound", "all members are bound")


def standing(condition: ObjectCondition, **more: object) -> dict[str, Any]:
    entry = {
        "type": condition.type,
        "status": condition.status,
        "reason": condition.reason,
        "message": condition.message,
        "lastTransitionTime": THEN,
    }
    return {**entry, **more}


def patched(server: dict[str, Any], wanted: ObjectStatus, *, generation: int = 0) -> dict[str, Any]:
    """What stands after the patch, by the rules of JSON merge patch."""
    conditions = merged_conditions(server, wanted.conditions, generation, NOW)
    patch = patch_between(server, plain(wanted), conditions)
    found: dict[str, Any] = merge(server, patch)
    return found


def test_owned_fields_are_replaced_as_a_whole_and_others_kept() -> None:
    server = {"phase": "Pending", "levels": {"root": {"used": 1, "lent": 2}, "root.gone": {}}, "others": {"x": 1}}
    wanted = ObjectStatus("uid", {"levels": {"root": {"used": 3}, "root.new": {"used": 0}}})
    assert patched(server, wanted) == {
        "phase": "Pending",
        "levels": {"root": {"used": 3}, "root.new": {"used": 0}},
        "others": {"x": 1},
    }


def test_patch_contains_only_differences() -> None:
    server = {"levels": {"root": {"used": 1, "max": 9}, "root.a": {"used": 1}}, "phase": "Bound"}
    fields = {"levels": {"root": {"used": 2, "max": 9}, "root.a": {"used": 1}}, "phase": "Bound"}
    assert patch_between(server, fields, ()) == {"levels": {"root": {"used": 2}}}


def test_none_removes_a_field_and_is_omitted_inside_one() -> None:
    server = {"occupiedBy": "other", "counts": {"running": 1}}
    wanted = ObjectStatus("uid", {"occupiedBy": None, "counts": {"running": None, "failed": 2}})
    assert patched(server, wanted) == {"counts": {"failed": 2}}
    assert patch_between({"counts": {"failed": 2}}, plain(wanted), ()) == {}


def test_condition_keeps_its_time_while_status_and_reason_are_unchanged() -> None:
    server = {"conditions": [standing(READY)]}
    same = ObjectStatus("uid", conditions=(ObjectCondition("Ready", "True", "AllBound", "other words"),))
    (entry,) = patched(server, same)["conditions"]
    assert (entry["message"], entry["lastTransitionTime"]) == ("other words", THEN)

    for status, reason in (("False", "AllBound"), ("True", "Enough")):
        changed = ObjectStatus("uid", conditions=(ObjectCondition("Ready", status, reason),))
        (entry,) = patched(server, changed)["conditions"]
        assert (entry["status"], entry["reason"], entry["lastTransitionTime"]) == (status, reason, NOW)


def test_foreign_conditions_are_kept_in_place() -> None:
    foreign = {"type": "Approved", "status": "True", "by": "somebody"}
    server = {"conditions": [foreign, standing(READY), {"type": "Late", "status": "False"}]}
    wanted = ObjectStatus("uid", conditions=(READY, ObjectCondition("InForce", "False", "Broken", "min over max")))
    found = patched(server, wanted)["conditions"]
    assert [entry["type"] for entry in found] == ["Approved", "Ready", "Late", "InForce"]
    assert found[0] == foreign
    assert patched(server, ObjectStatus("uid")) == server


def test_condition_has_the_observed_generation() -> None:
    wanted = ObjectStatus("uid", conditions=(READY,))
    first = patched({}, wanted, generation=1)
    assert first["conditions"] == [standing(READY, lastTransitionTime=NOW, observedGeneration=1)]
    (second,) = patched(first, wanted, generation=2)["conditions"]
    assert (second["observedGeneration"], second["lastTransitionTime"]) == (2, NOW)


def test_lone_surrogates_and_long_messages_can_be_sent() -> None:
    wanted = ObjectStatus("uid", conditions=(ObjectCondition("Ready", "False", "X", "\ud800" + "y" * 100_000),))
    (entry,) = patched({}, wanted)["conditions"]
    assert entry["message"].startswith("?y")
    assert len(entry["message"]) == 8_192


@pytest.mark.parametrize("server", [{"conditions": "none"}, {"conditions": ["x", 7, None]}, {"conditions": {"a": 1}}])
def test_malformed_conditions_are_replaced(server: dict[str, Any]) -> None:
    found = patched(server, ObjectStatus("uid", conditions=(READY,)))
    assert found["conditions"] == [standing(READY, lastTransitionTime=NOW)]


def test_unencodable_status_is_refused() -> None:
    with pytest.raises(TypeError):
        plain(ObjectStatus("uid", {"used": {1, 2}}))
    with pytest.raises(TypeError, match=r"ObjectStatus\.conditions"):
        plain(ObjectStatus("uid", {"conditions": []}))


def test_own_part_is_exactly_the_owned_fields() -> None:
    part = own_part(ObjectStatus("uid", {"used": {}}, (READY,)))
    server = {"used": {"cpu": "1"}, "conditions": [standing(READY)]}
    others = {**server, "hard": {"cpu": "9"}, "conditions": [{"type": "Approved"}, *server["conditions"]]}
    assert part.of(server, {}) == part.of(others, {})
    assert part.of(server, {}) != part.of({**server, "used": {}}, {})
    assert part.of(server, {}) != part.of({"used": {"cpu": "1"}}, {})


def test_digest_ignores_times_and_field_order() -> None:
    one, other = ObjectStatus("u", {"a": 1, "b": 2}, (READY,)), ObjectStatus("u", {"b": 2, "a": 1}, (READY,))
    assert digest_of(one, plain(one), 1) == digest_of(other, plain(other), 1)
    assert digest_of(one, plain(one), 1) != digest_of(one, plain(one), 2)
    less = ObjectStatus("u", {"a": 1, "b": 2})
    assert digest_of(one, plain(one), 1) != digest_of(less, plain(less), 1)


NAMES = st.sampled_from(["a", "b", "c", "root", "root.a"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.sampled_from(["", "x", "1500m"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
DOCUMENTS = st.dictionaries(NAMES, VALUES, max_size=5)


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_nulls(inner) for name, inner in value.items() if inner is not None}
    return value


@given(server=DOCUMENTS, fields=DOCUMENTS)
def test_patch_reaches_the_wanted_state_and_the_next_patch_is_empty(
    server: dict[str, Any], fields: dict[str, Any]
) -> None:
    server, wanted = without_nulls(server), ObjectStatus("uid", fields)
    after = patched(server, wanted)
    assert after == {**{k: v for k, v in server.items() if k not in fields}, **without_nulls(fields)}
    assert patch_between(after, plain(wanted), ()) == {}
