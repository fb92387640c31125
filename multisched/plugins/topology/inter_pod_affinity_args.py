"""The arguments of InterPodAffinity."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from multisched.framework.plugin_args import Fields

HARD_WEIGHT_DEFAULT: Final = 1
HARD_WEIGHT_MAX: Final = 100


class InterPodAffinityArgs(msgspec.Struct, frozen=True):
    """Upstream's InterPodAffinityArgs."""

    hard_pod_affinity_weight: int = HARD_WEIGHT_DEFAULT
    """Weight, 0..100, of placed pods' required affinity terms in the score of a pod that they select."""
    ignore_preferred_terms_of_existing_pods: bool = False
    """Whether preferred terms of placed pods are ignored if the pending pod has no preferred terms."""

    @classmethod
    def from_config(cls, document: Mapping[str, Any], path: str = "args") -> InterPodAffinityArgs:
        """Reads the arguments from a configuration. Raises PluginArgsError."""
        with Fields(document, path, ("hardPodAffinityWeight", "ignorePreferredTermsOfExistingPods")) as fields:
            return cls(
                fields.integer("hardPodAffinityWeight", HARD_WEIGHT_DEFAULT, 0, HARD_WEIGHT_MAX),
                fields.flag("ignorePreferredTermsOfExistingPods", default=False),
            )
