"""How many creates of a serverless unit may be unsettled at once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from domains.job.providers.breaker import Attempt
from domains.job.providers.create_window import START, SURVIVED_S, TRUSTED_S, CreateWindow


class Creates:
    """A window, and the creates that it permits. Each is bound when it is permitted."""

    def __init__(self) -> None:
        self.window = CreateWindow()
        self.now_s = 0.0
        self.window.settle(self.now_s)

    def fill(self, most: int = 1_000) -> list[Attempt]:
        """Permits as many creates as the window has room for, at most so many."""
        found = [Attempt(0) for _ in range(min(most, self.window.room(self.now_s)))]
        for one in found:
            self.window.take(one)
            self.window.bound(one, self.now_s)
        return found

    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.window.settle(self.now_s)


def test_window_doubles_each_time_its_creates_survive() -> None:
    creates, sizes = Creates(), []
    for _ in range(6):
        sizes.append(len(creates.fill()))
        assert not creates.fill(), "the window is full"
        creates.wait(SURVIVED_S)
    assert sizes == [START * 2**step for step in range(6)]


def test_burst_that_meets_an_outage_fails_only_what_the_window_held() -> None:
    creates = Creates()
    sent = creates.fill()
    assert len(sent) == START
    for one in sent:
        creates.window.failed(one, creates.now_s)
        assert creates.window.room(creates.now_s) == 0 or creates.window.unsettled == 0
    assert creates.window.size(creates.now_s) == 1


def test_single_failure_in_a_steady_flow_halves_it_only_for_a_moment() -> None:
    creates, sent, per_second = Creates(), 0, 20.0
    while creates.now_s < 120.0:
        found = creates.fill(int(per_second * creates.now_s) - sent)  # tokens that are not used are kept
        if found and sent // 100 != (sent + len(found)) // 100:
            creates.window.failed(found[0], creates.now_s)
        sent += len(found)
        creates.wait(0.1)
    assert sent >= 0.98 * per_second * 120.0


def test_window_starts_small_again_after_idleness() -> None:
    creates = Creates()
    for _ in range(5):
        creates.fill()
        creates.wait(SURVIVED_S)
    large = creates.window.size(creates.now_s)
    creates.wait(TRUSTED_S)
    assert creates.window.size(creates.now_s) == large
    creates.wait(1.0)
    assert creates.window.size(creates.now_s) == START


def test_failure_that_is_reported_late_makes_the_window_small() -> None:
    creates = Creates()
    for _ in range(3):
        first, *_ = creates.fill()
        creates.wait(SURVIVED_S)
    creates.window.failed(first, creates.now_s)
    assert creates.window.size(creates.now_s) == 1


def test_create_that_is_not_bound_yet_does_not_survive() -> None:
    window, attempts = CreateWindow(), [Attempt(0), Attempt(0)]
    window.settle(0.0)
    for one in attempts:
        window.take(one)
    window.bound(attempts[0], 1.0)
    window.settle(100.0)
    assert window.unsettled == 1
    assert window.settled(attempts[1])
    assert not window.settled(attempts[1])


def test_copy_in_which_no_time_passes_has_no_limit() -> None:
    window = CreateWindow()
    for _ in range(100):
        assert window.room(0.0) > 0
        window.take(Attempt(0))


@given(st.lists(st.sampled_from(("fill", "one", "bound", "fails", "survives", "back", "wait")), max_size=60))
def test_no_more_creates_are_unsettled_than_the_window_allowed(events: list[str]) -> None:
    creates, sent, most = Creates(), list[Attempt](), START
    for event in events:
        window = creates.window
        if event in ("fill", "one"):
            sent += creates.fill(1 if event == "one" else 1_000)
            assert window.unsettled <= most
        elif event == "wait":
            creates.wait(0.6)
        elif sent:
            one = sent.pop(0)
            if event == "fails":
                window.failed(one, creates.now_s)
            elif event == "survives":
                window.survived(one, creates.now_s)
            elif event == "back":
                window.settled(one)
        most = max(most, window.size(creates.now_s))
        assert window.size(creates.now_s) >= 1
