"""Every view with real data: what it says, that it is live, and that everybody can use it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from tests.page.browser import Tab
from tests.page.page_demo import NODES, Demo

pytestmark = pytest.mark.asyncio(loop_scope="session")

ROOT: Final = Path(__file__).parents[2]
FULL: Final = "forecast%2Funschedulable%2FNodeResourcesFit"
RECLAIM: Final = r"The last reclaims.*root\.team-blue.*team-red/.*cores cpu.*done, \d+ of \d+ deleted"
VIEWS: Final = {
    "overview": ("", (r"leading", r"pods/s", r"The latest decisions", r"1 unschedulable", r"API server: 0 throttled")),
    "pending": ("pending", (r"NodeResourcesFit", r"Insufficient cpu", r"ElasticQuota", r"max 8")),
    "group": (f"pending/{FULL}", (r"default/too-big", r"longest waiting pods")),
    "pod": (
        "pod/default/too-big",
        (
            r"It waits for an event that can help NodeResourcesFit.* refused \d+ of \d+ nodes: Insufficient cpu",
            r"requests\s+40 cores cpu",
            r"Events that requeue it",
            r"0 feasible",
        ),
    ),
    "nodes": ("nodes", (rf"{NODES} nodes: .* cores of .* cores cpu requested", r"requested / allocatable", r"gpu-000")),
    "node": (
        "nodes/work-001",
        (
            r"allocatable",
            r"Predicted load",
            r"peak .* at (Mon|Tue|Wed|Thu|Fri|Sat|Sun) \d\d:00",
            r"sum of the bands of its services",
        ),
    ),
    "card": ("nodes/gpu-000", (r"GPU cards, mode whole", r"healthy", r"Loans of this node.*gpu\s+job\s+free\s+open")),
    "decisions": ("decisions", (r"Recent placements", r"virtual-0\d\d|work-0\d\d")),
    "teams": (
        "teams",
        (r"ElasticQuotaTree kube-system/teams", r"root\.team-blue", r"default/llm", r"started", RECLAIM),
    ),
    "forecast": ("forecast", (r"The forecast is not fresh", r"api\s+cpu", r"Repair", r"window")),
    "service": (
        "forecast/forecast/web",
        (r"predicted peak 5\.\d+ cores at Sat 20:00", r"band", r"day of the week, UTC"),
    ),
    "work": (
        "work",
        (r"GPU nodes of domain gpu", r"Tide of domain gpu", r"next 24 hours", r"eci\s+closed", r"Loans to domain job"),
    ),
    "try": ("try", (r"Nothing is created", r"scheduler", r"replicas")),
}
"""View -> its address, and patterns of what it says."""
IN_DOCS: Final = {"overview": "page-overview.png", "node": "page-node.png"}
READY: Final = "document.querySelector('main h2') && document.getElementById('state')?.className === 'live'"


async def show(tab: Tab, demo: Demo, address: str) -> None:
    """Loads the page anew, at this view."""
    await tab.open("about:blank")
    await tab.open(f"{demo.url}/#{address}")
    await tab.until(READY)


async def until_it_says(tab: Tab, pattern: str) -> None:
    # svg texts are not part of innerText
    said = "[document.body.innerText, ...[...document.querySelectorAll('svg text')].map((one) => one.textContent)].join('\\n')"
    await tab.until(
        f"new RegExp({pattern!r}, 's').test({said})" if "\\" not in pattern else f"/{pattern}/s.test({said})"
    )


@pytest.mark.parametrize("name", VIEWS)
async def test_view_shows_what_the_program_knows(
    tab: Tab, demo: Demo, name: str, axe: str, pictures: Path, request: pytest.FixtureRequest
) -> None:
    address, patterns = VIEWS[name]
    await show(tab, demo, address)
    for pattern in patterns:
        await until_it_says(tab, pattern.replace("/", "\\/"))
    await tab.picture(pictures / f"{name}.png", whole=True)
    if name in IN_DOCS and request.config.getoption("--write-docs"):
        await tab.picture(ROOT / "docs" / IN_DOCS[name])
    await tab.run(axe)
    assert await violations(tab) == []
    await tab.size(420, dark=True)
    assert await tab.run("document.documentElement.scrollWidth") == 420, "the page scrolls sideways"
    assert await violations(tab) == []
    await tab.picture(pictures / f"{name}-narrow-dark.png", whole=True)


async def violations(tab: Tab) -> list[str]:
    """Returns what axe-core finds, contrast included."""
    found: list[str] = await tab.run(
        "axe.run(document).then((found) => found.violations.flatMap((rule) => rule.nodes.map("
        "(node) => `${rule.id}: ${node.html.slice(0, 200)} ${node.failureSummary.slice(0, 200)}`)))"
    )
    return found


async def test_new_pods_appear_without_a_reload(tab: Tab, demo: Demo) -> None:
    await show(tab, demo, "pending")
    await until_it_says(tab, "NodeResourcesFit")
    await demo.pod("even-wider", cpu="41")
    row = "[...document.querySelectorAll('tr')].find((one) => /NodeResourcesFit.*forecast/s.test(one.innerText))"
    await tab.until(f"{row}?.cells[3].innerText === '2'")
    assert await tab.run("performance.getEntriesByType('navigation').length") == 1


async def test_score_table_of_a_recent_pod(tab: Tab, demo: Demo, axe: str, pictures: Path) -> None:
    [recent] = (await demo.read("decisions?domain=forecast&limit=1"))["decisions"]
    await show(tab, demo, "decisions/forecast")
    await tab.until(
        f"[...document.querySelectorAll('main a')].some((one) => one.innerText.endsWith({recent['name']!r}))"
    )
    await show(tab, demo, f"pod/{recent['namespace']}/{recent['name']}")
    for text in ("Scores of the best nodes", "PeakForecast", "chosen", f"{NODES * 7 // 10} nodes in the domain"):
        await until_it_says(tab, text)
    cells = await tab.run("[...document.querySelectorAll('main table')[0].rows[1].cells].map((one) => one.innerText)")
    assert cells[:3] == [recent["node"], "chosen", str(recent["score"])]
    weighted = [int(cell.split()[0]) for cell in cells[3:] if cell != "-"]
    assert sum(weighted) == recent["score"], "the total is the sum of the weighted scores"
    await tab.run(
        "[...document.querySelectorAll('.tools button')].find((one) => one.innerText.startsWith('Score')).click()"
    )
    await until_it_says(tab, "An attempt now, on a copy")
    cells = await tab.run(
        "[...document.querySelectorAll('[aria-live] table')[0].rows[1].cells].map((one) => one.innerText)"
    )
    assert all(re.fullmatch(r"-|[\d,]+ \d+ . \d+\nraw -?[\d,]+", cell) for cell in cells[3:]), cells
    await tab.picture(pictures / "scores.png", whole=True)
    await tab.run(axe)
    assert await violations(tab) == []


async def test_fix_and_trial_are_found_from_the_page(tab: Tab, demo: Demo) -> None:
    await show(tab, demo, "pod/default/too-big")
    await tab.until("document.querySelector('.tools button')")
    await tab.run("document.querySelector('.tools button').click()")
    await until_it_says(tab, "lower the cpu request from 40 to")
    await show(tab, demo, "try")
    await tab.until("document.querySelector('form select')")
    await tab.run(
        "document.querySelector('input[name=replicas]').value = '3'; document.querySelector('main form button').click()"
    )
    await until_it_says(tab, "3 of 3 pods would be placed, in domain forecast")


async def test_pod_or_node_is_opened_by_name_from_any_view(tab: Tab, demo: Demo) -> None:
    await show(tab, demo, "teams")
    names = {
        "default/too-big": "Pod default/too-big",
        "too-big": "Pod default/too-big",
        "oo-bi": "Pod default/too-big",
        "work-001": "Node work-001",
        "work-0": "Names with work-0",
        "default/was-here": "Names with default/was-here",
    }
    for text, heading in names.items():
        await tab.run(f"document.querySelector('#find input').value = {text!r}")
        await tab.run("document.querySelector('#find input').focus()")
        await tab.press("Enter")
        await tab.until(f"document.querySelector('main h2')?.innerText === {heading!r}")
    await until_it_says(tab, "No pod has this name now")
    await show(tab, demo, "find/work-0")
    await tab.until("document.querySelectorAll('main td a').length > 5")


async def test_text_tables_need_no_sideways_scroll_on_a_narrow_screen(tab: Tab, demo: Demo) -> None:
    await tab.size(420)
    for address, column in (("", "why"), ("pending", "for example"), ("teams", "evicted pods")):
        await show(tab, demo, address)
        await tab.until(f"document.querySelector('.stacks td[data-label=\"{column}\"]')")
        hidden = "[...document.querySelectorAll('.stacks')].filter((one) => one.scrollWidth > one.clientWidth)"
        assert await tab.run(f"{hidden}.map((one) => one.ariaLabel)") == []


async def test_peaks_are_shown_on_the_heat_map(tab: Tab, demo: Demo) -> None:
    await show(tab, demo, "nodes")
    await tab.until("document.querySelectorAll('.cells a').length === " + str(NODES))
    await choose(tab, "peak")
    await until_it_says(tab, "Nodes by predicted peak of cpu")
    labels = await tab.run("[...document.querySelectorAll('.cells a')].map((one) => one.getAttribute('aria-label'))")
    assert len(labels) == (await demo.read("forecast/nodes?domain=forecast"))["count"]
    assert all(re.fullmatch(r"work-\d+: \d+ %, \w{3} \d\d:00", one) for one in labels), labels
    await choose(tab, "at")
    await until_it_says(tab, "Nodes by predicted cpu at 20:00")
    await until_it_says(tab, "None of these nodes will have 90 % of cpu in use at 20:00. The fullest is work-")
    await choose(tab, "now")
    await until_it_says(tab, "requested cpu")


async def choose(tab: Tab, kind: str) -> None:
    """Selects what the heat map shows."""
    change = "one.dispatchEvent(new Event('change'))"
    await tab.run(f"(() => {{ const one = document.querySelector('select'); one.value = {kind!r}; {change}; }})()")


async def test_what_a_reader_opened_stays_open(tab: Tab, demo: Demo) -> None:
    await show(tab, demo, "pod/default/too-big")
    await tab.until("document.querySelector('details summary')")
    await tab.run(
        "document.querySelector('details').open = true; window.first = document.querySelector('.attempt h3').innerText"
    )
    await tab.until("document.querySelector('.attempt h3').innerText !== window.first")
    assert await tab.run("document.querySelector('details').open")


async def test_keyboard_reaches_every_view_and_moves_on_the_heat_map(tab: Tab, demo: Demo) -> None:
    await show(tab, demo, "")
    reached = []
    for _ in range(10):
        await tab.press("Tab")
        reached.append(await tab.run("document.activeElement.innerText"))
    assert reached[:10] == [
        "Skip to content",
        "multisched",
        "Overview",
        "Pending",
        "Nodes",
        "Decisions",
        "Teams",
        "Forecast",
        "GPU, jobs, loans",
        "Try it",
    ]
    await tab.run("document.querySelector('nav a[data-view=nodes]').focus()")
    await tab.press("Enter")
    await tab.until("document.querySelector('.cells a')")
    await tab.run("document.querySelector('.cells a').focus()")
    first = await tab.run("document.activeElement.href")
    await tab.press("ArrowRight")
    second = await tab.run("document.activeElement.href")
    await tab.press("ArrowDown")
    third = await tab.run("document.activeElement.href")
    assert len({first, second, third}) == 3
    await tab.press("Enter")
    await tab.until(f"location.href === {third!r} && document.querySelector('main h2').innerText.startsWith('Node ')")


async def test_page_at_rest_receives_little(tab: Tab, demo: Demo) -> None:
    await show(tab, demo, "")
    await until_it_says(tab, "The latest decisions")
    before = tab.sent_bytes
    await tab.run("new Promise((resolve) => setTimeout(resolve, 3000))")
    assert (tab.sent_bytes - before) / 3 < 64 * 1024
