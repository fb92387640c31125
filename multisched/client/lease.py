"""Leadership of one domain by a coordination.k8s.io Lease, judged by the local monotonic clock only.

Owns the elector and the lease's local deadline. Promises that `may_bind` turns false before another replica can rightly
hold the lease (I9), that only *changes* of the record count and no clock but ours, that no call can overrun the renew
deadline, and that stopping gives the lease back. The rules are client-go's (tools/leaderelection); the release, the
per-call deadlines and the waiting after an expired lease are ours. One task per domain runs `run()`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable, Mapping
from datetime import datetime
from enum import Enum, auto
from typing import Final

import anyio
import msgspec
import orjson

from multisched.client.lease_record import Expiry, LeaseRecord, RecordMetadata, lease_path, leases_path, read_record
from multisched.framework.ports import Clock
from multisched.model.wire import Response, Transport, TransportError

logger = logging.getLogger(__name__)

RETRY_JITTER: Final = 1.2
CALL_TIMEOUT_S: Final = 5.0
"""Of one call; less if the renew deadline is nearer."""
RELEASE_TIMEOUT_S: Final = 2.0
"""Of all tries together to give the lease back."""
RELEASE_PAUSE_S: Final = 0.2


class LeaseSettings(msgspec.Struct, frozen=True):
    """client-go's defaults and checks; `bind_deadline_s` is how long a bind of the former leader may still be on its way."""

    duration_s: float = 15.0
    renew_deadline_s: float = 10.0
    retry_period_s: float = 2.0
    bind_deadline_s: float = 5.0

    def __post_init__(self) -> None:
        if self.duration_s < 1 or self.duration_s != int(self.duration_s):
            raise ValueError(f"the lease duration is whole seconds, at least 1, got {self.duration_s}")
        if self.duration_s <= self.renew_deadline_s:
            raise ValueError(
                f"lease duration {self.duration_s} s must exceed the renew deadline {self.renew_deadline_s} s"
            )
        if self.retry_period_s <= 0 or self.renew_deadline_s <= RETRY_JITTER * self.retry_period_s:
            raise ValueError(
                f"the renew deadline {self.renew_deadline_s} s must exceed {RETRY_JITTER} x the retry period {self.retry_period_s} s"
            )
        if not 0 <= self.bind_deadline_s <= self.duration_s - self.renew_deadline_s:
            raise ValueError(
                f"the bind deadline {self.bind_deadline_s} s must fit between renew deadline and lease duration"
            )


class LeaseState(Enum):
    """Where the keeper stands."""

    STANDBY = auto()
    """Somebody else leads, or nobody knows."""
    LEADING = auto()
    """We hold the lease."""
    RELEASED = auto()
    """Stopped for good."""


class _NoAnswerError(Exception):
    """This try failed; there is another one in a retry period."""


class LeaseKeeper:
    """`ports.LeaseHolder` for one Lease object. `identity` must differ between any two processes."""

    def __init__(
        self,
        transport: Transport,
        *,
        namespace: str,
        name: str,
        identity: str,
        clock: Clock,
        rng: random.Random,
        settings: LeaseSettings | None = None,
        on_change: Callable[[LeaseState], None] | None = None,
        is_alive: Callable[[], bool] = lambda: True,
    ) -> None:
        """`on_change` hears of each change, on the loop that `run` is on. `is_alive`: False while who binds by the lease hangs;
        then it is neither taken nor renewed."""
        self._is_alive = is_alive
        self._transport = transport
        self._collection = leases_path(namespace)
        self._path = lease_path(namespace, name)
        self._name = name
        self._namespace = namespace
        self._identity = identity
        self._clock = clock
        self._rng = rng
        self._settings = settings if settings is not None else LeaseSettings()
        self._on_change = on_change
        self._state = LeaseState.STANDBY
        self._term = 0
        self._observed: LeaseRecord | None = None
        self._expiry = Expiry(clock, self._settings.duration_s)
        self._saw_another_holder = False
        self._renewed_at = -math.inf
        self._bind_from = math.inf
        self._alone_from = -math.inf
        """From then on nobody else binds by a lease that somebody deleted before we looked: we found none, and cannot know."""
        self._claim: bool | None = None
        """Set while a record in our name can only be our own: whether we took it from a holder that had let it expire."""
        self.annotations: Mapping[str, str] = {}
        """What every write of ours says besides, and the only thing: those of another holder do not outlive it."""
        self.inherited: Mapping[str, str] = {}
        """The annotations of the record that we took over."""
        self._stop = asyncio.Event()
        self._stopped = asyncio.Event()

    @property
    def state(self) -> LeaseState:
        return self._state

    @property
    def term(self) -> int:
        """Number of the present or last holding, from 1."""
        return self._term

    def may_bind(self) -> bool:
        """True from the end of the waiting after an expired lease until `renew_deadline_s` after the last renewal *began*.

        The difference to the lease's duration is the margin for the binds that are sent in the last moment (I9). May be called from
        another thread than `run` is in: what it reads is set before the state says that we lead.
        """
        return self.may_bind_if_new() and self._alone_from <= self._clock.monotonic()

    def may_bind_if_new(self) -> bool:
        """`may_bind`, if a lease that was not there when we first looked never was."""
        now = self._clock.monotonic()
        return self._state is LeaseState.LEADING and self._bind_from <= now < self._deadline()

    def may_bind_in_s(self) -> float:
        """Seconds until `may_bind` turns true by itself; 0 if it is, infinite while another leads."""
        if self._state is not LeaseState.LEADING:
            return math.inf
        return max(self._bind_from - self._clock.monotonic(), self.unseen_in_s(), 0.0)

    def unseen_in_s(self) -> float:
        """Seconds until nobody can bind any more by a lease that was deleted before we first looked; negative if nobody can."""
        return self._alone_from - self._clock.monotonic()

    @property
    def made_unseen_at(self) -> float:
        """When we began to make a lease that we had not found; minus infinite for any other."""
        return self._alone_from - self._settings.duration_s

    def count_as_new(self) -> None:
        """Nobody held the lease before it was made by us."""
        self._alone_from = -math.inf

    async def release(self) -> None:
        """Stops `run()`, which gives the lease back, so that a successor takes over at once. Binds must have ended before."""
        self._stop.set()
        await self._stopped.wait()

    async def run(self) -> None:
        """Competes for the lease until released or cancelled; a lost lease is reported and competed for again."""
        try:
            while not self._stop.is_set():
                if self._state is LeaseState.LEADING:
                    await self._hold()
                else:
                    await self._acquire()
        finally:
            await self._end()

    # ---- standing by

    async def _acquire(self) -> None:
        if not await self._try_once(CALL_TIMEOUT_S):
            await self._pause(self._standby_pause_s())

    def _standby_pause_s(self) -> float:
        """Half to one retry period, and never past the moment the lease we see runs out: the takeover waits for nobody."""
        pause_s = self._settings.retry_period_s * (1 - 0.5 * self._rng.random())
        if self._observed is None or not self._observed.spec.holder:
            return pause_s
        left_s = self._expiry.at_s(self._observed) - self._clock.monotonic()
        return min(pause_s, left_s) if left_s > 0 else pause_s

    def _lead(self, *, after_expiry: bool, started: float) -> None:
        """Who loses an expired lease and takes it back waits for its last holder's binds all the same."""
        wait_s = self._settings.bind_deadline_s if after_expiry else 0.0
        former_s = self._bind_from if self._term else float("-inf")
        self._bind_from = max(self._clock.monotonic() + wait_s, former_s)
        self._term += 1
        self._renewed_at = started
        logger.info("lease acquired", extra={"lease": self._name, "term": self._term, "after_expiry": after_expiry})
        self._enter(LeaseState.LEADING)

    # ---- leading

    async def _hold(self) -> None:
        """Renews until the deadline passes without a renewal, another holder appears, or we are stopped."""
        await self._pause(self._settings.retry_period_s)
        while not self._stop.is_set() and self._state is LeaseState.LEADING:
            remaining_s = self._deadline() - self._clock.monotonic()
            if remaining_s <= 0:
                self._lose("the renew deadline passed")
            elif await self._try_once(min(CALL_TIMEOUT_S, remaining_s)):
                return
            elif self._state is LeaseState.LEADING:
                remaining_s = self._deadline() - self._clock.monotonic()
                await self._pause(max(min(self._settings.retry_period_s, remaining_s), 0.0))

    def _deadline(self) -> float:
        return self._renewed_at + self._settings.renew_deadline_s

    def _lose(self, why: str) -> None:
        logger.error("lease lost", extra={"lease": self._name, "term": self._term, "why": why})
        self._claim = False  # what we may still have on its way is in our own cache
        self._enter(LeaseState.STANDBY)

    def _enter(self, state: LeaseState) -> None:
        assert self._state is not LeaseState.RELEASED, "a released lease is not taken up again"
        self._state = state
        if self._on_change is not None:
            self._on_change(state)

    # ---- one try

    async def _try_once(self, timeout_s: float) -> bool:
        """Creates, takes or renews the lease once, all calls together within `timeout_s`. True if we hold it now."""
        if not self._is_alive():
            logger.error("the program hangs; its lease is left to run out", extra={"lease": self._name})
            return False
        with anyio.move_on_after(timeout_s):
            try:
                return await self._take_or_renew(timeout_s)
            except (_NoAnswerError, TransportError) as error:
                logger.info("lease call failed", extra={"lease": self._name, "error": str(error)})
        return False

    async def _take_or_renew(self, timeout_s: float) -> bool:
        started = self._clock.monotonic()
        if self._state is LeaseState.LEADING and self._observed is not None:
            # The usual case costs one call. A refusal (409) means only that our picture is old.
            response = await self._write(self._observed, timeout_s)
            if response.status == 200:
                self._renewed(response, started)
                return True
        lease = await self._read(timeout_s)
        started = self._clock.monotonic()
        if lease is None:
            return self._may_create() and await self._create(timeout_s, started)
        is_free = self._is_free(lease)
        if self._state is LeaseState.LEADING and lease.spec.holder not in (None, "", self._identity):
            self._lose(f"held by {lease.spec.holder!r}"[:256])
            return False
        if not is_free:
            return False
        return await self._write_and_lead(lease, timeout_s, started)

    async def _write_and_lead(self, lease: LeaseRecord, timeout_s: float, started: float) -> bool:
        if self._claim is None:
            self._claim = bool(lease.spec.holder)
        after_expiry = self._claim
        inherited = lease.metadata.annotations
        response = await self._write(lease, timeout_s)
        if response.status != 200:
            return False
        self._renewed(response, started)
        if self._state is not LeaseState.LEADING:
            self.inherited = inherited
            self._lead(after_expiry=after_expiry, started=started)
        return True

    def _renewed(self, response: Response, started: float) -> None:
        self._observe(self._decode(response))
        self._renewed_at = started

    def _is_free(self, lease: LeaseRecord) -> bool:
        """True if the record is ours, given back, or unchanged before our eyes for its whole duration.

        Ours means this process's: a former one under the same name counts as another holder.
        """
        self._observe(lease)
        holder = lease.spec.holder or ""
        if not holder or (holder == self._identity and self._state is LeaseState.LEADING):
            return True
        if holder == self._identity and self._claim is not None:
            return True
        self._claim = None
        self._saw_another_holder = True
        return self._clock.monotonic() >= self._expiry.at_s(lease)

    def _observe(self, lease: LeaseRecord) -> None:
        self._expiry.saw(lease.spec)
        self._observed = lease

    # ---- calls

    async def _read(self, timeout_s: float) -> LeaseRecord | None:
        response = await self._transport.request("GET", self._path, timeout_s=timeout_s)
        if response.status == 404:
            return None
        if response.status != 200:
            raise _NoAnswerError(f"GET answered {response.status}")
        return self._decode(response)

    def _may_create(self) -> bool:
        """A lease that somebody deleted counts as held for its whole duration: its holder may not know, and bind by it.

        Whoever held it when it was last seen: while we do not lead, somebody may have taken it since (found by simulation; I9).
        """
        if self._observed is None or self._state is LeaseState.LEADING:
            return True
        self._expiry.saw(None)
        return self._clock.monotonic() >= self._expiry.at_s(self._observed)

    async def _create(self, timeout_s: float, started: float) -> bool:
        """As when an expired lease is taken, if others have held it: their last binds may be on their way.

        Of one that we never saw only the program can say whether there was one (`count_as_new`); until it does, its time is waited for.
        """
        body = self._body(
            LeaseRecord(RecordMetadata()), holder=self._identity, duration_s=int(self._settings.duration_s)
        )
        if self._claim is None:
            self._claim = self._saw_another_holder
        if self._observed is None:
            self._alone_from = started + self._settings.duration_s
        path = f"{self._collection}{_deadline_query(timeout_s)}"
        response = await self._transport.request("POST", path, body=body, timeout_s=timeout_s)
        if response.status != 201:
            return False
        self._renewed(response, started)
        if self._state is not LeaseState.LEADING:
            self._lead(after_expiry=self._claim, started=started)
        return True

    async def _write(self, lease: LeaseRecord, timeout_s: float) -> Response:
        body = self._body(lease, holder=self._identity, duration_s=int(self._settings.duration_s))
        path = f"{self._path}{_deadline_query(timeout_s)}"
        response = await self._transport.request("PUT", path, body=body, timeout_s=timeout_s)
        if response.status not in (200, 404, 409):
            raise _NoAnswerError(f"PUT answered {response.status}")
        return response

    def _decode(self, response: Response) -> LeaseRecord:
        record = read_record(response)
        if record is None:
            raise _NoAnswerError("the answer is no Lease")
        return record

    def _body(self, lease: LeaseRecord, *, holder: str, duration_s: int) -> bytes:
        now = micro_time(self._clock.now())
        is_ours = lease.spec.holder == self._identity and self._state is LeaseState.LEADING
        transitions = lease.spec.transitions or 0
        is_first = not lease.metadata.version
        metadata: dict[str, object] = {
            "name": self._name,
            "namespace": self._namespace,
            "resourceVersion": lease.metadata.version,
            "annotations": dict(self.annotations),
        }
        if is_first:
            del metadata["resourceVersion"]
        spec = {
            "holderIdentity": holder,
            "leaseDurationSeconds": duration_s,
            "acquireTime": lease.spec.acquire_time if is_ours and lease.spec.acquire_time else now,
            "renewTime": now,
            "leaseTransitions": transitions if is_ours or is_first else transitions + 1,
        }
        return orjson.dumps(
            {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
        )

    # ---- end

    async def _end(self) -> None:
        """Gives the lease back if we were told to release it: the one bounded call that cancellation must not stop.

        One that is only cancelled runs out instead: binds may be on their way, and a successor of a lease that was given
        back does not wait for them (found by simulation; I2).
        """
        was_leading = self._state is LeaseState.LEADING and self._stop.is_set()
        self._bind_from = math.inf
        if was_leading and self._observed is not None:
            is_free = False
            with anyio.CancelScope(shield=True), anyio.move_on_after(RELEASE_TIMEOUT_S):
                is_free = await self._give_back(self._observed)
                while not is_free:
                    await asyncio.sleep(RELEASE_PAUSE_S)
                    is_free = await self._read_and_give_back()
            if not is_free:
                logger.warning("lease not released, it runs out", extra={"lease": self._name})
        self._enter(LeaseState.RELEASED)
        self._stopped.set()

    async def _read_and_give_back(self) -> bool:
        """Once more, from what the server has now: a renewal of ours whose answer was lost has moved the version."""
        try:
            lease = await self._read(RELEASE_TIMEOUT_S)
        except (_NoAnswerError, TransportError):
            return False
        if lease is None or lease.spec.holder != self._identity:
            return True
        return await self._give_back(lease)

    async def _give_back(self, lease: LeaseRecord) -> bool:
        """True if the server has taken it."""
        body = self._body(lease, holder="", duration_s=1)
        try:
            response = await self._transport.request("PUT", self._path, body=body, timeout_s=RELEASE_TIMEOUT_S)
        except TransportError as error:
            logger.info("lease call failed", extra={"lease": self._name, "error": str(error)})
            return False
        return response.status == 200

    async def _pause(self, delay_s: float) -> None:
        """Sleeps, unless stopped."""
        with anyio.move_on_after(delay_s):
            await self._stop.wait()


def micro_time(moment: datetime) -> str:
    """Kubernetes MicroTime: always UTC, always six digits."""
    return moment.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"  # a third of strftime's time


def _deadline_query(timeout_s: float) -> str:
    """A write that the server takes up later than we wait for must not land."""
    return f"?timeout={max(int(timeout_s * 1000), 1)}ms"
