"""Pods on nodes as one process has observed and assumed them: cached lists follow every change."""

from __future__ import annotations

import msgspec
import orjson

from multisched.testing.builders import pod_document
from tests.kit.checkers.delivered_state import DeliveredState
from tests.kit.world.store_view import Reader


def test_list_of_placed_pods_follows_each_change() -> None:
    delivered = DeliveredState(Reader(), lambda domain: lambda node: True, {})
    key, seen = "default/p", list[list[str]]()

    def deliver(node: str, phase: str = "Running") -> None:
        document = pod_document("p", node=node)
        document["metadata"]["uid"] = "p-uid"
        document["status"] = {"phase": phase}
        delivered.pod_delivered(key, msgspec.Raw(orjson.dumps(document)))

    def look() -> None:
        seen.append([pod.node for pod in delivered.placed()])

    deliver("")
    (uid,) = delivered.pods
    look()
    delivered.assumed(uid, "n1")
    look()
    delivered.forgotten(uid)
    look()
    delivered.assumed(uid, "n2")
    look()
    deliver("n3")
    look()
    deliver("n3", "Succeeded")
    look()
    deliver("n3")
    look()
    delivered.pod_gone(key)
    look()

    assert seen == [[], ["n1"], [], ["n2"], ["n3"], [], ["n3"], []]
