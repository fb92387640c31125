"""The document of /api/v1/configuration: the configuration in force, setting by setting, and the state of its file.

A contract between processes: `multisched config diff` reads it. The source that fills it hides secrets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

CONFIGURATION_PATH = "/api/v1/configuration"


class ChangeView(msgspec.Struct, frozen=True):
    """One setting whose value in the file differs from the one in force."""

    path: str
    before: str
    after: str
    restart: str


class ConfigurationView(msgspec.Struct, frozen=True):
    """The whole document."""

    settings: Mapping[str, str]
    """Path -> value in force."""
    file: str = ""
    """Empty if there is no file."""
    since_s: float = 0.0
    """Unix time at which this configuration took effect."""
    problems: tuple[str, ...] = ()
    """Problems of the current file; its previous content then stays in force."""
    waiting: tuple[ChangeView, ...] = ()
    """Changes in the file that take effect only after a restart."""
    restart_command: str = ""
    """A command that restarts all replicas; empty if unknown."""


class ConfigurationSource(Protocol):
    """Returns the configuration.

    A Protocol because `observe` does not import the shell; implemented there (`ConfigurationWatch`).
    """

    def configuration(self) -> ConfigurationView: ...


def encode_configuration(view: ConfigurationView) -> bytes:
    """Encodes as JSON."""
    return msgspec.json.encode(view)


def decode_configuration(body: bytes) -> ConfigurationView:
    """Decodes JSON. Raises msgspec's errors for anything else."""
    return msgspec.json.decode(body, type=ConfigurationView)
