"""Which domain offers room of quotas to which others: compiled from the configuration by `config/quota_sharing.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

SHARING_ARG: Final = "sharing"
"""Argument of ElasticQuota that a domain gets if other processes may lead domains under the same quotas; not in the configuration."""


class QuotaSharing(msgspec.Struct, frozen=True):
    """The domains under quotas that have several Leases."""

    lender: str
    """The first domain under quotas. Pods of the domains under its Lease, and foreign ones, are limited by each max itself."""
    borrowers: Mapping[str, frozenset[str]]
    """Domain under another Lease -> its schedulerNames. Its pods use what the lender offers."""
