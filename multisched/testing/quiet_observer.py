"""An observer of domains for tests and simulations."""

from __future__ import annotations

from multisched.shell.observer import SilentObserver


class QuietObserver(SilentObserver):
    """Keeps only the failures of plugins."""

    def __init__(self) -> None:
        self.failures: list[str] = []

    def plugin_failed(self, plugin: str, point: str, error: BaseException | str) -> None:
        self.failures.append(f"{plugin} {point}: {error!r}")
