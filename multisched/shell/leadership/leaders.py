"""Who leads each domain, for whoever asks a replica that does not: from its own leases, and from what it saw of those of others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from multisched.client.lease_record import ADDRESS_ANNOTATION, LeaseRecord
from multisched.framework.leading import Leader, LedElsewhere
from multisched.model.server_url import scheme_of
from multisched.shell.domain import DomainWorker
from multisched.shell.leadership.leases import Leases

NAME_CHARS_MAX: Final = 256
"""Of what others wrote into a Lease."""


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
        return LedElsewhere(domain, _leader(record))

    def _decides(self, domain: str) -> bool:
        """Whether it has been taken over, and decides by now."""
        return any(worker.name == domain and worker.is_leading for worker in self._workers())


def _leader(record: LeaseRecord) -> Leader:
    address = record.metadata.annotations.get(ADDRESS_ANNOTATION, "")
    is_address = len(address) <= NAME_CHARS_MAX and scheme_of(address)
    return Leader(
        (record.spec.holder or "")[:NAME_CHARS_MAX],
        address if is_address else "",
        (record.spec.acquire_time or "")[:NAME_CHARS_MAX],
    )
