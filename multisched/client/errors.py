"""What an API server or its absence can refuse, one class per case that someone catches.

Owns the exception tree of this package and the parsing of Status bodies. Promises that no text of a server longer than
256 characters, and nothing that is not a Status, reaches a log or a user.
"""

from __future__ import annotations

from typing import Final

import msgspec

from multisched.model.wire import UNREADABLE, Response, TransportError

STATUS_TEXT_CHARS_MAX: Final = 256
EXPIRED_HINT: Final = (
    "they may have expired: renew the token or certificate; a kubeconfig or token file that changes is read again"
)
"""What to do where the API server does not know who asks."""
RETRY_AFTER_DEFAULT_S: Final = 1.0
RETRY_AFTER_MAX_S: Final = 60.0
"""A server cannot silence us for longer than this with one header."""


class CredentialsError(Exception):
    """There is no usable kubeconfig or service account, or its exec plugin failed. The message names file and reason."""


class ApiError(Exception):
    """The API server answered, and not with success."""

    def __init__(self, status: int, reason: str, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(f"{status} {reason}: {message}" if message else f"{status} {reason}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after_s = retry_after_s


class BadRequest(ApiError):
    """400, 422 and every other 4xx without a class of its own: asking again will not help."""


class Unauthorized(ApiError):
    """401 although the credentials were just read again."""


class Forbidden(ApiError):
    """403: RBAC, a quota or an admission webhook says no."""


class NotFound(ApiError):
    """404: the object, or its whole kind, is not there."""


class Conflict(ApiError):
    """409: a precondition (uid, resourceVersion, bound, gated, deleting) did not hold, or the name is taken."""


class Gone(ApiError):
    """410, or an in-stream Expired: the version or continue token is older than the server remembers. Relist."""


class TooManyRequests(ApiError):
    """429: nothing happened; ask again after `retry_after_s`."""


class ServerError(ApiError):
    """5xx: the effect of a write is unknown."""


class StatusBody(msgspec.Struct, gc=False):
    """The part of a `kind: Status` that is of use. Every field may be missing."""

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
    """What the server says, and what to do where it does not accept our credentials."""
    return (
        f"{error}; the credentials are not accepted, {EXPIRED_HINT}" if isinstance(error, Unauthorized) else str(error)
    )


def fix_of(error: BaseException) -> str:
    """What to do where kinds cannot be read; empty where the server's words say it all."""
    if isinstance(error, Unauthorized):
        return f"the credentials are not accepted, {EXPIRED_HINT}"
    if isinstance(error, Forbidden):
        return "grant the account get, list and watch, as deploy/base/rbac.yaml does"
    return "check that the API server runs and can be reached" if isinstance(error, TransportError) else ""


def in_words(error: BaseException) -> str:
    """What went wrong below HTTP, in a line that is not too long."""
    return f"{type(error).__name__} {error}".strip()[:STATUS_TEXT_CHARS_MAX]


def parse_status(body: bytes | memoryview | msgspec.Raw) -> StatusBody:
    """The Status in `body`, its texts cut; an empty one for anything else (a proxy's HTML, half a document, another kind)."""
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
    """What a non-2xx `response` says, in a line; its status where it says nothing."""
    return parse_status(response.body).message or f"HTTP {response.status}"


def error_of(status_code: int, status: StatusBody, retry_after_s: float = 0.0) -> ApiError:
    """The exception for one HTTP or in-stream status code."""
    default = ServerError if status_code >= 500 or status_code < 400 else BadRequest
    kind = _BY_STATUS.get(status_code, default)
    return kind(status_code, status.reason, status.message, retry_after_s)


def error_for(response: Response) -> ApiError:
    """The exception that says what a non-2xx `response` means; the caller raises it."""
    return error_of(response.status, parse_status(response.body), retry_after_s(response))


def retry_after_s(response: Response) -> float:
    """Seconds of the Retry-After header, 0 without one. The HTTP-date form, which no API server sends, counts as the default."""
    header = response.headers.get("retry-after", "")
    if not header:
        return RETRY_AFTER_DEFAULT_S if response.status == 429 else 0.0
    if not (header.isascii() and header.isdigit()):
        return RETRY_AFTER_DEFAULT_S
    return min(float(header[:6]), RETRY_AFTER_MAX_S)
