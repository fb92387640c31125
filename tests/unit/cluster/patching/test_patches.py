"""Patches, as documents: what each kind of patch makes of one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.cluster.base.errors import ApiError
from multisched.cluster.patching import patch
from multisched.cluster.patching.apply import fields_v1, paths_of

SCALARS = st.one_of(st.booleans(), st.integers(-5, 5), st.text(max_size=3))
DOCUMENTS = st.recursive(
    SCALARS, lambda inner: st.dictionaries(st.sampled_from("abcd"), inner, max_size=3), max_leaves=8
)
OBJECTS = st.dictionaries(st.sampled_from("abcd"), DOCUMENTS, max_size=4)


def _difference(old: Any, new: Any) -> Any:
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    changed = {
        key: _difference(old.get(key), value) for key, value in new.items() if key not in old or old[key] != value
    }
    return {**changed, **dict.fromkeys(key for key in old if key not in new)}


@given(OBJECTS, OBJECTS)
def test_merge_patch_of_a_difference_gives_the_new_document(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert patch.merge(old, _difference(old, new)) == new


@given(OBJECTS)
def test_an_empty_patch_changes_nothing(document: dict[str, Any]) -> None:
    assert patch.merge(document, {}) == document
    assert patch.json_patch(document, []) == document
    assert patch.strategic("ConfigMap", document, {}) == document


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        ([{"op": "add", "path": "/a/-", "value": 3}], {"a": [1, 2, 3]}),
        ([{"op": "add", "path": "/a/0", "value": 3}], {"a": [3, 1, 2]}),
        ([{"op": "remove", "path": "/a/0"}], {"a": [2]}),
        ([{"op": "replace", "path": "/a/1", "value": 9}], {"a": [1, 9]}),
        ([{"op": "move", "from": "/a", "path": "/b"}], {"b": [1, 2]}),
        ([{"op": "copy", "from": "/a/0", "path": "/c"}], {"a": [1, 2], "c": 1}),
        ([{"op": "test", "path": "/a/0", "value": 1}], {"a": [1, 2]}),
        ([{"op": "add", "path": "/x~1y", "value": 1}], {"a": [1, 2], "x/y": 1}),
    ],
)
def test_json_patch_operations_are_applied(operations: list[Any], expected: Any) -> None:
    assert patch.json_patch({"a": [1, 2]}, operations) == expected


@pytest.mark.parametrize(
    "operations",
    [
        [{"op": "replace", "path": "/b", "value": 1}],
        [{"op": "remove", "path": "/b"}],
        [{"op": "test", "path": "/a", "value": 1}],
        [{"op": "add", "path": "/a/7", "value": 1}],
        [{"op": "add", "path": "/b/c", "value": 1}],
    ],
)
def test_inapplicable_json_patch_operation_returns_422(operations: list[Any]) -> None:
    with pytest.raises(ApiError) as refusal:
        patch.json_patch({"a": [1, 2]}, operations)
    assert refusal.value.code == 422


def _containers(*names: str) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": name, "image": "x"} for name in names]}}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"containers": [{"name": "b", "image": "y"}]}, [("b", "y"), ("a", "x")]),
        ({"containers": [{"name": "c", "image": "z"}]}, [("c", "z"), ("a", "x"), ("b", "x")]),
        ({"containers": [{"name": "a", "$patch": "delete"}]}, [("b", "x")]),
        ({"containers": [{"$patch": "replace"}, {"name": "c", "image": "z"}]}, [("c", "z")]),
        ({"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}, [("b", "x"), ("a", "x")]),
    ],
)
def test_strategic_merge_patch_merges_containers_by_name(
    change: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    changed = patch.strategic("Pod", _containers("a", "b"), {"spec": change})
    assert sorted((entry["name"], entry["image"]) for entry in changed["spec"]["containers"]) == sorted(expected)
    if "$setElementOrder/containers" in change:
        assert [entry["name"] for entry in changed["spec"]["containers"]] == ["b", "a"]


@pytest.mark.parametrize(
    ("kind", "document", "change", "expected"),
    [
        ("Node", {"spec": {"taints": [{"key": "a"}]}}, {"spec": {"taints": [{"key": "b"}]}}, {"spec": {"taints": [{"key": "b"}]}}),
        ("Pod", {"metadata": {"finalizers": ["a"]}}, {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}},
         {"metadata": {"finalizers": []}}),
        ("Pod", {"metadata": {"finalizers": ["a"]}}, {"metadata": {"finalizers": ["b"]}}, {"metadata": {"finalizers": ["b", "a"]}}),
        ("Deployment", {"spec": {"strategy": {"type": "R", "rollingUpdate": {"a": 1}}}},
         {"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}}, {"spec": {"strategy": {"type": "Recreate"}}}),
        ("Service", {"spec": {"ports": [{"port": 80, "name": "x"}]}}, {"spec": {"ports": [{"port": 80, "name": "y"}]}},
         {"spec": {"ports": [{"port": 80, "name": "y"}]}}),
        ("ConfigMap", {"data": {"a": "1", "b": "2"}}, {"data": {"$patch": "replace", "c": "3"}}, {"data": {"c": "3"}}),
    ],
)  # fmt: skip
def test_strategic_merge_patch_directives_are_applied(
    kind: str, document: dict[str, Any], change: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert patch.strategic(kind, document, change) == expected


STEPS = st.one_of(st.sampled_from(["f:a", "f:b", "f:c"]), st.sampled_from(['k:{"name":"x"}', 'v:"y"']))


@given(st.sets(st.lists(STEPS, min_size=1, max_size=4).map(tuple), max_size=6))
def test_owned_fields_are_equal_after_encoding_and_decoding(paths: set[tuple[str, ...]]) -> None:
    decoded = paths_of(fields_v1(paths))
    leaves = {path for path in paths if not any(other != path and other[: len(path)] == path for other in paths)}
    assert leaves <= decoded
