"""TermColumns: affinity terms of many pods in arrays, so that all of them are matched against one pod at once.

A term matches a pod if it names or selects the pod's namespace, and its label selector matches the pod's labels.
(Source: kube-scheduler's AffinityTerm.Matches.) Half a million terms take some 15 ms; each takes 60 bytes. Strings are
interned as numbers; only the incoming pod's labels are looked up as strings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from multisched.model.placement import PodDemand
from multisched.model.selectors import Operator, Requirement

_SPAN_START: Final = 64
_ABSENT, _UNHEARD = 0, -1
"""The label is absent; the label has a value that no term names."""
_OPERATORS: Final[Mapping[Operator, int]] = {
    Operator.IN: 0,
    Operator.NOT_IN: 1,
    Operator.EXISTS: 2,
    Operator.DOES_NOT_EXIST: 3,
}
_NAME: Final = "metadata.name of the namespace"
"""Key for the name of the namespace; no label key contains blanks."""

Bools = NDArray[np.bool_]
Int32 = NDArray[np.int32]
_Ids = NDArray[np.intp]


class IncomingPod(NamedTuple):
    """The pod that terms are matched against: the properties that terms can see."""

    namespace: str
    labels: Mapping[str, str]
    namespace_labels: Mapping[str, str]


class _Span(NamedTuple):
    """Ranges in a part's columns: requirements, and their values."""

    start: int
    end: int
    values_start: int
    values_end: int


class Block(NamedTuple):
    """Terms that are added and removed together."""

    start: int
    end: int
    spans: tuple[_Span, _Span, _Span]


class Column:
    """An array that grows by doubling."""

    __slots__ = ("array", "size")

    def __init__(self, dtype: type) -> None:
        self.array: Int32 = np.zeros(_SPAN_START, dtype)
        self.size = 0

    def extend(self, values: Sequence[int]) -> None:
        size = self.size + len(values)
        if size > len(self.array):
            grown = np.zeros(max(size, 2 * len(self.array)), self.array.dtype)
            grown[: self.size] = self.array[: self.size]
            self.array = grown
        self.array[self.size : size] = values
        self.size = size

    def append(self, value: int) -> None:
        if self.size == len(self.array):
            self.extend((value,))
            return
        self.array[self.size] = value
        self.size += 1

    def view(self) -> Int32:
        return self.array[: self.size]

    def replace(self, values: Int32) -> None:
        """Replaces all values."""
        self.array, self.size = values.astype(self.array.dtype), len(values)
        if not self.size:
            self.array = np.zeros(_SPAN_START, self.array.dtype)


class _Part:
    """One part of the terms' requirements: on labels, on the namespace's labels, or on its name."""

    __slots__ = ("keys", "operators", "terms", "value_keys", "value_of", "values")

    def __init__(self) -> None:
        self.keys, self.operators, self.terms = Column(np.int32), Column(np.int8), Column(np.int32)
        self.values, self.value_of, self.value_keys = Column(np.int32), Column(np.int32), Column(np.int32)

    def mark(self) -> tuple[int, int]:
        return self.keys.size, self.values.size

    def add(self, wanted: Sequence[tuple[int, Sequence[Requirement]]], texts: dict[str, int]) -> None:
        """Appends requirements. `wanted`: (term, its requirements)."""
        keys, operators, terms, values, value_of, value_keys = [], [], [], [], [], []
        at = self.keys.size
        for term, requirements in wanted:
            for one in requirements:
                key = texts.setdefault(one.key, len(texts) + 1)
                keys.append(key)
                operators.append(_OPERATORS[one.operator])
                terms.append(term)
                for value in one.values:
                    values.append(texts.setdefault(value, len(texts) + 1))
                    value_of.append(at)
                    value_keys.append(key)
                at += 1
        for column, added in (
            (self.keys, keys),
            (self.operators, operators),
            (self.terms, terms),
            (self.values, values),
            (self.value_of, value_of),
            (self.value_keys, value_keys),
        ):
            column.extend(added)

    def failing(self, has: Int32, span: _Span, first: int, count: int) -> Bools:
        """Returns bool[count]: terms from `first` on with a requirement that fails. `has`: key number -> number of the label's value."""
        failing = np.zeros(count, np.bool_)
        if span.start == span.end:
            return failing
        at, at_values = slice(span.start, span.end), slice(span.values_start, span.values_end)
        named = has.take(self.value_keys.array[at_values]) == self.values.array[at_values]
        hits = np.zeros(span.end - span.start, np.bool_)
        hits[self.value_of.array[at_values][named] - span.start] = True
        operators = self.operators.array[at]
        is_there = has.take(self.keys.array[at]) != _ABSENT
        # In requires a hit, NotIn none; Exists requires the label, DoesNotExist its absence: odd operators are negated.
        holds = np.where(operators < 2, hits, is_there) != (operators & 1).astype(np.bool_)
        failing[self.terms.array[at][~holds] - first] = True
        return failing

    def keep(self, is_kept: Bools, number: Int32) -> tuple[Int32, Int32]:
        """Keeps only the requirements of kept terms; returns the number of kept requirements and values before each old index."""
        stays = is_kept.take(self.terms.view())
        values_stay = stays.take(self.value_of.view())
        before, values_before = _counts_before(stays), _counts_before(values_stay)
        self.keys.replace(self.keys.view()[stays])
        self.operators.replace(self.operators.view()[stays])
        self.terms.replace(number.take(self.terms.view()[stays]))
        self.values.replace(self.values.view()[values_stay])
        self.value_of.replace(before.take(self.value_of.view()[values_stay]))
        self.value_keys.replace(self.value_keys.view()[values_stay])
        return before, values_before

    def renumber(self, number: Int32) -> None:
        """Applies a new numbering of the strings."""
        for column in (self.keys, self.values, self.value_keys):
            column.replace(number.take(column.view()))


class TermColumns:
    """Affinity terms of many pods as arrays, matched against one pod in one operation.

    Owned by `PodDemands`, which knows which terms are in use.
    """

    __slots__ = ("_has_names", "_has_selector", "_parts", "_texts", "keys", "terms")

    def __init__(self) -> None:
        self._texts: dict[str, int] = {_NAME: 1}
        self._parts = _Part(), _Part(), _Part()
        self._has_names, self._has_selector = Column(np.bool_), Column(np.bool_)
        self.terms = 0
        """Number of terms held, including unused ones."""
        self.keys: set[str] = set()
        """Label keys that terms refer to; other labels of a pod do not matter."""

    def add(self, demands: Sequence[PodDemand]) -> Block:
        """Appends the terms and returns their block."""
        labels, of_namespace, names = self._parts
        start, marks = self.terms, [part.mark() for part in self._parts]
        labels.add([(start + n, d.selector.requirements) for n, d in enumerate(demands)], self._texts)
        self.keys.update(one.key for d in demands for one in d.selector.requirements)
        of_namespace.add(
            [(start + n, d.namespace_selector.requirements) for n, d in enumerate(demands) if d.namespace_selector],
            self._texts,
        )
        names.add([(start + n, (_named(d.namespaces),)) for n, d in enumerate(demands) if d.namespaces], self._texts)
        self._has_names.extend([bool(d.namespaces) for d in demands])
        self._has_selector.extend([d.namespace_selector is not None for d in demands])
        self.terms += len(demands)
        ends = [part.mark() for part in self._parts]
        spans = [_Span(*_ordered(mark, end)) for mark, end in zip(marks, ends, strict=True)]
        return Block(start, self.terms, (spans[0], spans[1], spans[2]))

    def all(self) -> Block:
        """Returns a block of all terms, including unused ones."""
        spans = [_Span(0, part.keys.size, 0, part.values.size) for part in self._parts]
        return Block(0, self.terms, (spans[0], spans[1], spans[2]))

    def about(self, incoming: IncomingPod, block: Block) -> Bools:
        """Returns bool[terms of the block]: the terms that match the pod."""
        labels, of_namespace, names = (
            part.failing(self._numbers(seen), span, block.start, block.end - block.start)
            for part, span, seen in zip(
                self._parts,
                block.spans,
                (incoming.labels, incoming.namespace_labels, {_NAME: incoming.namespace}),
                strict=True,
            )
        )
        at = slice(block.start, block.end)
        is_there = (self._has_names.array[at] & ~names) | (self._has_selector.array[at] & ~of_namespace)
        found: Bools = (is_there & ~labels).astype(np.bool_, copy=False)
        return found

    def _numbers(self, labels: Mapping[str, str]) -> Int32:
        """Returns int32[strings + 1]: key number -> number of the label's value."""
        texts = self._texts
        found = np.zeros(len(texts) + 1, np.int32)
        for key, value in labels.items():
            number = texts.get(key)
            if number is not None:
                found[number] = texts.get(value, _UNHEARD)
        return found

    def compact(self, living: Iterable[Block]) -> tuple[list[Block], _Ids]:
        """Rebuilds the columns with the terms of these blocks only. Returns the blocks' new positions and the indices of kept terms.

        The blocks must be in the order in which they were added.
        """
        blocks = list(living)
        is_kept = np.zeros(self.terms, np.bool_)
        for block in blocks:
            is_kept[block.start : block.end] = True
        number = _counts_before(is_kept)
        moved = [part.keep(is_kept, number) for part in self._parts]
        for column in (self._has_names, self._has_selector):
            column.replace(column.view()[is_kept])
        found = []
        for block in blocks:
            spans = [
                _Span(
                    int(before[span.start]),
                    int(before[span.end]),
                    int(values[span.values_start]),
                    int(values[span.values_end]),
                )
                for span, (before, values) in zip(block.spans, moved, strict=True)
            ]
            found.append(Block(int(number[block.start]), int(number[block.end]), (spans[0], spans[1], spans[2])))
        self.terms = int(is_kept.sum())
        self._forget_texts()
        return found, is_kept.nonzero()[0]

    def _forget_texts(self) -> None:
        """Renumbers the strings, without those that only removed terms used."""
        is_used = np.zeros(len(self._texts) + 1, np.bool_)
        is_used[1] = True
        for part in self._parts:
            is_used[part.keys.view()] = True
            is_used[part.values.view()] = True
        number = np.cumsum(is_used, dtype=np.int32)
        used: list[bool] = is_used.tolist()
        self._texts = {text: int(number[at]) for text, at in self._texts.items() if used[at]}
        for part in self._parts:
            part.renumber(number)
        is_key = np.zeros(len(self._texts) + 1, np.bool_)
        is_key[self._parts[0].keys.view()] = True
        self.keys = {text for text, at in self._texts.items() if is_key.item(at)}


def _named(namespaces: frozenset[str]) -> Requirement:
    return Requirement(_NAME, Operator.IN, tuple(sorted(namespaces)))


def _ordered(mark: tuple[int, int], end: tuple[int, int]) -> tuple[int, int, int, int]:
    return mark[0], end[0], mark[1], end[1]


def _counts_before(mask: Bools) -> Int32:
    """Returns int32[len + 1]: number of set entries before each index."""
    found = np.zeros(len(mask) + 1, np.int32)
    np.cumsum(mask, out=found[1:])
    return found
