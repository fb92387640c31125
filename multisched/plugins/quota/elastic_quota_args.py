"""The arguments of ElasticQuota."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from multisched.framework.plugin_args import Fields

EVICTED_OVER_NEEDED_MAX: Final = 1_000_000.0


class ElasticQuotaArgs(msgspec.Struct, frozen=True):
    """How much may go for a pod that its quota entitles to room."""

    max_evicted_over_needed: float = math.inf
    """Of the scarcest resource, what victims may hold by what is missing; one victim that alone makes room may always go.

    Unset it stops nothing: a min is a promise, and victims that several resources need may add up to much.
    """

    @classmethod
    def from_config(cls, document: Mapping[str, Any], path: str = "args") -> ElasticQuotaArgs:
        """Raises PluginArgsError."""
        with Fields(document, path, ("maxEvictedOverNeeded",)) as fields:
            most = fields.number("maxEvictedOverNeeded", math.inf, low=1.0, high=EVICTED_OVER_NEEDED_MAX)
            return cls(most)
