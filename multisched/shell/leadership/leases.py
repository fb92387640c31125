"""The leases of this process, one per group of domains (`config/nodes.py:lease_groups`), as seen by the program's event loop.

Owns the keepers, and for each group whether the lease is held according to the latest notification. A notification arrives later
than the keeper's change, so code that binds checks the keeper's term. `LeaseRunner` decides where leases are renewed.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Final

import anyio

from multisched.client.history import History
from multisched.client.lease import LeaseKeeper, LeaseTurns
from multisched.client.lease_record import LeaseWatcher
from multisched.client.lease_term import LeaseSettings, LeaseState, LeaseTerm
from multisched.config.nodes import lease_groups_of
from multisched.config.schema import Configuration
from multisched.framework.ports import Clock, LeaseHolder
from multisched.model.wire import Transport
from multisched.shell.domain import DomainWorker
from multisched.shell.leadership.lease_runner import LeaseRunner

logger = logging.getLogger(__name__)

FIRST_S: Final = 0.5
"""Maximum time that the first list waits for free leases. If this process holds them before the list, no second list is needed."""
LOOK_MIN_S: Final = 0.05
LOOK_MAX_S: Final = 1.0
"""Bounds of the interval between checks of a lease that is held but does not allow binds yet."""


class _Always(LeaseHolder):
    """Permanent leadership, for configurations without leases (a single process)."""

    def may_bind(self) -> bool:
        return True


class _Trusting(LeaseHolder):
    """A lease that allows no binds while the API server's history is in doubt."""

    def __init__(self, lease: LeaseHolder, history: History) -> None:
        self._lease = lease
        self._history = history

    def may_bind(self) -> bool:
        return self._history.is_trusted and self._lease.may_bind()


class Leases:
    """One lease per group of domains. Empty if leases are disabled: then only one process may run."""

    def __init__(
        self,
        configuration: Configuration,
        runner: LeaseRunner,
        clock: Clock,
        rng: random.Random,
        history: History,
        *,
        identity: str,
        namespace: str,
        on_lost: Callable[[str], None],
    ) -> None:
        """`rng`: seeds each keeper. `on_lost`: called with a group at each notification that its lease is not held."""
        self.keepers: dict[str, LeaseKeeper] = {}
        """Group -> keeper of its lease."""
        self._configuration = configuration
        self._runner = runner
        self._clock = clock
        self._rng = rng
        self._history = history
        self._identity = identity
        self._namespace = namespace
        self._on_lost = on_lost
        self._turns = LeaseTurns() if configuration.lease.spread else None
        self._groups: Mapping[str, str] = lease_groups_of(configuration)
        self._held: dict[str, asyncio.Event] = {}
        self._lost: dict[str, asyncio.Event] = {}
        """Per group; set according to the latest notification."""

    def holder_of(self, domain: str) -> LeaseHolder:
        """Returns the lease under which the domain may bind. Creates the keeper of a group at the first call."""
        return _Trusting(self._term_of(domain), self._history)

    def get(self, domain: str) -> LeaseTerm | None:
        """Returns the lease term of a domain, or None without leases."""
        keeper = self.keeper_of(domain)
        return None if keeper is None else keeper.term

    def keeper_of(self, domain: str) -> LeaseKeeper | None:
        """Returns the lease keeper of a domain, or None without leases."""
        return self.keepers.get(self._groups.get(domain, ""))

    def watcher_of(self, transport: Transport, domain: str) -> LeaseWatcher | None:
        """Returns a new watcher of the domain's lease, or None without leases or for an unknown domain."""
        settings, group = self._configuration.lease, self._groups.get(domain, "")
        if not settings.enabled or not group:
            return None
        return LeaseWatcher(
            transport,
            self._clock,
            self._namespace,
            f"{settings.name_prefix}-{group}",
            duration_s=settings.duration_s,
            grace_s=self._configuration.client.bind_timeout_s,
        )

    def answers_at(self, address: str) -> None:
        """Sets the address that held leases publish. `address`: a base URL."""
        for keeper in self.keepers.values():
            keeper.address = address

    def held(self) -> dict[str, bool]:
        """Returns whether this process holds each Lease, by the name of the Lease."""
        prefix = self._configuration.lease.name_prefix
        return {f"{prefix}-{group}": keeper.term.is_leading for group, keeper in self.keepers.items()}

    def may_be_bound_by(self) -> Iterator[str]:
        """Returns the groups whose leases allow binds now if leases that were missing at the start never existed before."""
        return (group for group, keeper in self.keepers.items() if keeper.term.may_bind_if_new())

    async def run(self) -> None:
        """Competes for all leases until each was released."""
        await self._runner.run(list(self.keepers.values()))

    async def try_all(self) -> None:
        """Waits up to FIRST_S for free leases. A list that begins after that is new enough to bind with."""
        with anyio.move_on_after(FIRST_S):
            for held in self._held.values():
                await held.wait()

    async def until_held(self, domain: str) -> None:
        """Waits for the notification that the lease is held. The lease may already be lost again when it arrives."""
        await self._held[self._groups[domain]].wait()

    async def until_may_bind(self, domain: str, lease: LeaseTerm) -> None:
        """Waits until the domain's lease allows binds. `lease`: the domain's term."""
        while not lease.may_bind():
            await anyio.sleep(min(max(lease.may_bind_in_s(), LOOK_MIN_S), LOOK_MAX_S))
            await self.until_held(domain)

    async def until_lost(self, domain: str) -> None:
        await self._lost[self._groups[domain]].wait()

    async def release(self, workers: Collection[DomainWorker]) -> None:
        """Releases the leases that have no binds in flight. `workers`: all workers of the program."""
        for group, keeper in self.keepers.items():
            if all(worker.is_drained for worker in workers if self._groups[worker.name] == group):
                await self._runner.release(keeper)
            else:
                logger.warning("lease not released, it will expire: binds are in flight", extra={"group": group})

    def _term_of(self, domain: str) -> LeaseHolder:
        settings = self._configuration.lease
        if not settings.enabled:
            return _Always()
        group = self._groups[domain]
        keeper = self.keepers.get(group)
        if keeper is None:
            self._held[group], self._lost[group] = asyncio.Event(), asyncio.Event()
            keeper = self.keepers[group] = LeaseKeeper(
                self._runner.transport,
                namespace=self._namespace,
                name=f"{settings.name_prefix}-{group}",
                identity=self._identity,
                clock=self._clock,
                rng=random.Random(self._rng.random()),  # noqa: S311 - jitter, not a secret
                settings=LeaseSettings(
                    settings.duration_s,
                    settings.renew_deadline_s,
                    settings.retry_period_s,
                    self._configuration.client.bind_timeout_s,
                ),
                on_change=partial(self._runner.call_on_loop, self._changed, group),
                is_alive=self._runner.is_alive,
                turns=self._turns,
            )
        return keeper.term

    def _changed(self, group: str, state: LeaseState) -> None:
        held, lost = self._held[group], self._lost[group]
        # The release of a lease that was never held is not logged.
        if state is not LeaseState.RELEASED or held.is_set():
            logger.info("lease", extra={"group": group, "state": state.name})
        if state is LeaseState.LEADING:
            lost.clear()
            held.set()
        else:
            held.clear()
            lost.set()
            self._on_lost(group)
