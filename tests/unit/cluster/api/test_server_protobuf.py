"""Protobuf bodies, as kubectl 1.32 sends typed objects."""

from __future__ import annotations

from typing import Any

from tests.unit.cluster.server_kit import PODS, add_pod, ask, make_server, must

PROTOBUF = "application/vnd.kubernetes.protobuf"


def _field(number: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    out = b""
    value &= (1 << 64) - 1
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def _enveloped(api_version: str, kind: str, raw: bytes) -> bytes:
    meta = _field(1, api_version.encode()) + _field(2, kind.encode())
    return b"k8s\x00" + _field(1, meta) + _field(2, raw) + _field(3, b"") + _field(4, b"")


def _post(path: str, body: bytes) -> tuple[int, Any]:
    return ask(make_server(), "POST", path, body, PROTOBUF)


def test_deployment_with_zero_replicas_is_read() -> None:
    container = _field(1, b"c") + _field(2, b"nginx") + _field(5, b"") + _field(8, b"")
    labels = _field(1, _field(11, _field(1, b"app") + _field(2, b"x")))
    template = labels + _field(2, _field(2, container) + _field(4, 5))
    selector = _field(1, _field(1, b"app") + _field(2, b"x"))
    spec = _field(1, 0) + _field(2, selector) + _field(3, template) + _field(4, b"")
    raw = _field(1, _field(1, b"d") + _field(8, b"")) + _field(2, spec) + _field(3, b"")

    status, stored = _post("/apis/apps/v1/namespaces/default/deployments", _enveloped("apps/v1", "Deployment", raw))

    assert status == 201, stored
    assert stored["spec"]["replicas"] == 0
    assert stored["spec"]["selector"] == {"matchLabels": {"app": "x"}}
    assert stored["spec"]["template"]["spec"]["containers"][0]["image"] == "nginx"
    assert stored["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 5


def test_quantities_times_and_inlined_volumes_are_read() -> None:
    request = _field(2, _field(1, b"cpu") + _field(2, _field(1, b"100m")))
    container = _field(1, b"c") + _field(2, b"x") + _field(8, request)
    volume = _field(1, b"v") + _field(2, _field(2, _field(1, b"")))
    raw = _field(1, _field(1, b"a")) + _field(2, _field(1, volume) + _field(2, container) + _field(25, 0 - 7))
    status, answer = _post(PODS, _enveloped("v1", "Pod", raw))
    assert status == 403, answer  # the priority -7 may not be given, which shows that it was read
    assert "(-7)" in answer["message"]


def test_delete_options_of_an_eviction_are_read() -> None:
    server = make_server()
    add_pod(server, "a", nodeName="n")
    raw = _field(1, _field(1, b"a")) + _field(2, _field(1, 3))
    status, answer = ask(server, "POST", f"{PODS}/a/eviction", _enveloped("policy/v1", "Eviction", raw), PROTOBUF)
    assert status == 201, answer
    assert must(server, "GET", f"{PODS}/a")["metadata"]["deletionGracePeriodSeconds"] == 3


def test_truncated_or_unknown_bodies_are_refused() -> None:
    whole = _enveloped("v1", "Pod", _field(1, _field(1, b"abc")))
    for size in range(5, len(whole)):
        assert _post(PODS, whole[:size])[0] in (400, 415, 422)
    assert _post(PODS, _enveloped("example.com/v1", "Widget", b""))[0] == 415
