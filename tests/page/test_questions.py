"""Questions that a reader answers from the page alone: begun at the overview, with at most two actions each."""

from __future__ import annotations

from typing import Final

import pytest

from tests.page.browser import Tab
from tests.page.page_demo import Demo
from tests.page.test_views import choose, show, until_it_says

pytestmark = pytest.mark.asyncio(loop_scope="session")

QUESTIONS: Final = {
    "why does a pod wait": (
        ("find too-big",),
        r"It waits for an event that can help NodeResourcesFit.* refused \d+ of \d+ nodes: Insufficient cpu",
    ),
    "which nodes will be full at eight": (
        ("go Nodes", "choose at"),
        r"None of these nodes will have 90 % of cpu in use at 20:00. The fullest is work-\d+",
    ),
    "who borrowed, and who took it back": (
        ("go Teams",),
        r"(Lent: .*|No team borrows from another now)\. At \d\d:\d\d:\d\d, root.team-blue reclaimed from root.team-red: \d+ pod",
    ),
    "what would it take to place a pod": (
        ("find too-big", "press Find the smallest fix"),
        r"lower the cpu request from 40 to \d+",
    ),
    "is the forecast fresh": (("go Forecast",), r"The forecast is not fresh"),
}
"""Question -> actions, and what the page then says."""
CLICK: Final = """(() => {
    const one = [...document.querySelectorAll(%r)].find((one) => one.innerText === %r);
    one?.click();
    return Boolean(one);
})()"""


@pytest.mark.parametrize("question", QUESTIONS)
async def test_answer_is_two_actions_away(tab: Tab, demo: Demo, question: str) -> None:
    actions, answer = QUESTIONS[question]
    await show(tab, demo, "")
    for action in actions:
        await act(tab, *action.split(" ", 1))
    await until_it_says(tab, answer)


async def act(tab: Tab, verb: str, what: str) -> None:
    match verb:
        case "find":
            await tab.run(f"document.querySelector('#find input').value = {what!r}")
            await tab.run("document.querySelector('#find input').focus()")
            await tab.press("Enter")
        case "go":
            await tab.until(CLICK % ("#views a", what))
        case "press":
            await tab.until(CLICK % ("main button", what))
        case _:
            await tab.until("document.querySelector('main select')")
            await choose(tab, what)
