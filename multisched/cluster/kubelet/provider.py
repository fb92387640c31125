"""The account at a serverless provider that virtual nodes share: its rate of creates, scripted failures and sandboxes.

No I/O and no clock: times are arguments; those named `_s` are event loop times in seconds. Virtual kubelets call it, and tests read its
counters.
The default rates are those of ECI and Fargate: 100 creates at once, then 20 per second for each account.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final, Literal

import msgspec

PROVIDER_ANNOTATION: Final = "multisched.io/fake-provider"
"""Annotation that gives a Node a virtual kubelet: ProviderSettings as JSON. A change applies at once to all nodes of the account."""

CALLS_KEPT: Final = 100_000
SETTINGS_BYTES_MAX: Final = 64 * 1024

Positive = Annotated[float, msgspec.Meta(gt=0, le=1e6)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=86_400)]
Burst = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]


class ProviderError(ValueError):
    """Invalid settings; the message names the field."""


class ScriptedFailure(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"since": "from"}):
    """Creates that the provider rejects: those in [from, until) for pods with these labels."""

    message: str
    since: datetime | None = None
    until: datetime | None = None
    labels: dict[str, str] = {}
    isThrottling: bool = False
    """Whether such a create counts as throttled."""

    def applies(self, labels: Mapping[str, str], now: datetime) -> bool:
        if (self.since is not None and now < self.since) or (self.until is not None and now >= self.until):
            return False
        return all(labels.get(key) == value for key, value in self.labels.items())


class ProviderSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of one account. `syncBurst` and `syncPerSecond` apply only to the node with the annotation."""

    account: str = "serverless"
    burst: Burst = 100
    perSecond: Positive = 20.0
    throttlingMessage: str = "Throttling.User: Request was denied due to user flow control"
    createSeconds: Seconds = 0.1
    """How long one call of the provider's API takes."""
    startupSeconds: Seconds = 10.0
    startupJitterSeconds: Seconds = 0.0
    """A uniformly drawn part of this is added to `startupSeconds`."""
    syncBurst: Burst = 100
    syncPerSecond: Positive = 10.0
    """Rate at which one virtual kubelet starts to process pods; virtual-kubelet's default (client-go's controller rate limiter)."""
    failures: Annotated[tuple[ScriptedFailure, ...], msgspec.Meta(max_length=64)] = ()


_SETTINGS = msgspec.json.Decoder(ProviderSettings)


def parse_settings(text: str) -> ProviderSettings:
    """Reads the annotation. Raises ProviderError."""
    if len(text) > SETTINGS_BYTES_MAX:
        raise ProviderError(f"{PROVIDER_ANNOTATION}: longer than {SETTINGS_BYTES_MAX} bytes; remove failures")
    try:
        settings = _SETTINGS.decode(text)
    except msgspec.DecodeError as error:
        raise ProviderError(f"{PROVIDER_ANNOTATION}: {error}") from error
    for failure in settings.failures:
        if any(time is not None and time.tzinfo is None for time in (failure.since, failure.until)):
            raise ProviderError(f"{PROVIDER_ANNOTATION}: failures: times have no time zone; write 2026-01-01T00:00:00Z")
    return settings


class TokenBucket:
    """A token bucket: up to `burst` tokens at once, then `per_second`."""

    def __init__(self, burst: float, per_second: float) -> None:
        self._burst, self._per_second = burst, per_second
        self._tokens = burst
        self._at_s = -math.inf

    def change(self, burst: float, per_second: float, now_s: float) -> None:
        """Changes the rate; keeps the tokens up to the new burst."""
        self._refill(now_s)
        self._burst, self._per_second = burst, per_second
        self._tokens = min(self._tokens, burst)

    def take(self, now_s: float) -> bool:
        """Takes a token if there is one."""
        self._refill(now_s)
        if self._tokens < 1 - 1e-9:
            return False
        self._tokens -= 1
        return True

    def reserve_s(self, now_s: float) -> float:
        """Takes the next free token, even a future one; returns the seconds until it is available."""
        self._refill(now_s)
        self._tokens -= 1
        return max(0.0, -self._tokens / self._per_second)

    def _refill(self, now_s: float) -> None:
        self._tokens = min(self._burst, self._tokens + max(0.0, now_s - self._at_s) * self._per_second)
        self._at_s = max(self._at_s, now_s)


@dataclass(frozen=True, slots=True)
class CreateCall:
    """One call of CreatePod."""

    at_s: float
    uid: str
    node: str
    outcome: Literal["created", "throttled", "refused"]


@dataclass(slots=True)
class Sandbox:
    """The sandbox that runs one pod; it exists from the create call until the pod is deleted."""

    uid: str
    node: str
    created_s: float
    started_s: float | None = None
    ended_s: float | None = None
    """When the containers ended."""


@dataclass(frozen=True, slots=True)
class ProviderStatistics:
    """Counts since the start; `starting`, `running` and `ended` are current numbers of sandboxes."""

    creates: int
    """Calls of CreatePod, including failed ones."""
    throttled: int
    refused: int
    starting: int
    running: int
    ended: int


class ProviderAccount:
    """One account; all virtual nodes with its name share it."""

    def __init__(self, settings: ProviderSettings, now_s: float) -> None:
        self.settings = settings
        self.sandboxes: dict[str, Sandbox] = {}
        """uid of a pod -> its sandbox."""
        self.calls: deque[CreateCall] = deque(maxlen=CALLS_KEPT)
        self.starts: deque[Sandbox] = deque(maxlen=CALLS_KEPT)
        """Sandboxes in the order of their starts, including deleted ones."""
        self._counts = Counter[str]()
        self._bucket = TokenBucket(settings.burst, settings.perSecond)
        self._bucket.change(settings.burst, settings.perSecond, now_s)

    def configure(self, settings: ProviderSettings, now_s: float) -> None:
        """Changes the settings, the rate included."""
        self.settings = settings
        self._bucket.change(settings.burst, settings.perSecond, now_s)

    def create(self, uid: str, node: str, labels: Mapping[str, str], now_s: float, now: datetime) -> str:
        """Creates a sandbox; returns the provider's error, empty if there is none.

        A scripted failure without labels is an outage: the call takes no token. One with labels fails a call that has taken its token.
        """
        failures = [failure for failure in self.settings.failures if failure.applies(labels, now)]
        error = next((failure for failure in failures if not failure.labels), None)
        if error is None and not self._bucket.take(now_s):
            error = ScriptedFailure(self.settings.throttlingMessage, isThrottling=True)
        error = error or next(iter(failures), None)
        outcome: Literal["created", "throttled", "refused"] = "created"
        if error is not None:
            outcome = "throttled" if error.isThrottling else "refused"
        else:
            self.sandboxes[uid] = Sandbox(uid, node, now_s)
        self._counts[outcome] += 1
        self.calls.append(CreateCall(now_s, uid, node, outcome))
        return "" if error is None else error.message

    def adopt(self, uid: str, node: str, now_s: float) -> None:
        """Records the sandbox of a pod that was running before the kubelets started."""
        self.sandboxes[uid] = Sandbox(uid, node, now_s, started_s=now_s)

    def start(self, uid: str, now_s: float) -> None:
        """Starts the containers of a sandbox."""
        sandbox = self.sandboxes[uid]
        sandbox.started_s = now_s
        self.starts.append(sandbox)

    def end(self, uid: str, now_s: float) -> None:
        """Records that the containers have ended; the sandbox exists until its pod is deleted."""
        sandbox = self.sandboxes.get(uid)
        if sandbox is not None and sandbox.ended_s is None:
            sandbox.ended_s = now_s

    def delete(self, uid: str, now_s: float) -> None:
        """Deletes a sandbox; does nothing if there is none."""
        self.end(uid, now_s)
        self.sandboxes.pop(uid, None)

    def statistics(self) -> ProviderStatistics:
        ended = [one for one in self.sandboxes.values() if one.ended_s is not None]
        starting = [one for one in self.sandboxes.values() if one.ended_s is None and one.started_s is None]
        return ProviderStatistics(
            creates=self._counts.total(),
            throttled=self._counts["throttled"],
            refused=self._counts["refused"],
            starting=len(starting),
            running=len(self.sandboxes) - len(ended) - len(starting),
            ended=len(ended),
        )
