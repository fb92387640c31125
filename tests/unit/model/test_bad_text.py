"""Bytes that are no valid text: an object of them is malformed, told by name, and ends nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.model.decode import ALLOCATABLE_MAX, DecodeError, Decoder
from multisched.model.decode_metadata import BAD_TEXT
from multisched.model.decode_objects import decode_service
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import CPU
from tests.unit.model.documents import container, node_document, pod_document

BAD = "@@"
"""Replaced by a byte that no UTF-8 text holds."""

Read = TypeVar("Read")


def corrupted(document: dict[str, Any]) -> bytes:
    return orjson.dumps(document).replace(BAD.encode(), b"\xff")


def rich_pod() -> dict[str, Any]:
    term = {"labelSelector": {"matchLabels": {"app": "x"}}, "topologyKey": "zone"}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    main = container(cpu="2", memory="1Gi") | {"ports": [{"hostPort": 80}]}
    metadata = {
        "labels": {"app": "x"},
        "annotations": {"note": "y"},
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "ownerReferences": [{"kind": "ReplicaSet", "name": "r", "uid": "o", "controller": True}],
    }
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]
    status = {"phase": "Running", "startTime": "2026-01-01T00:00:00Z", "conditions": [{"type": "Ready"}]}
    return pod_document(
        main, metadata=metadata, affinity=affinity, nodeName="n", priority=5, volumes=volumes, status=status
    )


@pytest.mark.parametrize(
    "metadata",
    [{"annotations": {"note": BAD}}, {"annotations": {BAD: "x"}}, {"labels": {"app": BAD}}, {"labels": {BAD: ""}}],
)
def test_pod_with_invalid_utf_8_is_malformed_and_keeps_its_requests(metadata: dict[str, Any]) -> None:
    pod = Decoder().pod(corrupted(rich_pod() | {"metadata": {"name": "p", "namespace": "d", "uid": "u", **metadata}}))
    assert (pod.key, pod.node, pod.requests[CPU], len(pod.spec.host_ports)) == ("d/p", "n", 2000, 1)
    assert pod.malformed == BAD_TEXT


def test_name_with_invalid_utf_8_is_read_with_replacement_characters() -> None:
    assert Decoder().pod(corrupted(pod_document(metadata={"name": f"p{BAD}"}))).name == "p\ufffd"


def test_node_with_invalid_utf_8_is_malformed_and_keeps_its_labels() -> None:
    node = Decoder().node(corrupted(node_document({"labels": {"zone": "a", "x": BAD}}, cpu="4")))
    assert node.labels["zone"] == "a"
    assert node.malformed == BAD_TEXT


@pytest.mark.parametrize("kind", ObjectKind)
def test_other_object_with_invalid_utf_8_is_reported_by_name(kind: ObjectKind) -> None:
    document = {"metadata": {"name": "x", "namespace": "d", "uid": "u", "resourceVersion": f"7{BAD}"}, "spec": {}}
    item = kind.definition.decode(corrupted(document))
    assert (item.name, item.uid, item.malformed) == ("x", "u", BAD_TEXT)


_pods = st.sampled_from([orjson.dumps(rich_pod()), orjson.dumps(pod_document())])
_nodes = st.just(orjson.dumps(node_document({"labels": {"zone": "a"}}, cpu="4")))
_OBJECT = {
    "metadata": {"name": "x", "namespace": "d", "uid": "u", "resourceVersion": "7", "labels": {"a": "b"}},
    "spec": {"selector": {"matchLabels": {"a": "b"}}, "capacity": {"storage": "1Gi"}, "storageClassName": "s"},
    "status": {"phase": "Bound"},
    "provisioner": "p",
}


@st.composite
def mutated(draw: st.DrawFn, documents: st.SearchStrategy[bytes]) -> bytes:
    """A document of which a few bytes are other ones, are missing, come twice, or which is cut off."""
    found = bytearray(draw(documents))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(found) - 1))
        match draw(st.sampled_from(["set", "drop", "put", "swap"])):
            case "set":
                found[at] = draw(st.sampled_from([0xFF, 0xC3, 0x00, 0x22, 0x5C, 0x7B, 0x39, 0x2D, 0x65, 0x80]))
            case "drop":
                del found[at : at + draw(st.integers(1, 8))]
            case "put":
                found[at:at] = draw(
                    st.sampled_from([b"\xed\xa0\x80", b"\\ud800", b"99999999999999999999", b"null", b"["])
                )
            case "swap":
                other = draw(st.integers(0, len(found) - 1))
                found[at], found[other] = found[other], found[at]
        if not found:
            break
    return bytes(found)


def read(decode: Callable[[bytes], Read], document: bytes) -> Read | None:
    """None for what is no object at all."""
    with suppress(DecodeError):
        return decode(document)
    return None


@given(mutated(_pods))
def test_any_bytes_of_a_pod_are_decoded_or_refused(document: bytes) -> None:
    pod = read(Decoder().pod, document)
    if pod is not None:
        assert pod.uid
        assert all(-(2**63) <= amount < 2**63 for amount in (*pod.requests.values(), pod.spec.priority))


@given(mutated(_nodes))
def test_any_bytes_of_a_node_are_decoded_or_refused(document: bytes) -> None:
    node = read(Decoder().node, document)
    assert node is None or all(0 <= amount <= ALLOCATABLE_MAX for amount in node.allocatable.values())


@given(st.sampled_from(ObjectKind), mutated(st.just(orjson.dumps(_OBJECT))))
def test_any_bytes_of_an_object_are_decoded_or_refused(kind: ObjectKind, document: bytes) -> None:
    read(kind.definition.decode, document)


@pytest.mark.parametrize("decode", [Decoder().pod, Decoder().node, decode_service])
def test_too_deep_nesting_is_refused_with_a_message(decode: Any) -> None:
    with pytest.raises(DecodeError, match="recursion"):
        decode(b'{"metadata":{"name":"x","uid":"u"},"spec":{"x":' + b"[" * 100_000)
