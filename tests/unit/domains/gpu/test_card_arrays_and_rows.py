"""A node's cards as a row and as arrays: both give equal results for every demand, and every choice fits."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from domains.gpu.card_arrays import MODEL, MODELS_MAX, CardArrays
from domains.gpu.card_row import UNCONFIRMED, CardRow, no_such_card, parts_of
from domains.gpu.cards import CARD_MILLI, NOTHING, WHOLE_CARD, Amount, Card, Mode, NodeCards, Use
from domains.gpu.demand import ANY_CARD, CardFilter, GpuDemand, Part
from domains.gpu.dialect import Choice, NoTimedAnnotations
from domains.gpu.dialects.whole import WholeDialect
from domains.gpu.gpu_ledger import GpuLedger
from domains.gpu.hold import Hold, Share, even_shares, whole_hold
from domains.gpu.node_lock import LOCKED, NodeLockKey, read_lock
from multisched.framework.ledger import rebuild
from multisched.framework.objects_view import ObjectsView
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Node, Pod
from multisched.testing.builders import make_node, make_pod

MODES = frozenset({Mode.HAMI})
ASKS, CHOSEN, REPORTED, CARDS, LOCK = "t.io/asks", "t.io/chosen", "t.io/allocated", "t.io/cards", "t.io/lock"


class TestedDialect(NoTimedAnnotations):
    """Its plugin confuses all of its pods. Implements `Dialect`."""

    __test__ = False
    name = "tested"
    modes = MODES
    requested = frozenset({ASKS})
    written = frozenset({CHOSEN})
    reported = frozenset({REPORTED})
    node_annotations = frozenset({LOCK})
    node_lock: NodeLockKey | None = NodeLockKey(LOCK, is_written_before_bind=True, held_while=frozenset({"any pod"}))
    reads_objects: tuple[ObjectKind, ...] = ()
    resources: frozenset[str] = frozenset()

    def __init__(self, cards: Mapping[str, NodeCards], demands: Mapping[str, GpuDemand]) -> None:
        self._cards, self._demands = cards, demands

    def demand(self, pod: Pod) -> GpuDemand | None:
        return self._demands.get(pod.annotations.get(ASKS, ""))

    def cards(self, node: Node, objects: ObjectsView | None) -> NodeCards | None:
        return self._cards.get(node.labels.get(CARDS, ""))

    def answer(self, pod: Pod, demand: GpuDemand, node: str, cards: NodeCards, choice: Choice) -> Mapping[str, str]:
        return {CHOSEN: " ".join(map(str, choice))}

    def hold(self, pod: Pod, *, is_ours: bool) -> Hold | None:
        demand = self.demand(pod)
        if demand is None or CHOSEN not in pod.annotations:
            return None
        amounts = [part.amount for part in demand.parts for _ in range(part.count)]
        chosen = [int(text) for text in pod.annotations[CHOSEN].split()]
        shares = tuple(Share(index, amount) for index, amount in zip(chosen, amounts, strict=True))
        awaits = frozenset() if REPORTED in pod.annotations else demand.confusions
        return Hold(self.name, demand.count, demand.amount, shares, awaits=awaits, modes=self.modes)


def asking(name: str, demand: str, **annotations: str) -> Pod:
    return make_pod(name, annotations={ASKS: demand, **annotations})


def ledger_of(cards: Mapping[str, NodeCards], demands: Mapping[str, GpuDemand]) -> GpuLedger:
    ledger = GpuLedger(None, None, (TestedDialect(cards, demands), WholeDialect()))
    for row, name in enumerate(cards):
        ledger.set_node(row, make_node(f"n{row}", labels={CARDS: name}))
    return ledger


card = st.builds(
    lambda memory, cores, sharers, model, numa, link, is_healthy: (
        memory,
        cores,
        sharers,
        model,
        numa,
        link,
        is_healthy,
    ),
    st.sampled_from((1, 7, 100)),
    st.sampled_from((100, 200)),
    st.integers(1, 3),
    st.sampled_from(("A100", "a10", "")),
    st.integers(-1, 1),
    st.sampled_from(("", "x", "y")),
    st.sampled_from((True, True, True, False)),
)
amounts = st.one_of(
    st.builds(
        lambda milli, cores: Amount(milli=milli, cores=cores), st.sampled_from((1, 500, 1000)), st.sampled_from((0, 60))
    ),
    st.builds(
        lambda memory, cores: Amount(memory=memory, cores=cores), st.integers(0, 8), st.sampled_from((0, 60, 100))
    ),
    st.builds(lambda percent: Amount(percent=percent), st.sampled_from((1, 50, 100))),
)
parts = st.builds(
    Part,
    count=st.integers(1, 3),
    amount=amounts,
    is_init=st.booleans(),
    needs_unused=st.sampled_from((False, False, True)),
    needs_cores=st.booleans(),
)
filters = st.sampled_from(
    (
        ANY_CARD,
        CardFilter(models=("A100",)),
        CardFilter(models_with=("a1",), models_without=("100",)),
        CardFilter(ids=("id0", "id2")),
        CardFilter(ids_without=("id1",)),
        CardFilter(models=("A100",), ids=("id0", "id2")),
    )
)
demands = st.builds(
    GpuDemand,
    dialect=st.just("tested"),
    parts=st.lists(parts, min_size=1, max_size=3).map(tuple),
    resource=st.just("cards"),
    filter=filters,
    one_numa=st.booleans(),
    one_link=st.sampled_from((False, False, True)),
    prefers=st.sampled_from(("", "spread", "binpack")),
)


@given(
    cards=st.lists(card, min_size=1, max_size=5),
    scale=st.sampled_from((1, 1000)),
    before=st.lists(demands, max_size=4),
    late=demands,
)
def test_arrays_and_row_give_equal_results_and_valid_choices(
    cards: list[tuple[int, int, int, str, int, str, bool]], scale: int, before: list[GpuDemand], late: GpuDemand
) -> None:
    built = tuple(
        Card(index, memory, scale, cores, sharers, f"id{index}", model, numa, link, is_healthy)
        for index, (memory, cores, sharers, model, numa, link, is_healthy) in enumerate(cards)
    )
    asked = {str(number): demand for number, demand in enumerate([*before, late])}
    ledger = ledger_of({"n": NodeCards(Mode.HAMI, built, is_indexed=True)}, asked)
    used = [NOTHING] * len(built)
    for number, demand in enumerate([*before, late]):
        row = ledger.cards(0)
        chosen = row.choose(demand)

        assert bool(ledger.has_room(demand, np.array([0]))[0]) == (chosen is not None)
        is_lacking = not any(demand.filter.accepts(one) for one in built)
        assert ledger.lacks_card(demand.filter, np.array([0])).tolist() == [is_lacking]
        refusal = no_such_card(demand.filter) if is_lacking else "Insufficient cards"
        assert row.refusal(demand, MODES) == ("" if chosen is not None else refusal)
        if chosen is None:
            continue
        assert row.refusal_of(demand, chosen, MODES) == ""
        if len(demand.parts) == 1:
            ones = [built[index] for index in chosen]
            assert all(one.is_healthy and demand.filter.accepts(one) for one in ones)
            if demand.count > 1 and demand.one_link:
                assert len({one.link for one in ones}) == 1
            elif demand.count > 1 and demand.one_numa:
                assert len({one.numa for one in ones}) == 1 or len({one.link for one in ones}) == 1
        if any(part.is_init for part in demand.parts):
            continue  # what its hold says of a card is its dialect's matter
        ledger.take(asking(f"p{number}", str(number)), 0)
        for part, indices in parts_of(demand, chosen):
            for index in indices:
                taken = (held + more for held, more in zip(used[index], part.amount.of(built[index]), strict=True))
                used[index] = Use(*taken)
        for free, one, use in zip(ledger.cards(0).free, built, used, strict=True):
            assert free == Use(*(total - held for total, held in zip(one.total, use, strict=True)))
            assert min(free) >= 0


FIRST = NodeCards(Mode.HAMI, (Card(0, 10, model="b"), Card(1, 10, model="a")))
SECOND = NodeCards(Mode.HAMI, (Card(0, 10, model="a"),))
CONFUSED = {"five": GpuDemand("tested", (Part(1, Amount(memory=5)),), "cards", confusions=frozenset({"any pod"}))}


def test_card_is_found_by_its_id_on_the_node_that_has_it_now() -> None:
    def with_ids(*ids: str) -> NodeCards:
        return NodeCards(Mode.HAMI, tuple(Card(index, 10, id=one) for index, one in enumerate(ids)))

    cards = {"old": with_ids("x", "y"), "new": with_ids("z"), "same": with_ids("y")}
    wanted, unwanted = CardFilter(ids=("x", "none")), CardFilter(ids_without=("y", "z"))
    asked = GpuDemand("tested", (Part(1, Amount(memory=5)),), "cards", filter=wanted)
    ledger, rows = ledger_of(cards, {"x": asked}), np.array([0, 1, 2])
    assert ledger.has_room(asked, rows).tolist() == [True, False, False]
    assert ledger.lacks_card(unwanted, rows).tolist() == [False, True, True]

    for row, name in enumerate(("same", "old", "gone")):
        ledger.set_node(row, make_node(f"n{row}", labels={CARDS: name}))
    assert ledger.has_room(asked, rows).tolist() == [False, True, False]
    assert ledger.lacks_card(wanted, rows).tolist() == [True, False, True]
    assert ledger.lacks_card(unwanted, rows).tolist() == [True, False, True]
    assert sorted(ledger.arrays.rows_by_id) == ["x", "y"]


def test_pod_waits_while_the_plugin_could_confuse_it_with_an_unconfirmed_one() -> None:
    ledger = ledger_of({"n": FIRST, "other": SECOND}, CONFUSED)
    late, rows = asking("late", "five"), np.array([0, 1])
    annotations = ledger.take(asking("first", "five"), 0)
    first = asking("first", "five", **annotations)

    assert [ledger.fits(late, row) for row in rows.tolist()] == [UNCONFIRMED, ""]
    assert ledger.arrays.unconfirmed(rows, frozenset({"any pod"})).tolist() == [True, False]
    assert ledger.arrays.unconfirmed(rows, frozenset({"another"})).tolist() == [False, False]

    version, answered = ledger.version(0), asking("first", "five", **annotations, **{REPORTED: "yes"})
    assert ledger.confusions_ended_by(first, answered) == {"any pod"}
    assert ledger.confusions_ended_by(first, first) == frozenset()
    ledger.restore(answered, 0)

    assert ledger.version(0) > version
    assert ledger.fits(late, 0) == ""
    assert not ledger.arrays.unconfirmed(rows, frozenset({"any pod"})).any()


def test_plugin_response_only_confirms_the_hold() -> None:
    ledger = ledger_of({"n": FIRST}, CONFUSED)
    ledger.take(asking("first", "five"), 0, (1,))

    ledger.restore(asking("first", "five", **{CHOSEN: "0", REPORTED: "yes"}), 0)

    hold = ledger.hold("uid-first", 0)
    assert hold is not None
    assert (hold.devices, hold.awaits) == ((1,), frozenset())


def test_node_locked_by_another_scheduler_refuses_pods_that_need_the_lock() -> None:
    ledger = ledger_of({"n": FIRST, "other": SECOND}, CONFUSED)
    node = make_node("n0", labels={CARDS: "n"}, annotations={LOCK: "2026-01-01T00:00:00Z,default,another"})

    ledger.set_node(0, node)

    assert [ledger.fits(asking("late", "five"), row) for row in (0, 1)] == [LOCKED, ""]
    assert ledger.arrays.locked(np.array([0, 1])).tolist() == [True, False]
    assert ledger.unmatched_locks() == {"n0": (LOCK, read_lock(node.annotations[LOCK]))}
    twin = rebuild(ledger, [(0, node)], [])
    assert isinstance(twin, GpuLedger)
    assert twin.sums(0) == ledger.sums(0)
    ledger.set_node(0, make_node("n0", labels={CARDS: "n"}))
    assert ledger.fits(asking("late", "five"), 0) == ""


def test_node_lock_naming_a_waiting_pod_does_not_refuse_others() -> None:
    ledger = ledger_of({"n": FIRST}, CONFUSED)
    annotations = ledger.take(asking("first", "five"), 0)

    ledger.set_node(0, make_node("n0", labels={CARDS: "n"}, annotations={LOCK: "2026-01-01T00:00:00Z,default,first"}))
    assert not ledger.unmatched_locks()
    assert ledger.fits(asking("late", "five"), 0) == UNCONFIRMED

    ledger.restore(asking("first", "five", **annotations, **{REPORTED: "yes"}), 0)
    assert ledger.fits(asking("late", "five"), 0) == LOCKED, "until the plugin removes it"


def test_rebuilt_ledger_is_equal_for_any_order_of_models() -> None:
    ledger = ledger_of({"n": FIRST, "other": SECOND}, CONFUSED)
    nodes = [(row, make_node(f"n{row}", labels={CARDS: name})) for row, name in enumerate(("n", "other"))]

    twin = rebuild(ledger, nodes[::-1], [])

    assert isinstance(twin, GpuLedger)
    for row, _ in nodes:
        assert twin.sums(row) == ledger.sums(row)


def test_a_node_of_another_mode_is_refused_with_both_names() -> None:
    ledger = ledger_of({"n": FIRST}, CONFUSED)

    assert ledger.fits(make_pod("whole", extra={"nvidia.com/gpu": 1}), 0) == (
        "node(s) shared GPUs in mode hami, which does not serve whole-GPU pods"
    )


def test_numbers_of_models_without_cards_are_reused() -> None:
    arrays, row = CardArrays(), CardRow()
    kept = CardRow()
    kept.set_node(NodeCards(Mode.WHOLE, (Card(0, 1, 1000, model="kept"),)))
    arrays.write(0, kept)

    for number in range(3 * MODELS_MAX):
        row.set_node(NodeCards(Mode.WHOLE, (Card(0, 1, 1000, model=f"model-{number}"),)))
        arrays.write(1, row)

    assert len(arrays.models) <= MODELS_MAX
    names = [arrays.models[number] for number in arrays.layer(MODEL, np.array([0, 1]))[0].tolist()]
    assert names == ["kept", f"model-{3 * MODELS_MAX - 1}"]
    wanted = GpuDemand("test", (Part(1, WHOLE_CARD),), "", filter=CardFilter(models=("kept",)))
    assert arrays.fitting(wanted, wanted.parts[0], np.array([0, 1]))[0].tolist() == [True, False]


OWN, OTHER = frozenset({Mode.WHOLE}), frozenset({Mode.HAMI})
held_amounts = st.builds(
    lambda milli, cores: Amount(milli=milli, cores=cores), st.sampled_from((100, 600)), st.sampled_from((0, 30))
)
holds = st.one_of(
    st.builds(
        lambda cards, amount, modes: Hold("tested", len(cards), amount, even_shares(cards, amount), modes=modes),
        st.lists(st.integers(0, 2), min_size=1, max_size=2, unique=True),  # the node has no card 2
        held_amounts,
        st.sampled_from((OWN, OTHER)),
    ),
    st.builds(lambda amount: Hold("tested", 1, amount, modes=OWN), held_amounts),
    st.builds(
        lambda cards, is_known: whole_hold("tested", len(cards), tuple(cards) if is_known else ()),
        st.lists(st.integers(0, 1), min_size=1, max_size=2, unique=True),
        st.booleans(),
    ),
)


TENTH = Amount(milli=100)


@example(
    False, [("b", whole_hold("tested", 1, (0,))), ("a", Hold("tested", 1, TENTH, even_shares((0,), TENTH), modes=OWN))]
)
@given(is_indexed=st.booleans(), steps=st.lists(st.tuples(st.sampled_from("abc"), st.none() | holds), max_size=6))
def test_row_changed_by_holds_equals_one_computed_anew(is_indexed: bool, steps: list[tuple[str, Hold | None]]) -> None:
    node = NodeCards(Mode.WHOLE, tuple(Card(index, 100, CARD_MILLI) for index in range(2)), is_indexed)
    row, arrays = CardRow(), CardArrays()
    row.set_node(node)
    for uid, hold in steps:
        arrays.write(0, row)
        if hold is None:
            row.release(uid)
        else:
            row.hold(uid, hold)

        anew, arrays_anew = CardRow(), CardArrays()
        anew.holds = dict(row.holds)
        anew.set_node(node)
        assert (row.free, row.has_whole, row.has_fractions) == (anew.free, anew.has_whole, anew.has_fractions)
        arrays.write(0, row)
        arrays_anew.write(0, anew)
        assert arrays.sums(0) == arrays_anew.sums(0)


def test_rows_are_split_anew_once_one_has_another_mode() -> None:
    arrays, row, rows = CardArrays(), CardRow(), np.arange(2)

    def modes() -> dict[Mode, list[int]]:
        return {mode: some.tolist() for mode, _, some in arrays.by_mode(rows)}

    assert modes() == {Mode.NONE: [0, 1]}
    for mode in (Mode.WHOLE, Mode.HAMI):
        row.set_node(NodeCards(mode, (Card(0, 1000),)))
        arrays.write(1, row)
        assert modes() == {Mode.NONE: [0], mode: [1]}
