"""What survives the process of a repair: it reads back as it was written, and counts a window's budget right."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domains.forecast.repair.record import Budget, EvictionStart, Moved, Record, Task, dumped, loaded
from domains.forecast.repair.run import Run, State
from domains.forecast.settings.repair import read_repair
from domains.forecast.settings.repair_runs import RepairMode
from domains.forecast.settings.windows import Span
from multisched.framework.plugin_args import PluginArgsError
from multisched.framework.repair import RepairMove, RepairPeak

CALM = RepairPeak("cpu", "Mon 09:00", 70.0)


def move(number: int, service: str = "ns/web", source: str = "a", target: str = "b") -> RepairMove:
    return RepairMove(
        pod=f"ns/p{number}",
        uid=f"u{number}",
        service=service,
        from_node=source,
        to_node=target,
        repairs=source,
        gain_percent=5.0,
        from_before=CALM,
        from_after=CALM,
        to_before=CALM,
        to_after=CALM,
        from_peaks_percent={"cpu": 50.0},
        to_peaks_percent={"cpu": 60.0, "log": 10.0},
        replicas=3,
    )


names = st.sampled_from(["a", "b", "c"])
moves = st.lists(st.builds(move, st.integers(0, 9), names, names, names), max_size=8).map(tuple)
moved = st.lists(st.builds(Moved, names, names, names), max_size=8).map(tuple)


@given(moves, moved, st.sampled_from(State), st.integers(0, 3))
def test_record_reads_back_equal(
    found: tuple[RepairMove, ...], spent: tuple[Moved, ...], state: State, peers: int
) -> None:
    record = Record(
        opened_s=1.5,
        moved=spent,
        tasks=tuple(Task.of(one) for one in found),
        threshold=(("cpu", 0.9), ("log", 1.0)),
        run=Run(len(found), state=state) if found else None,
        begun=EvictionStart("rs", ("u1",) * peers, peers) if peers else None,
    )
    assert loaded(dumped(record)) == record


@pytest.mark.parametrize("document", [None, b"", b"{", b"[]", b'{"run": 3}', b'{"format": 99}'])
def test_unreadable_record_is_ignored(document: bytes | None) -> None:
    assert loaded(document) == Record()


@given(moves, moved, st.integers(0, 8), st.integers(0, 5), st.integers(0, 5))
def test_plan_is_truncated_at_the_end_of_a_budget(
    found: tuple[RepairMove, ...], spent: tuple[Moved, ...], window: int, node: int, service: int
) -> None:
    budget = Budget(window, node, service)
    kept = budget.within(found, spent)
    assert kept == found[: len(kept)]
    total = [*spent, *(Moved(one.service, one.from_node, one.to_node) for one in kept)]
    if kept:
        assert len(total) <= window
        last = kept[-1]
        assert sum(one.service == last.service for one in total) <= service
        for name in (last.from_node, last.to_node):
            assert sum((one.source == name) + (one.target == name) for one in total) <= node


def test_evicted_pod_is_counted_once_for_any_response() -> None:
    record = Record(tasks=(Task.of(move(1)),), run=Run(1, state=State.EVICTING))
    left = record.advanced(Run(1, state=State.LEAVING))
    assert left.moved == (Moved("ns/web", "a", "b"),)
    assert left.advanced(Run(1, state=State.LEAVING, refusals=1)).moved == left.moved
    unknown = record.advanced(Run(1, state=State.RESOLVING))
    assert unknown.moved == ()
    assert unknown.advanced(Run(1, state=State.LEAVING)).moved == left.moved


def test_each_window_has_a_new_budget() -> None:
    spent = Record(opened_s=10.0, moved=(Moved("s", "a", "b"),), stops=2)
    assert spent.in_window(Span(10.0, 20.0)) == spent
    fresh = spent.in_window(Span(30.0, 40.0))
    assert (fresh.opened_s, fresh.moved, fresh.stops) == (30.0, (), 0)


def test_dimension_outside_the_plan_is_not_checked() -> None:
    told = Task.of(move(1)).prediction(("cpu", "log"))
    assert (told.source_peaks, told.target_peaks) == ((0.5, float("inf")), (0.6, 0.1))


def test_repair_is_off_by_default() -> None:
    assert read_repair({}).execution.mode is RepairMode.OFF
    assert read_repair({"mode": False}).execution.mode is RepairMode.OFF  # a bare off, in YAML 1.1
    windows = [{"from": "01:00", "to": "05:00"}, {"from": "13:00", "to": "14:00", "zone": "UTC"}]
    found = read_repair({"mode": "apply", "zone": "Europe/Berlin", "windows": windows, "readyMinutes": 5}).execution
    assert found.windows is not None
    assert [one.zone for one in found.windows.windows] == ["Europe/Berlin", "UTC"]
    assert (found.mode, found.ready_timeout_s) == (RepairMode.APPLY, 300.0)


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"mode": "now"}, "args.repair.mode: 'now' is not known; write one of off, preview, apply"),
        ({"mode": "apply"}, "args.repair.windows: missing"),
        ({"zone": "UTC"}, "args.repair.zone: has no effect without windows"),
        ({"mode": "apply", "windows": [{"from": "1:00"}]}, "args.repair.windows[0].to: missing"),
        ({"mode": "apply", "zone": "Moon/Dark", "windows": [{"from": "01:00", "to": "02:00"}]}, "Moon/Dark"),
        ({"intervalMinutes": 0}, "args.repair.intervalMinutes: 0 is not within 0.1..1440"),
        ({"window": []}, "args.repair.window: unknown field; did you mean windows?"),
    ],
)
def test_problem_is_reported_with_the_fix(section: dict[str, object], words: str) -> None:
    with pytest.raises(PluginArgsError) as refused:
        read_repair(section)
    assert words in str(refused.value)


def test_a_record_of_a_large_service_fits_a_config_map() -> None:
    record = Record(
        tasks=tuple(Task.of(move(number)) for number in range(500)),
        moved=tuple(Moved("ns/web", "a", "b") for _ in range(500)),
        begun=EvictionStart("rs", tuple(f"{number:036d}" for number in range(5_000)), 5_000),
        run=Run(500),
    )
    assert len(dumped(record)) < 900_000
    assert msgspec.json.decode(dumped(record))["format"] == 1
