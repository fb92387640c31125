"""API documents for the decoder's tests: with no field but those that a test names, whatever their values."""

from __future__ import annotations

from typing import Any

import orjson

from multisched.model.decode import Decoder
from multisched.model.objects import Node, Pod

Document = dict[str, Any]


def pod_document(*containers: Document, metadata: Document | None = None, **spec: Any) -> Document:
    """`status` stands beside the spec's own fields."""
    return {
        "metadata": {"name": "p", "namespace": "default", "uid": "u", "resourceVersion": "7", **(metadata or {})},
        "status": spec.pop("status", {}),
        "spec": {"containers": list(containers) or [container()], **spec},
    }


def container(name: str = "c", **requests: Any) -> Document:
    return {"name": name, "image": "app:v1", "resources": {"requests": requests}}


def node_document(metadata: Document | None = None, **allocatable: Any) -> Document:
    return {
        "metadata": {"name": "n", "uid": "u", "resourceVersion": "7", **(metadata or {})},
        "status": {"allocatable": allocatable},
    }


def decode_pod(document: Document, decoder: Decoder | None = None) -> Pod:
    return (decoder or Decoder()).pod(orjson.dumps(document, option=orjson.OPT_NON_STR_KEYS))


def decode_node(document: Document, decoder: Decoder | None = None) -> Node:
    return (decoder or Decoder()).node(orjson.dumps(document))
