"""Reads and writes of SliceSets: what the state machines of loans ask for, and the answers. Protocols and values only.

Each write replaces one half of the version that the requester knows, or fails. The client implements `SliceWriter`
(`client/slice_writer.py`).
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Protocol

import msgspec

from multisched.model.cluster_objects import SliceSet
from multisched.model.slice_parts import SliceSpec, SliceStatus


class SliceCall(Enum):
    READ = auto()
    """A consistent GET."""
    CREATE = auto()
    """POST of an object that offers nothing."""
    PUT_SPEC = auto()
    PUT_STATUS = auto()
    RELEASE = auto()
    """PUT of an object that is being deleted, without the finalizer: it ends there."""


class SliceRequest(msgspec.Struct, frozen=True, eq=False):
    """One request about one object. Requests are compared by identity."""

    call: SliceCall
    known: SliceSet
    """Name and namespace; for replaces, the version that is replaced."""
    spec: SliceSpec | None = None
    status: SliceStatus | None = None

    @property
    def name(self) -> str:
        return self.known.name


class SliceAnswer(Enum):
    """The known effect of one request."""

    DONE = auto()
    CONFLICT = auto()
    """409: another version was written, maybe by this very request if it was sent twice. Only a read can tell."""
    NOT_FOUND = auto()
    """404: there is no such object, or the kind is not served."""
    REFUSED = auto()
    """Another definite 4xx, or not sent at all: nothing happened."""
    UNKNOWN = auto()
    """5xx, timeout, reset: it may have happened, may happen later, or not at all."""


class SliceReply(msgspec.Struct, frozen=True):
    answer: SliceAnswer
    found: SliceSet | None = None
    """The object after the request, if the answer is DONE; never None then."""
    message: str = ""
    retry_after_s: float = 0.0


class SliceWriter(Protocol):
    """Carries out requests about SliceSets; never retries by itself."""

    async def send(self, request: SliceRequest, *, timeout_s: float) -> SliceReply:
        """Sends one request with a deadline that the server enforces, too. Never raises, whatever the server does."""
        ...
