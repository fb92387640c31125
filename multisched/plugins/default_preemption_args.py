"""The arguments of DefaultPreemption."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from multisched.framework.plugin_args import Fields

PERCENTAGE_DEFAULT: Final = 10
ABSOLUTE_DEFAULT: Final = 100
INT32_MAX: Final = 2**31 - 1


class DefaultPreemptionArgs(msgspec.Struct, frozen=True):
    """Upstream's DefaultPreemptionArgs: how many candidate nodes are enough, as a percentage of all nodes and as a number.

    The values are checked and have no effect: every candidate is examined, as upstream does at 100 percent.
    """

    min_candidate_nodes_percentage: int = PERCENTAGE_DEFAULT
    min_candidate_nodes_absolute: int = ABSOLUTE_DEFAULT

    @classmethod
    def from_config(cls, document: Mapping[str, Any], path: str = "args") -> DefaultPreemptionArgs:
        """Reads the arguments from a configuration. Raises PluginArgsError."""
        with Fields(document, path, ("minCandidateNodesPercentage", "minCandidateNodesAbsolute")) as fields:
            percentage = fields.integer("minCandidateNodesPercentage", PERCENTAGE_DEFAULT, 0, 100)
            absolute = fields.integer("minCandidateNodesAbsolute", ABSOLUTE_DEFAULT, 0, INT32_MAX)
            if percentage == 0 and absolute == 0:
                text = "is 0 while minCandidateNodesAbsolute is 0 too; raise one of them"
                fields.refuse("minCandidateNodesPercentage", text)
            return cls(percentage, absolute)
