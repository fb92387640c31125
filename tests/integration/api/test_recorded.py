"""Answers of kube-apiserver 1.36.3, recorded once (recorded.jsonl), asked again in the same order."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.integration.api.conftest import Api

UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
SUFFIX = re.compile(r"\bc\.[a-z0-9]{5}\b")


def plain(value: Any, key: str = "") -> Any:
    """A document without what differs from run to run, but with the places where it stands."""
    if isinstance(value, dict):
        # Typed servers print an empty structure where nothing was said; both forms mean the same to every client.
        shown = {name: plain(entry, name) for name, entry in value.items() if name not in ("managedFields",)}
        return {name: entry for name, entry in shown.items() if entry != {} or name not in ("spec", "securityContext")}
    if isinstance(value, list):
        return [plain(entry) for entry in value]
    if key in ("resourceVersion", "continue"):
        return f"<{key}>"
    if isinstance(value, str):
        return SUFFIX.sub("c.<suffix>", TIME.sub("<time>", UID.sub("<uid>", value)))
    return value


def learn(recorded: Any, actual: Any, uids: dict[str, str]) -> None:
    """Remembers which of our uids stands for which recorded one."""
    if isinstance(recorded, dict) and isinstance(actual, dict):
        for name, entry in recorded.items():
            if name == "uid" and isinstance(entry, str) and isinstance(actual.get(name), str):
                uids[entry] = actual[name]
            learn(entry, actual.get(name), uids)


async def _clear(api: Api) -> None:
    """The recording began with none of its objects there."""
    await api.ask("DELETE", "/api/v1/namespaces/default/pods?gracePeriodSeconds=0")
    await api.ask("DELETE", "/api/v1/nodes/g1")
    await api.ask("DELETE", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/ms")


async def test_every_recorded_request_gets_the_recorded_answer(api: Api) -> None:
    lines = (Path(__file__).parent / "recorded.jsonl").read_text().splitlines()
    await _clear(api)
    uids: dict[str, str] = {}
    differences = []
    for line in lines:
        entry = json.loads(line)
        method, path, content_type, body = entry["request"]
        if body is not None:
            text = json.dumps(body)
            for recorded, ours in uids.items():
                text = text.replace(recorded, ours)
            body = text.encode()
        status, answer = await api.ask(method, path, body, content_type)
        learn(entry["response"], answer, uids)
        if status != entry["status"] or plain(answer) != plain(entry["response"]):
            differences.append(
                (
                    entry["note"],
                    method,
                    path,
                    status,
                    plain(answer),
                    "recorded:",
                    entry["status"],
                    plain(entry["response"]),
                )
            )
    assert len(lines) > 25
    assert not differences, "\n".join(str(part) for difference in differences for part in difference)
