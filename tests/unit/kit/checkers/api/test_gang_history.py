"""What the history of a gang's pods shows: a start in part, and evictions of ours that leave a part of it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kit.checkers.api.gang_history import EVICTIONS_MAX_S, GangHistory
from tests.unit.verify.clusters import make_pod

KEY = ("default", "g")
SENDER = "process-1"


class Story:
    """A gang with a minimum of three."""

    def __init__(self) -> None:
        self.now_s, self.broken = 0.0, list[str]()
        self.history = GangHistory(lambda: self.now_s, self.broken.append)

    def tell(self, names: str, node: str = "n1", **fields: Any) -> Story:
        """These members, as they are now."""
        for name in names:
            document = make_pod(name, node, **fields)[1]
            self.history.pod_changed(KEY, 3, f"uid-default-{name}", document)
        return self

    def delete(self, names: str) -> Story:
        for name in names:
            self.history.pod_changed(KEY, 3, f"uid-default-{name}", None)
        return self

    def evict(self, names: str) -> Story:
        """A process of ours evicts them; each member terminates for a while."""
        for name in names:
            self.history.evicted(SENDER, f"uid-default-{name}")
            self.tell(name, is_terminating=True)
        return self

    def rest(self, *, interrupted: str = "nobody") -> list[str]:
        self.now_s += 100.0
        self.history.check_quiescent(lambda sender: sender == interrupted)
        return self.broken


PARTIAL = "I13: gang default/g is started in part, with {} of 3 members"
EVICTED = "I13: evictions by process-1 left gang default/g with {} of 3 members"


@pytest.mark.parametrize(
    ("story", "said"),
    [
        (Story().tell("abc"), []),
        (Story().tell("ab").tell("c", ""), [PARTIAL.format(2)]),
        (Story().tell("abc").evict("abc").tell("de").tell("f", ""), [PARTIAL.format(2)]),
        (Story().tell("abc").delete("abc").tell("d"), [PARTIAL.format(1)]),
        (Story().tell("abc").delete("a").tell("d", ""), []),
        (Story().tell("abcd").evict("d"), []),
        (Story().tell("abcd").evict("cd"), [EVICTED.format(2)]),
        (Story().tell("abc").evict("abc"), []),
        (Story().tell("abcd").delete("d").evict("c"), []),
        (Story().tell("ab").tell("c", phase="Succeeded"), []),
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
def test_a_gang_is_judged_by_its_history(story: Story, said: list[str]) -> None:
    assert story.rest() == said


def test_eviction_below_the_minimum_is_reported_after_the_grace_time() -> None:
    story = Story().tell("abcd").evict("cd")

    story.now_s = EVICTIONS_MAX_S
    story.history.look(lambda sender: False)
    assert story.broken == []
    story.now_s += 1.0
    story.history.look(lambda sender: False)
    assert story.broken == [EVICTED.format(2)]


def test_partial_gang_of_a_killed_process_is_excused() -> None:
    assert Story().tell("abcd").evict("cd").rest(interrupted=SENDER) == []


def test_refused_bind_excuses_a_partial_gang() -> None:
    story = Story().tell("ab").tell("c", "")

    story.history.on_bind_answered(SENDER, "uid-default-c", is_bound=False)

    assert story.rest() == []


@pytest.mark.parametrize(("is_sent_before", "said"), [(True, []), (False, [PARTIAL.format(2)])])
def test_minimum_raised_after_the_binds_were_sent_excuses_a_partial_gang(
    *, is_sent_before: bool, said: list[str]
) -> None:
    story = Story()
    for name in "ab":
        story.history.pod_changed(KEY, 2, f"uid-default-{name}", make_pod(name, "")[1])
    if not is_sent_before:
        story.history.minimum_changed(KEY, 3)
    for name in "ab":
        story.history.on_bind_sent(f"uid-default-{name}")
    story.history.minimum_changed(KEY, 3)

    assert story.tell("ab").rest() == said


def test_a_gang_that_cannot_start_has_no_nominated_node() -> None:
    story = Story().tell("ab", "", status={"nominatedNodeName": "n1"})

    assert story.rest() == ["I13: gang default/g has 2 of 3 members, and 2 with a nominated node"]
