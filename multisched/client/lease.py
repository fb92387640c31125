"""Leadership of one domain by a coordination.k8s.io Lease: competes for it, renews it, releases it.

Owns the elector. `LeaseTerm` holds the state of our own lease and its deadline, `ObservedLease` what was seen of the
record. No call can exceed the renew deadline, and stopping releases the lease. The rules are client-go's
(tools/leaderelection); the release, the deadlines per call and the wait after an expired lease are additions. One task
per lease runs `run()`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import anyio

from multisched.client.lease_calls import LeaseCalls, NoAnswerError
from multisched.client.lease_record import ADDRESS_ANNOTATION, LeaseRecord
from multisched.client.lease_term import LeaseSettings, LeaseState, LeaseTerm
from multisched.client.observed_lease import ObservedLease
from multisched.client.recurring_trouble import RecurringTrouble
from multisched.framework.ports import Clock
from multisched.model.wire import Transport, TransportError

logger = logging.getLogger(__name__)

CALL_TIMEOUT_S: Final = 5.0
"""Deadline of one call; less if the renew deadline is nearer."""
RELEASE_TIMEOUT_S: Final = 2.0
"""Deadline of all tries together to release the lease."""
RELEASE_PAUSE_S: Final = 0.2
NOT_RENEWED: Final = "the program hangs; its lease is not renewed"


class LeaseTurns:
    """The leases that one process holds, or is about to take. Used by all its keepers, on one loop."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def begin(self, name: str, *, is_patient: bool) -> bool:
        """Notes that a lease is about to be taken. If `is_patient` and there is another one, returns False and notes nothing."""
        if is_patient and self._names - {name}:
            return False
        self._names.add(name)
        return True

    def end(self, name: str) -> None:
        self._names.discard(name)


class LeaseKeeper:
    """Keeps one Lease object. `identity` must be unique among processes."""

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
        turns: LeaseTurns | None = None,
    ) -> None:
        """`on_change` is called at each change, on the loop that `run` is on. `is_alive`: False while the part of the
        program that binds by the lease hangs; the lease is then neither taken nor renewed. `turns`: shared by all keepers of a
        process that leaves free leases to others; None: every free lease is taken at once.
        """
        self._turns = turns
        self._is_alive = is_alive
        self._name = name
        self._identity = identity
        self._clock = clock
        self._rng = rng
        self._settings = settings if settings is not None else LeaseSettings()
        self._on_change = on_change
        self.term = LeaseTerm(clock, self._settings)
        self._observed = ObservedLease(clock, identity, self._settings.duration_s)
        self._calls = LeaseCalls(
            transport, clock, namespace=namespace, name=name, identity=identity, duration_s=self._settings.duration_s
        )
        self.annotations: Mapping[str, str] = {}
        """Annotations that every write sets; together with `address` it sets no others, so those of another holder are removed."""
        self.address = ""
        """The address of this process for requests from other replicas; empty if it serves none."""
        self.inherited: Mapping[str, str] = {}
        """The annotations of the record that this process took over."""
        self._free_from_s = math.inf
        """Since when the lease has been seen free."""
        self._standby_logged = ""
        self._trouble = RecurringTrouble(clock)
        self._stop = asyncio.Event()
        self._stopped = asyncio.Event()

    @property
    def held(self) -> LeaseRecord | None:
        """The lease as it was last seen, if it is held. Usable from any thread."""
        return self._observed.held

    @property
    def runs_out_in_s(self) -> float | None:
        """Seconds until the lease last seen can be taken unless it is renewed; None if it is not held. Usable from any thread."""
        return self._observed.runs_out_in_s()

    async def release(self) -> None:
        """Stops `run()`, which releases the lease, so that a successor takes over at once. The caller must have ended all binds."""
        self._stop.set()
        await self._stopped.wait()

    async def run(self) -> None:
        """Competes for the lease until released or cancelled; after a loss reports it and competes again."""
        try:
            while not self._stop.is_set():
                if self.term.is_leading:
                    await self._hold()
                else:
                    await self._acquire()
        finally:
            await self._end()

    # ---- standby

    async def _acquire(self) -> None:
        if not await self._try_once(CALL_TIMEOUT_S):
            await self._pause(self._standby_pause_s())

    def _standby_pause_s(self) -> float:
        """Returns half to one retry period, but at most the time until the observed lease expires, so that the takeover
        is not delayed.
        """
        pause_s = self._settings.retry_period_s * (1 - 0.5 * self._rng.random())
        left_s = self._observed.runs_out_in_s()
        return pause_s if left_s is None or left_s <= 0 else min(pause_s, left_s)

    def _lead(self, *, after_expiry: bool, started: float) -> None:
        self._standby_logged = ""
        self.term.begin(after_expiry=after_expiry, started=started)
        fields = {"lease": self._name, "term": self.term.number, "after_expiry": after_expiry}
        logger.info("lease acquired", extra=fields)
        self._enter(LeaseState.LEADING)

    # ---- leading

    async def _hold(self) -> None:
        """Renews until the deadline passes without a renewal, another holder appears, or a stop is requested."""
        await self._pause(self._settings.retry_period_s)
        while not self._stop.is_set() and self.term.is_leading:
            remaining_s = self.term.remaining_s()
            if remaining_s <= 0:
                self._lose("the renew deadline passed")
            elif await self._try_once(min(CALL_TIMEOUT_S, remaining_s)):
                return
            elif self.term.is_leading:
                remaining_s = self.term.remaining_s()
                await self._pause(max(min(self._settings.retry_period_s, remaining_s), 0.0))

    def _lose(self, why: str) -> None:
        logger.error("lease lost", extra={"lease": self._name, "term": self.term.number, "why": why})
        self._observed.lost()
        if self._turns is not None:
            self._turns.end(self._name)
        self._enter(LeaseState.STANDBY)

    def _enter(self, state: LeaseState) -> None:
        self.term.enter(state)
        if self._on_change is not None:
            self._on_change(state)

    # ---- one try

    async def _try_once(self, timeout_s: float) -> bool:
        """Creates, takes or renews the lease once, all calls together within `timeout_s`. Returns whether it is held now."""
        if not self._is_alive():
            if self._trouble.is_due(NOT_RENEWED):
                logger.error(NOT_RENEWED, extra={"lease": self._name, "for_s": self._trouble.lasts_s})
            return False
        with anyio.move_on_after(timeout_s):
            try:
                is_held = await self._take_or_renew(timeout_s)
            except NoAnswerError as error:
                self._say_failed(logging.WARNING, error, error.fix)
            except TransportError as error:
                self._say_failed(logging.INFO, error)
            else:
                self._trouble.over()
                return is_held
        return False

    def _say_failed(self, level: int, error: Exception, fix: str = "") -> None:
        """Logs a failed try, of which there is one in each retry period: at once if the error changed, else at growing intervals."""
        if self._trouble.is_due(str(error)):
            fields = {"lease": self._name, "error": str(error)}
            logger.log(level, "lease call failed", extra={**fields, "fix": fix} if fix else fields)

    async def _take_or_renew(self, timeout_s: float) -> bool:
        started = self._clock.monotonic()
        if self.term.is_leading and self._observed.record is not None:
            # The usual case costs one call. A refusal (409) only means that the observed record is old.
            renewed = await self._replace(self._observed.record, timeout_s)
            if renewed is not None:
                self._renewed(renewed, started)
                return True
        lease = await self._calls.read(timeout_s)
        started = self._clock.monotonic()
        if lease is None:
            if not self._observed.may_be_created(is_leading=self.term.is_leading):
                self._stand_by("it was deleted; waiting until the last holder's lease would have expired")
                return False
            return await self._in_turn(started, lambda: self._create(timeout_s, started))
        is_free = self._observed.is_free(lease, is_leading=self.term.is_leading)
        if self.term.is_leading and lease.spec.holder not in (None, "", self._identity):
            self._lose(f"held by {lease.spec.holder!r}"[:256])
            return False
        if not is_free:
            self._free_from_s = math.inf
            self._stand_by(f"held by {lease.spec.holder!r}"[:256])
            return False
        return await self._in_turn(started, lambda: self._write_and_lead(lease, timeout_s, started))

    async def _in_turn(self, now_s: float, take: Callable[[], Awaitable[bool]]) -> bool:
        """Takes a free lease, or leaves it to other processes for a lease duration if this one holds another or is about to."""
        self._free_from_s = min(self._free_from_s, now_s)
        is_patient = now_s < self._free_from_s + self._settings.duration_s
        if self._turns is None or self.term.is_leading:
            return await take()
        if not self._turns.begin(self._name, is_patient=is_patient):
            self._stand_by("it is free, and left to another process for a while, since this one holds another lease")
            return False
        is_held = False
        try:
            is_held = await take()
        finally:
            if not is_held:
                self._turns.end(self._name)
        return is_held

    def _stand_by(self, why: str) -> None:
        """Logs each reason once, until this process has led."""
        if why != self._standby_logged:
            self._standby_logged = why
            logger.info("standing by", extra={"lease": self._name, "why": why})

    async def _write_and_lead(self, lease: LeaseRecord, timeout_s: float, started: float) -> bool:
        after_expiry = self._observed.claim(lease)
        inherited = lease.metadata.annotations
        written = await self._replace(lease, timeout_s)
        if written is None:
            return False
        self._renewed(written, started)
        if not self.term.is_leading:
            self.inherited = inherited
            self._lead(after_expiry=after_expiry, started=started)
        return True

    async def _create(self, timeout_s: float, started: float) -> bool:
        """Creates the lease. If another process has held it, this counts as taking an expired lease: that one's last
        binds may be in flight.

        If we never saw the lease, we cannot tell whether there was one before. The program may find out that there was
        none (`LeaseTerm.count_as_new`); until then binds wait for the lease duration.
        """
        after_expiry = self._observed.claim(None)
        if self._observed.record is None:
            self.term.note_creation(started)
        made = await self._calls.create(self._said(), timeout_s)
        if made is None:
            return False
        self._renewed(made, started)
        if not self.term.is_leading:
            self._lead(after_expiry=after_expiry, started=started)
        return True

    async def _replace(self, lease: LeaseRecord, timeout_s: float) -> LeaseRecord | None:
        return await self._calls.replace(lease, self._said(), timeout_s, is_ours=self.term.is_leading)

    def _said(self) -> Mapping[str, str]:
        return {**self.annotations, ADDRESS_ANNOTATION: self.address} if self.address else self.annotations

    def _renewed(self, record: LeaseRecord, started: float) -> None:
        self._observed.saw(record)
        self.term.renewed(started)

    # ---- end

    async def _end(self) -> None:
        """Releases the lease if a release was requested: one bounded call that cancellation must not interrupt.

        If the keeper was only cancelled, its lease expires, because binds may be in flight: the successor of a released
        lease does not wait for them (found by simulation; I2).
        """
        was_leading = self.term.is_leading and self._stop.is_set()
        self.term.close()
        if was_leading and self._observed.record is not None:
            is_free = False
            with anyio.CancelScope(shield=True), anyio.move_on_after(RELEASE_TIMEOUT_S):
                is_free = await self._release(self._observed.record)
                while not is_free:
                    await asyncio.sleep(RELEASE_PAUSE_S)
                    is_free = await self._read_and_release()
            if not is_free:
                logger.warning("lease not released; it will expire", extra={"lease": self._name})
        self._enter(LeaseState.RELEASED)
        self._stopped.set()

    async def _read_and_release(self) -> bool:
        """Releases the record that the server has now: a renewal without a response may have changed its version."""
        try:
            lease = await self._calls.read(RELEASE_TIMEOUT_S)
        except (NoAnswerError, TransportError):
            return False
        if lease is None or lease.spec.holder != self._identity:
            return True
        return await self._release(lease)

    async def _release(self, lease: LeaseRecord) -> bool:
        return await self._calls.release(lease, self.annotations, RELEASE_TIMEOUT_S, is_ours=self.term.is_leading)

    async def _pause(self, delay_s: float) -> None:
        """Sleeps until a stop is requested, at most `delay_s`."""
        with anyio.move_on_after(delay_s):
            await self._stop.wait()
