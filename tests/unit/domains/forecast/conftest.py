"""Fits are waited for in real threads, by a clock that can be set ahead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest

from tests.leaping_loop import LeapingLoop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Called by pytest-asyncio for each asynchronous test."""
    return {"asyncio": LeapingLoop}
