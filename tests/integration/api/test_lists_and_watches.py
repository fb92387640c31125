"""Lists at one version, pages, watches and what ends them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.api.conftest import Api, pod


async def _create(api: Api, namespace: str, *names: str, **spec: Any) -> list[dict[str, Any]]:
    return [await api.must("POST", f"/api/v1/namespaces/{namespace}/pods", pod(name, **spec)) for name in names]


async def test_list_pages_show_one_version_while_objects_change(api: Api, namespace: str) -> None:
    await _create(api, namespace, "a", "b", "c")
    path = f"/api/v1/namespaces/{namespace}/pods?limit=2"
    first = await api.must("GET", path)
    assert first["metadata"]["remainingItemCount"] == 1
    await _create(api, namespace, "d")
    await api.must("DELETE", f"/api/v1/namespaces/{namespace}/pods/c")

    second = await api.must("GET", f"{path}&continue={first['metadata']['continue']}")

    assert [item["metadata"]["name"] for item in first["items"] + second["items"]] == ["a", "b", "c"]
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    assert "continue" not in second["metadata"]


async def test_list_at_an_exact_version_shows_the_past(api: Api, namespace: str) -> None:
    created = await _create(api, namespace, "a")
    version = created[0]["metadata"]["resourceVersion"]
    await _create(api, namespace, "b")

    past = await api.must(
        "GET", f"/api/v1/namespaces/{namespace}/pods?resourceVersion={version}&resourceVersionMatch=Exact"
    )

    assert [item["metadata"]["name"] for item in past["items"]] == ["a"]
    assert past["metadata"]["resourceVersion"] == version


@pytest.mark.parametrize(
    ("query", "status", "message"),
    [
        ("fieldSelector=spec.foo=bar", 400, "field label not supported: spec.foo"),
        ("labelSelector=a+b", 400, None),
        ("continue=nonsense", 400, None),
        ("resourceVersionMatch=Exact", 422, None),
        ("resourceVersion=9999999999", 504, None),
    ],
)
async def test_list_with_bad_parameters_is_refused(
    api: Api, namespace: str, query: str, status: int, message: str | None
) -> None:
    actual, answer = await api.ask("GET", f"/api/v1/namespaces/{namespace}/pods?{query}")
    assert actual == status, answer
    assert message is None or answer["message"] == message


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("labelSelector=app=x", ["a", "b"]),
        ("labelSelector=app!=x", []),
        ("labelSelector=app in (x,y)", ["a", "b"]),
        ("labelSelector=app notin (x)", []),
        ("labelSelector=!app", []),
        ("labelSelector=app", ["a", "b"]),
        ("fieldSelector=metadata.name=a", ["a"]),
        ("fieldSelector=metadata.name!=a", ["b"]),
        ("fieldSelector=spec.nodeName=n", ["b"]),
        ("fieldSelector=spec.nodeName=,status.phase=Pending", ["a"]),
        ("fieldSelector=spec.schedulerName=nobody", ["a", "b"]),
    ],
)
async def test_selectors_limit_lists(api: Api, namespace: str, selector: str, expected: list[str]) -> None:
    await _create(api, namespace, "a")
    await _create(api, namespace, "b", nodeName="n")
    found = await api.must("GET", f"/api/v1/namespaces/{namespace}/pods?{selector.replace(' ', '%20')}")
    assert [item["metadata"]["name"] for item in found["items"]] == expected


async def test_watch_continues_a_list_without_a_gap(api: Api, namespace: str) -> None:
    await _create(api, namespace, "a")
    listed = await api.must("GET", f"/api/v1/namespaces/{namespace}/pods")
    await _create(api, namespace, "b")
    version = listed["metadata"]["resourceVersion"]
    async with api.watch(
        f"/api/v1/namespaces/{namespace}/pods?watch=1&resourceVersion={version}&timeoutSeconds=5"
    ) as watch:
        event = await watch.next()
        assert (event["type"], event["object"]["metadata"]["name"]) == ("ADDED", "b")
        await api.must("DELETE", f"/api/v1/namespaces/{namespace}/pods/a?gracePeriodSeconds=0")
        events = [await watch.next(), await watch.next()]
    assert [entry["type"] for entry in events] == ["MODIFIED", "DELETED"]
    versions = [int(entry["object"]["metadata"]["resourceVersion"]) for entry in [event, *events]]
    assert versions == sorted(versions)


async def test_leaving_a_selector_is_a_deletion_and_entering_one_an_addition(api: Api, namespace: str) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    async with (
        api.watch(f"{pods}?watch=1&fieldSelector=spec.nodeName=&timeoutSeconds=10") as unbound,
        api.watch(f"{pods}?watch=1&fieldSelector=spec.nodeName=n&timeoutSeconds=10") as bound,
    ):
        await _create(api, namespace, "a")
        assert (await unbound.next())["type"] == "ADDED"
        await api.must("POST", f"{pods}/a/binding", {"metadata": {"name": "a"}, "target": {"name": "n"}})
        left, entered = await unbound.next(), await bound.next()
    assert left["type"] == "DELETED"
    assert "nodeName" not in left["object"]["spec"]
    assert entered["type"] == "ADDED"
    assert left["object"]["metadata"]["resourceVersion"] == entered["object"]["metadata"]["resourceVersion"]


async def test_initial_events_end_with_a_bookmark(api: Api, namespace: str) -> None:
    await _create(api, namespace, "a", "b")
    query = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=4"
    async with api.watch(f"/api/v1/namespaces/{namespace}/pods?{query}") as watch:
        events = [await watch.next() for _ in range(3)]
    assert [event["type"] for event in events] == ["ADDED", "ADDED", "BOOKMARK"]
    assert events[-1]["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    assert events[-1]["object"]["kind"] == "Pod"


async def test_initial_events_without_a_version_match_are_refused(api: Api, namespace: str) -> None:
    status, answer = await api.ask("GET", f"/api/v1/namespaces/{namespace}/pods?watch=1&sendInitialEvents=true")
    assert status == 422, answer
    assert "sendInitialEvents" in answer["message"]


async def test_watch_ends_at_its_timeout(api: Api, namespace: str) -> None:
    async with api.watch(f"/api/v1/namespaces/{namespace}/pods?watch=1&timeoutSeconds=1") as watch:
        assert await watch.rest() == []


async def test_watch_from_a_future_version_is_silent(api: Api, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods?watch=1&resourceVersion=9999999999&timeoutSeconds=1"
    async with api.watch(path) as watch:
        assert await watch.rest() == []


async def test_a_table_has_the_columns_of_kubectl(api: Api, namespace: str) -> None:
    await _create(api, namespace, "a")
    accept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
    _status, table = await api.ask("GET", f"/api/v1/namespaces/{namespace}/pods", accept=accept)
    columns = [(column["name"], column["priority"]) for column in table["columnDefinitions"]]
    assert columns == [
        ("Name", 0), ("Ready", 0), ("Status", 0), ("Restarts", 0), ("Age", 0),
        ("IP", 1), ("Node", 1), ("Nominated Node", 1), ("Readiness Gates", 1),
    ]  # fmt: skip
    assert table["rows"][0]["cells"][:4] == ["a", "0/1", "Pending", "0"]
    assert table["rows"][0]["object"]["kind"] == "PartialObjectMetadata"
