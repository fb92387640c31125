"""Changes of one field of a pod, walked by the types of the model: whatever a struct has is changed, none is left out by hand.

New values are most often those that other pods have in the same place, since what never meets never matters; the others are
made from the field's type alone.
"""

from __future__ import annotations

import types
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from random import Random
from typing import Any, Union, get_args, get_origin

import msgspec
from msgspec.structs import replace

from multisched.model.objects import Pod, PodSpec
from multisched.model.selectors import LabelSelector, Operator

TRIES = 50
"""Draws of another value before a field is given up as one that has none."""
DEPTH_MAX = 6
NUMBERS = (0, 1, 2, 3, 10, 100, 500, 2**30)

Place = tuple[type, str]
"""A struct and one of its fields."""


def plain(value: Any) -> Any:
    """The value as one that can be compared and hashed: structs by their fields, also those that compare by identity."""
    if isinstance(value, msgspec.Struct):
        return (type(value).__name__, *(plain(getattr(value, name)) for name in value.__struct_fields__))
    if isinstance(value, Mapping):
        return frozenset((key, plain(one)) for key, one in value.items())
    if isinstance(value, frozenset):
        return frozenset(map(plain, value))
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    return value


def places_of(kind: type) -> list[tuple[str, Any]]:
    """Name and type of each field of a struct."""
    return [(field.name, field.type) for field in msgspec.structs.fields(kind)]


def _as_decoded(struct: Any) -> Any:
    """Gt and Lt are of node selectors: the decoder refuses them in a label selector."""
    if not isinstance(struct, LabelSelector):
        return struct
    instead = {Operator.GT: Operator.EXISTS, Operator.LT: Operator.DOES_NOT_EXIST}
    return LabelSelector(tuple(replace(r, operator=instead.get(r.operator, r.operator)) for r in struct.requirements))


SPEC = "spec."
_KINDS = {name: kind for name, kind in places_of(Pod) if name != "spec"} | {
    f"{SPEC}{name}": kind for name, kind in places_of(PodSpec)
}
FIELDS = tuple(_KINDS)
"""Every field of a pod, and of its spec."""


class PodChanges:
    """Makes pods that differ in one field, with values from a corpus of pods."""

    def __init__(self, rng: Random, corpus: Iterable[Pod], words: Iterable[str] = ()) -> None:
        self._rng = rng
        self._seen: defaultdict[Place, list[Any]] = defaultdict(list)
        self._words = {"", "x", *words}
        for pod in corpus:
            self._collect(pod)
        self._pool = sorted(self._words)

    def of(self, pod: Pod, field: str) -> Pod:
        """A pod that differs in one of FIELDS, somewhere. A spec is a new one where it differs."""
        if field.startswith(SPEC):
            return replace(pod, spec=self._changed(pod.spec, field.removeprefix(SPEC), _KINDS[field]))
        changed: Pod = self._changed(pod, field, _KINDS[field])
        return changed

    def _collect(self, value: Any) -> None:
        if isinstance(value, msgspec.Struct):
            for name in value.__struct_fields__:
                self._seen[type(value), name].append(getattr(value, name))
                self._collect(getattr(value, name))
        elif isinstance(value, str):
            self._words.add(value)
        elif isinstance(value, Mapping):
            for item in value.items():
                self._collect(item)
        elif isinstance(value, tuple | frozenset):
            for one in value:
                self._collect(one)

    def _changed(self, struct: Any, name: str, kind: Any) -> Any:
        value = getattr(struct, name)
        for _ in range(TRIES):
            other = self._other(value, kind, (type(struct), name))
            if plain(other) != plain(value):
                return replace(struct, **{name: other})
        raise AssertionError(f"{type(struct).__name__}.{name}: no other value than {value!r} was found")

    def _other(self, value: Any, kind: Any, place: Place) -> Any:
        seen, draw = self._seen[place], self._rng.random()
        if seen and draw < 0.4:
            return self._rng.choice(seen)
        if draw < 0.8:
            return self._touched(value, kind, place)
        return self._made(kind, 0)

    def _touched(self, value: Any, kind: Any, place: Place) -> Any:
        """The value with one thing in it changed, added or left out."""
        if isinstance(value, msgspec.Struct):
            name, inner = self._rng.choice(places_of(type(value)))
            return _as_decoded(replace(value, **{name: self._other(getattr(value, name), inner, (type(value), name))}))
        if isinstance(value, tuple) and value:
            at, ways = self._rng.randrange(len(value)), self._rng.randrange(3)
            inner = _element(kind, at)
            if ways == 0 and get_args(kind)[-1:] == (Ellipsis,):
                return (*value[:at], *value[at + 1 :])
            if ways == 1 and get_args(kind)[-1:] == (Ellipsis,):
                return (*value, self._made(inner, 0))
            return (*value[:at], self._touched(value[at], inner, place), *value[at + 1 :])
        if isinstance(value, Mapping) and value:
            key, inner = self._rng.choice(sorted(value)), _arguments(kind)[1]
            left = {k: v for k, v in value.items() if k != key}
            return left if self._rng.random() < 0.4 else {**left, key: self._made(inner, 0)}
        if isinstance(value, bool):
            return not value
        if isinstance(value, int) and self._rng.random() < 0.5:
            return value + self._rng.choice((-1, 1, 100))
        return self._made(kind, 0)

    def _made(self, kind: Any, depth: int) -> Any:
        """Any value of the type."""
        rng, origin, inner = self._rng, get_origin(kind), get_args(kind)
        if origin in (Union, types.UnionType):
            some = [one for one in inner if one is not type(None)]
            if len(some) < len(inner) and (depth > DEPTH_MAX or rng.random() < 0.3):
                return None
            return self._made(rng.choice(some), depth)
        if origin is tuple:
            if inner[-1] is not Ellipsis:
                return tuple(self._made(one, depth + 1) for one in inner)
            return tuple(self._made(inner[0], depth + 1) for _ in range(0 if depth > DEPTH_MAX else rng.randint(0, 2)))
        if origin is frozenset:
            return frozenset(self._made(inner[0], depth + 1) for _ in range(rng.randint(0, 2)))
        if origin is not None and issubclass(origin, Mapping):
            key, value = inner
            return {self._made(key, depth + 1): self._made(value, depth + 1) for _ in range(rng.randint(0, 2))}
        if issubclass(kind, msgspec.Struct):
            return _as_decoded(kind(**{name: self._made(of, depth + 1) for name, of in places_of(kind)}))
        if issubclass(kind, Enum):
            return rng.choice(list(kind))
        made = _SIMPLE.get(kind)
        if made is None:
            raise TypeError(
                f"no values of type {kind!r} are known; teach tests/conformance/pod_changes.py to make some"
            )
        return made(rng, self._pool)


_SIMPLE: Mapping[type, Callable[[Random, list[str]], Any]] = {
    bool: lambda rng, pool: rng.random() < 0.5,
    int: lambda rng, pool: rng.choice(NUMBERS),
    float: lambda rng, pool: float(rng.choice(NUMBERS)),
    str: lambda rng, pool: rng.choice(pool),
}


def _arguments(kind: Any) -> tuple[Any, ...]:
    """Of a generic type, or of the one in an optional."""
    if get_origin(kind) in (Union, types.UnionType):
        [kind] = [one for one in get_args(kind) if one is not type(None)]
    return get_args(kind)


def _element(kind: Any, at: int) -> Any:
    inner = _arguments(kind)
    return inner[0] if inner[-1] is Ellipsis else inner[at]
