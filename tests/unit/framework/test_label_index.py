"""LabelIndex finds every item that selects a pod, each once, and looks at few others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from multisched.framework.label_index import PLACES_MAX, LabelIndex
from multisched.model.selectors import LabelSelector, Operator, Requirement

KEYS, VALUES, NAMESPACES = ("app", "tier", "rev"), ("", "a", "b", "c"), ("x", "y", "z")

values = st.lists(st.sampled_from(VALUES), min_size=1, max_size=3).map(tuple)
requirements = st.one_of(
    st.builds(Requirement, st.sampled_from(KEYS), st.sampled_from((Operator.IN, Operator.NOT_IN)), values),
    st.builds(Requirement, st.sampled_from(KEYS), st.sampled_from((Operator.EXISTS, Operator.DOES_NOT_EXIST))),
)
selectors = st.lists(requirements, max_size=3).map(lambda found: LabelSelector(tuple(found)))
scopes = st.tuples(selectors, st.none() | st.sets(st.sampled_from(NAMESPACES), min_size=1).map(frozenset))
labels = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES))


@given(st.lists(scopes, max_size=8), labels, st.sampled_from(NAMESPACES))
def test_every_matching_item_is_found_once(
    filed: list[tuple[LabelSelector, frozenset[str] | None]], pod: dict[str, str], namespace: str
) -> None:
    index: LabelIndex[int] = LabelIndex()
    for number, (selector, namespaces) in enumerate(filed):
        index.add(number, selector, namespaces)
    found = list(index.candidates(namespace, pod))

    assert len(found) == len(set(found))
    for number, (selector, namespaces) in enumerate(filed):
        if (namespaces is None or namespace in namespaces) and selector.matches(pod):
            assert number in found
    for number, (selector, namespaces) in enumerate(filed):
        index.discard(number, selector, namespaces)
    assert not index
    assert list(index.candidates(namespace, pod)) == []


def test_selector_with_many_values_or_namespaces_is_found() -> None:
    many = tuple(f"v{number}" for number in range(2 * PLACES_MAX))
    index: LabelIndex[str] = LabelIndex()
    index.add("values", LabelSelector((Requirement("app", Operator.IN, many),)), None)
    index.add("namespaces", LabelSelector((Requirement("app", Operator.IN, ("a", "b")),)), frozenset(many))
    assert list(index.candidates("x", {"app": "v7"})) == ["values"]
    assert sorted(index.candidates("v7", {"app": "a"})) == ["namespaces", "values"]


def test_selectors_of_other_keys_and_namespaces_are_not_read() -> None:
    index: LabelIndex[str] = LabelIndex()
    for number in range(1_000):
        odd = LabelSelector((Requirement(f"odd-{number}", Operator.EXISTS),))
        index.add(f"odd-{number}", odd, None)
        index.add(f"theirs-{number}", LabelSelector(), frozenset(("theirs",)))
    assert list(index.candidates("ours", {"app": "web", "odd-7": "x"})) == ["odd-7"]
