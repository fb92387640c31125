"""Errors of requests to an API server, one class per case that a caller handles.

Owns the exceptions of this package and the parsing of Status bodies. Of a server's response only the texts of a Status,
cut to 256 characters, reach a log or a user.
"""

from __future__ import annotations

from typing import Final

import msgspec

from multisched.model.wire import UNREADABLE, Response, TransportError

STATUS_TEXT_CHARS_MAX: Final = 256
EXPIRED_HINT: Final = (
    "they may have expired: renew the token or certificate; a kubeconfig or token file that changes is read again"
)
"""The fix if the API server responds 401."""
RETRY_AFTER_DEFAULT_S: Final = 1.0
RETRY_AFTER_MAX_S: Final = 60.0
"""Upper limit of the Retry-After that is respected."""


class CredentialsError(Exception):
    """There is no usable kubeconfig or service account, or its exec plugin failed. The message names the file and the reason."""


class ApiError(Exception):
    """The API server responded with an error."""

    def __init__(self, status: int, reason: str, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(f"{status} {reason}: {message}" if message else f"{status} {reason}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after_s = retry_after_s


class BadRequest(ApiError):
    """400, 422 and every other 4xx without a class of its own: a retry would get the same response."""


class Unauthorized(ApiError):
    """401 although the credentials were just read again."""


class Forbidden(ApiError):
    """403: refused by RBAC, a quota or an admission webhook."""


class NotFound(ApiError):
    """404: the object does not exist, or its kind is not served."""


class Conflict(ApiError):
    """409: a precondition (uid, resourceVersion, bound, gated, deleting) did not hold, or the name exists."""


class Gone(ApiError):
    """410, or an in-stream Expired: the version or continue token is older than the server's history. Relist."""


class TooManyRequests(ApiError):
    """429: nothing was done; retry after `retry_after_s`."""


class ServerError(ApiError):
    """5xx: the effect of a write is unknown."""


class StatusBody(msgspec.Struct, gc=False):
    """The used part of a `kind: Status`. Every field may be missing."""

    kind: str = ""
    message: str = ""
    reason: str = ""
    code: int = 0


_status_decoder = msgspec.json.Decoder(StatusBody)

_BY_STATUS: Final[dict[int, type[ApiError]]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    429: TooManyRequests,
}


def with_hint(error: BaseException) -> str:
    """Returns the error's text, with the fix if the API server does not accept the credentials."""
    return (
        f"{error}; the credentials are not accepted, {EXPIRED_HINT}" if isinstance(error, Unauthorized) else str(error)
    )


def fix_of(error: BaseException) -> str:
    """Returns the fix if kinds cannot be read; empty if the server's message is enough."""
    if isinstance(error, Unauthorized):
        return f"the credentials are not accepted, {EXPIRED_HINT}"
    if isinstance(error, Forbidden):
        return "grant the account get, list and watch, as deploy/base/rbac.yaml does"
    return "check that the API server runs and can be reached" if isinstance(error, TransportError) else ""


def in_words(error: BaseException) -> str:
    """Describes an error below HTTP in one line of limited length."""
    return f"{type(error).__name__} {error}".strip()[:STATUS_TEXT_CHARS_MAX]


def parse_status(body: bytes | memoryview | msgspec.Raw) -> StatusBody:
    """Returns the Status in `body` with its texts cut; an empty one for anything else (a proxy's HTML, a truncated
    document, another kind).
    """
    try:
        status = _status_decoder.decode(body)
    except UNREADABLE:
        return StatusBody()
    if status.kind != "Status":
        return StatusBody()
    status.message = status.message[:STATUS_TEXT_CHARS_MAX]
    status.reason = status.reason[:STATUS_TEXT_CHARS_MAX]
    return status


def sentence_of(response: Response) -> str:
    """Returns the message of a non-2xx `response` in one line, or its HTTP status if there is none."""
    return parse_status(response.body).message or f"HTTP {response.status}"


def error_of(status_code: int, status: StatusBody, retry_after_s: float = 0.0) -> ApiError:
    """Returns the exception for one HTTP or in-stream status code."""
    default = ServerError if status_code >= 500 or status_code < 400 else BadRequest
    kind = _BY_STATUS.get(status_code, default)
    return kind(status_code, status.reason, status.message, retry_after_s)


def error_for(response: Response) -> ApiError:
    """Returns the exception for a non-2xx `response`; the caller raises it."""
    return error_of(response.status, parse_status(response.body), retry_after_s(response))


def retry_after_s(response: Response) -> float:
    """Returns the seconds of the Retry-After header, 0 without one. The HTTP-date form, which no API server sends,
    counts as the default.
    """
    header = response.headers.get("retry-after", "")
    if not header:
        return RETRY_AFTER_DEFAULT_S if response.status == 429 else 0.0
    if not (header.isascii() and header.isdigit()):
        return RETRY_AFTER_DEFAULT_S
    return min(float(header[:6]), RETRY_AFTER_MAX_S)
