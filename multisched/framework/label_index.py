"""LabelIndex: things that select pods by namespace and labels, found from a pod without looking at all of them.

A selector that names values for some key is filed under those values, one that asks for a key under that key. Only a
selector that does neither is tested against every pod of its namespaces. So a tenant's odd selectors slow down the pods
they are about, and few others (reference: reliability 7).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Generic, TypeVar

from multisched.model.selectors import LabelSelector, Operator

PLACES_MAX = 64
"""Places one selector is filed under at most; one with more is filed without its namespaces, or without its values."""

ANY_VALUE = "\0"
"""Stands for whatever value the key has; no label's value is that."""

T = TypeVar("T", bound=Hashable)
_Place = tuple[str | None, str, str]


class LabelIndex(Generic[T]):
    """Items by (namespace, key, value). Finds candidates: the caller still asks whether each really matches."""

    __slots__ = ("_asks_for_keys", "_items")

    def __init__(self) -> None:
        self._items: dict[_Place, dict[T, None]] = {}
        self._asks_for_keys = False
        """True once a selector was filed by a key alone."""

    def add(self, item: T, selector: LabelSelector, namespaces: frozenset[str] | None) -> None:
        """Files an item; `namespaces` None stands for all of them."""
        for place in _places(selector, namespaces):
            self._items.setdefault(place, {})[item] = None
            self._asks_for_keys |= place[2] == ANY_VALUE

    def discard(self, item: T, selector: LabelSelector, namespaces: frozenset[str] | None) -> None:
        """Takes out what `add` filed with the same arguments."""
        for place in _places(selector, namespaces):
            items = self._items.get(place)
            if items is not None:
                items.pop(item, None)
                if not items:
                    del self._items[place]

    def candidates(self, namespace: str, labels: Mapping[str, str]) -> Iterator[T]:
        """Items that may select a pod with these labels in that namespace, each once."""
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
    """One requirement is enough to file it by: a pod has one value for its key, and so meets it once."""
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
