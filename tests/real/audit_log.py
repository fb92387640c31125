"""What the API server's own audit log says was asked of it: the witness that a scheduler cannot talk to.

Pure reading; `ControlPlane.start(audit=True)` makes the log. A request is here once its answer is known, in the order of
the answers; one that was under way when the API server was killed may be missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

CREDENTIAL: Final = "authentication.kubernetes.io/credential-id"
CREATED: Final = 201
FORBIDDEN: Final = 403
UNAUTHORIZED: Final = 401
SERVER_ERROR: Final = 500


class _User(msgspec.Struct):
    username: str
    extra: dict[str, list[str]] = {}


class _Object(msgspec.Struct):
    resource: str = ""
    namespace: str = ""
    name: str = ""
    subresource: str = ""


class _Answer(msgspec.Struct):
    code: int = 0
    message: str = ""


class _Metadata(msgspec.Struct):
    uid: str = ""


class _Target(msgspec.Struct):
    name: str = ""


class _Body(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    target: _Target = msgspec.field(default_factory=_Target)


class _Entry(msgspec.Struct):
    stage: str
    verb: str
    uri: str = msgspec.field(name="requestURI")
    user: _User
    at: datetime = msgspec.field(name="requestReceivedTimestamp")
    ended_at: datetime = msgspec.field(name="stageTimestamp")
    object: _Object = msgspec.field(name="objectRef", default_factory=_Object)
    answer: _Answer = msgspec.field(name="responseStatus", default_factory=_Answer)
    body: _Body = msgspec.field(name="requestObject", default_factory=_Body)


_decoder: Final = msgspec.json.Decoder(_Entry)


@dataclass(frozen=True, slots=True)
class Call:
    """One request and its answer."""

    user: str
    credential: str
    """Which token of the user, as `JTI=...`."""
    verb: str
    resource: str
    """With its subresource: `pods/binding`."""
    name: str
    uri: str
    code: int
    message: str
    received_at: datetime
    ended_at: datetime
    pod_uid: str
    """Of a binding."""
    node: str
    """Of a binding."""

    @property
    def is_bind(self) -> bool:
        """Whether it asked for a binding."""
        return (self.verb, self.resource) == ("create", "pods/binding")


def calls(log: Path) -> list[Call]:
    """Everything in the log; a line that the API server's death cut short is left out."""
    lines = log.read_bytes().split(b"\n")
    return [_call(_decoder.decode(line)) for line in lines[:-1] if line.endswith(b"}")]


def bound(found: Iterable[Call]) -> Counter[str]:
    """Pod uid -> bindings that the API server accepted: one each, or a pod was bound twice."""
    return Counter(call.pod_uid for call in found if call.is_bind and call.code == CREATED)


def unknown(found: Iterable[Call]) -> set[tuple[str, str]]:
    """Pod uid and node of bindings whose outcome the API server itself did not know: its client was gone, or time was up."""
    return {(call.pod_uid, call.node) for call in found if call.is_bind and call.code >= SERVER_ERROR}


def premature_rebinds(found: Iterable[Call]) -> list[str]:
    """Bindings that a process asked for although it did not know yet how its own earlier one to another node ended (I2)."""
    asked: dict[tuple[str, str], str] = {}
    wrong = []
    for call in sorted((call for call in found if call.is_bind), key=lambda call: call.received_at):
        key = (call.credential, call.pod_uid)
        if asked.get(key, call.node) != call.node:
            wrong.append(f"{call.name} to {call.node} after {asked[key]}")
        if call.code >= SERVER_ERROR:
            asked[key] = call.node
    return wrong


def denied(found: Iterable[Call], user: str) -> list[str]:
    """What was refused to the user for want of rights or of a good token."""
    refused = (call for call in found if call.user == user and call.code in (FORBIDDEN, UNAUTHORIZED))
    return [f"{call.verb} {call.uri}: {call.code} {call.message}" for call in refused]


def _call(entry: _Entry) -> Call:
    what = entry.object
    return Call(
        user=entry.user.username,
        credential=",".join(entry.user.extra.get(CREDENTIAL, [])),
        verb=entry.verb,
        resource=f"{what.resource}/{what.subresource}" if what.subresource else what.resource,
        name=what.name,
        uri=entry.uri,
        code=entry.answer.code,
        message=entry.answer.message,
        received_at=entry.at,
        ended_at=entry.ended_at,
        pod_uid=entry.body.metadata.uid,
        node=entry.body.target.name,
    )
