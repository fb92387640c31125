"""Args of DeadlineSort: `{maxWait: 1h}`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from multisched.framework.plugin_args import Fields

MAX_WAIT_MAX_S: Final = 7 * 86_400.0


class DeadlineSettings(msgspec.Struct, frozen=True):
    max_wait_s: float = 3600.0
    """After this time since its creation, a pod without a deadline is as urgent as a pod that must start now."""


def deadline_settings(args: Mapping[str, Any], path: str = "args") -> DeadlineSettings:
    """Reads the args. Raises PluginArgsError."""
    with Fields(args, path, ("maxWait",)) as fields:
        max_wait_s = fields.duration_s("maxWait", DeadlineSettings().max_wait_s, 1.0)
        if max_wait_s > MAX_WAIT_MAX_S:
            fields.refuse("maxWait", f"{fields.text('maxWait')} is too long; write at most 168h")
    return DeadlineSettings(max_wait_s)
