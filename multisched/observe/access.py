"""Who may read: TokenReview says who asks, SubjectAccessReview whether they may.

Owns two bounded caches of verdicts. Fails closed: without a definite yes of the API server the answer is no. Tokens are
kept as hashes only, and never logged.
"""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict
from enum import Enum, auto
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec
import orjson

from multisched.framework.ports import Clock
from multisched.model.wire import Transport, TransportError

logger = logging.getLogger(__name__)

ALLOWED_KEPT_S: Final = 60.0
REFUSED_KEPT_S: Final = 30.0
VERDICTS_MAX: Final = 1024
TOKEN_CHARS_MAX: Final = 16 * 1024
REVIEW_TIMEOUT_S: Final = 5.0

_TOKEN_REVIEWS: Final = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 -- a path
_ACCESS_REVIEWS: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"

V = TypeVar("V")


class Verdict(Enum):
    """What to answer to a request."""

    ALLOWED = auto()
    UNAUTHENTICATED = auto()
    """401: no token, or not a valid one."""
    FORBIDDEN = auto()
    """403: known, but not allowed."""
    UNDECIDED = auto()
    """503: the API server did not say."""


class Authenticator(Protocol):
    """Decides about one request."""

    async def judge(self, token: str, verb: str, path: str) -> Verdict:
        """`token`: the bearer token, empty without one; `verb` in lower case, `path` without its query."""
        ...


class _User(msgspec.Struct, frozen=True):
    name: str
    uid: str
    groups: tuple[str, ...]


class _VerdictCache(Generic[V]):
    """Definite answers, the oldest dropped beyond VERDICTS_MAX."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: OrderedDict[object, tuple[V, float]] = OrderedDict()

    def get(self, key: object) -> V | None:
        found = self._kept.get(key)
        if found is None:
            return None
        if self._clock.monotonic() >= found[1]:
            del self._kept[key]
            return None
        return found[0]

    def put(self, key: object, value: V, kept_s: float) -> None:
        self._kept.pop(key, None)
        self._kept[key] = (value, self._clock.monotonic() + kept_s)
        if len(self._kept) > VERDICTS_MAX:
            self._kept.popitem(last=False)

    def __len__(self) -> int:
        return len(self._kept)


class _UndecidedError(Exception):
    """The API server gave no definite answer."""


class DelegatedAuthenticator:
    """`Authenticator` that asks the API server, as kube-scheduler and controller-runtime do."""

    def __init__(self, transport: Transport, clock: Clock) -> None:
        self._transport = transport
        self._users: _VerdictCache[_User | bool] = _VerdictCache(clock)
        self._access: _VerdictCache[bool] = _VerdictCache(clock)

    async def judge(self, token: str, verb: str, path: str) -> Verdict:
        """See `Authenticator`."""
        if not token or len(token) > TOKEN_CHARS_MAX:
            return Verdict.UNAUTHENTICATED
        try:
            user = await self._authenticate(token)
            if user is None:
                return Verdict.UNAUTHENTICATED
            return Verdict.ALLOWED if await self._authorize(user, verb, path) else Verdict.FORBIDDEN
        except _UndecidedError as error:
            logger.warning("cannot decide who may read", extra={"path": path, "reason": str(error)})
            return Verdict.UNDECIDED

    async def _authenticate(self, token: str) -> _User | None:
        key = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
        known = self._users.get(key)
        if known is not None:
            return known if isinstance(known, _User) else None
        status = await self._review(_TOKEN_REVIEWS, "authentication.k8s.io/v1", "TokenReview", {"token": token})
        user = _user_of(status)
        if user is None:
            self._users.put(key, False, REFUSED_KEPT_S)
        else:
            self._users.put(key, user, ALLOWED_KEPT_S)
        return user

    async def _authorize(self, user: _User, verb: str, path: str) -> bool:
        known = self._access.get((user, verb, path))
        if known is not None:
            return known
        spec = {
            "user": user.name,
            "uid": user.uid,
            "groups": list(user.groups),
            "nonResourceAttributes": {"path": path, "verb": verb},
        }
        status = await self._review(_ACCESS_REVIEWS, "authorization.k8s.io/v1", "SubjectAccessReview", spec)
        is_allowed = status.get("allowed") is True and status.get("denied") is not True
        self._access.put((user, verb, path), is_allowed, ALLOWED_KEPT_S if is_allowed else REFUSED_KEPT_S)
        return is_allowed

    async def _review(self, path: str, api_version: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
        """The status of one review."""
        body = orjson.dumps({"apiVersion": api_version, "kind": kind, "spec": spec})
        try:
            response = await self._transport.request("POST", path, body=body, timeout_s=REVIEW_TIMEOUT_S)
        except TransportError as error:
            raise _UndecidedError(f"{kind}: {error}") from error
        if response.status not in (200, 201):
            raise _UndecidedError(f"{kind}: the API server answered {response.status}")
        try:
            status = orjson.loads(response.body)["status"]
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise _UndecidedError(f"{kind}: the answer has no status") from error
        if not isinstance(status, dict):
            raise _UndecidedError(f"{kind}: the status is no object")
        return status


def _user_of(status: dict[str, Any]) -> _User | None:
    user = status.get("user")
    if status.get("authenticated") is not True or not isinstance(user, dict) or not user.get("username"):
        return None
    groups = user.get("groups") or ()
    return _User(str(user["username"]), str(user.get("uid") or ""), tuple(str(group) for group in groups))
