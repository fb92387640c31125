"""From the watches of other objects to the store: events for pods, words for bad objects, and kinds that are not to be had."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import orjson
import pytest

from multisched.cluster.api.direct import DirectTransport
from multisched.framework.events import Action, ClusterEvent, EventObject, Resource
from multisched.framework.ports import Event
from multisched.model.object_kinds import ObjectKind
from multisched.model.wire import Response
from multisched.shell.ingest.objects import ObjectIngest
from multisched.state.object_store import ObjectStore
from tests.integration.plugins.program_cluster import (
    ProgramCluster,
    in_virtual_time,
    install_definitions,
    one_domain,
    open_cluster,
)

PV, PVC, SERVICE = ObjectKind.PERSISTENT_VOLUME, ObjectKind.PERSISTENT_VOLUME_CLAIM, ObjectKind.SERVICE


class IngestRecorder:
    """Records the cluster events and Events that an `ObjectIngest` emits."""

    def __init__(self, kind: ObjectKind) -> None:
        self.notified: list[tuple[ClusterEvent, str, str]] = []
        self.events: list[Event] = []
        self.store = ObjectStore()
        self.ingest = ObjectIngest(kind, self.store, self.notify, self, "ours")

    def notify(self, event: ClusterEvent, old: EventObject, new: EventObject) -> None:
        self.notified.append((event, "" if old is None else old.name, "" if new is None else new.name))

    def record(self, event: Event) -> None:
        self.events.append(event)

    def upsert(self, name: str, namespace: str = "", version: int = 1, **parts: Any) -> None:
        metadata = {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version), "namespace": namespace}
        raw = msgspec.Raw(orjson.dumps({"metadata": metadata, **parts}))
        self.ingest.upsert(f"{namespace}/{name}" if namespace else name, raw)

    def actions(self) -> list[tuple[Action, str]]:
        return [(event.action, old or new) for event, old, new in self.notified]


def test_object_changes_reach_the_queues() -> None:
    recorder = IngestRecorder(PVC)
    recorder.upsert("c", "team")
    recorder.upsert("c", "team", 2, spec={"volumeName": "v"})
    recorder.ingest.delete("team/c", None)

    assert recorder.actions() == [(Action.ADD, "c"), (Action.UPDATE, "c"), (Action.DELETE, "c")]
    assert {event.resource for event, _, _ in recorder.notified} == {ObjectKind.PERSISTENT_VOLUME_CLAIM}
    assert [event.label for event, _, _ in recorder.notified] == [
        f"PersistentVolumeClaim{what}" for what in ("Add", "Update", "Delete")
    ]
    assert recorder.store.claim("team", "c") is None


def test_change_of_unread_fields_requeues_no_pod() -> None:
    recorder = IngestRecorder(PV)
    recorder.upsert("v", version=1, status={"phase": "Available"})
    recorder.upsert("v", version=2, status={"phase": "Available", "message": "hello"})
    found = recorder.store.volume("v")
    assert found is not None
    assert found.version == 2
    assert recorder.actions() == [(Action.ADD, "v")]


def test_kinds_outside_the_wildcard_are_stored_and_announced() -> None:
    recorder = IngestRecorder(SERVICE)
    recorder.upsert("s", "team", spec={"selector": {"app": "web"}})
    assert recorder.actions() == [(Action.ADD, "s")]
    assert [s.name for s in recorder.store.services("team")] == ["s"]
    recorder.ingest.delete("team/s", None)
    recorder.ingest.delete("team/never-seen", None)
    assert not recorder.store.services("team")


def test_malformed_object_is_reported_once_per_fault_and_others_continue() -> None:
    recorder = IngestRecorder(PV)
    for version in (1, 2):
        recorder.upsert("bad", version=version, spec={"capacity": {"storage": "lots"}})
    recorder.upsert("good")
    recorder.ingest.upsert("nothing", msgspec.Raw(b"[]"))

    (event,) = recorder.events
    assert (event.reason, event.regarding.kind, event.regarding.name) == (
        "MalformedPersistentVolume",
        "PersistentVolume",
        "bad",
    )
    assert event.note.startswith("Not used for scheduling: spec.capacity.storage: 'lots'")
    assert recorder.ingest.malformed == 2
    assert {v.name for v in recorder.store.volumes()} == {"bad", "good"}

    recorder.upsert("bad", version=3, spec={"capacity": {"storage": "1Gi"}})
    recorder.upsert("bad", version=4, spec={"capacity": {"storage": "lots"}})
    assert len(recorder.events) == 2


def test_refused_kind_is_unreadable_until_listed() -> None:
    recorder = IngestRecorder(PV)
    recorder.upsert("v")
    recorder.ingest.refused("403 Forbidden: no")
    assert recorder.store.unreadable(PV) == "403 Forbidden: no"
    assert recorder.store.volume("v") is not None
    notified = len(recorder.notified)
    recorder.ingest.replaced("5")
    assert recorder.store.unreadable(PV) == ""
    recorder.ingest.replaced("6")
    assert [event.resource for event, _, _ in recorder.notified[notified:]] == [Resource.WILDCARD]


@pytest.mark.parametrize("kind", list(ObjectKind))
def test_every_kind_is_listed_at_its_path(kind: ObjectKind) -> None:
    async def main() -> None:
        async with open_cluster(one_domain(), before=install_definitions) as cluster:
            answer = await DirectTransport(cluster.server).request("GET", kind.definition.path)
            if kind is ObjectKind.WORKLOAD_POD_GROUP:  # a gate of the API server is off
                assert answer.status == 404
                return
            assert answer.status == 200, answer.body
            listed = orjson.loads(answer.body)
            assert (listed["kind"], listed["apiVersion"]) == (
                f"{kind.definition.name}List",
                kind.definition.api_version,
            )

    in_virtual_time(main)


class Closed:
    """A transport that answers requests about some paths with a refusal."""

    def __init__(self, cluster_transport: Any) -> None:
        self._inner = cluster_transport
        self.closed: dict[str, int] = {}

    async def request(self, method: str, path: str, **rest: Any) -> Response:
        for start, status in self.closed.items():
            if path.startswith(start):
                return Response(status, orjson.dumps({"kind": "Status", "code": status, "message": "not for you"}))
        answer: Response = await self._inner.request(method, path, **rest)
        return answer

    def stream(self, path: str, **rest: Any) -> Any:
        return self._inner.stream(path, **rest)


def play(main: Callable[[ProgramCluster, Closed], Coroutine[Any, Any, None]], closed: dict[str, int]) -> None:
    """The whole program before an API server that does not serve or forbids some kinds."""

    async def scene() -> None:
        transports: list[Closed] = []

        def behind(inner: Any) -> Closed:
            transports.append(Closed(inner))
            transports[0].closed = closed
            return transports[0]

        async with open_cluster(one_domain(), behind=behind) as cluster:
            await main(cluster, transports[0])

    in_virtual_time(scene)


@pytest.mark.parametrize("status", [403, 404])
def test_unavailable_kind_blocks_no_pod_and_makes_the_process_unready(status: int) -> None:
    async def main(cluster: ProgramCluster, transport: Closed) -> None:
        await cluster.node("n")
        await cluster.pod("p", cpu="1")
        await cluster.bound("p")
        assert cluster.program.objects.unreadable() == f"CSINode: {status} : not for you"
        assert cluster.program.cache.objects.unreadable(ObjectKind.CSI_NODE)

        await cluster.program.audit.once()
        assert cluster.program.audit.statistics().audits == 1

        transport.closed.clear()
        await cluster.until(lambda: not cluster.program.objects.unreadable(), within_s=60.0)

    play(main, {"/apis/storage.k8s.io/v1/csinodes": status})


@pytest.mark.parametrize("path", ["/api/v1/persistentvolumeclaims", "/api/v1/persistentvolumes"])
def test_pod_waits_while_its_storage_kinds_are_unreadable(path: str) -> None:
    """It is not told that its claim does not exist, and not placed as if it had none; others go on."""
    kind = PVC if path.endswith("claims") else PV

    async def main(cluster: ProgramCluster, transport: Closed) -> None:
        spec = {"storageClassName": "c", "accessModes": ["ReadWriteOnce"]}
        source = {"capacity": {"storage": "1Gi"}, "nfs": {"server": "s", "path": "/"}}
        await cluster.post("persistentvolumes", "v", {}, spec={**spec, **source})
        bound = {"namespace": "default", "annotations": {"pv.kubernetes.io/bind-completed": "yes"}}
        asked = {"volumeName": "v", "resources": {"requests": {"storage": "1Gi"}}}
        await cluster.post("namespaces/default/persistentvolumeclaims", "c", bound, spec={**spec, **asked})
        await cluster.node("n")
        volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}]
        await cluster.pod("p", volumes=volumes)
        await cluster.pod("plain")
        await cluster.bound("plain")

        words = f"{kind.value} objects cannot be read by the scheduler: 403 : not for you."
        waiting = cluster.waiting("p")
        assert waiting is not None
        assert waiting.message.startswith(f"0/1 nodes are available: {words}")

        transport.closed.clear()
        await cluster.bound("p", within_s=90.0)

    play(main, {path: 403})


def test_audit_finds_an_object_lost_by_the_watch() -> None:
    async def main(cluster: ProgramCluster, transport: Closed) -> None:
        name = {"storageClassName": "c", "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]}
        for number in range(3):
            await cluster.post(
                "persistentvolumes", f"v{number}", {}, spec={**name, "nfs": {"server": "s", "path": "/"}}
            )
        store = cluster.program.cache.objects
        await cluster.until(lambda: len(store.volumes()) == 3)
        store.remove(PV, "", "v1")
        for _ in range(2):
            await cluster.program.audit.once()
        await cluster.until(lambda: len(store.volumes()) == 3)
        assert cluster.program.audit.statistics().lost == 1

    play(main, {})


def test_audit_checks_other_objects_less_often_than_pods() -> None:
    lists: Counter[str] = Counter()

    async def main(cluster: ProgramCluster, transport: Closed) -> None:
        def note(method: str, path: str, user: str, status: int) -> None:
            if method == "GET" and "watch=" not in path:
                lists[path.partition("?")[0]] += 1

        cluster.server.request_log = note
        await cluster.until(lambda: cluster.program.audit.statistics().audits == 11, within_s=900.0)

    play(main, {})
    assert lists["/api/v1/pods"] == lists["/api/v1/nodes"] == 11
    assert lists["/api/v1/persistentvolumes"] == lists["/apis/storage.k8s.io/v1/csinodes"] == 3
