"""Shared by the sections of the args: limits, and parsing of mappings by dimension."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from multisched.framework.plugin_args import Fields
from multisched.model.near_names import did_you_mean

QUANTILE_MAX: Final = 0.999
"""Largest quantile; 1 would be the maximum of all samples."""
WEIGHT_MAX: Final = 100
"""Largest weight of a dimension."""


def by_dimension(fields: Fields, name: str, dimensions: Sequence[str], most: int) -> Mapping[str, Any]:
    """Returns the mapping in a field; the caller parses its values.

    Refuses keys outside `dimensions` (unless that is empty), because a misspelt dimension would have no effect.
    """
    found = fields.value(name)
    if found is None:
        return {}
    if not isinstance(found, Mapping) or not all(isinstance(key, str) and key for key in found):
        fields.refuse(name, "write a mapping by dimension, such as {cpu: 2}; put names that are numbers in quotes")
        return {}
    if len(found) > most:
        fields.refuse(name, f"has {len(found)} entries, more than {most}; leave some out")
        return {}
    for key in found if dimensions else ():
        if key not in dimensions:
            hint = did_you_mean(key, dimensions, f"known here: {', '.join(dimensions)}")
            fields.refuse(f"{name}.{key}", f"no dimension is called {key}; {hint}")
    return found
