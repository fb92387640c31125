"""Lists in pages: the next page is on its way while this one is read."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from multisched.client.lister import list_pages
from multisched.model.wire import AnswerLostError
from tests.unit.client.scripted import ScriptedTransport, a_list, an_object

pytestmark = pytest.mark.looptime


async def test_next_page_is_requested_while_one_is_read() -> None:
    server = ScriptedTransport()
    tokens = ("x/1=", "y", "")
    server.lists.extend(a_list(7, an_object(f"p{at}", 3), continue_token=token) for at, token in enumerate(tokens))
    asked = []
    async with aclosing(list_pages(server, "/pods", page_items=1)) as pages:
        async for found in pages:
            assert found.version == "7"
            await asyncio.sleep(1)
            asked.append([one.query.get("continue", "") for one in server.asked])
    assert asked == [["", "x/1="], ["", "x/1=", "y"], ["", "x/1=", "y"]]


async def test_cancelled_list_leaves_no_request() -> None:
    server = ScriptedTransport(latency_s=1.0)
    server.lists.extend([a_list(7, an_object("a", 3), continue_token="x"), a_list(7, an_object("b", 4))])
    async with aclosing(list_pages(server, "/pods", page_items=1)) as pages:
        await anext(pages)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_lost_page_is_reported_in_order() -> None:
    server = ScriptedTransport()
    server.lists.extend([a_list(7, an_object("a", 3), continue_token="x"), AnswerLostError("reset")])
    async with aclosing(list_pages(server, "/pods", page_items=1)) as pages:
        assert len((await anext(pages)).items) == 1
        await asyncio.sleep(1)
        with pytest.raises(AnswerLostError):
            await anext(pages)
