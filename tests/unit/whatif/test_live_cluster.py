"""A live cluster as a snapshot: pages, kinds that are not served or may not be read, lists that expire."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson
import pytest

from multisched.config.options import ExitCode, RefusedError
from multisched.model.decode import Decoder
from multisched.model.object_kinds import ObjectKind
from multisched.model.wire import ConnectFailedError, Response
from multisched.whatif.live_cluster import LIST_TRIES, NODES, PODS, all_kinds, listed, read_cluster
from multisched.whatif.sandbox import ClusterSnapshot
from tests.unit.model.quotas.quota_documents import flat, linked
from tests.unit.whatif.quota_clusters import NOW, node, pods

QUOTAS = tuple(map(listed, (ObjectKind.ELASTIC_QUOTA_TREE, ObjectKind.ELASTIC_QUOTA, ObjectKind.KOORDINATOR_QUOTA)))


class Lists:
    """An API server that answers each path with a status, or with items; items of a list say no kind."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.answers = answers
        self.asked: list[str] = []

    async def request(self, method: str, path: str, **how: Any) -> Response:
        path = path.partition("?")[0]
        self.asked.append(path)
        found = self.answers.get(path, 404)
        if isinstance(found, Iterator):  # one after the other
            found = next(found)
        if isinstance(found, int):
            return Response(found, orjson.dumps({"kind": "Status", "message": "no", "code": found}), {})
        bare = [{key: value for key, value in one.items() if key not in ("kind", "apiVersion")} for one in found]
        return Response(200, orjson.dumps({"metadata": {"resourceVersion": "7"}, "items": bare}), {})

    def stream(self, path: str, **how: Any) -> Any:
        raise ConnectFailedError("nobody watches")


async def read(answers: Mapping[str, Any], *kinds: Any) -> ClusterSnapshot:
    return await read_cluster(Lists(answers), kinds or (NODES, PODS, *QUOTAS), Decoder(), NOW)


CLUSTER = {"/api/v1/nodes": [node()], "/api/v1/pods": pods("a", 2, 1)}


async def test_all_kinds_are_read_and_equal_names_kept_separate() -> None:
    quotas = {
        "/apis/scheduling.x-k8s.io/v1alpha1/elasticquotas": [flat("a", 1, 2)],
        "/apis/scheduling.sigs.k8s.io/v1alpha1/elasticquotas": [linked("b", 1, 2)],
    }
    found = await read(CLUSTER | quotas)
    assert (len(found.nodes), len(found.placed), len(found.pending)) == (1, 2, 1)
    assert {(kind, one.name) for kind, one in found.objects} == {
        (ObjectKind.ELASTIC_QUOTA, "quota"),
        (ObjectKind.KOORDINATOR_QUOTA, "b"),
    }
    assert found.notes == (), "a definition that is not installed is nothing to be said"


async def test_forbidden_kind_is_noted() -> None:
    found = await read(CLUSTER | {QUOTAS[0].path: 403}, NODES, PODS, QUOTAS[0], listed(ObjectKind.SERVICE))
    assert [note.partition(":")[0] for note in found.notes] == [
        "ElasticQuotaTree objects cannot be listed",
        "Service objects cannot be listed",
    ]


@pytest.mark.parametrize("status", [401, 403, 404, 500])
async def test_missing_pod_permission_is_an_error(status: int) -> None:
    with pytest.raises(RefusedError, match="Pod objects cannot be listed") as raised:
        await read(CLUSTER | {"/api/v1/pods": status})
    assert raised.value.code is ExitCode.NO_CLUSTER
    assert ("renew the token or certificate" in str(raised.value)) == (status == 401)


async def test_expired_list_restarts_and_finally_fails() -> None:
    found = await read(CLUSTER | {"/api/v1/pods": iter([410, CLUSTER["/api/v1/pods"]])})
    assert (len(found.nodes), len(found.placed)) == (1, 2), "nothing is read twice"
    with pytest.raises(RefusedError, match="try again"):
        await read(CLUSTER | {"/api/v1/pods": iter([410] * LIST_TRIES)})


async def test_unreadable_object_is_noted() -> None:
    found = await read({"/api/v1/pods": [{"spec": {}}]}, PODS)
    assert found.placed == ()
    assert "cannot be read" in found.notes[0]


def test_every_scheduling_kind_is_listed_once() -> None:
    paths = [one.path for one in all_kinds()]
    assert len(paths) == len(set(paths)) == len(ObjectKind) + 3
