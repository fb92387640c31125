"""Reads and writes of SliceSets: requests of the state machines of loans, and the replies. Protocols and values only.

Each write replaces spec or status of the version that the requester knows, or fails. The client implements `SliceWriter`
(`client/slice_writer.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import Protocol, runtime_checkable

import msgspec

from multisched.framework.points import Plugin
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
    """PUT of an object that is being deleted, without the finalizer: the API server then removes the object."""


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
    """409: another version was written, possibly by this request if it was sent twice. Only a read can tell."""
    NOT_FOUND = auto()
    """404: there is no such object, or the kind is not served."""
    REFUSED = auto()
    """Another definite 4xx, or not sent at all: nothing happened."""
    UNKNOWN = auto()
    """5xx, timeout, reset: it may have happened, may happen later, or not at all."""


class SliceReply(msgspec.Struct, frozen=True):
    answer: SliceAnswer
    found: SliceSet | None = None
    """The object after the request; None unless the answer is DONE."""
    message: str = ""
    retry_after_s: float = 0.0


class SlicePorts(Protocol):
    """The ports that a domain needs to lend to, and to borrow from, domains of other processes. Implemented by the shell."""

    namespace: str
    """The namespace of all SliceSets."""

    def term(self) -> int:
        """Returns the number of the current or last holding of the domain's lease."""
        ...

    def may_write(self) -> bool:
        """Reports whether the domain's lease is held now: called immediately before each request."""
        ...

    async def list(self) -> Sequence[SliceSet]:
        """Lists all SliceSets consistently; none if the kind is not served. Raises UnreachableError."""
        ...

    async def send(self, request: SliceRequest) -> SliceReply:
        """See `SliceWriter.send`."""
        ...

    async def has_no_leader(self, domain: str) -> bool:
        """Reports whether no process may bind under the domain's lease, and no bind of a former holder is in flight."""
        ...

    async def relist(self) -> None:
        """Waits for lists of nodes and pods that began after this call."""
        ...


@runtime_checkable
class SlicingPlugin(Plugin, Protocol):
    """A plugin that lends or borrows by SliceSets."""

    async def own_slices(self, ports: SlicePorts) -> None:
        """Called by a new leader before its first decision. Returns when no write of a former leader can take effect any more, or when
        the lease is lost. The shell also lists pods, once the binds of that leader have ended; that may be before or after this call.
        """
        ...

    def settle_slices(self) -> None:
        """Called before the first decision, once `own_slices` has returned and that list of pods is in the cache."""
        ...


class SliceWriter(Protocol):
    """Carries out requests about SliceSets; never retries by itself."""

    async def send(self, request: SliceRequest, *, timeout_s: float) -> SliceReply:
        """Sends one request with a deadline that the server enforces, too. Never raises, whatever the server does."""
        ...
