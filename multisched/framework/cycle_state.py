"""Typed scratch memory of one scheduling attempt: PreFilter writes it, Filter and Score read it."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

T = TypeVar("T")


class StateKey(Generic[T]):
    """Names one value in a CycleState and fixes its type. Make one per plugin, at module level."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"StateKey({self.name})"


class CycleState:
    """Values by key object, so that two plugins cannot collide by using the same name."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values: dict[StateKey[Any], Any] = {}

    def write(self, key: StateKey[T], value: T) -> None:
        self._values[key] = value

    def read(self, key: StateKey[T]) -> T:
        """Returns the value. Raises KeyError if nothing was written, which the runner turns into the plugin's error."""
        found: T = self._values[key]
        return found

    def find(self, key: StateKey[T]) -> T | None:
        """Returns the value, or None if nothing was written."""
        found: T | None = self._values.get(key)
        return found

    def copy(self) -> CycleState:
        """Returns a shallow copy for an overlay: plugins copy what AddPod and RemovePod change."""
        copied = CycleState()
        copied._values = self._values.copy()
        return copied
