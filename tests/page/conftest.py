"""One demo and one browser for all tests of the page: both take seconds to start."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from tests.page.browser import Tab, open_tab
from tests.page.page_demo import Demo, running_demo

ROOT: Final = Path(__file__).parents[2]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-docs", action="store_true", help="renew the screenshots in docs/")


@pytest.fixture(scope="session")
def pictures() -> Path:
    """The folder of screenshots, which CI may keep."""
    folder = ROOT / "build" / "page"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core, which `set_up.sh` has installed."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return (cache / "multisched" / "page" / "node_modules" / "axe-core" / "axe.min.js").read_text("utf-8")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def demo(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Demo]:
    async with running_demo(tmp_path_factory.mktemp("demo")) as running:
        yield running


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Tab]:
    async with open_tab() as tab:
        yield tab


@pytest_asyncio.fixture(loop_scope="session")
async def tab(browser: Tab) -> AsyncIterator[Tab]:
    """The tab at a usual size. Whatever goes wrong in it fails the test."""
    await browser.size(1200)
    yield browser
    problems, browser.problems = browser.problems, []
    await browser.open("about:blank")
    assert problems == []
