"""The table of bind answers, and a server that loses, delays and repeats: no outcome is told that is not true (I2)."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.cycle.bind_outcome import (
    PAUSE_INITIAL_S,
    PAUSE_MAX_S,
    THROTTLED_ATTEMPTS_MAX,
    UNSENT_ATTEMPTS_MAX,
    Action,
    BindMachine,
    Outcome,
    Step,
)
from multisched.framework.ports import BindAnswer, BindReply, PodTruth

DEADLINE_S = 5.0
OURS = PodTruth("uid", "n", is_deleting=False, is_gated=False)
THEIRS = PodTruth("uid", "m", is_deleting=False, is_gated=False)
UNBOUND = PodTruth("uid", "", is_deleting=False, is_gated=False)
DELETING = PodTruth("uid", "", is_deleting=True, is_gated=False)
GATED = PodTruth("uid", "", is_deleting=False, is_gated=True)
ANOTHER = PodTruth("another", "n", is_deleting=False, is_gated=False)


def make_machine(*, unknown: bool = False) -> BindMachine:
    machine = BindMachine("uid", "n", bind_deadline_s=DEADLINE_S)
    assert machine.first() == Action(Step.POST)
    if unknown:
        machine.on_reply(BindReply(BindAnswer.UNKNOWN))
    return machine


@pytest.mark.parametrize(
    ("answer", "step", "outcome"),
    [
        (BindAnswer.CREATED, Step.END, Outcome.BOUND),
        (BindAnswer.NOT_FOUND, Step.END, Outcome.GONE),
        (BindAnswer.CONFLICT, Step.READ, None),
        (BindAnswer.THROTTLED, Step.POST, None),
        (BindAnswer.DENIED, Step.END, Outcome.REFUSED),
        (BindAnswer.REJECTED, Step.END, Outcome.REFUSED),
        (BindAnswer.NOT_SENT, Step.POST, None),
        (BindAnswer.UNKNOWN, Step.POST, None),
    ],
)
def test_first_bind_answer_decides_the_next_step(answer: BindAnswer, step: Step, outcome: Outcome | None) -> None:
    machine = make_machine()
    action = machine.on_reply(BindReply(answer, message="why"))
    assert (action.step, action.outcome) == (step, outcome)
    assert machine.is_unknown is (answer is BindAnswer.UNKNOWN)


def test_foreign_bind_is_accepted_once_the_api_server_confirms_it() -> None:
    machine = make_machine()
    assert machine.on_reply(BindReply(BindAnswer.DELEGATED, message="it was not bound")) == Action(Step.READ)
    assert machine.is_unknown
    assert machine.on_read(OURS).outcome is Outcome.BOUND


def test_unconfirmed_foreign_bind_is_refused_after_a_wait() -> None:
    machine = make_machine()
    machine.on_reply(BindReply(BindAnswer.DELEGATED, message="it was not bound"))
    assert machine.on_read(UNBOUND) == Action(Step.READ, DEADLINE_S)
    assert machine.on_read(UNBOUND) == Action(Step.END, outcome=Outcome.REFUSED, message="it was not bound")


@pytest.mark.parametrize(
    ("answer", "step", "outcome"),
    [
        (BindAnswer.CREATED, Step.END, Outcome.BOUND),
        (BindAnswer.NOT_FOUND, Step.READ, None),
        (BindAnswer.CONFLICT, Step.READ, None),
        (BindAnswer.THROTTLED, Step.POST, None),
        (BindAnswer.DENIED, Step.READ, None),
        (BindAnswer.REJECTED, Step.READ, None),
        (BindAnswer.NOT_SENT, Step.POST, None),
        (BindAnswer.UNKNOWN, Step.POST, None),
    ],
)
def test_answer_after_an_unknown_one_does_not_release_the_pod(
    answer: BindAnswer, step: Step, outcome: Outcome | None
) -> None:
    machine = make_machine(unknown=True)
    action = machine.on_reply(BindReply(answer))
    assert (action.step, action.outcome) == (step, outcome)


@pytest.mark.parametrize(
    ("truth", "outcome"),
    [
        (OURS, Outcome.BOUND),
        (THEIRS, Outcome.FOREIGN),
        (UNBOUND, Outcome.REFUSED),
        (DELETING, Outcome.GONE),
        (GATED, Outcome.REFUSED),
        (ANOTHER, Outcome.GONE),
        (None, Outcome.GONE),
    ],
)
def test_conflict_is_resolved_by_a_read(truth: PodTruth | None, outcome: Outcome) -> None:
    machine = make_machine()
    machine.on_reply(BindReply(BindAnswer.CONFLICT))
    action = machine.on_read(truth)
    assert (action.step, action.outcome) == (Step.END, outcome)


@pytest.mark.parametrize(
    ("truth", "why"),
    [(UNBOUND, "the API server refused the binding"), (GATED, "the pod has scheduling gates")],
)
def test_conflict_without_a_message_is_judged_by_the_pod_state(truth: PodTruth, why: str) -> None:
    machine = make_machine()
    assert machine.on_reply(BindReply(BindAnswer.CONFLICT)).step is Step.READ
    assert machine.on_read(truth) == Action(Step.END, outcome=Outcome.REFUSED, message=why)


@pytest.mark.parametrize("truth", [UNBOUND, GATED])
def test_unknown_bind_is_refused_only_after_every_late_request_expired(truth: PodTruth) -> None:
    machine = make_machine(unknown=True)
    machine.on_reply(BindReply(BindAnswer.CONFLICT))
    assert machine.on_read(truth) == Action(Step.READ, DEADLINE_S)
    assert machine.on_read(truth).outcome is Outcome.REFUSED


def test_cancelled_bind_is_refused_if_unsent_else_read() -> None:
    assert make_machine().withdraw("why") == Action(Step.END, outcome=Outcome.REFUSED, message="why")

    machine = make_machine(unknown=True)
    assert machine.withdraw("why").step is Step.READ
    assert machine.on_read(UNBOUND) == Action(Step.READ, DEADLINE_S)
    assert machine.on_read(UNBOUND) == Action(Step.END, outcome=Outcome.REFUSED, message="why")

    machine = make_machine(unknown=True)
    machine.withdraw("why")
    assert machine.on_read(OURS).outcome is Outcome.BOUND


def test_late_request_that_succeeds_is_found() -> None:
    machine = make_machine(unknown=True)
    machine.on_reply(BindReply(BindAnswer.CONFLICT))
    assert machine.on_read(UNBOUND).step is Step.READ
    assert machine.on_read(OURS).outcome is Outcome.BOUND


def test_unreachable_server_is_retried_without_a_limit() -> None:
    machine = make_machine()
    machine.on_reply(BindReply(BindAnswer.CONFLICT))
    pauses = [machine.on_unreachable() for _ in range(100)]
    assert {action.step for action in pauses} == {Step.READ}
    assert pauses[0].pause_s == PAUSE_INITIAL_S
    assert pauses[-1].pause_s == PAUSE_MAX_S


@pytest.mark.parametrize(
    ("answer", "attempts_max"),
    [(BindAnswer.NOT_SENT, UNSENT_ATTEMPTS_MAX), (BindAnswer.THROTTLED, THROTTLED_ATTEMPTS_MAX)],
)
def test_bind_without_effect_fails_after_a_fixed_number_of_attempts(answer: BindAnswer, attempts_max: int) -> None:
    machine = make_machine()
    actions = [machine.on_reply(BindReply(answer, message="why")) for _ in range(attempts_max)]
    assert [action.step for action in actions] == [Step.POST] * (attempts_max - 1) + [Step.END]
    assert (actions[-1].outcome, actions[-1].message) == (Outcome.REFUSED, "why")


@pytest.mark.parametrize("answer", [BindAnswer.NOT_SENT, BindAnswer.THROTTLED])
def test_unknown_bind_never_ends_by_answers_without_effect(answer: BindAnswer) -> None:
    """The first POST may still take effect: its node is asked for until a read says what became of it (I2)."""
    machine = make_machine(unknown=True)
    actions = [machine.on_reply(BindReply(answer)) for _ in range(UNSENT_ATTEMPTS_MAX + THROTTLED_ATTEMPTS_MAX)]
    assert {action.step for action in actions} == {Step.POST}
    machine.on_reply(BindReply(BindAnswer.CONFLICT))
    assert machine.on_read(OURS).outcome is Outcome.BOUND


def test_throttled_answers_do_not_count_as_refused_connections() -> None:
    machine = make_machine()
    for _ in range(UNSENT_ATTEMPTS_MAX + 1):
        assert machine.on_reply(BindReply(BindAnswer.THROTTLED)).step is Step.POST
    assert machine.on_reply(BindReply(BindAnswer.NOT_SENT)).step is Step.POST


def test_retry_after_is_honoured() -> None:
    assert make_machine().on_reply(BindReply(BindAnswer.THROTTLED, retry_after_s=30.0)).pause_s == 30.0


def test_failed_bind_plugin_is_not_retried_and_reports_its_reason() -> None:
    machine = make_machine()
    assert machine.on_failure("plugin broke").step is Step.READ
    assert machine.is_unknown
    assert machine.on_read(UNBOUND) == Action(Step.READ, DEADLINE_S)
    end = machine.on_read(UNBOUND)
    assert (end.outcome, end.message) == (Outcome.REFUSED, "plugin broke")


# -- a server that loses, delays and repeats -----------------------------------------------------------------------------


@dataclass
class Server:
    """One pod, and binds on their way that land late, but never after their deadline."""

    node: str = ""
    is_there: bool = True
    is_deleting: bool = False
    now_s: float = 0.0
    on_their_way: list[float] = field(default_factory=list)
    posts: int = 0

    def advance(self, seconds: float) -> None:
        self.now_s += seconds
        for lands_s in sorted(self.on_their_way):
            if lands_s <= self.now_s:
                self.on_their_way.remove(lands_s)
                self.apply()

    def apply(self) -> bool:
        if not self.is_there or self.node or self.is_deleting:
            return False
        self.node = "n"
        return True

    def post(self, fault: str, late_s: float) -> BindReply:
        self.posts += 1
        match fault:
            case "throttled" | "denied" | "not_sent" | "rejected":
                return BindReply(BindAnswer[fault.upper()])
            case "applied, answer lost":
                self.apply()
                return BindReply(BindAnswer.UNKNOWN)
            case "applied late":
                self.on_their_way.append(self.now_s + late_s)
                return BindReply(BindAnswer.UNKNOWN)
            case "lost":
                return BindReply(BindAnswer.UNKNOWN)
        if not self.is_there:
            return BindReply(BindAnswer.NOT_FOUND)
        return BindReply(BindAnswer.CREATED if self.apply() else BindAnswer.CONFLICT)

    def happen(self, event: str) -> None:
        match event:
            case "deleted":
                self.is_there = False
            case "deleting":
                self.is_deleting = True
            case "bound elsewhere":
                self.node = self.node or "m"

    def read(self) -> PodTruth | None:
        return PodTruth("uid", self.node, self.is_deleting, is_gated=False) if self.is_there else None


faults = st.sampled_from(
    ("", "throttled", "denied", "not_sent", "rejected", "applied, answer lost", "applied late", "lost")
)
events = st.sampled_from(("", "", "", "deleted", "deleting", "bound elsewhere"))
days = st.lists(st.tuples(faults, st.floats(0.01, DEADLINE_S), events, st.booleans()), max_size=10)


@given(days)
def test_bind_outcome_is_always_true(history: list[tuple[str, float, str, bool]]) -> None:
    server, machine = Server(), make_machine()
    action = machine.first()
    ahead = iter(history)
    for _ in range(200):
        if action.step is Step.END:
            break
        fault, late_s, event, is_reachable = next(ahead, ("", 0.0, "", True))
        server.advance(action.pause_s)
        server.happen(event)
        if action.step is Step.POST:
            action = machine.on_reply(server.post(fault, late_s))
        else:
            action = machine.on_read(server.read()) if is_reachable else machine.on_unreachable()
    assert action.step is Step.END
    server.advance(10 * DEADLINE_S)
    match action.outcome:
        case Outcome.BOUND:
            assert server.node == "n"
        case Outcome.REFUSED:
            assert server.node != "n"
        case Outcome.FOREIGN:
            assert server.node == "m"
        case Outcome.GONE:
            assert not server.is_there or server.is_deleting


END_BOUND, READ = Action(Step.END, outcome=Outcome.BOUND), Action(Step.READ)
REFUSED = Action(Step.END, outcome=Outcome.REFUSED, message="why")
NEXT, AFTER_ONE = Action(Step.POST, PAUSE_INITIAL_S), Action(Step.POST, 2 * PAUSE_INITIAL_S)
READ_LATER = Action(Step.READ, 2 * PAUSE_INITIAL_S)


@pytest.mark.parametrize(
    ("answer", "known", "unknown"),
    [
        (BindAnswer.CREATED, END_BOUND, END_BOUND),
        (BindAnswer.NOT_FOUND, Action(Step.END, outcome=Outcome.GONE, message="why"), READ),
        (BindAnswer.CONFLICT, READ, READ),
        (BindAnswer.DELEGATED, READ, READ),
        (BindAnswer.UNKNOWN, NEXT, AFTER_ONE),
        (BindAnswer.THROTTLED, NEXT, AFTER_ONE),
        (BindAnswer.NOT_SENT, NEXT, AFTER_ONE),
        (BindAnswer.DENIED, REFUSED, READ_LATER),
        (BindAnswer.REJECTED, REFUSED, READ_LATER),
    ],
)
def test_every_reply_has_its_full_action(answer: BindAnswer, known: Action, unknown: Action) -> None:
    """`unknown`: after another POST that was not answered."""
    assert make_machine().on_reply(BindReply(answer, message="why")) == known
    machine = make_machine(unknown=True)
    assert machine.on_reply(BindReply(answer, message="why")) == unknown
    assert machine.is_unknown


@pytest.mark.parametrize(
    ("truth", "outcome", "words"),
    [
        (None, Outcome.GONE, "the pod no longer exists"),
        (ANOTHER, Outcome.GONE, "the pod no longer exists"),
        (OURS, Outcome.BOUND, "bound to n"),
        (THEIRS, Outcome.FOREIGN, "bound to m"),
        (DELETING, Outcome.GONE, "the pod is being deleted"),
        (UNBOUND, Outcome.REFUSED, "the API server refused the binding"),
        (GATED, Outcome.REFUSED, "the pod has scheduling gates"),
    ],
)
def test_every_read_has_its_full_action(truth: PodTruth | None, outcome: Outcome, words: str) -> None:
    ended = Action(Step.END, outcome=outcome, message=words)
    assert make_machine().on_read(truth) == ended
    machine = make_machine(unknown=True)
    first = machine.on_read(truth)
    if outcome is Outcome.REFUSED:
        assert first == Action(Step.READ, DEADLINE_S), "the POST before may still be on its way"
        first = machine.on_read(truth)
    assert first == ended


def test_failure_message_is_reported_once_a_read_shows_no_bind() -> None:
    for machine in (make_machine(), make_machine(unknown=True)):
        assert machine.on_failure("the plugin's words").step is Step.READ
        assert machine.on_read(UNBOUND) == Action(Step.READ, DEADLINE_S)
        refused = Action(Step.END, outcome=Outcome.REFUSED, message="the plugin's words")
        assert machine.on_read(UNBOUND) == refused
    delegated = make_machine()
    delegated.on_reply(BindReply(BindAnswer.DELEGATED, message="the extender's words"))
    assert delegated.is_unknown
    delegated.on_read(UNBOUND)
    assert delegated.on_read(UNBOUND).message == "the extender's words"


def test_retry_after_is_never_undercut() -> None:
    machine = make_machine()
    assert machine.on_reply(BindReply(BindAnswer.THROTTLED, retry_after_s=7.0)) == Action(Step.POST, 7.0)
    assert machine.on_reply(BindReply(BindAnswer.THROTTLED, retry_after_s=0.1)) == AFTER_ONE
    pauses = [machine.on_unreachable() for _ in range(30)]
    assert pauses[:2] == [Action(Step.READ, 4 * PAUSE_INITIAL_S), Action(Step.READ, 8 * PAUSE_INITIAL_S)]
    assert pauses[-1] == Action(Step.READ, PAUSE_MAX_S)


def test_withdrawn_bind_is_refused_if_unsent_and_read_if_sent() -> None:
    refused = Action(Step.END, outcome=Outcome.REFUSED, message="the node is gone")
    assert make_machine().withdraw("the node is gone") == refused
    sent = make_machine(unknown=True)
    assert sent.withdraw("the node is gone") == READ_LATER
    sent.on_read(UNBOUND)
    assert sent.on_read(UNBOUND) == refused
