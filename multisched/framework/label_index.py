"""LabelIndex: an index of items that select pods by namespace and labels. It finds the candidates for a pod without testing all items.

A selector that names values for a key is filed under those values; one that only requires a key, under that key.
Any other selector is tested against every pod of its namespaces. So a tenant's unusual selectors slow down
only the pods they may select.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Generic, TypeVar

from multisched.model.selectors import LabelSelector, Operator

PLACES_MAX = 64
"""Entries per selector; a selector with more is filed without its namespaces, or without its values."""

ANY_VALUE = "\0"
"""Matches any value of the key; no label value can equal it."""

T = TypeVar("T", bound=Hashable)
_Place = tuple[str | None, str, str]


class LabelIndex(Generic[T]):
    """Items by (namespace, key, value). It finds candidates: the caller must test whether each one matches."""

    __slots__ = ("_asks_for_keys", "_items")

    def __init__(self) -> None:
        self._items: dict[_Place, dict[T, None]] = {}
        self._asks_for_keys = False
        """True after a selector was filed by a key alone."""

    def add(self, item: T, selector: LabelSelector, namespaces: frozenset[str] | None) -> None:
        """Adds an item. `namespaces`: None means all."""
        for place in _places(selector, namespaces):
            self._items.setdefault(place, {})[item] = None
            self._asks_for_keys |= place[2] == ANY_VALUE

    def discard(self, item: T, selector: LabelSelector, namespaces: frozenset[str] | None) -> None:
        """Removes what `add` added with the same arguments."""
        for place in _places(selector, namespaces):
            items = self._items.get(place)
            if items is not None:
                items.pop(item, None)
                if not items:
                    del self._items[place]

    def candidates(self, namespace: str, labels: Mapping[str, str]) -> Iterator[T]:
        """Yields each item that may select a pod with these labels in that namespace, once."""
        items = self._items
        if not items:
            return
        for place in ((namespace, "", ""), (None, "", "")):
            yield from items.get(place, ())
        for key, value in labels.items():
            for place in ((namespace, key, value), (None, key, value)):
                yield from items.get(place, ())
            if self._asks_for_keys:
                for place in ((namespace, key, ANY_VALUE), (None, key, ANY_VALUE)):
                    yield from items.get(place, ())

    def __bool__(self) -> bool:
        return bool(self._items)


def _places(selector: LabelSelector, namespaces: frozenset[str] | None) -> list[_Place]:
    """Returns the entries of a selector. One requirement suffices: a pod has one value per key, so it is found once."""
    named = [r for r in selector.requirements if r.operator is Operator.IN and r.key]
    narrowest = min(named, key=lambda r: len(r.values), default=None)
    pairs = [("", "")]
    if narrowest is not None and len(narrowest.values) <= PLACES_MAX:
        pairs = [(narrowest.key, value) for value in dict.fromkeys(narrowest.values)]
    elif wanted := [r.key for r in selector.requirements if r.operator in (Operator.IN, Operator.EXISTS) and r.key]:
        pairs = [(wanted[0], ANY_VALUE)]
    where: list[str | None] = [None] if namespaces is None else [*namespaces]
    if len(pairs) * len(where) > PLACES_MAX:
        where = [None]
    return [(namespace, key, value) for namespace in where for key, value in pairs]
