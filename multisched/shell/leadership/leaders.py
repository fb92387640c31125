"""Finds the leader of each domain, for requests to a replica that does not lead it, from the observed Leases."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from multisched.client.lease_record import leader_of
from multisched.framework.leading import NotLedHere
from multisched.shell.domain import DomainWorker
from multisched.shell.leadership.leases import Leases


class Leaders:
    """The leaders of all domains, as seen by this process."""

    def __init__(self, leases: Leases, identity: str, workers: Callable[[], Iterable[DomainWorker]]) -> None:
        """`workers`: returns the workers of all domains."""
        self._leases = leases
        self._identity = identity
        self._workers = workers

    def elsewhere(self, domain: str) -> NotLedHere | None:
        """Returns the other leader of a domain, or None if this process leads it or there are no leases.

        Implements `framework.leading.FindLeader`.
        """
        keeper = self._leases.keeper_of(domain)
        if keeper is None:
            return None
        if keeper.term.is_leading:
            return None if self._decides(domain) else NotLedHere(domain, is_taken_over=True)
        record = keeper.held
        if record is None or record.spec.holder == self._identity:
            return NotLedHere(domain)
        return NotLedHere(domain, leader_of(record), runs_out_in_s=keeper.runs_out_in_s)

    def _decides(self, domain: str) -> bool:
        """Reports whether this process has completed the takeover of the domain."""
        return any(worker.name == domain and worker.is_leading for worker in self._workers())
