"""What tenants write is text; the page asks for a token where one is needed, and works behind a proxy."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import aiohttp
import pytest
from aiohttp import web

from multisched.observe.access import DelegatedAuthenticator
from multisched.observe.health import Health
from multisched.observe.server import ServerSettings, serve
from tests.page.browser import Tab
from tests.page.page_demo import BIDI, HOSTILE, Demo
from tests.page.test_views import VIEWS
from tests.unit.observe.observe_kit import READER, HandClock, a_reviewer, sources_of

pytestmark = pytest.mark.asyncio(loop_scope="session")

PREFIX: Final = "/api/v1/namespaces/multisched-system/services/https:multisched:metrics/proxy"
LIVE: Final = "document.getElementById('state')?.className === 'live'"
LONG: Final = 64 * 1024


async def test_markup_and_hidden_characters_are_shown_as_text(tab: Tab, demo: Demo) -> None:
    await tab.open(f"{demo.url}/#try")
    await tab.until(f"{LIVE} && document.querySelector('form select')")
    script = """(name) => {
        document.querySelector('#manifest').value = JSON.stringify({kind: 'Pod', metadata: {name, namespace: 'default'},
            spec: {schedulerName: 'forecast-scheduler', nodeSelector: {where: name}, containers: [{name: 'a', image: 'b'}]}});
        document.querySelector('main form button').click();
    }"""
    await tab.run(f"({script})({HOSTILE + BIDI!r})")
    await tab.until("document.querySelector('main table')")
    text = await tab.text()
    assert HOSTILE in text
    assert (r"\u202egnp.exe" in text, BIDI in text) == (True, False)
    assert await tab.run("[window.hurt, document.querySelectorAll('main img').length]") == [None, 0]


POISON: Final = """
    const evil = %r, real = window.fetch;
    const kept = new Set(['zone', 'views', 'domain', 'identity', 'resources', 'sortedBy', 'dimensions', 'dimension']);
    const spoilt = (value, key) => {
        if (kept.has(key)) return value;
        if (typeof value === 'string') return value + evil;
        if (Array.isArray(value)) return value.map((one) => spoilt(one, ''));
        if (value === null || typeof value !== 'object') return value;
        return Object.fromEntries(Object.entries(value).map(([name, one]) => [key === 'labels' ? name + evil : name, spoilt(one, name)]));
    };
    window.fetch = async (url, options) => {
        if (String(url).endsWith('/stream')) return new Response('no streams', {status: 429});
        const answer = await real(url, options);
        if (!String(url).includes('/api/v1/') || !answer.ok) return answer;
        return new Response(JSON.stringify(spoilt(await answer.json(), '')), {status: 200});
    };
"""
"""Lets every text of every document end with a hostile one, where the page needs no exact value, and the names of labels, too."""
SHOWN: Final = r"""(() => {
    if (!document.querySelector('.view')) return [];
    const texts = [], walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walk.nextNode()) texts.push(walk.currentNode.data);
    const titles = [...document.querySelectorAll('main [title]')].map((one) => one.title);
    const labels = [...document.querySelectorAll('main [aria-label]')].map((one) => one.ariaLabel);
    const all = [...texts, ...titles, ...labels];
    return [
        document.querySelectorAll('main img, main script').length + (window.hurt ?? 0),
        Math.max(...all.map((one) => one.length)),
        all.filter((one) => one.includes('\u202e')).length,
        document.querySelector('.view').textContent.includes('\\u202e'),
        document.documentElement.scrollWidth,
    ];
})()"""
"""Elements that came from texts, the longest text, texts with a hidden character, whether the view shows one escaped, and the width."""
WIDE: Final = """[...document.querySelectorAll('body *')]
    .filter((one) => !one.closest('.wide') && Math.max(one.getBoundingClientRect().right, one.scrollWidth) > 421)
    .map((one) => `${one.tagName}.${one.className}: ${one.textContent.slice(0, 60)}`)"""
"""Elements that are wider than the page, but for tables, which scroll."""


@pytest.mark.parametrize("name", [name for name in VIEWS if name != "try"])
async def test_hostile_texts_of_every_document_stay_texts(tab: Tab, demo: Demo, name: str) -> None:
    script = await tab.call("Page.addScriptToEvaluateOnNewDocument", source=POISON % (HOSTILE + BIDI + "x" * LONG))
    await tab.size(420)
    try:
        await tab.open("about:blank")
        await tab.open(f"{demo.url}/#{VIEWS[name][0]}")
        await tab.until(f"{SHOWN}[3]")  # the footer shows one earlier, before the view is drawn
        made, longest, hidden, _, width = await tab.run(SHOWN)
        assert "failed to show" not in await tab.text(), tab.problems
        assert (made, hidden) == (0, 0)
        assert width == 420, await tab.run(WIDE)
        assert longest < 2_100
    finally:
        await tab.call("Page.removeScriptToEvaluateOnNewDocument", **script)
    assert tab.problems == []


async def test_text_of_any_length_is_cut(tab: Tab, demo: Demo) -> None:
    await tab.open(f"{demo.url}/")
    await tab.until(LIVE)
    script = """import('./page/dom.js').then(({ el, podLink }) => {
        const cell = el('p', { title: 'x'.repeat(%d) }, 'y'.repeat(%d)), one = podLink('a', 'z'.repeat(%d));
        document.querySelector('main').append(cell, one);
        return [cell.textContent.length, cell.title.length, one.textContent.length, document.documentElement.scrollWidth];
    })"""
    *lengths, width = await tab.run(script % (LONG, LONG, LONG))
    assert max(lengths) < 2_100
    assert width == 1200


async def test_token_is_asked_for_and_kept_in_the_tab(tab: Tab) -> None:
    reviewer = await a_reviewer("/multisched/api/v1/overview", "/multisched/api/v1/pending")
    settings = ServerSettings(port=0, authenticator=DelegatedAuthenticator(reviewer, HandClock()))
    async with serve(settings, sources_of(Health())) as url:
        await tab.open(f"{url}/")
        await tab.until("document.querySelector('#token')")
        assert "kubectl create token" in await tab.text()
        enter = "(token) => { document.querySelector('#token').value = token; document.querySelector('.token button').click(); }"
        await tab.run(f"({enter})('made-up')")
        await tab.until("document.querySelector('.problem')?.innerText.includes('does not accept')")
        await tab.run(f"({enter})({READER!r})")
        await tab.until(f"{LIVE} && !document.querySelector('#token')")
        await tab.open("about:blank")
        await tab.open(f"{url}/#pending")
        await tab.until("document.querySelector('main')?.innerText.includes('No pod waits')")
        await tab.open(f"{url}/#nodes")
        await tab.until("document.querySelector('.problem')?.innerText.includes('may not get')")
    expected = ("401", "403", "ERR_")
    tab.problems = [one for one in tab.problems if not any(word in one for word in expected)]


@asynccontextmanager
async def behind_a_proxy(url: str) -> AsyncIterator[str]:
    """Forwards requests below PREFIX as the API server does: without the header Authorization. Yields the page's address."""
    session = aiohttp.ClientSession()

    async def forward(request: web.Request) -> web.StreamResponse:
        kept = {
            name: value for name, value in request.headers.items() if name not in ("Host", "Authorization", "Origin")
        }
        path = request.raw_path.removeprefix(PREFIX)
        async with session.request(request.method, url + path, headers=kept, data=await request.read()) as answer:
            response = web.StreamResponse(
                status=answer.status, headers={"Content-Type": answer.headers["Content-Type"]}
            )
            await response.prepare(request)
            async for part in answer.content.iter_any():
                await response.write(part)
            return response

    application = web.Application()
    application.router.add_route("*", f"{PREFIX}/{{path:.*}}", forward)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}{PREFIX}/"
    finally:
        await session.close()
        await runner.cleanup()


async def test_page_works_below_the_prefix_of_a_proxy(tab: Tab, demo: Demo) -> None:
    async with behind_a_proxy(demo.url) as address:
        await tab.open(f"{address}#nodes/work-001")
        await tab.until(f"{LIVE} && document.querySelector('main')?.innerText.includes('Predicted load')")
        await tab.open("about:blank")
