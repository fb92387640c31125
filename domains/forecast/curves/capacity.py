"""How much of a dimension a node has: from its allocatable, a label, an annotation, or one number for all nodes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum

import msgspec

from domains.forecast.units import MILLI
from multisched.model.objects import CPU, EPHEMERAL_STORAGE, MEMORY, Node
from multisched.model.quantity import QUANTITY_MAX, QuantityError, parse_milli

UNKNOWN = -1
"""Stands for the capacity of a node that does not say."""
ANNOTATION_PREFIX = "multisched.io/capacity-"
"""Where nodes state dimensions of the user's own by default, for instance `multisched.io/capacity-log: 40M`."""


class CapacityError(ValueError):
    """No capacity can be read of it; the message says what to write."""


class Source(Enum):
    """Where a capacity comes from; the values are the words in the configuration."""

    ALLOCATABLE = "allocatable"
    LABEL = "label"
    ANNOTATION = "annotation"
    NUMBER = "number"


class Capacity(msgspec.Struct, frozen=True):
    """One dimension's source. `key` names the resource, label or annotation; `milli` is the number."""

    source: Source
    key: str = ""
    milli: int = 0

    def of(self, node: Node) -> int:
        """Milli-units the node has; UNKNOWN if it does not say, or says what is no quantity or below zero."""
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
    """One dimension's capacity as a query answers it, node by node. Owned by the forecast, which fills it at each refit."""

    def __init__(self, query: str) -> None:
        self.query = query
        self._milli: Mapping[str, int] = {}
        self.is_measured = False
        """True once there was an answer."""

    def measure(self, plain: Mapping[str, float]) -> None:
        """Node -> what the query said, in plain units; numbers that are none, or below zero, say nothing."""
        self.is_measured = True
        self._milli = {
            name: min(QUANTITY_MAX, round(amount * MILLI)) for name, amount in plain.items() if 0 <= amount < math.inf
        }

    def answers(self) -> Mapping[str, int]:
        """Node -> milli-units, as it was answered last. Never changed: each answer is another mapping."""
        return self._milli

    def repeat(self, answers: Mapping[str, int]) -> None:
        """Says what another one of the same query was answered."""
        self._milli = answers

    def of(self, node: Node) -> int:
        """Milli-units the node has; UNKNOWN if no answer names it."""
        return self._milli.get(node.name, UNKNOWN)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MeasuredCapacity) and self.query == other.query

    def __hash__(self) -> int:
        return hash(self.query)


def default_capacity(dimension: str) -> Capacity:
    """Allocatable for what Kubernetes knows, else the node's annotation."""
    if dimension in (CPU, MEMORY, EPHEMERAL_STORAGE):
        return Capacity(Source.ALLOCATABLE, dimension)
    return Capacity(Source.ANNOTATION, ANNOTATION_PREFIX + dimension)


def read_capacity(setting: object) -> Capacity:
    """A number or quantity for every node, or one of allocatable, label, annotation with its name. Raises CapacityError."""
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
