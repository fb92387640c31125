"""The configuration of the demo: the default one with the sample history, a tide, a loan, and the HTTP port.

Reads package data only, so that it works from a wheel.
"""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, Final

import orjson
from msgspec.structs import replace

from multisched.config import loading
from multisched.config.schema import API_VERSION, KIND, Configuration, ServerConfig
from multisched.demo.world import LENT_NODES

HISTORY: Final = "history.csv"
HISTORY_DAYS: Final = 14
TIDE: Final[dict[str, Any]] = {
    "name": "GpuTide",
    "args": {"inference": {"selector": {"matchLabels": {"app": "translate"}}}, "notice": "90s"},
}
"""Training gets the cards that the service `translate` does not need."""
LOAN: Final[dict[str, Any]] = {
    "from": "gpu",
    "selector": {"matchLabels": LENT_NODES},
    "resources": ["cpu", "memory"],
    "headroom": {"cpu": "16", "memory": "64Gi"},
    "return": {"notice": "10s", "grace": "5s"},
}
"""Jobs may use the free CPU of some GPU nodes until the gpu domain needs it."""


def sample_history() -> Path:
    """Returns the path of the sample history that ships with the demo."""
    with as_file(files("multisched.demo").joinpath(HISTORY)) as path:
        return path


def demo_configuration() -> Configuration:
    """Returns the three built-in domains, with PeakForecast trained on the sample history, a tide of GPUs, and a loan of CPU."""
    forecast: dict[str, Any] = {
        "name": "PeakForecast",
        "args": {"files": [str(sample_history())], "windowDays": HISTORY_DAYS},
    }
    document = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "domains": [
            {"name": "forecast", "profile": {"plugins": {"enabled": [forecast]}}},
            {"name": "gpu", "profile": {"plugins": {"enabled": [TIDE]}}},
            {"name": "job", "loans": [LOAN]},
        ],
    }
    return loading.parse(orjson.dumps(document).decode(), "the demo's configuration")


def with_port(configuration: Configuration, port: int) -> Configuration:
    """Returns the configuration with its HTTP server on loopback at this port; 0 is any free one."""
    server = ServerConfig(port=port)
    return replace(configuration, server=server)
