"""Access control: TokenReview identifies the caller, SubjectAccessReview reports whether it is allowed.

Owns bounded caches of verdicts. Fails closed: without a definite yes of the API server access is refused. Tokens are
kept as hashes only and never logged. Tokens that were never valid share a small rate of reviews, so that a flood of
invented tokens does not block known callers. Each user has a rate, too.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Hashable
from enum import Enum, auto
from typing import Any, Final, Generic, TypeVar

import msgspec
import orjson

from multisched.framework.ports import Clock
from multisched.model.wire import Transport, TransportError
from multisched.observe.token_bucket import TokenBucket

logger = logging.getLogger(__name__)

ALLOWED_KEPT_S: Final = 60.0
REFUSED_KEPT_S: Final = 30.0
VERDICTS_MAX: Final = 1024
"""More than the tokens that can be reviewed in ALLOWED_KEPT_S: a flood of tokens evicts none that is in use."""
PATHS_MAX: Final = 32
"""Verdicts kept per token, by verb and path."""
TOKEN_CHARS_MAX: Final = 16 * 1024
REVIEW_TIMEOUT_S: Final = 4.0
"""Timeout of one request to the API server; two of them fit into the time of a request."""
STRANGER_REVIEWS_PER_S: Final = 10.0
USER_REVIEWS_PER_S: Final = 10.0
REVIEWS_BURST: Final = 20
STRANGER_REVIEWS_AT_ONCE: Final = 2
USER_REVIEWS_AT_ONCE: Final = 4
REVIEWS_AT_ONCE: Final = STRANGER_REVIEWS_AT_ONCE + USER_REVIEWS_AT_ONCE
"""Number of connections to the API server that reviews need."""
REVIEWS_WAITING_MAX: Final = 32
"""Limit of waiting reviews of each kind."""

_TOKEN_REVIEWS: Final = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 -- a path
_ACCESS_REVIEWS: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class AccessDecision(Enum):
    """The result for one request."""

    ALLOWED = auto()
    UNAUTHENTICATED = auto()
    """401: no token, or not a valid one."""
    FORBIDDEN = auto()
    """403: authenticated, but not allowed."""
    UNDECIDED = auto()
    """503: no definite answer of the API server."""
    TOO_MANY = auto()
    """429: over the rate of reviews; the API server was not asked."""


class _User(msgspec.Struct, frozen=True):
    name: str
    uid: str
    groups: tuple[str, ...]
    extra: tuple[tuple[str, tuple[str, ...]], ...]


class _Recent(Generic[K, V]):
    """A bounded map; drops the value that was not used for longest."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K) -> V | None:
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
        return found

    def put(self, key: K, value: V) -> None:
        self._kept[key] = value
        self._kept.move_to_end(key)
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)

    def drop(self, key: K) -> None:
        self._kept.pop(key, None)

    def __len__(self) -> int:
        return len(self._kept)


class _Allowed(msgspec.Struct, frozen=True):
    """Whether something is allowed, and how long that verdict is valid."""

    is_allowed: bool
    until_s: float


class _Token(msgspec.Struct):
    """A known token. Kept after its verdict has expired, so that its next review does not count as that of an unknown token."""

    user: _User
    until_s: float
    allowed: _Recent[tuple[str, str], _Allowed]
    """(verb, path) -> the recent answer."""


class _UndecidedError(Exception):
    """The API server gave no definite answer."""


class _TooManyError(Exception):
    """Over the limits; the API server was not asked."""


class _Turns:
    """Limits the reviews of one kind: running at once, and waiting."""

    def __init__(self, concurrency: int) -> None:
        self._free = asyncio.Semaphore(concurrency)
        self._waiting = 0

    async def take(self) -> asyncio.Semaphore:
        """Waits for a turn; the caller releases the semaphore. Raises _TooManyError."""
        if self._waiting >= REVIEWS_WAITING_MAX:
            raise _TooManyError
        self._waiting += 1
        try:
            await self._free.acquire()
        finally:
            self._waiting -= 1
        return self._free


class DelegatedAuthenticator:
    """Decides about requests by asking the API server, as kube-scheduler and controller-runtime do."""

    def __init__(self, transport: Transport, clock: Clock) -> None:
        """`transport` should have its own connections: reviews must not delay binds."""
        self._transport = transport
        self._clock = clock
        self._tokens: _Recent[bytes, _Token] = _Recent(VERDICTS_MAX)
        self._refused: _Recent[bytes, float] = _Recent(VERDICTS_MAX)
        """Token -> time until which it counts as invalid."""
        self._strangers = self._new_bucket(STRANGER_REVIEWS_PER_S)
        self._users: _Recent[str, TokenBucket] = _Recent(VERDICTS_MAX)
        self._stranger_turns = _Turns(STRANGER_REVIEWS_AT_ONCE)
        self._user_turns = _Turns(USER_REVIEWS_AT_ONCE)

    async def judge(self, token: str, verb: str, path: str) -> AccessDecision:
        """Returns the verdict. `token`: the bearer token, empty without one; `verb` in lower case, `path` without its query."""
        if not token or len(token) > TOKEN_CHARS_MAX:
            return AccessDecision.UNAUTHENTICATED
        try:
            async with asyncio.timeout(2 * REVIEW_TIMEOUT_S):
                known = await self._authenticate(token)
                if known is None:
                    return AccessDecision.UNAUTHENTICATED
                return AccessDecision.ALLOWED if await self._is_allowed(known, verb, path) else AccessDecision.FORBIDDEN
        except _TooManyError:
            return AccessDecision.TOO_MANY
        except (_UndecidedError, TimeoutError) as error:
            logger.warning(
                "cannot decide whether a request is allowed",
                extra={"path": path, "reason": str(error) or "no turn in time"},
            )
            return AccessDecision.UNDECIDED

    def user_of(self, token: str) -> str:
        """Returns the name of the user of a token that was allowed before; empty if it is not known any more."""
        known = self._tokens.get(_hash(token))
        return "" if known is None else known.user.name

    async def _authenticate(self, token: str) -> _Token | None:
        key = _hash(token)
        now_s = self._clock.monotonic()
        known = self._tokens.get(key)
        if known is not None and now_s < known.until_s:
            return known
        if known is None and now_s < (self._refused.get(key) or 0.0):
            return None
        user = _user_of(await self._review(known, _TOKEN_REVIEWS, "authentication", "TokenReview", {"token": token}))
        if user is None:
            self._tokens.drop(key)
            self._refused.put(key, self._clock.monotonic() + REFUSED_KEPT_S)
            return None
        if known is None or known.user != user:
            known = _Token(user, 0.0, _Recent(PATHS_MAX))
        known.until_s = self._clock.monotonic() + ALLOWED_KEPT_S
        self._tokens.put(key, known)
        return known

    async def _is_allowed(self, known: _Token, verb: str, path: str) -> bool:
        found = known.allowed.get((verb, path))
        if found is not None and self._clock.monotonic() < found.until_s:
            return found.is_allowed
        spec = {
            "user": known.user.name,
            "uid": known.user.uid,
            "groups": known.user.groups,
            "extra": dict(known.user.extra),
            "nonResourceAttributes": {"path": path, "verb": verb},
        }
        status = await self._review(known, _ACCESS_REVIEWS, "authorization", "SubjectAccessReview", spec)
        is_allowed = status.get("allowed") is True and status.get("denied") is not True
        kept_s = ALLOWED_KEPT_S if is_allowed else REFUSED_KEPT_S
        known.allowed.put((verb, path), _Allowed(is_allowed, self._clock.monotonic() + kept_s))
        return is_allowed

    async def _review(
        self, known: _Token | None, path: str, group: str, kind: str, spec: dict[str, Any]
    ) -> dict[str, Any]:
        """Returns the status of one review, at the rate of the known user or at that of unknown tokens."""
        if not (self._strangers if known is None else self._bucket_of(known.user)).try_take():
            raise _TooManyError
        turn = await (self._stranger_turns if known is None else self._user_turns).take()
        try:
            return await self._status_of(path, f"{group}.k8s.io/v1", kind, spec)
        finally:
            turn.release()

    def _bucket_of(self, user: _User) -> TokenBucket:
        bucket = self._users.get(user.name)
        if bucket is None:
            bucket = self._new_bucket(USER_REVIEWS_PER_S)
            self._users.put(user.name, bucket)
        return bucket

    def _new_bucket(self, rate: float) -> TokenBucket:
        return TokenBucket(self._clock.monotonic, rate=rate, burst=REVIEWS_BURST)

    async def _status_of(self, path: str, api_version: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
        body = orjson.dumps({"apiVersion": api_version, "kind": kind, "spec": spec})
        try:
            response = await self._transport.request("POST", path, body=body, timeout_s=REVIEW_TIMEOUT_S)
        except TransportError as error:
            raise _UndecidedError(f"{kind}: {error}") from error
        if response.status not in (200, 201):
            raise _UndecidedError(f"{kind}: the API server returned {response.status}")
        try:
            status = orjson.loads(response.body)["status"]
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise _UndecidedError(f"{kind}: the response has no status") from error
        if not isinstance(status, dict):
            raise _UndecidedError(f"{kind}: the status is not an object")
        return status


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


class _UserInfo(msgspec.Struct):
    """`status.user` of a TokenReview."""

    username: str
    uid: str = ""
    groups: tuple[str, ...] | None = None
    extra: dict[str, tuple[str, ...]] | None = None


def _user_of(status: dict[str, Any]) -> _User | None:
    """Returns None unless the status is a complete one of an authenticated user."""
    if status.get("authenticated") is not True:
        return None
    try:
        user = msgspec.convert(status.get("user"), _UserInfo)
    except msgspec.ValidationError:
        return None
    if not user.username:
        return None
    return _User(user.username, user.uid, user.groups or (), tuple(sorted((user.extra or {}).items())))
