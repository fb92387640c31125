"""`multisched repair plan` as users and scripts meet it: its tables, and every wrong way to call it."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from multisched.cli import repair
from multisched.cli.commands import app
from multisched.cli.dump import Dump
from multisched.cli.options import QueryError
from multisched.cli.repair import LEFT_SHOWN, text_of
from multisched.cli.server import Server
from multisched.config import loading
from multisched.framework.moving import RepairStatus
from multisched.framework.repair import RepairBudget, RepairMove, RepairPeak, RepairPlan, RepairRequest, UnrepairedNode
from multisched.observe.loopback import token_folder
from multisched.observe.server import ServerSettings
from tests.unit.observe.observe_kit import served

CALM = RepairPeak("cpu", "Mon 09:00", 70.0)
HOT = RepairPeak("log", "Tue 20:00", 118.0)
MENDED = RepairPeak("log", "Tue 20:00", 92.4)


def call(*arguments: str, stdin: str | None = None) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["repair", "plan", *arguments], input=stdin)
    return result.exit_code, result.stdout, result.stderr


def move(name: str = "shop/web-1", *, waits_for: tuple[int, ...] = ()) -> RepairMove:
    return RepairMove(
        pod=name,
        uid=f"uid-{name}",
        service="shop/web",
        from_node="n1",
        to_node="n2",
        repairs="n1",
        gain_percent=25.6,
        from_before=HOT,
        from_after=MENDED,
        to_before=CALM,
        to_after=RepairPeak("log", "Wed 20:00", 71.0),
        from_peaks_percent={"log": 92.4},
        to_peaks_percent={"log": 71.0},
        replicas=4,
        budgets=(RepairBudget("shop/web", 1),),
        waits_for=waits_for,
    )


def plan(*moves: RepairMove, left: int = 0, kept: dict[str, int] | None = None) -> RepairPlan:
    return RepairPlan(
        domain="forecast",
        profiles_version=7,
        threshold_percent={"cpu": 100.0, "log": 95.0},
        moves=moves,
        repaired=("n1",) if moves else (),
        unrepaired=tuple(UnrepairedNode(f"over-{number}", HOT, "no known pod is on it") for number in range(left)),
        least_moves=1 if moves else 0,
        worst_before=HOT if moves or left else CALM,
        worst_after=MENDED,
        nodes=30,
        pods=99,
        movable=90,
        kept=kept or {},
        notes=("something is not known",),
    )


def test_moves_are_listed_in_order_with_their_effect() -> None:
    told = text_of(plan(move(), move("shop/web-2", waits_for=(0,))), is_wide=False).splitlines()
    assert told[0].split("   ")[0:2] == ["#", "POD"]
    assert [part.strip() for part in told[1].split("   ") if part.strip()] == [
        "1",
        "shop/web-1",
        "n1",
        "n2",
        "25.6",
        "log 118 % -> 92 % Tue 20:00",
        "cpu 70 % Mon 09:00 -> log 71 % Wed 20:00",
        "1 of 4 of shop/web, PDB shop/web leaves 1",
    ]
    assert "domain forecast: 2 moves (no plan has fewer than 1) repair 1 of 1 node past cpu 100 %, log 95 %" in told
    assert "worst peak: log 118 % Tue 20:00 now, log 92 % Tue 20:00 after" in told
    assert "30 nodes; 90 of their 99 pods may move; profiles 7" in told
    assert told[-2:] == ["note: something is not known", "nothing was written: this is a preview"]


def test_wide_output_has_uids_and_dependencies() -> None:
    told = text_of(plan(move(), move("shop/web-2", waits_for=(0,))), is_wide=True)
    assert "WAITS FOR" in told
    assert "uid-shop/web-2" in told


def test_nothing_to_repair_is_one_sentence() -> None:
    told = text_of(plan(), is_wide=False).splitlines()
    assert told[0] == "domain forecast: no node's predicted peak passes cpu 100 %, log 95 %"


def test_table_limits_the_unrepaired_nodes() -> None:
    many = plan(left=LEFT_SHOWN + 3)
    assert "... and 3 more; -o wide has all" in text_of(many, is_wide=False)
    assert f"over-{LEFT_SHOWN + 2} " in text_of(many, is_wide=True)


def test_most_common_reasons_for_kept_pods_are_shown() -> None:
    kept = {f"reason {number}": 9 - number for number in range(7)}
    told = text_of(plan(kept=kept), is_wide=False)
    assert "  kept: 9, reason 0" in told
    assert "  kept: 7 for 2 other reasons" in told


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--threshold", "log"), "threshold 'log': write DIMENSION=PERCENT such as log=90, or 90 for all dimensions"),
        (("--threshold", "log=0"), "write DIMENSION=PERCENT"),
        (("--threshold", "90", "--threshold", "80"), "the one for all is given twice"),
        (("--moves", "-1"), "--moves"),
        (("--moves", "many"), "--moves"),
        (("-o", "html"), "html"),
        (("--config", "/etc/x.yaml"), "--config needs --snapshot"),
        (("--snapshot", "-"), "is not a list of objects"),
        (("--snapshot", "/none.json"), "/none.json cannot be read"),
        (("--server", "ftp://x"), "write http://HOST:PORT"),
    ],
)
def test_invalid_query_is_a_usage_error(arguments: tuple[str, ...], message: str) -> None:
    code, _, errors = call(*arguments, stdin="nonsense")
    assert (code, message in errors) == (2, True), errors


def test_query_without_a_server_exits_with_no_cluster() -> None:
    code, _, errors = call("--server", "http://127.0.0.1:9")
    assert (code, "no multisched responds at http://127.0.0.1:9" in errors) == (3, True)


def test_bad_repair_settings_are_reported_with_their_position(tmp_path: Path) -> None:
    loading, dump = tmp_path / "config.yaml", tmp_path / "dump.json"
    dump.write_text('{"items": []}')
    loading.write_text(
        "apiVersion: multisched.io/v1\nkind: MultischedConfiguration\n"
        "domains: [{name: forecast, profile: {plugins: {enabled: [{name: PeakForecast, "
        "args: {repair: {treshold: 90}}}]}}}]\n"
    )
    code, _, errors = call("--snapshot", str(dump), "--config", str(loading))
    assert (code, "args.repair.treshold: unknown field; did you mean thresholdPercent?" in errors) == (2, True), errors


async def test_status_shows_window_run_and_budget() -> None:
    async with served(ServerSettings(port=0)) as url:
        told = await asyncio.to_thread(repair.status, Server(url), "", "table")
        assert told.splitlines() == [
            "domain forecast: repair is apply",
            "window: open since 1970-01-01T00:00:00Z, until 1970-01-01T01:00:00Z",
            "moved in this window: 4, 46 left",
            "run of plan abc: leaving, move 2 of 3: shop/web-1 from n1 to n2",
        ]
        with pytest.raises(QueryError, match="no such domain"):
            await asyncio.to_thread(repair.status, Server(url), "nowhere", "table")


async def test_apply_without_moves_sends_no_request() -> None:
    async with served(ServerSettings(port=0)) as url:
        (told,) = await asyncio.to_thread(lambda: list(repair.apply(Server(url), RepairRequest(), "table")))
        assert told.endswith("nothing was written: this is a preview")


async def test_apply_sends_the_token_of_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    async with served(ServerSettings(port=0, token_folder=token_folder(os.environ))) as url:

        def run() -> RepairStatus:
            return repair._status_of(Server(url), "/api/v1/repair/run", body=b'{"digest": "abc"}')

        assert (await asyncio.to_thread(run)).state == "planned"
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "of somebody else"))
        with pytest.raises(QueryError, match=r"401: this request changes something.* or set server\.authentication"):
            await asyncio.to_thread(run)


def test_apply_refuses_a_dump(tmp_path: Path) -> None:
    with pytest.raises(QueryError, match="--apply: pods of a dump cannot be moved"):
        list(repair.apply(Dump(tmp_path / "dump.json", loading.default(), datetime.now(UTC)), RepairRequest(), "table"))
