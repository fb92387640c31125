"""The arguments of ElasticQuota."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from multisched.framework.plugin_args import Fields

EVICTED_OVER_NEEDED_MAX: Final = 1_000_000.0


class ElasticQuotaArgs(msgspec.Struct, frozen=True):
    """The limit on evictions for a pod that its quota entitles to capacity."""

    max_evicted_over_needed: float = math.inf
    """Limit of (amount held by the victims) / (amount missing), of the scarcest resource. A single sufficient victim is exempt.

    Unlimited by default: a min is guaranteed, and victims needed for several resources may add up to a high ratio.
    """

    @classmethod
    def from_config(cls, document: Mapping[str, Any], path: str = "args") -> ElasticQuotaArgs:
        """Reads the arguments from a configuration. Raises PluginArgsError."""
        with Fields(document, path, ("maxEvictedOverNeeded",)) as fields:
            most = fields.number("maxEvictedOverNeeded", math.inf, low=1.0, high=EVICTED_OVER_NEEDED_MAX)
            return cls(most)
