"""PeakForecast learns while the program runs: from history to curves in force, kept for the next life."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from domains.forecast.curves.profiles_file import dumps, loads
from domains.forecast.forecast import Forecast
from domains.forecast.learning.learned import known_pods
from domains.forecast.peak_forecast import peak_forecast
from multisched.cycle.waiting_pods import WaitingPodTable
from multisched.forecasting.time_units import WEEK_S
from multisched.framework.background import BackgroundPlugin
from multisched.framework.context import PluginContext
from multisched.framework.plugin_args import PluginArgsError
from multisched.framework.registry import implements
from multisched.framework.views import NoViewError, ViewPorts, ViewQuery
from multisched.shell.workers.background_processes import ChildProcess
from multisched.state.cluster_cache import ClusterCache
from multisched.testing.builders import make_node, make_pod
from tests.unit.domains.forecast.history.prometheus_kit import ports_at

NOW_S = 1_700_006_400.0 + 2 * WEEK_S
HOUR_S = 3_600
POD = make_pod("a", cpu_milli=100, labels={"app": "web"})


def history_file(folder: Path) -> Path:
    """Two weeks of one service by the hour, with two cores in its evenings and half a core else."""
    lines = ["timestamp,service,dimension,value"]
    for hour in range(14 * 24):
        at_s = int(NOW_S) - 14 * 24 * HOUR_S + hour * HOUR_S
        lines.append(f"{at_s},default/web,cpu,{2.0 if at_s // HOUR_S % 24 == 20 else 0.5}")
    found = folder / "use.csv"
    found.write_text("\n".join(lines))
    return found


def settings(folder: Path, **more: Any) -> dict[str, Any]:
    return {
        "history": {
            "stepSeconds": 3_600,
            "windowDays": 14,
            "sources": [{"type": "csv", "files": [str(history_file(folder))]}],
            "dimensions": [{"name": "cpu", "capacity": "allocatable"}],
        },
        "profilesFile": str(folder / "profiles"),
        **more,
    }


def plugin(args: dict[str, Any], cache: ClusterCache) -> Forecast:
    context = PluginContext("test", cache.nodes, WaitingPodTable(), cache.ledgers, cache.objects)
    return peak_forecast(args, context)


async def learn(made: Forecast) -> None:
    assert made.run is not None
    assert made._refit is not None
    assert await made._refit.once(ports_at(NOW_S)), made.refit_state()


async def test_learned_profiles_apply_to_placed_pods(tmp_path: Path) -> None:
    cache = ClusterCache()
    made = plugin(settings(tmp_path), cache)
    cache.set_node(make_node("n", cpu_milli=4_000))
    cache.place(make_pod("there", cpu_milli=100, labels={"app": "web"}, node="n"))
    assert made.worst(POD, 0) is None
    await learn(made)
    found = made.worst(POD, 0)
    assert found is not None
    assert found.slot.endswith("20:00")
    assert found.percent == pytest.approx(100, abs=6), "two replicas with two cores each on four"
    assert await known_pods(made._ledger) == {("default", "there"): "web"}


async def test_explain_shows_the_peak_of_a_node_with_the_pod_counted_once(tmp_path: Path) -> None:
    cache = ClusterCache()
    made = plugin(settings(tmp_path), cache)
    cache.set_node(make_node("n", cpu_milli=4_000))
    there = make_pod("there", cpu_milli=100, labels={"app": "web"}, node="n")
    cache.place(there)
    assert made.describe(there, 0) == "", "nothing is known yet"
    await learn(made)
    assert made.describe(there, 0).endswith("20:00: 50 % of capacity")
    assert made.describe(POD, 0).startswith("with this pod, the highest predicted load of the node is cpu at ")
    assert made.describe(POD, 0).endswith("20:00: 100 % of capacity")


async def test_profiles_survive_a_restart(tmp_path: Path) -> None:
    before = plugin(settings(tmp_path), ClusterCache())
    await learn(before)
    cache = ClusterCache()
    made = plugin(settings(tmp_path), cache)
    cache.set_node(make_node("n", cpu_milli=4_000))
    state, found = made.refit_state(), made.worst(POD, 0)
    assert state is not None
    assert state.version == 1
    assert found is not None
    assert found.slot.endswith("20:00")
    await learn(made)
    again = made.refit_state()
    assert again is not None
    assert again.version == 2


async def test_child_process_learns_the_same_and_its_crash_is_one_failed_refit(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    here, away = plugin(settings(tmp_path / "here"), ClusterCache()), plugin(settings(tmp_path), ClusterCache())
    await learn(here)
    children: list[ChildProcess] = []

    def opened(factory: str, given: object) -> ChildProcess:
        children.append(ChildProcess(factory, given, 0))
        return children[-1]

    ports = msgspec.structs.replace(ports_at(NOW_S), process=opened)
    assert away._refit is not None
    try:
        assert await away._refit.once(ports), away.refit_state()
        expected, found = here._ledger.predictor.quantized, away._ledger.predictor.quantized
        assert expected is not None
        assert found is not None
        assert found.profiles.services == expected.profiles.services
        np.testing.assert_array_equal(found.profiles.peak, expected.profiles.peak)
        assert not found.profiles.peak.flags.writeable
        assert loads((tmp_path / "profiles").read_bytes()).version == 1, "kept for the next life"

        [child] = children
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        assert not await away._refit.once(ports)
        state = away.refit_state()
        assert state is not None
        assert (state.version, state.failures, state.last_error) == (1, 1, "its process died: exit code -9")
        assert await away._refit.once(ports)
        assert (child.started, len(children)) == (2, 1)
    finally:
        for child in children:
            await child.close()


async def test_exported_profiles_need_no_source(tmp_path: Path) -> None:
    teacher = plugin(settings(tmp_path), ClusterCache())
    await learn(teacher)
    made = plugin({"profilesFile": str(tmp_path / "profiles")}, ClusterCache())
    assert not implements(made, BackgroundPlugin), "there is nothing to do"
    assert made.statistics().services == 1


async def test_profiles_that_cannot_be_saved_are_in_force_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "nowhere" / "profiles"
    made = plugin({**settings(tmp_path), "profilesFile": str(file)}, ClusterCache())
    await learn(made)
    assert made.statistics().services == 1
    await learn(made)
    (told,) = [record for record in caplog.records if record.message.startswith("profiles not saved")]
    assert vars(told)["profilesFile"] == f"{file}: No such file or directory"
    assert f"; not saved for the next start: {file}: No such file or directory" in made.health(0.0)
    file.parent.mkdir()
    await learn(made)
    assert "not kept" not in made.health(0.0)
    assert file.exists()


async def test_damaged_profiles_file_is_ignored_if_there_is_a_source(tmp_path: Path) -> None:
    (tmp_path / "profiles").write_bytes(b"rubbish")
    made = plugin(settings(tmp_path), ClusterCache())
    await learn(made)
    kept = (tmp_path / "profiles").read_bytes()
    quantized = made._ledger.predictor.quantized
    assert quantized is not None
    assert len(kept) == len(dumps(quantized.profiles))
    (tmp_path / "profiles").write_bytes(b"rubbish")
    with pytest.raises(PluginArgsError, match="profilesFile"):
        plugin({"profilesFile": str(tmp_path / "profiles")}, ClusterCache())


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"history": {}}, "args.history.sources: is empty"),
        ({"files": ["a.csv"], "history": {"sources": []}}, "args.files: cannot be combined with history"),
        ({"fit": {"zone": "Atlantis"}}, "args.fit.zone: 'Atlantis' is not a known time zone"),
        ({"fit": {"holidays": ["christmas"]}}, "args.fit.holidays\\[0\\]: 'christmas' is not a date"),
        ({"fit": {"restDays": ["fri", "sunday"]}}, "args.fit.restDays\\[1\\]: 'sunday' is not a day"),
        ({"fit": {"speed": 1}}, "args.fit.speed: unknown"),
        ({"profilesFile": "/nowhere/profiles"}, "args.profilesFile: /nowhere/profiles: No such file"),
    ],
)
def test_unusable_arguments_are_reported(args: dict[str, Any], message: str) -> None:
    with pytest.raises(PluginArgsError, match=message):
        plugin(args, ClusterCache())


def test_queried_capacity_counts_after_its_first_result(tmp_path: Path) -> None:
    args = settings(tmp_path)
    args["history"]["dimensions"].append({"name": "log", "query": "q", "capacity": {"query": "c"}})
    args["history"]["sources"].append({"type": "prometheus", "url": "http://127.0.0.1:1"})
    cache = ClusterCache()
    made = plugin(args, cache)
    cache.set_node(make_node("n"))
    assert made._learner is not None
    [capacity] = made._learner._measured.values()
    assert made._ledger.capacity(np.array([0]))[1, 0] == -1
    capacity.measure({"n": 40.5, "other": float("nan")})
    assert capacity.of(make_node("n")) == 40_500
    assert capacity.of(make_node("other")) == -1


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({}, "there is no history; name historyDir, files, history or profilesFile in the args of PeakForecast"),
        ({"source": "csv"}, "the first refit has not finished; wait for it, /readyz?verbose shows its progress"),
        (
            {"source": "prometheus"},
            "only a running multisched reads this history; ask it with --server, or read its profilesFile with --profiles",
        ),
    ],
)
async def test_view_without_profiles_gives_reason_and_fix(more: dict[str, str], why: str, tmp_path: Path) -> None:
    args = settings(tmp_path) if more else {}
    if more.get("source") == "prometheus":
        args["history"]["sources"] = [{"type": "prometheus", "url": "http://127.0.0.1:1"}]
        args["history"]["dimensions"][0]["ready"] = "cadvisor-cpu"
    cache = ClusterCache()
    with pytest.raises(NoViewError) as refused:
        await plugin(args, cache).show(ViewQuery("nodes"), ViewPorts(ports_at(NOW_S).clock, np.zeros(0, np.intp)))
    assert (str(refused.value), refused.value.status) == (f"no profiles are active yet: {why}", 503)


async def test_view_without_profiles_reports_a_failed_refit(tmp_path: Path) -> None:
    args = settings(tmp_path)
    (tmp_path / "use.csv").write_text("no header\n")
    made = plugin(args, ClusterCache())
    assert made._refit is not None
    assert not await made._refit.once(ports_at(NOW_S))
    with pytest.raises(NoViewError) as refused:
        await made.show(ViewQuery("nodes"), ViewPorts(ports_at(NOW_S).clock, np.zeros(0, np.intp)))
    assert str(refused.value).startswith("no profiles are active yet: 1 refit failed, the last ")
    assert str(refused.value).endswith("; fix this, the refit is retried")
