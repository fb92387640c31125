"""Seeds of three kinds of run, of all kinds with `--slow`; `make sim` runs 22 or 23 of each kind but the one with topologies."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from msgspec.structs import replace

from multisched.config import loading
from tests.kit.run.seeded_run import run_seed
from tests.kit.scenarios import jobs, loans, rare_moments, tides
from tests.kit.scenarios.edits import SCENARIOS
from tests.kit.settings.setting import (
    CONTESTED_FROM,
    EDITED_FROM,
    ELASTIC_FROM,
    LENT_FROM,
    LINKED_FROM,
    OWNED_FROM,
    RARE_FROM,
    RELOADED_FROM,
    SERVERLESS_FROM,
    TEAMED_FROM,
    TIDED_FROM,
    drawn,
    rng_of,
)
from tests.kit.world.gang_plans import PACKED_FROM
from tests.sim.run import FAULTS_MIN, SLOW, TESTED, played


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=pytest.mark.slow) if seed in SLOW else seed for seed in TESTED]
)
def test_every_invariant_holds_under_faults(seed: int) -> None:
    report = run_seed(seed)

    assert report.broken == (), f"replay with: python -m tests.sim.run --seed {seed}"
    assert report.fault_count >= FAULTS_MIN
    if seed == EDITED_FROM:
        assert all(report.faults[name] for name in SCENARIOS), "each scenario comes to its edit"
    if TIDED_FROM <= seed < CONTESTED_FROM:
        assert all(report.faults[name] for name in tides.drawn_names(seed)), "each scenario comes to its event"
    if seed >= LENT_FROM:
        assert all(report.faults[name] for name in loans.drawn_names(seed)), "each scenario comes to its event"
    elif seed >= RARE_FROM:
        assert all(report.faults[name] for name in rare_moments.SCENARIOS), "each scenario comes to its moment"
    elif seed >= SERVERLESS_FROM:
        assert all(report.faults[name] for name in jobs.drawn_names(seed)), "each scenario comes to its event"
    if not report.is_shipped:  # without remote responses nothing happens between a decision and its commit
        assert report.conflicts_true > 0
        assert report.conflicts_false > 0


def test_a_run_of_many_seeds_has_each_kind() -> None:
    seeds = played(480)

    assert len(set(seeds)) == 480
    ends = {
        0: TEAMED_FROM,
        TEAMED_FROM: PACKED_FROM,
        RELOADED_FROM: OWNED_FROM,
        OWNED_FROM: LINKED_FROM,
        LINKED_FROM: EDITED_FROM,
        EDITED_FROM: TIDED_FROM,
        TIDED_FROM: CONTESTED_FROM,
        CONTESTED_FROM: SERVERLESS_FROM,
        SERVERLESS_FROM: ELASTIC_FROM,
        ELASTIC_FROM: RARE_FROM,
        RARE_FROM: LENT_FROM,
        LENT_FROM: LENT_FROM + 40,
    }
    for first, end in ends.items():
        assert sum(first <= seed < end for seed in seeds) == 40


def test_most_runs_with_controllers_and_trees_have_nodes_that_share_gpus() -> None:
    has_cards = [drawn(seed, rng_of(seed)).has_card_nodes for seed in range(OWNED_FROM, OWNED_FROM + 40)]

    assert has_cards[0], "the test plays it"
    assert 20 <= sum(has_cards) < 40
    assert not any(drawn(seed, rng_of(seed)).has_card_nodes for seed in (0, TEAMED_FROM, RELOADED_FROM, LINKED_FROM))
    contested = [drawn(seed, rng_of(seed)) for seed in range(CONTESTED_FROM, CONTESTED_FROM + 40)]
    assert all(one.has_card_nodes and one.has_card_contests and one.has_gangs for one in contested)


def test_every_second_seed_runs_the_shipped_default_configuration() -> None:
    """The configuration is unchanged with quotas; without them each domain has its own lease, so that different replicas lead."""
    default = loading.default()
    apart = replace(default, lease=replace(default.lease, per_domain=True))
    for seed in (*range(4), *range(TEAMED_FROM, TEAMED_FROM + 12)):
        setting = drawn(seed, rng_of(seed))
        is_shipped = setting.configuration == (default if setting.has_quotas else apart)
        assert (setting.is_shipped, is_shipped) == (seed % 2 == 0,) * 2


@pytest.mark.slow
def test_seed_gives_the_same_run_whatever_ran_before() -> None:
    """Also in another process with another hash seed: no decision depends on the order of a set or dict (I12)."""
    command = [sys.executable, "-c", "from tests.kit.run.seeded_run import run_seed; print(run_seed(8))"]
    environment = os.environ | {"PYTHONHASHSEED": "12345"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as first:
        run_seed(9)

        assert f"{run_seed(8)}\n" == first.communicate()[0]
