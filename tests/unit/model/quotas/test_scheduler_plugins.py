"""ElasticQuotas of scheduler-plugins: a namespace each, below a root that has the sum of all min."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.model.quotas.reading import ReadQuotas
from multisched.model.quotas.scheduler_plugins import read_flat
from tests.unit.model.quotas.quota_documents import Json, decoded_flat, flat


def read(*documents: Json) -> ReadQuotas:
    return read_flat(map(decoded_flat, documents))


def test_the_root_has_the_sum_of_all_min() -> None:
    found = read(flat("b", 2, 8), flat("a", {"cpu": 4, "memory": "4Gi"}, {"cpu": 6, "nvidia.com/gpu": 2}))
    assert found.problems == {}
    assert found.tree is not None
    root, first, second = found.tree.nodes
    assert root.max == root.min == {"cpu": 6000, "memory": 4 * 2**30, "nvidia.com/gpu": 0}
    assert (first.path, first.namespaces, second.path) == ("root.a", ("a",), "root.b")
    assert found.tree.leaf_of == {"a": 1, "b": 2}


def test_no_quotas_give_no_tree() -> None:
    assert read() == ReadQuotas(None)


@pytest.mark.parametrize(
    ("documents", "told"),
    [
        ([flat("a", 5, 3)], {"a/quota": ["spec.min.cpu"]}),
        ([flat("a", "much", 3), flat("b", 1, -1)], {"a/quota": ["spec.min.cpu"], "b/quota": ["spec.max.cpu"]}),
        ([flat("a", 1, 3), flat("a", 1, 3, "second")], {"a/second": ["metadata.name"]}),
        ([flat("a", 1, 3) | {"spec": 5}], {"a/quota": ["spec"]}),
    ],
)
def test_problems_are_reported_by_object_and_no_tree_is_in_force(
    documents: list[Json], told: Mapping[str, list[str]]
) -> None:
    found = read(*documents)
    assert found.tree is None
    assert {key: [one.path for one in problems] for key, problems in found.problems.items()} == told
    assert all(one.text and one.fix for problems in found.problems.values() for one in problems)


teams = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=5)
"""min, what max has beyond it, and what is used."""


@given(teams, st.integers(0, 4), st.integers(1, 9))
def test_tree_refuses_the_same_quotas_as_scheduler_plugins(
    teams: list[tuple[int, int, int]], at: int, asked: int
) -> None:
    """There: used + request > max, or the use of all + request > the sum of all min."""
    found = read(*(flat(f"t{number}", least, least + more) for number, (least, more, _) in enumerate(teams)))
    assert found.tree is not None
    leaf = found.tree.leaf_of[f"t{at % len(teams)}"]
    used = {0: sum(used for _, _, used in teams), **{1 + number: used for number, (_, _, used) in enumerate(teams)}}
    is_refused = any(
        (used[level] + asked) * 1000 > found.tree.nodes[level].max["cpu"] for level in found.tree.paths[leaf]
    )

    least, more, own = teams[at % len(teams)]
    over_max = own + asked > least + more
    over_all = sum(used for _, _, used in teams) + asked > sum(least for least, _, _ in teams)
    assert is_refused == (over_max or over_all)
