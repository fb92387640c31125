"""The arguments of InterPodAffinity."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from multisched.framework.plugin_args import Fields

HARD_WEIGHT_DEFAULT: Final = 1
HARD_WEIGHT_MAX: Final = 100


class InterPodAffinityArgs(msgspec.Struct, frozen=True):
    """As upstream's InterPodAffinityArgs."""

    hard_pod_affinity_weight: int = HARD_WEIGHT_DEFAULT
    """What a required affinity of a pod that is placed already weighs in the score of the pod it names, 0..100."""
    ignore_preferred_terms_of_existing_pods: bool = False
    """Leaves out the preferences of placed pods where the pending pod has none of its own."""

    @classmethod
    def from_config(cls, document: Mapping[str, Any], path: str = "args") -> InterPodAffinityArgs:
        """Reads InterPodAffinityArgs of a configuration. Raises PluginArgsError."""
        with Fields(document, path, ("hardPodAffinityWeight", "ignorePreferredTermsOfExistingPods")) as fields:
            return cls(
                fields.integer("hardPodAffinityWeight", HARD_WEIGHT_DEFAULT, 0, HARD_WEIGHT_MAX),
                fields.flag("ignorePreferredTermsOfExistingPods", default=False),
            )
