"""What /api/v1/configuration shows: the configuration in force, setting by setting, and what became of its file.

A contract between processes: `multisched config diff` reads it. Secrets are hidden by whoever fills it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

CONFIGURATION_PATH = "/api/v1/configuration"


class ChangeView(msgspec.Struct, frozen=True):
    """One setting that the file has otherwise than what is in force."""

    path: str
    before: str
    after: str
    restart: str


class ConfigurationView(msgspec.Struct, frozen=True):
    """The whole answer."""

    settings: Mapping[str, str]
    """Path -> value of what is in force."""
    file: str = ""
    """Empty: it runs without one."""
    since_s: float = 0.0
    """Unix time at which this came into force."""
    problems: tuple[str, ...] = ()
    """What is wrong in the file now: then what it said before stays in force."""
    waiting: tuple[ChangeView, ...] = ()
    """What the file says and only a restart puts in force."""
    restart_command: str = ""
    """Which restarts all replicas; empty where it is not known."""


class ConfigurationSource(Protocol):
    """Who knows it.

    Border: the shell has it (`ConfigurationWatch`), above what observes.
    """

    def configuration(self) -> ConfigurationView: ...


def encode_configuration(view: ConfigurationView) -> bytes:
    """As JSON."""
    return msgspec.json.encode(view)


def decode_configuration(body: bytes) -> ConfigurationView:
    """Raises msgspec's errors for anything else."""
    return msgspec.json.decode(body, type=ConfigurationView)
