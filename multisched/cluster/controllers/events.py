"""Events of controllers, as `kubectl describe` shows them: one per object, reason and message, with a count of repetitions.

Owns the queue of events to write. Recording never waits. An event is dropped if its object has too many; if the queue is full, the
oldest one is dropped. The objects' status has the same information.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict, deque
from dataclasses import dataclass

from multisched.cluster.client.object_client import EVENTS, Document, ObjectClient, RefusedError, Resource, WallClock
from multisched.model.api_time import timestamp
from multisched.model.wire import TransportError

logger = logging.getLogger(__name__)

WAITING_EVENTS_MAX = 4_096
BURST_PER_OBJECT, REFILL_S = 25, 300.0
"""Burst of events per object, and seconds until one more is allowed; the same as client-go's spam filter."""
OBJECTS_COUNTED_MAX = 4_096
_EXISTS = 409


@dataclass(slots=True)
class _Allowance:
    left: float
    at_s: float


class EventRecorder:
    """Writes the events of all controllers of one run, one after the other."""

    def __init__(self, client: ObjectClient, clock: WallClock) -> None:
        self._client = client
        self._clock = clock
        self._waiting: deque[Document] = deque(maxlen=WAITING_EVENTS_MAX)
        self._has_waiting = asyncio.Event()
        self._allowances: OrderedDict[str, _Allowance] = OrderedDict()

    def writer(self, component: str) -> EventWriter:
        """Returns a writer for the events of this component."""
        return EventWriter(self, component)

    async def run(self) -> None:
        """Writes queued events until cancelled."""
        while True:
            await self._has_waiting.wait()
            self._has_waiting.clear()
            while self._waiting:
                try:
                    await self._write(self._waiting.popleft())
                except (RefusedError, TransportError) as error:
                    logger.info("event lost", extra={"error": str(error)})

    def add(self, event: Document) -> None:
        """Queues an event, unless its object exceeds its rate limit."""
        if self._may_have_one_more(event["involvedObject"]["uid"]):
            now = timestamp(self._clock.now())
            self._waiting.append({**event, "firstTimestamp": now, "lastTimestamp": now, "count": 1})
            self._has_waiting.set()

    def _may_have_one_more(self, uid: str) -> bool:
        now_s = asyncio.get_running_loop().time()
        allowance = self._allowances.setdefault(uid, _Allowance(BURST_PER_OBJECT, now_s))
        self._allowances.move_to_end(uid)
        if len(self._allowances) > OBJECTS_COUNTED_MAX:
            self._allowances.popitem(last=False)
        allowance.left = min(BURST_PER_OBJECT, allowance.left + (now_s - allowance.at_s) / REFILL_S)
        allowance.at_s = now_s
        if allowance.left < 1:
            return False
        allowance.left -= 1
        return True

    async def _write(self, event: Document) -> None:
        namespace, name = event["metadata"]["namespace"], event["metadata"]["name"]
        if (await self._client.create(EVENTS, namespace, event)).status != _EXISTS:
            return
        known = await self._client.get(EVENTS, namespace, name)
        if known.is_success:
            count = int(known.document.get("count") or 0) + 1
            body = {"count": count, "lastTimestamp": event["lastTimestamp"]}
            await self._client.patch(EVENTS, namespace, name, body=body)


class EventWriter:
    """Records the events of one component."""

    def __init__(self, recorder: EventRecorder, component: str) -> None:
        self._recorder = recorder
        self._component = component

    def record(self, resource: Resource, about: Document, kind: str, reason: str, message: str) -> None:
        """Records an event about an object; `kind` is Normal or Warning."""
        metadata = about["metadata"]
        digest = hashlib.sha256("\0".join((metadata["uid"], self._component, kind, reason, message)).encode())
        self._recorder.add(
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {
                    "name": f"{metadata['name']}.{digest.hexdigest()[:16]}",
                    "namespace": metadata.get("namespace") or "default",
                },
                "involvedObject": {
                    "apiVersion": resource.api_version,
                    "kind": resource.kind,
                    **{field: metadata[field] for field in ("namespace", "name", "uid") if metadata.get(field)},
                },
                "reason": reason,
                "message": message,
                "type": kind,
                "source": {"component": self._component},
            }
        )
