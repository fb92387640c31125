"""Capacity of a node in a dimension: from allocatable, a label, an annotation, a query, or one number for all nodes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum

import msgspec

from domains.forecast.units import MILLI
from multisched.model.objects import CPU, EPHEMERAL_STORAGE, MEMORY, Node
from multisched.model.quantity import QUANTITY_MAX, QuantityError, parse_milli

UNKNOWN = -1
"""Capacity of a node that states none."""
ANNOTATION_PREFIX = "multisched.io/capacity-"
"""Prefix of the default annotation for custom dimensions, for example `multisched.io/capacity-log: 40M`."""


class CapacityError(ValueError):
    """An invalid capacity setting; the message names the fix."""


class Source(Enum):
    """The source of a capacity; the values are the keys in the configuration."""

    ALLOCATABLE = "allocatable"
    LABEL = "label"
    ANNOTATION = "annotation"
    NUMBER = "number"


class Capacity(msgspec.Struct, frozen=True):
    """Configured capacity of one dimension. `key`: the resource, label or annotation; `milli`: the number, in milli-units."""

    source: Source
    key: str = ""
    milli: int = 0

    def of(self, node: Node) -> int:
        """Returns the node's capacity in milli-units; UNKNOWN if it is missing, negative or not a quantity."""
        match self.source:
            case Source.NUMBER:
                return self.milli
            case Source.ALLOCATABLE:
                amount = node.allocatable.get(self.key)
                if amount is None or amount < 0:
                    return UNKNOWN
                return min(QUANTITY_MAX, amount if self.key == CPU else amount * MILLI)
            case Source.LABEL:
                return _quantity(node.labels.get(self.key))
            case Source.ANNOTATION:
                return _quantity(node.annotations.get(self.key))


class MeasuredCapacity:
    """Capacity of one dimension per node, measured by a query. Owned by the forecast, which updates it at each refit."""

    def __init__(self, query: str) -> None:
        self.query = query
        self._milli: Mapping[str, int] = {}
        self.is_measured = False
        """True after the first answer."""

    def measure(self, plain: Mapping[str, float]) -> None:
        """Stores node -> capacity in plain units; skips NaN, infinite and negative values."""
        self.is_measured = True
        self._milli = {
            name: min(QUANTITY_MAX, round(amount * MILLI)) for name, amount in plain.items() if 0 <= amount < math.inf
        }

    def answers(self) -> Mapping[str, int]:
        """Returns the last answer: node -> milli-units. The mapping is immutable; each answer creates a new one."""
        return self._milli

    def import_answers(self, answers: Mapping[str, int]) -> None:
        """Takes over the answers of another instance with the same query."""
        self._milli = answers

    def of(self, node: Node) -> int:
        """Returns the node's capacity in milli-units; UNKNOWN if the last answer lacks the node."""
        return self._milli.get(node.name, UNKNOWN)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MeasuredCapacity) and self.query == other.query

    def __hash__(self) -> int:
        return hash(self.query)


def default_capacity(dimension: str) -> Capacity:
    """Returns allocatable for CPU, memory and ephemeral storage, else the node's annotation."""
    if dimension in (CPU, MEMORY, EPHEMERAL_STORAGE):
        return Capacity(Source.ALLOCATABLE, dimension)
    return Capacity(Source.ANNOTATION, ANNOTATION_PREFIX + dimension)


def read_capacity(setting: object) -> Capacity:
    """Parses a number or quantity for all nodes, or {allocatable|label|annotation: NAME}. Raises CapacityError."""
    fix = 'write a number, a quantity such as "40M", or one of {allocatable: cpu}, {label: NAME}, {annotation: NAME}'
    if isinstance(setting, Mapping):
        if len(setting) == 1:
            ((word, key),) = setting.items()
            if word in (Source.ALLOCATABLE.value, Source.LABEL.value, Source.ANNOTATION.value) and isinstance(key, str):
                return Capacity(Source(word), key)
        raise CapacityError(f"not understood; {fix}")
    if isinstance(setting, bool) or not isinstance(setting, int | float | str):
        raise CapacityError(f"not understood; {fix}")
    try:
        milli = parse_milli(setting)
    except QuantityError as error:
        raise CapacityError(str(error)) from error
    if milli <= 0:
        raise CapacityError(f"must be above zero; {fix}")
    return Capacity(Source.NUMBER, milli=milli)


def _quantity(text: str | None) -> int:
    if text is None:
        return UNKNOWN
    try:
        return max(UNKNOWN, parse_milli(text))
    except QuantityError:
        return UNKNOWN
