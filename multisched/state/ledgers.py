"""The ledgers of the process: registered once by the plugins that own them, asked by commit, told by the cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from multisched.framework.ledger import Ledger
from multisched.framework.runner import PluginFailure
from multisched.framework.status import Code, Status
from multisched.model.objects import Node, Pod

LEDGERS_MAX = 32


class LedgerBook:
    """All ledgers by name; implements `framework.plugin.Ledgers`."""

    def __init__(self) -> None:
        self._ledgers: dict[str, Ledger] = {}

    def register(self, ledger: Ledger) -> Ledger:
        """Adds the ledger, or returns the one that is already registered under its name: domains share ledgers."""
        if ledger.name not in self._ledgers and len(self._ledgers) >= LEDGERS_MAX:
            raise ValueError(f"ledger {ledger.name}: more than {LEDGERS_MAX} ledgers")
        return self._ledgers.setdefault(ledger.name, ledger)

    def __iter__(self) -> Iterator[Ledger]:
        return iter(self._ledgers.values())

    def fits(self, pod: Pod, row: int) -> str:
        """Empty if every ledger could take the pod on the row, else the first reason. PluginFailure for one that fails."""
        for ledger in self._ledgers.values():
            try:
                reason = ledger.fits(pod, row) if ledger.concerns(pod) else ""
            except Exception as error:
                raise _failure(ledger, error) from error
            if reason:
                return reason
        return ""

    def take(self, pod: Pod, row: int) -> Mapping[str, str]:
        """Holds in every ledger; returns the annotations that the binding carries. After a PluginFailure none holds it."""
        annotations: dict[str, str] = {}
        for ledger in self._ledgers.values():
            try:
                annotations.update(ledger.take(pod, row) if ledger.concerns(pod) else {})
            except Exception as error:
                self.give(pod.uid)
                raise _failure(ledger, error) from error
        return annotations

    def place(self, pod: Pod, row: int) -> None:
        for ledger in self._ledgers.values():
            if ledger.concerns(pod):
                ledger.place(pod, row)

    def give(self, uid: str) -> None:
        for ledger in self._ledgers.values():
            ledger.give(uid)

    def set_node(self, row: int, node: Node | None) -> None:
        for ledger in self._ledgers.values():
            ledger.set_node(row, node)

    def versions(self, pod: Pod, row: int) -> tuple[int, ...]:
        """What a decision about this pod on this row has read of the ledgers."""
        return tuple(ledger.version(row) for ledger in self._ledgers.values() if ledger.concerns(pod))


def _failure(ledger: Ledger, error: Exception) -> PluginFailure:
    """A ledger is its plugin's code: what it raises costs the pod its attempt."""
    text = f'running Ledger "{ledger.name}": {type(error).__name__}: {error}'
    return PluginFailure(Status(Code.ERROR, ledger.name, (text,)))
