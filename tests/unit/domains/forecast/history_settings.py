"""What a document says of history, read alone."""

from __future__ import annotations

from domains.forecast.settings.sources import HISTORY, HistorySettings, history_of
from multisched.framework.plugin_args import Fields


def read_history_settings(document: object) -> HistorySettings:
    """Raises PluginArgsError with all that is wrong."""
    with Fields(document, "args.history", HISTORY) as settings:
        return history_of(settings)
