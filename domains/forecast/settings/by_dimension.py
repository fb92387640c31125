"""What the sections of the args share: bounds, and mappings from dimension to what is said of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from multisched.framework.plugin_args import Fields
from multisched.model.near_names import did_you_mean

QUANTILE_MAX: Final = 0.999
"""The largest sample of all is no quantile."""
WEIGHT_MAX: Final = 100
"""Of a dimension, wherever it is said."""


def by_dimension(fields: Fields, name: str, dimensions: Sequence[str], most: int) -> Mapping[str, Any]:
    """The mapping in a field, from dimension to what is the caller's to read.

    Where the dimensions are named, another one is a slip: what is said of it would count for nothing.
    """
    found = fields.value(name)
    if found is None:
        return {}
    if not isinstance(found, Mapping) or not all(isinstance(key, str) and key for key in found):
        fields.refuse(name, "write a mapping by dimension, such as {cpu: 2}; names that are numbers in quotes")
        return {}
    if len(found) > most:
        fields.refuse(name, f"has {len(found)} entries, more than {most}; leave some out")
        return {}
    for key in found if dimensions else ():
        if key not in dimensions:
            hint = did_you_mean(key, dimensions, f"known here: {', '.join(dimensions)}")
            fields.refuse(f"{name}.{key}", f"no dimension is called {key}; {hint}")
    return found
