"""Who leads each domain, for whoever asks a replica that does not: from its own leases, and from what it saw of those of others."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from multisched.client.lease_record import leader_of
from multisched.framework.leading import LedElsewhere
from multisched.shell.domain import DomainWorker
from multisched.shell.leadership.leases import Leases


class Leaders:
    """As one process knows them."""

    def __init__(self, leases: Leases, identity: str, workers: Callable[[], Iterable[DomainWorker]]) -> None:
        """`workers`: of all domains."""
        self._leases = leases
        self._identity = identity
        self._workers = workers

    def elsewhere(self, domain: str) -> LedElsewhere | None:
        """None: this process leads it, or there are no leases. Implements `framework.leading.FindLeader`."""
        keeper = self._leases.keeper_of(domain)
        if keeper is None:
            return None
        if keeper.term.is_leading:
            return None if self._decides(domain) else LedElsewhere(domain, is_taken_over=True)
        record = keeper.held
        if record is None or record.spec.holder == self._identity:
            return LedElsewhere(domain)
        return LedElsewhere(domain, leader_of(record), runs_out_in_s=keeper.runs_out_in_s)

    def _decides(self, domain: str) -> bool:
        """Whether it has been taken over, and decides by now."""
        return any(worker.name == domain and worker.is_leading for worker in self._workers())
