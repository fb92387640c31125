"""What QueueSort says of an entry, computed once for each return or update, and fit to be compared with all others.

Owns the kinds of the first key, which those of all others must have. Called by `EntryPlaces` alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from multisched.framework.points import QueuedPod, QueueSortPlugin
from multisched.queueing.entry import Entry
from multisched.queueing.hints import OnError

_KINDS: Final[Mapping[type, type]] = {bool: float, int: float, float: float, str: str, bytes: bytes}
"""What may stand in a sort key -> what it can be compared with."""


class SortKeys:
    """The keys of one QueueSort plugin."""

    __slots__ = ("_kinds", "_on_error", "_types", "plugin")

    def __init__(self, plugin: QueueSortPlugin, on_error: OnError) -> None:
        self.plugin = plugin
        self._on_error = on_error
        self._kinds: tuple[type | None, ...] = ()
        self._types: tuple[type, ...] = ()

    def use(self, plugin: QueueSortPlugin) -> None:
        """Keys of another plugin are compared with none of the one before."""
        self.plugin, self._kinds, self._types = plugin, (), ()

    def of(self, entry: Entry) -> tuple[Any, ...]:
        """A QueueSort that raises puts the pod first, so that its failure shows."""
        if entry.sort_key is None:
            try:
                key = self.plugin.sort_key(QueuedPod(entry.ranks_as or entry.pod, entry.ranks_since_s, entry.attempts))
                entry.sort_key = self._comparable(key)
            except Exception as error:  # noqa: BLE001  (a plugin ends here)
                self._on_error(self.plugin.name, "QueueSort", error)
                entry.sort_key = ()
        return entry.sort_key

    def _comparable(self, key: Any) -> tuple[Any, ...]:
        """The key, if it can be compared with all others: numbers and texts, in the same places as in the first one."""
        if not isinstance(key, tuple):
            raise TypeError(f"sort_key returned {type(key).__name__}, not a tuple")
        types = tuple(map(type, key))
        if types == self._types:
            return key
        kinds = tuple(map(_KINDS.get, types))
        if None in kinds or kinds != (self._kinds or kinds):
            raise TypeError(f"sort_key returned {key!r}, which cannot be compared with the others")
        self._kinds, self._types = kinds, types
        return key
