"""A lease's record as seen by one process, which decides from it whether it may take the lease.

Only *changes* of the record and the local clock count. Owns the latest record, its expiry, and whether the holder was another process.
"""

from __future__ import annotations

from multisched.client.lease_record import Expiry, LeaseRecord
from multisched.framework.ports import Clock


class ObservedLease:
    """Observations of the process `identity`. `duration_s`: used for a record without a duration."""

    def __init__(self, clock: Clock, identity: str, duration_s: float) -> None:
        self.record: LeaseRecord | None = None
        """The record last seen; it may have been deleted since."""
        self._clock = clock
        self._identity = identity
        self._expiry = Expiry(clock, duration_s)
        self._saw_another_holder = False
        self._claim: bool | None = None
        """Set while a record with our identity can only be our own: True if we took it from a holder that had let it expire."""

    def saw(self, record: LeaseRecord) -> None:
        self._expiry.saw(record.spec)
        self.record = record

    def is_free(self, record: LeaseRecord, *, is_leading: bool) -> bool:
        """Returns whether the record is ours, released, or unchanged for its whole duration while we watched.

        Ours means this process: a former process with the same identity counts as another holder.
        """
        self.saw(record)
        holder = record.spec.holder or ""
        if not holder or (holder == self._identity and is_leading):
            return True
        if holder == self._identity and self._claim is not None:
            return True
        self._claim = None
        self._saw_another_holder = True
        return self._clock.monotonic() >= self._expiry.at_s(record)

    def may_be_created(self, *, is_leading: bool) -> bool:
        """Returns whether a missing lease may be created. A deleted one counts as held for its whole duration: its
        holder may not have seen the deletion and may still bind.

        This applies even if this process held the lease when it was last seen: while it does not lead, another process may
        have acquired the lease since (found by simulation; I9).
        """
        if self.record is None or is_leading:
            return True
        self._expiry.saw(None)
        return self._clock.monotonic() >= self._expiry.at_s(self.record)

    def claim(self, record: LeaseRecord | None) -> bool:
        """Notes that we write our identity into the record, or create one (None); returns whether a former holder had
        let it expire.
        """
        if self._claim is None:
            self._claim = self._saw_another_holder if record is None else bool(record.spec.holder)
        return self._claim

    def lost(self) -> None:
        """Notes that we lost the lease. Our binds in flight are in our own cache, so a record with our identity still
        counts as ours.
        """
        self._claim = False

    @property
    def held(self) -> LeaseRecord | None:
        """The latest record, unless it was released or has expired."""
        left_s = self.runs_out_in_s()
        return self.record if left_s is not None and left_s > 0 else None

    def runs_out_in_s(self) -> float | None:
        """Returns the seconds until the observed lease expires; None if it is not held."""
        if self.record is None or not self.record.spec.holder:
            return None
        return self._expiry.at_s(self.record) - self._clock.monotonic()
