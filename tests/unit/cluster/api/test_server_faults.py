"""What the simulator does to a server: forgetting history, dropping watches, refusing requests, recording them."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from multisched.cluster.api import watch as watch_module
from multisched.cluster.api.direct import DirectTransport
from multisched.cluster.api.server import Answer, ApiServer
from multisched.cluster.base.request import ApiRequest
from multisched.model.wire import AnswerLostError, Response
from tests.unit.cluster.server_kit import PODS, add_pod, ask, bind, make_server, must, watch


async def test_watch_from_before_a_compaction_gets_410_in_its_stream() -> None:
    server = make_server()
    version = add_pod(server, "a")["metadata"]["resourceVersion"]
    add_pod(server, "b")
    server.compact()

    lines = await watch(server, f"{PODS}?watch=1&resourceVersion={version}").read()

    event = orjson.loads(lines[0])
    assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")


async def test_watch_from_the_compacted_version_continues() -> None:
    server = make_server()
    add_pod(server, "a")
    listed = must(server, "GET", PODS)
    server.compact()
    stream = watch(server, f"{PODS}?watch=1&resourceVersion={listed['metadata']['resourceVersion']}")
    add_pod(server, "b")
    assert orjson.loads((await stream.read())[0])["object"]["metadata"]["name"] == "b"


def test_pages_and_exact_lists_of_a_compacted_version_return_410() -> None:
    server = make_server()
    versions = [add_pod(server, name)["metadata"]["resourceVersion"] for name in "abc"]
    first = must(server, "GET", f"{PODS}?limit=1")
    add_pod(server, "d")
    server.compact()

    status, answer = ask(server, "GET", f"{PODS}?limit=1&continue={first['metadata']['continue']}")
    assert (status, answer["reason"]) == (410, "Expired")
    rest = must(server, "GET", f"{PODS}?continue={answer['metadata']['continue']}")
    assert [item["metadata"]["name"] for item in rest["items"]] == ["b", "c", "d"]
    assert ask(server, "GET", f"{PODS}?resourceVersion={versions[0]}&resourceVersionMatch=Exact")[0] == 410


def test_history_is_bounded_per_kind() -> None:
    server = make_server(history=10)
    for number in range(30):
        add_pod(server, f"p{number:02}")
    pods = server.store.collection("pods")
    assert len(pods.history) == 10
    assert pods.events_since(pods.compacted) is not None
    assert pods.events_since(pods.compacted - 1) is None


async def test_dropped_watch_loses_its_connection_and_expired_watch_ends_cleanly() -> None:
    server = make_server()
    transport = DirectTransport(server)
    for end, lost in ((server.drop_watches, True), (server.expire_watches, False)):
        async with transport.stream(f"{PODS}?watch=1&resourceVersion=1&timeoutSeconds=30") as stream:
            assert end() == 1
            if lost:
                with pytest.raises(AnswerLostError):
                    assert [line async for line in stream] == []
            else:
                lines = [orjson.loads(line) async for line in stream]
                assert lines[0]["object"]["code"] == 410
    assert not server.store.collection("pods").observers


async def test_silent_watch_times_out_at_its_reader() -> None:
    server = make_server()
    async with DirectTransport(server).stream(f"{PODS}?watch=1", idle_timeout_s=0.01) as stream:
        with pytest.raises(AnswerLostError, match="sent nothing"):
            assert [line async for line in stream] == []


async def test_slow_watcher_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_module, "WATCH_BACKLOG_BYTES", 2_000)
    server = make_server()
    stream = watch(server, f"{PODS}?watch=1&resourceVersion=1")
    cut = asyncio.Event()
    stream.on_drop = cut.set
    for number in range(10):
        add_pod(server, f"p{number}")
    assert cut.is_set()
    assert stream.is_broken
    assert await stream.read() == []
    assert not server.store.collection("pods").observers


def test_unavailable_server_sends_retry_after() -> None:
    server = make_server()
    server.set_unavailable()
    answer = server.handle(ApiRequest("GET", "/api/v1/pods"))
    assert isinstance(answer, Response)
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    server.set_available()
    assert ask(server, "GET", "/api/v1/pods")[0] == 200


class Throttle:
    """Refuses binds before they reach the server, and loses the answer of creates after they have."""

    def before(self, request: ApiRequest) -> Response | None:
        """429 for bindings."""
        return Response(429, b"{}", {"retry-after": "7"}) if request.path.endswith("/binding") else None

    def after(self, request: ApiRequest, answer: Answer) -> Answer:
        """500 for creates, which were done all the same."""
        return Response(500, b"{}") if request.method == "POST" else answer


def test_interceptor_runs_before_and_after_the_server() -> None:
    server = make_server()
    server.interceptors.append(Throttle())
    assert (
        ask(server, "POST", PODS, {"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c", "image": "x"}]}})[0]
        == 500
    )
    assert bind(server, "a", "n")[0] == 429
    found = must(server, "GET", f"{PODS}/a")
    assert "nodeName" not in found["spec"]


def test_request_log_gets_every_request() -> None:
    server = make_server()
    heard: list[tuple[str, str, str, int]] = []
    server.request_log = lambda *entry: heard.append(entry)
    ask(server, "GET", f"{PODS}/missing")
    ask(server, "GET", PODS)
    assert heard == [("GET", f"{PODS}/missing", "kubernetes-admin", 404), ("GET", PODS, "kubernetes-admin", 200)]


def _trace(server: ApiServer) -> bytes:
    for name in "abc":
        add_pod(server, name)
    bind(server, "b", "n")
    generated = {"metadata": {"generateName": "g-"}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
    must(server, "POST", PODS, generated)
    return orjson.dumps(must(server, "GET", PODS))


def test_one_seed_gives_one_trace() -> None:
    assert _trace(make_server(seed=3)) == _trace(make_server(seed=3))
    assert _trace(make_server(seed=3)) != _trace(make_server(seed=4))


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", PODS, b"[]", 400),
        ("POST", PODS, b"{", 400),
        ("POST", PODS, b"null", 400),
        ("POST", PODS, {"metadata": [], "spec": {}}, 400),
        ("POST", PODS, {"metadata": {"name": "a"}, "spec": []}, 400),
        ("POST", PODS, {"metadata": {"name": 5}, "spec": {"containers": [7]}}, 400),
        ("POST", PODS, {"kind": "Node", "metadata": {"name": "a"}}, 400),
        ("POST", PODS, b"k8s\x00\xff\xff\xff", 400),
        ("PATCH", f"{PODS}/a", b"", 415),
        ("GET", "/apis/none/v1/things", None, 404),
        ("GET", "/nowhere", None, 404),
        ("DELETE", "/api/v1/namespaces", None, 405),
        ("BREW", PODS, None, 405),
        ("POST", f"{PODS}/a/log", {}, 405),
        ("POST", f"{PODS}/a/nothing", {}, 404),
    ],
)
def test_no_request_crashes_the_server(method: str, path: str, body: object, status: int) -> None:
    server = make_server()
    add_pod(server, "a")
    actual, answer = ask(server, method, path, body)
    assert (actual, answer["kind"]) == (status, "Status"), answer
    assert ask(server, "GET", PODS)[0] == 200


def test_deleted_uid_never_returns_and_versions_only_increase() -> None:
    server = make_server()
    seen: set[str] = set()
    last = 0
    for _ in range(20):
        created = add_pod(server, "a")
        version = int(created["metadata"]["resourceVersion"])
        assert created["metadata"]["uid"] not in seen
        assert version > last
        seen.add(created["metadata"]["uid"])
        last = int(must(server, "DELETE", f"{PODS}/a")["metadata"]["resourceVersion"])
        assert last > version
