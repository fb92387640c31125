"""Bounds of what is remembered, and shortcuts for what is small or large, cost time and change no answer.

Each is set so low that it is met with nearly every pod; the answers are judged as elsewhere.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Final

import pytest

from multisched.cycle.classes import cache, shared_results, shared_scores, signatures, topology_groups
from multisched.cycle.preemption import dry_run_parts, victim_cache
from multisched.framework import affinity_group, pod_counts, pod_demands, row_sums
from multisched.model.decode import Decoder
from multisched.plugins import columns, disruption_budgets, node_matching, node_resources_fit, resource_scoring
from multisched.plugins.topology import affinity_rules, default_selector, domain_tally, spread_eligibility, spread_rules
from multisched.plugins.volumes import attached_volumes, volume_masks, volume_matching
from multisched.state import change_log, node_table, nominator, pods_by_priority
from multisched.state.columns import derived, labels, resources
from tests.conformance import sequences
from tests.conformance.answer import cold_and_warm
from tests.conformance.families import CLAIMED
from tests.conformance.vectors import differences, recorded_answers, recorded_problems
from tests.reference.answer import answer as reference_answer

EVERY: Final = 6
"""Every sixth of the recorded problems: test_conformance.py asks all, within the bounds."""
SEEDS: Final = (9_001, 9_007)

Bounds = Mapping[tuple[ModuleType, str], int]
MEMORIES: Bounds = {
    (affinity_rules, "RULES_KEPT"): 1,
    (affinity_rules, "TEXTS_KEPT"): 1,
    (attached_volumes, "CLAIMS_KNOWN_MAX"): 1,
    (change_log, "CHANGES_KEPT"): 2,
    (signatures, "SPECS_MAX"): 1,
    (cache, "CLASS_BYTES_MAX"): 1,
    (cache, "CLASSES_MIN"): 1,
    (default_selector, "NAMESPACES_KEPT"): 1,
    (victim_cache, "STATUSES_MAX"): 0,
    (disruption_budgets, "KNOWN_MAX"): 1,
    (dry_run_parts, "VICTIM_CACHES_MAX"): 1,
    (resources, "BLOCKS_MAX"): 1,
    (derived, "DERIVED_MAX"): 1,
    (labels, "LABEL_COLUMNS_MAX"): 1,
    (node_table, "ROWS_INITIAL"): 1,
    (nominator, "SLOTS_INITIAL"): 1,
    (pod_counts, "LOG_KEPT"): 2,
    (pod_counts, "MATCHES_KEPT"): 1,
    (pod_demands, "EFFECTS_MAX"): 1,
    (pod_demands, "LOG_KEPT"): 2,
    (pod_demands, "PLACES_MAX"): 1,
    (topology_groups, "GROUPINGS_MAX"): 1,
    (row_sums, "CHANGES_KEPT"): 1,
    (shared_scores, "FINALS_MAX"): 1,
    (shared_results, "SHARED_MAX"): 1,
    (spread_eligibility, "ANSWERS_KEPT"): 1,
    (spread_rules, "RULES_KEPT"): 1,
    (spread_rules, "SPECS_BYTES_MAX"): 1,
    (pods_by_priority, "LABEL_SETS_MAX"): 0,
    (pods_by_priority, "WIDTH_STEP"): 1,
    (volume_masks, "MASKS_MAX"): 1,
    (volume_matching, "CLASSES_MAX"): 1,
    (volume_matching, "SLOTS_FIRST"): 1,
}
SHORTCUTS: Bounds = {
    (columns, "FEW_ROWS"): 0,
    (domain_tally, "SPARSE_ABOVE"): 0,
    (domain_tally, "SPARSE_MAX"): 1,
    (node_matching, "ISIN_FROM"): 1,
    (node_resources_fit, "PACKED_MAX"): 0,
    (resource_scoring, "QUOTIENTS_EXACT_BELOW"): 0,
    (affinity_group, "TAGS_MAX"): 0,
    (topology_groups, "ROWS_PER_GROUP_MIN"): 1,
    (row_sums, "SPARSE_BELOW"): 0,
    (shared_scores, "TOPS_MAX"): 1,
    (pods_by_priority, "WIDTH_MAX"): 1,
}
BOTH = pytest.mark.parametrize("bounds", [MEMORIES, SHORTCUTS], ids=["memories", "shortcuts"])

ANSWERS = recorded_answers()
PROBLEMS = [problem for problem in recorded_problems() if problem["family"] in CLAIMED]


@pytest.fixture
def within(bounds: Bounds, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bounds hold wherever their names were imported to."""
    ours = [module for name, module in sys.modules.items() if name.startswith("multisched.")]
    for (owner, name), value in bounds.items():
        usual: Any = getattr(owner, name)
        for module in (one for one in ours if vars(one).get(name) is usual and one is not owner):
            monkeypatch.setattr(module, name, value)
        monkeypatch.setattr(owner, name, value)


@BOTH
@pytest.mark.parametrize("family", CLAIMED)
@pytest.mark.usefixtures("within")
def test_answers_do_not_depend_on_cache_sizes(family: str) -> None:
    decoder = Decoder()
    asked = [problem for problem in PROBLEMS if problem["family"] == family][::EVERY]
    wrong = {
        problem["id"]: lines
        for problem in asked
        for answer in cold_and_warm(problem, decoder)
        if (lines := differences(answer, ANSWERS[problem["id"]]))
    }
    assert asked
    assert wrong == {}


@BOTH
@pytest.mark.parametrize("family", sequences.FAMILIES)
@pytest.mark.usefixtures("within")
def test_decisions_of_a_sequence_do_not_depend_on_cache_sizes(family: str) -> None:
    found = [step for seed in SEEDS for step in sequences.steps(family, seed)]
    wrong = {
        step.problem["id"]: lines for step in found if (lines := sequences.faults(step, reference_answer(step.problem)))
    }
    assert len(found) == sequences.PODS * len(SEEDS)
    assert wrong == {}
