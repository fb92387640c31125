"""Whether the process is alive and ready: named checks, called when a probe arrives.

A check is a synchronous function that returns why it fails, or an empty text. Nothing here waits, so a probe costs what
its checks cost; probes on their own thread return what the last heartbeat noted. The server renders; the composition
root registers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import anyio
import msgspec

from multisched.framework.ports import Clock
from multisched.model.visible_text import escaped

HEARTBEAT_PERIOD_S: Final = 1.0
HEARTBEAT_AGE_MAX_S: Final = 20.0
"""A loop that has not run for this long is stuck: three probes of 10 s then restart the pod."""

Check = Callable[[], str]
"""Returns what is wrong; an empty text if nothing is."""


class HealthReport(msgspec.Struct, frozen=True):
    """Results of the checks: name -> what is wrong, empty if nothing is, in order of registration."""

    findings: dict[str, str]
    remarks: dict[str, str] = {}
    """Name -> a note about something that does not fail readiness."""

    @property
    def is_good(self) -> bool:
        return not any(self.findings.values())

    def render(self) -> str:
        """Returns `[+]name ok` and `[-]name failed: why`, like kube-scheduler's `?verbose`; remarks as `[+]name ok: what`."""
        texts = {name: " ".join(text.split()) for name, text in self.remarks.items()}
        lines = [f"[-]{name} failed: {why}" if why else f"[+]{name} ok" for name, why in self.findings.items()]
        lines += [f"[+]{name} ok: {text}" if text else f"[+]{name} ok" for name, text in texts.items()]
        return "\n".join([*map(escaped, lines), "ok" if self.is_good else "failed", ""])


class Health(msgspec.Struct):
    """The checks behind /livez and /readyz."""

    _liveness: dict[str, Check] = msgspec.field(default_factory=dict)
    _readiness: dict[str, Check] = msgspec.field(default_factory=dict)
    _remarks: dict[str, Check] = msgspec.field(default_factory=dict)
    _is_stopping: bool = False

    def add_liveness(self, name: str, check: Check) -> None:
        """Adds a check whose failure restarts the process: only for problems that a restart fixes."""
        assert name not in self._liveness, name
        self._liveness[name] = check

    def add_readiness(self, name: str, check: Check) -> None:
        """Adds a check whose failure makes the process not ready: caches not synced, API server not responding."""
        assert name not in self._readiness, name
        self._readiness[name] = check

    def add_remark(self, name: str, remark: Check) -> None:
        """Adds a note that is shown with the readiness checks and never fails: for work that continues with what it has."""
        assert name not in self._remarks, name
        assert name not in self._readiness, name
        self._remarks[name] = remark

    def stop(self) -> None:
        """Makes the process not ready, because it is shutting down."""
        self._is_stopping = True

    def liveness(self) -> HealthReport:
        return HealthReport({name: check() for name, check in self._liveness.items()})

    def is_ready(self) -> bool:
        """Returns whether readiness is good; remarks are not computed."""
        return self._readiness_report(remarks={}).is_good

    def readiness(self) -> HealthReport:
        return self._readiness_report({name: remark() for name, remark in self._remarks.items()})

    def _readiness_report(self, remarks: dict[str, str]) -> HealthReport:
        findings = {name: check() for name, check in self._readiness.items()}
        if not findings:
            findings["start"] = "nothing is running yet"
        findings["shutdown"] = "shutting down" if self._is_stopping else ""
        return HealthReport(findings, remarks)


class Heartbeat:
    """Runs as long as the event loop does, and records the state with each beat.

    The recorded state can be read from any thread while the loop is busy.
    """

    def __init__(self, clock: Clock, health: Health) -> None:
        self._clock = clock
        self._health = health
        self._noted = (clock.monotonic(), True, False)
        """(time, is alive, is ready): replaced as a whole."""

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            self.beat()
            await anyio.sleep(HEARTBEAT_PERIOD_S)

    def beat(self) -> None:
        """Records the state. Called on the loop."""
        health = self._health
        self._noted = (self._clock.monotonic(), health.liveness().is_good, health.is_ready())

    def check(self) -> str:
        """Liveness check of the event loop."""
        age_s = self._clock.monotonic() - self._noted[0]
        return f"the event loop last ran {age_s:.0f} s ago" if age_s > HEARTBEAT_AGE_MAX_S else ""

    def is_alive(self) -> bool:
        """Returns the state of the last beat; False if that is too old."""
        return self._noted[1] and not self.check()

    def is_ready(self) -> bool:
        """Returns the state of the last beat; False if that is too old."""
        return self._noted[2] and not self.check()
