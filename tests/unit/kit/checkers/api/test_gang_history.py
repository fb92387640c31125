"""Violations in the history of a gang's pods: partial starts, and our evictions that leave a part."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kit.checkers.api.gang_history import EVICTIONS_MAX_S, GangHistory
from tests.unit.verify.clusters import make_pod

KEY = ("default", "g")
SENDER = "process-1"


class PodHistory:
    """The pods of a gang with a minimum of three."""

    def __init__(self) -> None:
        self.now_s, self.broken = 0.0, list[str]()
        self.checker = GangHistory(lambda: self.now_s, self.broken.append)

    def write(self, names: str, node: str = "n1", **fields: Any) -> PodHistory:
        """Writes these members."""
        for name in names:
            document = make_pod(name, node, **fields)[1]
            self.checker.pod_changed(KEY, 3, f"uid-default-{name}", document)
        return self

    def delete(self, names: str) -> PodHistory:
        for name in names:
            self.checker.pod_changed(KEY, 3, f"uid-default-{name}", None)
        return self

    def evict(self, names: str) -> PodHistory:
        """Evicts members as one of our processes; each terminates for a while."""
        for name in names:
            self.checker.evicted(SENDER, f"uid-default-{name}")
            self.write(name, is_terminating=True)
        return self

    def violations_at_end(self, *, interrupted: str = "nobody") -> list[str]:
        self.now_s += 100.0
        self.checker.check_quiescent(lambda sender: sender == interrupted)
        return self.broken


PARTIAL = "I13: gang default/g is started in part, with {} of 3 members"
EVICTED = "I13: evictions by process-1 left gang default/g with {} of 3 members"


@pytest.mark.parametrize(
    ("history", "violations"),
    [
        (PodHistory().write("abc"), []),
        (PodHistory().write("ab").write("c", ""), [PARTIAL.format(2)]),
        (PodHistory().write("abc").evict("abc").write("de").write("f", ""), [PARTIAL.format(2)]),
        (PodHistory().write("abc").delete("abc").write("d"), [PARTIAL.format(1)]),
        (PodHistory().write("abc").delete("a").write("d", ""), []),
        (PodHistory().write("abcd").evict("d"), []),
        (PodHistory().write("abcd").evict("cd"), [EVICTED.format(2)]),
        (PodHistory().write("abc").evict("abc"), []),
        (PodHistory().write("abcd").delete("d").evict("c"), []),
        (PodHistory().write("ab").write("c", phase="Succeeded"), []),
    ],
    ids=[
        "whole",
        "bound in part",
        "evicted, and started again in part",
        "deleted, and started again in part",
        "a member deleted by somebody else",
        "the surplus evicted",
        "evicted below the minimum",
        "evicted as a whole",
        "evicted before a deletion was known",
        "one has succeeded",
    ],
)
def test_a_gang_is_judged_by_its_history(history: PodHistory, violations: list[str]) -> None:
    assert history.violations_at_end() == violations


def test_eviction_below_the_minimum_is_reported_after_the_grace_time() -> None:
    history = PodHistory().write("abcd").evict("cd")

    history.now_s = EVICTIONS_MAX_S
    history.checker.look(lambda sender: False)
    assert history.broken == []
    history.now_s += 1.0
    history.checker.look(lambda sender: False)
    assert history.broken == [EVICTED.format(2)]


def test_partial_gang_of_a_killed_process_is_excused() -> None:
    assert PodHistory().write("abcd").evict("cd").violations_at_end(interrupted=SENDER) == []


def test_refused_bind_excuses_a_partial_gang() -> None:
    history = PodHistory().write("ab").write("c", "")

    history.checker.on_bind_answered(SENDER, "uid-default-c", is_bound=False)

    assert history.violations_at_end() == []


@pytest.mark.parametrize(
    ("observed", "violations"), [("ab", []), ("c", [PARTIAL.format(1)]), ("d", [PARTIAL.format(1)])]
)
def test_unknown_removal_of_members_excuses_a_partial_gang(observed: str, violations: list[str]) -> None:
    """All members are deleted and replaced, and a process places one of the new ones. `observed`: what runs, as it knows."""
    history = PodHistory().write("abc").evict("c").delete("abc").write("de", "")

    history.checker.on_bind_decided("uid-default-d", {f"uid-default-{name}" for name in observed})

    assert history.write("d").violations_at_end() == violations


@pytest.mark.parametrize(("is_sent_before", "violations"), [(True, []), (False, [PARTIAL.format(2)])])
def test_minimum_raised_after_the_binds_were_sent_excuses_a_partial_gang(
    *, is_sent_before: bool, violations: list[str]
) -> None:
    history = PodHistory()
    for name in "ab":
        history.checker.pod_changed(KEY, 2, f"uid-default-{name}", make_pod(name, "")[1])
    if not is_sent_before:
        history.checker.minimum_changed(KEY, 3)
    for name in "ab":
        history.checker.on_bind_sent(f"uid-default-{name}")
    history.checker.minimum_changed(KEY, 3)

    assert history.write("ab").violations_at_end() == violations


def test_a_gang_that_cannot_start_has_no_nominated_node() -> None:
    history = PodHistory().write("ab", "", status={"nominatedNodeName": "n1"})

    assert history.violations_at_end() == ["I13: gang default/g has 2 of 3 members, and 2 with a nominated node"]
