"""The page over HTTP: its files are open and run nothing of others; its documents need the rights of the API."""

from __future__ import annotations

import aiohttp
import orjson
import pytest

from multisched.observe.access import DelegatedAuthenticator
from multisched.observe.health import Health
from multisched.observe.server import TOKEN_HEADER, ServerSettings, serve
from multisched.page.files import POLICY, page_files
from tests.unit.observe.observe_kit import READER, HandClock, OnePage, a_reviewer, sources_of

LOOPBACK = ServerSettings(port=0)


async def get(url: str, **headers: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as answer:
        return answer.status, await answer.text()


async def guarded() -> ServerSettings:
    return ServerSettings(port=0, authenticator=DelegatedAuthenticator(await a_reviewer(), HandClock()))


async def test_every_file_is_served_without_a_token_and_with_the_policy() -> None:
    async with serve(await guarded(), sources_of(Health())) as url, aiohttp.ClientSession() as session:
        for path in ["", *(f"page/{name}" for name in page_files())]:
            async with session.get(f"{url}/{path}") as answer:
                assert answer.status == 200, path
                assert answer.headers["Content-Security-Policy"] == POLICY
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                assert answer.headers["Cache-Control"] == "no-store"


async def test_paths_outside_the_files_are_not_open() -> None:
    async with serve(await guarded(), sources_of(Health())) as url:
        for path in ("/page/none.js", "/page/../app.py", "/page/%2e%2e/%2e%2e/app.py", "/main.js", "/page"):
            assert (await get(url + path))[0] == 401, path
    async with serve(LOOPBACK, sources_of(Health())) as url:
        for path in ("/page/none.js", "/page/%2e%2e/files.py", "/page/%2fetc/passwd"):
            assert (await get(url + path))[0] == 404, path


async def test_other_pages_cannot_read_it_on_loopback() -> None:
    async with serve(LOOPBACK, sources_of(Health())) as url:
        for path in ("/", "/api/v1/overview/stream"):
            assert (await get(url + path, Origin="https://other.example"))[0] == 403
            assert (await get(url + path, Host="other.example"))[0] == 403


async def test_token_may_come_in_a_header_that_proxies_keep() -> None:
    """The API server's proxy removes Authorization; with both headers, Authorization counts."""
    async with serve(await guarded(), sources_of(Health())) as url:
        assert (await get(f"{url}/metrics", **{TOKEN_HEADER: READER}))[0] == 200
        assert (await get(f"{url}/api/v1/overview", **{TOKEN_HEADER: READER}))[0] == 403
        assert (await get(f"{url}/metrics", **{TOKEN_HEADER: READER, "Authorization": "Bearer made-up"}))[0] == 401


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/api/v1/overview", 200, '"isReady":true'),
        ("/api/v1/overview/find?text=web", 200, '"pods":[["default","web-1"]]'),
        ("/api/v1/overview/find?name=web", 400, "name: unknown parameter; known here: text"),
        ("/api/v1/decisions?limit=2", 200, '"node":"n1"'),
        ("/api/v1/decisions?domain=nowhere", 404, "there are job"),
        ("/api/v1/decisions?limit=1001", 400, "limit must be a number of 0..1000"),
        ("/api/v1/pending?group=abc", 200, '"podsTotal":3'),
        ("/api/v1/nodes?resource=gold", 404, "no node here has gold"),
        ("/api/v1/nodes?limit=5001", 400, "limit must be a number of 0..5000"),
        ("/api/v1/nodes/%1B[31m", 404, r"node \x1b[31m is not known here"),
        ("/api/v1/pending?grup=abc", 400, "grup: unknown parameter; known here: group"),
        ("/api/v1/forecast/nodes", 200, "asked"),
    ],
)
async def test_documents_check_their_parameters(path: str, status: int, words: str) -> None:
    async with serve(LOOPBACK, sources_of(Health())) as url:
        found = await get(url + path)
        assert (found[0], words in found[1]) == (status, True), found


async def test_nodes_are_sent_in_parts() -> None:
    async with serve(LOOPBACK, sources_of(Health())) as url:
        assert len(orjson.loads((await get(f"{url}/api/v1/nodes"))[1])["nodes"]) == 500
        rest = orjson.loads((await get(f"{url}/api/v1/nodes?offset=500"))[1])["nodes"]
        assert (len(rest), rest[0]["node"]) == (100, "n500")


async def test_failing_document_fails_alone() -> None:
    page = OnePage()
    async with serve(LOOPBACK, sources_of(Health(), page=page)) as url:
        page.error = RuntimeError("a failing overview")
        assert await get(f"{url}/api/v1/overview") == (500, "internal error\n")
        page.error = None
        assert (await get(f"{url}/api/v1/overview"))[0] == 200
