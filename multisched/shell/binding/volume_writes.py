"""CountedVolumeWriter: counts and times the writes of VolumeBinding's PreBind, by kind of object and result."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from multisched.framework.durations import Durations, growing
from multisched.framework.ports import ObjectRef, VolumeReply, VolumeWriter
from multisched.model.version import Version

BUCKETS_S = growing(0.001, 2, 15)
"""1 ms to 16 s: one write, including its retries."""

RAISED = "error"


class CountedVolumeWriter:
    """A `framework.ports.VolumeWriter` that counts and times the writes of another one."""

    def __init__(self, inner: VolumeWriter, stopwatch: Callable[[], float]) -> None:
        """`stopwatch`: seconds of a monotonic clock."""
        self.durations: dict[tuple[str, str], Durations] = {}
        """(kind, answer) -> durations of the writes."""
        self._inner = inner
        self._stopwatch = stopwatch

    async def bind_volume(
        self, volume: ObjectRef, version: Version, claim: ObjectRef, *, claim_version: Version, is_by_scheduler: bool
    ) -> VolumeReply:
        write = self._inner.bind_volume(
            volume, version, claim, claim_version=claim_version, is_by_scheduler=is_by_scheduler
        )
        return await self._counted(volume.kind, write)

    async def select_node(self, claim: ObjectRef, version: Version, node: str) -> VolumeReply:
        return await self._counted(claim.kind, self._inner.select_node(claim, version, node))

    async def _counted(self, kind: str, write: Awaitable[VolumeReply]) -> VolumeReply:
        """Awaits and records one write. A write that raises or is cancelled counts as an error."""
        started_s, result = self._stopwatch(), RAISED
        try:
            reply = await write
            result = reply.answer.name.lower()
        finally:
            found = self.durations.setdefault((kind, result), Durations(BUCKETS_S))
            found.observe(self._stopwatch() - started_s)
        return reply
