"""Quotas that are exchanged one by one have the problems of a fresh reading; what is in force is as if all were read each time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.model.cluster_objects import ClusterObject, ElasticQuota, KoordinatorQuota
from multisched.model.object_kinds import ObjectKind
from multisched.model.quota_tree import NODES_MAX
from multisched.model.quotas import koordinator
from multisched.model.quotas.koordinator import LinkedQuotas, read_linked
from multisched.model.quotas.scheduler_plugins import FlatQuotas, read_flat
from multisched.plugins.quota.many_quotas import ManyQuotas, _Attempt
from tests.unit.model.quotas.quota_documents import decoded_flat, decoded_linked, flat, linked

NAMES: Final = ("a", "b", "c", "d", "koordinator-default-quota")
LINKED, FLAT = ObjectKind.KOORDINATOR_QUOTA, ObjectKind.ELASTIC_QUOTA

linked_versions = st.builds(
    lambda name, namespace, parent, least, tree, is_parent, spaces: linked(
        name, least, 6, parent, namespace=namespace, tree_id=tree, is_parent=is_parent, namespaces=spaces
    ),
    st.sampled_from(NAMES),
    st.sampled_from(("kube-system", "other")),
    st.sampled_from((*NAMES, "", koordinator.ROOT, "nowhere")),
    st.integers(0, 7),
    st.sampled_from(("", "t")),
    st.sampled_from(("true", "false")),
    st.sampled_from(((), ("team",))),
)
flat_versions = st.builds(
    lambda namespace, name, least: flat(namespace, least, 6, name=name),
    st.sampled_from("ab"),
    st.sampled_from("xyz"),
    st.integers(0, 7),
)
steps = st.lists(st.tuples(st.booleans(), linked_versions, flat_versions), max_size=12)


@given(steps)
@pytest.mark.parametrize("most", [4, NODES_MAX])
def test_exchanged_quotas_have_the_problems_of_a_fresh_reading(most: int, taken: list[tuple[bool, Any, Any]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(koordinator, "NODES_MAX", most)
        many, single = LinkedQuotas(), FlatQuotas()
        of_many: dict[str, KoordinatorQuota] = {}
        of_single: dict[str, ElasticQuota] = {}
        for is_there, one, other in taken:
            now, now_flat = decoded_linked(one), decoded_flat(other)
            before, before_flat = of_many.pop(now.key, None), of_single.pop(now_flat.key, None)
            many.exchange(before, now if is_there else None)
            single.exchange(before_flat, now_flat if is_there else None)
            if is_there:
                of_many[now.key], of_single[now_flat.key] = now, now_flat
            fresh, fresh_flat = read_linked(of_many.values()), read_flat(of_single.values())
            assert list(many.problems().items()) == list(fresh.problems.items())
            assert list(single.problems().items()) == list(fresh_flat.problems.items())
            if fresh.tree is not None:
                assert many.read().tree == fresh.tree


def numbered(document: Any, version: int) -> Any:
    return {**document, "metadata": {**document["metadata"], "resourceVersion": str(version)}}


def chosen(kind: ObjectKind, rounds: Sequence[Sequence[Any]]) -> list[tuple[Any, Mapping[str, str], list[Any]]]:
    """Tree, changes that are left out, and versions in force after each round of changes."""
    many, there, found = ManyQuotas(kind), dict[str, ClusterObject](), []
    for number, changes in enumerate(rounds):
        for at, document in enumerate(changes):
            one = kind.definition.decode(msgspec.Raw(msgspec.json.encode(numbered(document, 100 * number + at + 1))))
            there[one.key] = one
        result = many.choose(list(there.values()))
        in_force = [None if (known := many.version_in_force(key)) is None else known.version for key in there]
        found.append((result.tree, result.left_out, in_force))
    return found


@given(
    st.lists(st.lists(linked_versions, max_size=6), max_size=4),
    st.lists(st.lists(flat_versions, max_size=6), max_size=4),
)
def test_choice_equals_one_that_reads_all_quotas_for_each_try(
    linked_rounds: list[list[Any]], flat_rounds: list[list[Any]]
) -> None:
    for kind, rounds in ((LINKED, linked_rounds), (FLAT, flat_rounds)):
        swift = chosen(kind, rounds)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_Attempt, "_problems_without", lambda self, without: self._read_without(without).problems)
            assert chosen(kind, rounds) == swift
