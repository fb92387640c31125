"""The reports of commands as files in a browser: verdict, tables, and plots by the page's modules."""

from __future__ import annotations

from pathlib import Path

import pytest

from domains.forecast.commands.page import page_of
from multisched.simulate.html_report import html_of
from multisched.simulate.report import Plot, Report, Table, verdict_of
from tests.page.browser import Tab
from tests.page.page_demo import NODES, Demo
from tests.page.test_views import violations

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def open_file(tab: Tab, folder: Path, name: str, text: str) -> None:
    file = folder / name
    file.write_text(text, "utf-8")
    await tab.open(file.as_uri())
    await tab.until("document.querySelector('figure svg path.line')")


BOXES = """[...document.querySelectorAll('figure svg')].flatMap((one) => [...one.querySelectorAll('path.line')].map((line) => {
    const box = line.getBBox(), room = one.viewBox.baseVal;
    return box.height > 0 && box.y >= 0 && box.y + box.height <= room.height && box.x >= 0 && box.x + box.width <= room.width;
}))"""
"""Whether each line is within its plot."""


async def check(tab: Tab, axe: str, picture: Path) -> None:
    """Nothing that people with other needs cannot use, and no sideways scrolling on a phone."""
    boxes = await tab.run(BOXES)
    assert boxes
    assert all(boxes)
    await tab.picture(picture, whole=True)
    await tab.run(axe)
    assert await violations(tab) == []
    await tab.size(420, dark=True)
    assert await tab.run("document.documentElement.scrollWidth") == 420
    assert await violations(tab) == []


async def test_forecast_report_is_drawn_by_the_modules_of_the_page(
    tab: Tab, demo: Demo, axe: str, pictures: Path, tmp_path: Path
) -> None:
    document = await demo.read("forecast/report?domain=forecast")
    await open_file(tab, tmp_path, "forecast.html", page_of(document))
    lead = await tab.run("document.querySelector('.lead').innerText")
    assert lead.startswith("No node will be fuller than its capacity; the fullest is work-")
    cells = await tab.run("document.querySelectorAll('#heat .cell[aria-label]').length")
    assert cells == len(document["nodes"]["nodes"]) <= NODES
    caption = await tab.run("document.querySelector('#plots figcaption').innerText")
    assert caption.startswith("cpu: predicted peak ")
    assert " cores at " in caption
    await tab.run("document.querySelector('#count').value = '3'; document.querySelector('#whatif button').click()")
    await tab.until("document.querySelector('#outcome table')")
    assert "3 more of " in await tab.run("document.querySelector('#outcome').innerText")
    await check(tab, axe, pictures / "forecast-report.png")


async def test_simulation_report_has_a_line_per_policy_with_its_unit(
    tab: Tab, axe: str, pictures: Path, tmp_path: Path
) -> None:
    tops = {"spread": [40.0, 85.5, 60.0, 90.0], "<peak>": [40.0, 70.0, 55.0, 72.0]}
    rows = tuple((name, f"{max(values):.1f}") for name, values in tops.items())
    table = Table("Two policies.", ("policy", "top"), rows, "top: the highest load")
    plot = Plot("The fullest node", tops, ["Mon", "Tue"], (80.0,), "% of capacity", "day")
    verdict = verdict_of("load at the top", {name: max(values) for name, values in tops.items()}, " %")
    report = Report("a <b> fleet", {}, tuple(tops), table, table, verdict, plots={"cpu": [plot]})
    await open_file(tab, tmp_path, "simulation.html", html_of(report))
    said = await tab.run("[...document.querySelectorAll('svg text')].map((one) => one.textContent)")
    assert {"% of capacity", "day", "Mon", "Tue", "80"} <= set(said)
    assert await tab.run("document.querySelectorAll('path.line').length") == len(tops)
    text = await tab.text()
    for part in (
        "a <b> fleet",
        "Policy <peak> has the lowest load at the top: 72 %; spread has 90 %.",
        "results of a simulation",
    ):
        assert part in text, text
    await check(tab, axe, pictures / "simulation-report.png")
