"""Errors of the API server: one exception with a Kubernetes Status, and a function per upstream message.

Raised anywhere below `ApiServer.handle`, which catches it and turns it into a response. Messages are those of
kube-apiserver 1.36 (tests/integration/api/recorded.jsonl contains recorded ones).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from multisched.model.wire import Response

JSON_HEADERS: Mapping[str, str] = {"content-type": "application/json", "cache-control": "no-cache, private"}

StatusDocument = dict[str, Any]


class ApiError(Exception):
    """An unsuccessful response. `status` is the whole Status document."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        details: dict[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.headers = headers or {}
        self.status: StatusDocument = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": metadata or {},
            "status": "Failure",
            "message": message,
        }
        if reason:
            self.status["reason"] = reason
        if details:
            self.status["details"] = details
        self.status["code"] = code

    @property
    def message(self) -> str:
        """Returns the message of the Status."""
        return str(self.status["message"])

    def response(self) -> Response:
        """Returns the HTTP response."""
        return Response(self.code, orjson.dumps(self.status), {**JSON_HEADERS, **self.headers})


def qualified(group: str, plural: str) -> str:
    """Formats a resource as upstream's messages do: `pods`, `leases.coordination.k8s.io`."""
    return f"{plural}.{group}" if group else plural


def _details(group: str, plural: str, name: str) -> dict[str, Any]:
    details = {"name": name}
    if group:
        details["group"] = group
    details["kind"] = plural
    return details


def not_found(group: str, plural: str, name: str) -> ApiError:
    """Returns 404 for a missing object."""
    return ApiError(404, "NotFound", f'{qualified(group, plural)} "{name}" not found', _details(group, plural, name))


def path_not_found() -> ApiError:
    """Returns 404 for a path that is not served."""
    return ApiError(404, "NotFound", "the server could not find the requested resource", {})


def already_exists(group: str, plural: str, name: str) -> ApiError:
    """Returns 409 for a create of an existing object."""
    return ApiError(
        409, "AlreadyExists", f'{qualified(group, plural)} "{name}" already exists', _details(group, plural, name)
    )


def conflict(group: str, plural: str, name: str, why: str) -> ApiError:
    """Returns 409 for a write whose precondition does not hold."""
    sentence = f'Operation cannot be fulfilled on {qualified(group, plural)} "{name}": {why}'
    return ApiError(409, "Conflict", sentence, _details(group, plural, name))


MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


def uid_conflict(group: str, plural: str, key: str, name: str, wanted: str, actual: str) -> ApiError:
    """Returns 409 for a uid precondition, with the message of upstream's storage layer."""
    why = (
        f"StorageError: invalid object, Code: 4, Key: /registry/{plural}/{key}, ResourceVersion: 0, AdditionalErrorMsg: "
        f"Precondition failed: UID in precondition: {wanted}, UID in object meta: {actual}"
    )
    return conflict(group, plural, name, why)


def cause(reason: str, field: str, message: str) -> dict[str, str]:
    """Builds one cause of a 422 response."""
    return {"reason": reason, "message": message, "field": field}


def required(field: str, detail: str = "") -> dict[str, str]:
    """Builds the cause for a missing value."""
    return cause("FieldValueRequired", field, f"Required value: {detail}" if detail else "Required value")


def invalid_value(field: str, value: Any, detail: str) -> dict[str, str]:
    """Builds the cause for an invalid value."""
    return cause("FieldValueInvalid", field, f"Invalid value: {_shown(value)}: {detail}")


def forbidden_value(field: str, detail: str) -> dict[str, str]:
    """Builds the cause for a value or a change that is not allowed here."""
    return cause("FieldValueForbidden", field, f"Forbidden: {detail}")


def unsupported_value(field: str, value: Any, supported: Sequence[str]) -> dict[str, str]:
    """Builds the cause for a value outside an enumeration."""
    choices = ", ".join(f'"{choice}"' for choice in supported)
    return cause("FieldValueNotSupported", field, f"Unsupported value: {_shown(value)}: supported values: {choices}")


def duplicate_value(field: str, value: Any) -> dict[str, str]:
    """Builds the cause for a duplicate key."""
    return cause("FieldValueDuplicate", field, f"Duplicate value: {_shown(value)}")


def too_long(field: str, limit: int) -> dict[str, str]:
    """Builds the cause for a value with too many bytes."""
    return cause("FieldValueTooLong", field, f"Too long: may not be more than {limit} bytes")


def too_many(field: str, count: int, limit: int) -> dict[str, str]:
    """Builds the cause for too many entries."""
    unit = "item" if limit == 1 else "items"
    return cause("FieldValueTooMany", field, f"Too many: {count}: must have at most {limit} {unit}")


def _shown(value: Any) -> str:
    return orjson.dumps(value, default=str).decode()


def invalid(group: str, kind: str, name: str, causes: Sequence[dict[str, str]]) -> ApiError:
    """Returns 422 with all causes."""
    sentences = [f"{entry['field']}: {entry['message']}" for entry in causes]
    said = sentences[0] if len(sentences) == 1 else f"[{', '.join(sentences)}]"
    shown = f"{kind}.{group}" if group else kind
    details: dict[str, Any] = {"name": name}
    if group:
        details["group"] = group
    details |= {"kind": kind, "causes": list(causes)}
    return ApiError(422, "Invalid", f'{shown} "{name}" is invalid: {said}', details)


def bad_request(message: str) -> ApiError:
    """Returns 400."""
    return ApiError(400, "BadRequest", message)


def forbidden(group: str, plural: str, name: str, why: str) -> ApiError:
    """Returns 403, for admission or RBAC."""
    shown = qualified(group, plural)
    sentence = f'{shown} "{name}" is forbidden: {why}' if name else f"{shown} is forbidden: {why}"
    details = {key: value for key, value in _details(group, plural, name).items() if value}
    return ApiError(403, "Forbidden", sentence, details)


def unauthorized() -> ApiError:
    """Returns 401 for missing or wrong credentials."""
    return ApiError(401, "Unauthorized", "Unauthorized")


def method_not_allowed(group: str, plural: str, method: str) -> ApiError:
    """Returns 405."""
    del group
    message = "the server does not allow this method on the requested resource"
    return ApiError(405, "MethodNotAllowed", message, {"kind": plural}, {"x-method": method})


def unsupported_media(media: str, supported: Sequence[str]) -> ApiError:
    """Returns 415 for the media type of a body."""
    message = (
        f"the body of the request was in an unknown format - accepted media types include: {', '.join(supported)}"
        if media
        else "the body of the request needs a content type"
    )
    return ApiError(415, "UnsupportedMediaType", message)


def too_many_requests(message: str, retry_after_s: int, causes: Sequence[dict[str, str]] = ()) -> ApiError:
    """Returns 429 with its Retry-After."""
    details: dict[str, Any] = {}
    if causes:
        details["causes"] = list(causes)
    if retry_after_s:
        details["retryAfterSeconds"] = retry_after_s
    headers = {"retry-after": str(retry_after_s)} if retry_after_s else None
    return ApiError(429, "TooManyRequests", message, details, headers)


def unavailable(message: str, retry_after_s: int = 1) -> ApiError:
    """Returns 503; the request had no effect."""
    return ApiError(
        503,
        "ServiceUnavailable",
        message,
        {"retryAfterSeconds": retry_after_s},
        {"retry-after": str(retry_after_s)},
    )


def expired(message: str, continue_token: str = "") -> ApiError:
    """Returns 410: the version is older than the history."""
    metadata = {"continue": continue_token} if continue_token else None
    return ApiError(410, "Expired", message, metadata=metadata)


def version_too_large(wanted: int, current: int) -> ApiError:
    """Returns 504: the requested version is in the future."""
    details = {
        "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
        "retryAfterSeconds": 1,
    }
    message = f"Timeout: Too large resource version: {wanted}, current: {current}"
    return ApiError(504, "Timeout", message, details, {"retry-after": "1"})


def internal(message: str) -> ApiError:
    """Returns 500 with upstream's prefix."""
    return ApiError(500, "InternalError", f"Internal error occurred: {message}", {"causes": [{"message": message}]})
