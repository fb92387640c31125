"""What one process has seen of a lease's record, and whether it may be taken by that.

Only *changes* of the record count, and no clock but ours. Owns the latest record, when it runs out, and whose it was.
"""

from __future__ import annotations

from multisched.client.lease_record import Expiry, LeaseRecord
from multisched.framework.ports import Clock


class ObservedLease:
    """Of the process with this identity. `duration_s`: of a record that does not say."""

    def __init__(self, clock: Clock, identity: str, duration_s: float) -> None:
        self.record: LeaseRecord | None = None
        """As it was last seen; it may have been deleted since."""
        self._clock = clock
        self._identity = identity
        self._expiry = Expiry(clock, duration_s)
        self._saw_another_holder = False
        self._claim: bool | None = None
        """Set while a record in our name can only be our own: whether we took it from a holder that had let it expire."""

    def saw(self, record: LeaseRecord) -> None:
        self._expiry.saw(record.spec)
        self.record = record

    def is_free(self, record: LeaseRecord, *, is_leading: bool) -> bool:
        """True if the record is ours, given back, or unchanged before our eyes for its whole duration.

        Ours means this process's: a former one under the same name counts as another holder.
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
        """A lease that somebody deleted counts as held for its whole duration: its holder may not know, and bind by it.

        Whoever held it when it was last seen: while we do not lead, somebody may have taken it since (found by simulation; I9).
        """
        if self.record is None or is_leading:
            return True
        self._expiry.saw(None)
        return self._clock.monotonic() >= self._expiry.at_s(self.record)

    def claim(self, record: LeaseRecord | None) -> bool:
        """We write our name into the record, or make one (None): whether a former holder had let it expire."""
        if self._claim is None:
            self._claim = self._saw_another_holder if record is None else bool(record.spec.holder)
        return self._claim

    def lost(self) -> None:
        """What we may still have on its way is in our own cache: a record in our name is ours all the same."""
        self._claim = False

    @property
    def held(self) -> LeaseRecord | None:
        """The latest record, unless it is nobody's or has run out."""
        left_s = self.runs_out_in_s()
        return self.record if left_s is not None and left_s > 0 else None

    def runs_out_in_s(self) -> float | None:
        """Seconds until the lease we see runs out; None if nobody holds one."""
        if self.record is None or not self.record.spec.holder:
            return None
        return self._expiry.at_s(self.record) - self._clock.monotonic()
