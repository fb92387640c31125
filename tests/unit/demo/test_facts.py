"""What the demo says of its story, sentence by sentence, and what of it programs read."""

from __future__ import annotations

import pytest

from multisched.demo.facts import Facts, Forecast, Gang, Loan, Quota, Refused, ServicePeak, quantile


@pytest.mark.parametrize(
    ("gang", "said"),
    [
        (Gang("llm", 8, 7, 0), "llm: 7 of 8 members exist; none starts until all can"),
        (Gang("llm", 8, 8, 3), "llm: 3 of 8 members bound"),
        (Gang("llm", 8, 8, 8), "llm: all 8 members were bound together with the last one"),
    ],
)
def test_a_gang_waits_for_its_last_member(gang: Gang, said: str) -> None:
    assert gang.words() == said


@pytest.mark.parametrize(
    ("borrower_cpu", "owner_cpu", "evicted", "said"),
    [
        (10, 0, 0, "red holds 10 of the 20 CPUs guaranteed to it"),
        (40, 0, 0, "red holds 40 CPUs, 20 of them borrowed from blue"),
        (30, 8, 5, "blue reclaimed 8 of its 20 CPUs: 5 pods of red were evicted"),
    ],
)
def test_quota_is_borrowed_and_reclaimed(borrower_cpu: int, owner_cpu: int, evicted: int, said: str) -> None:
    assert Quota("red", "blue", 40, 20, borrower_cpu, owner_cpu, evicted).words() == said


@pytest.mark.parametrize(
    ("evicted", "said"),
    [
        (0, "12 pods of images use 48 CPUs of GPU nodes"),
        (5, "12 pods of images use 48 CPUs of GPU nodes; 5 evicted for a pod of the gpu domain"),
    ],
)
def test_loan_is_used_and_taken_back(evicted: int, said: str) -> None:
    assert Loan("images", 12, 48, evicted).words() == said


def test_day_is_shown_as_one_bar_per_hour() -> None:
    assert ServicePeak("web", "Mon 20:00", 8.0, (0.0, 1.0, 4.0, 8.0)).bars() == " ▁▄█"
    assert ServicePeak("idle", "Mon 00:00", 0.0, (0.0, 0.0)).bars() == "  "


def test_document_has_all_facts_with_rounded_numbers() -> None:
    facts = Facts(
        gang=Gang("llm", 2, 2, 2),
        refused=Refused("default/too-big", "0/3 nodes are available: 3 Insufficient cpu. preemption: none", "less"),
        forecast=Forecast((ServicePeak("web", "Mon 20:00", 4.23456, ()),), "n", "cpu", "Mon 20:00", 0.12345, 0.1, 0.1),
    )
    assert facts.document() == {
        "gang": {"name": "llm", "members": 2, "there": 2, "bound": 2},
        "refused": {
            "pod": "default/too-big",
            "message": "0/3 nodes are available: 3 Insufficient cpu. preemption: none",
            "fix": "less",
        },
        "forecast": {
            "services": {"web": {"peak": 4.23, "at": "Mon 20:00"}},
            "fullest": {"node": "n", "dimension": "cpu", "at": "Mon 20:00", "share": 0.123},
        },
    }
    assert ("refused", "default/too-big: 0/3 nodes are available: 3 Insufficient cpu") in list(facts.sentences())


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([], 0.5, 0.0),
        ([7.0], 0.99, 7.0),
        ([1.0, 2.0, 3.0, 4.0], 0.5, 2.0),
        ([float(n) for n in range(1, 101)], 0.99, 99.0),
    ],
)
def test_quantiles_use_the_nearest_rank(values: list[float], share: float, expected: float) -> None:
    assert quantile(values, share) == expected
