"""A client's request, its user, and the parsed meaning of its path.

`parse_target` follows the request-info rules of kube-apiserver (verb, group, version, resource, subresource).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote

from multisched.cluster.base import errors
from multisched.model.wire import JSON


@dataclass(frozen=True, slots=True)
class UserInfo:
    """The authenticated user."""

    name: str
    groups: tuple[str, ...] = ("system:authenticated",)
    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False, compare=False)


ADMIN = UserInfo("kubernetes-admin", ("system:masters", "system:authenticated"))
ANONYMOUS = UserInfo("system:anonymous", ("system:unauthenticated",))


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """One authenticated HTTP request. `path` includes the query string."""

    method: str
    path: str
    body: bytes | None = None
    content_type: str = JSON
    accept: str = JSON
    user: UserInfo = ADMIN
    user_agent: str = ""


@dataclass(slots=True)
class Target:
    """The verb and object that a path under /api or /apis addresses."""

    verb: str
    group: str
    version: str
    plural: str = ""
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    params: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_dry_run(self) -> bool:
        """Reports whether the request has `dryRun=All`."""
        return self.params.get("dryRun") == "All"


_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "GET": "get", "HEAD": "get", "DELETE": "delete"}
_NO_PARAMS: Mapping[str, str] = {}
TRUE = frozenset({"1", "true", "True", "TRUE", "t", "T"})


def split_path(path: str) -> tuple[list[str], Mapping[str, str]]:
    """Returns path segments and query parameters (the last value of a repeated parameter)."""
    bare, _, query = path.partition("?")
    segments = bare.strip("/").split("/")
    if "%" in bare:
        segments = [unquote(segment) for segment in segments]
    if not query:
        return segments, _NO_PARAMS
    return segments, dict(parse_qsl(query, keep_blank_values=True))


def parse_target(method: str, segments: list[str], params: Mapping[str, str]) -> Target:
    """Parses a resource path. Raises 405 for an unknown method."""
    if segments[0] == "api":
        group, version, rest = "", segments[1], segments[2:]
    else:
        group, version, rest = segments[1], segments[2], segments[3:]
    verb = _VERBS.get(method)
    if verb is None:
        raise errors.method_not_allowed(group, "", method)
    target = Target(verb, group, version, params=params)
    if rest[0] == "watch":  # the deprecated /watch/ prefix, which upstream still serves
        rest = rest[1:]
        target.params = {**params, "watch": "1"}
    if rest[0] == "namespaces" and len(rest) > 2 and not (group == "" and rest[2] in ("status", "finalize")):
        target.namespace, rest = rest[1], rest[2:]
    target.plural = rest[0]
    target.name = rest[1] if len(rest) > 1 else ""
    target.subresource = "/".join(rest[2:])
    if target.plural == "namespaces" and group == "" and target.name:
        target.namespace = target.name
    _widen_verb(target, method)
    return target


def _widen_verb(target: Target, method: str) -> None:
    if method in ("GET", "HEAD"):
        if target.params.get("watch") in TRUE:
            target.verb = "watch"
        elif not target.name:
            target.verb = "list"
    elif method == "DELETE" and not target.name:
        target.verb = "deletecollection"
