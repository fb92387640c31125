"""Reviews of identity and permissions, such as TokenReview and SubjectAccessReview, and token requests.

Uses the same `Tokens` and `Rbac` as every request.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from multisched.cluster.access.rbac import Attributes, Rbac
from multisched.cluster.access.tokens import AUDIENCES, TOKEN_S, TOKEN_S_MIN, Tokens
from multisched.cluster.api.objects import Objects
from multisched.cluster.base import errors
from multisched.cluster.base.request import UserInfo
from multisched.cluster.base.resources import Document, Resource
from multisched.model.api_time import timestamp


class Reviews:
    """Answers reviews and token requests."""

    def __init__(self, objects: Objects, tokens: Tokens, rbac: Rbac, *, enforces: bool) -> None:
        self._objects = objects
        self._tokens = tokens
        self._rbac = rbac
        self._enforces = enforces

    def answer(self, resource: Resource, document: Document, namespace: str, user: UserInfo) -> Document:
        """Returns the review with its status."""
        spec = document.get("spec") or {}
        if resource.plural == "selfsubjectreviews":
            status: Document = {"userInfo": _shown(user)}
        elif resource.plural == "tokenreviews":
            status = self._token(spec)
        elif resource.plural == "selfsubjectrulesreviews":
            status = self._rules(user, str(spec.get("namespace") or ""))
        else:
            asking = user if resource.plural == "selfsubjectaccessreviews" else _subject(spec)
            status = self._access(spec, asking, namespace)
        review: Document = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": {}}
        if spec:
            review["spec"] = spec
        return {**review, "status": status}

    def _token(self, spec: Mapping[str, Any]) -> Document:
        audiences = spec.get("audiences") or AUDIENCES
        user = self._tokens.authenticate(str(spec.get("token") or ""), audiences)
        if user is None:
            return {"user": {}, "error": "[invalid bearer token, token lookup failed]"}
        return {"authenticated": True, "user": _shown(user), "audiences": list(audiences)}

    def _access(self, spec: Mapping[str, Any], user: UserInfo, namespace: str) -> Document:
        asked, path = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
        if bool(asked) == bool(path):
            detail = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
            cause = errors.invalid_value("spec.resourceAttributes", None, detail)
            raise errors.invalid("authorization.k8s.io", "SubjectAccessReview", "", [cause])
        if asked:
            attributes = Attributes(
                str(asked.get("verb") or ""),
                str(asked.get("group") or ""),
                str(asked.get("resource") or ""),
                str(asked.get("subresource") or ""),
                str(asked.get("namespace") or namespace),
                str(asked.get("name") or ""),
            )
        else:
            assert path is not None
            attributes = Attributes(str(path.get("verb") or ""), path=str(path.get("path") or ""))
        is_allowed = not self._enforces or self._rbac.allows(user, attributes)
        return {"allowed": is_allowed, "reason": "RBAC: allowed"} if is_allowed else {"allowed": False}

    def _rules(self, user: UserInfo, namespace: str) -> Document:
        resource_rules, path_rules = [], []
        if "system:masters" in user.groups or not self._enforces:
            resource_rules.append({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]})
            path_rules.append({"verbs": ["*"], "nonResourceURLs": ["*"]})
        for rule in self._rbac.rules_for(user, namespace):
            if rule.paths:
                path_rules.append({"verbs": sorted(rule.verbs), "nonResourceURLs": list(rule.paths)})
                continue
            entry = {"verbs": sorted(rule.verbs), "apiGroups": sorted(rule.groups), "resources": sorted(rule.resources)}
            if rule.names:
                entry["resourceNames"] = sorted(rule.names)
            resource_rules.append(entry)
        return {"resourceRules": resource_rules, "nonResourceRules": path_rules, "incomplete": False}

    def token_request(self, accounts: Resource, namespace: str, name: str, document: Document) -> Document:
        """Handles POST serviceaccounts/NAME/token."""
        stored = self._objects.stored(accounts, namespace, name)
        spec = document.get("spec") or {}
        lifetime_s = int(spec.get("expirationSeconds") or TOKEN_S)
        if lifetime_s < TOKEN_S_MIN:
            detail = "may not specify a duration less than 10 minutes"
            cause = errors.invalid_value("spec.expirationSeconds", lifetime_s, detail)
            raise errors.invalid("authentication.k8s.io", "TokenRequest", "", [cause])
        audiences = list(spec.get("audiences") or AUDIENCES)
        bound = self._bound(spec.get("boundObjectRef") or {}, namespace)
        token = self._tokens.issue(namespace, name, stored.uid, audiences, lifetime_s, bound)
        ends = self._objects.minting.clock.now() + timedelta(seconds=lifetime_s)
        return {
            "kind": "TokenRequest",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": {"name": name, "namespace": namespace, "creationTimestamp": self._objects.minting.now()},
            "spec": {**spec, "audiences": audiences, "expirationSeconds": lifetime_s},
            "status": {"token": token, "expirationTimestamp": timestamp(ends)},
        }

    def _bound(self, reference: Mapping[str, Any], namespace: str) -> dict[str, str]:
        kind, name = reference.get("kind"), str(reference.get("name") or "")
        if not kind:
            return {}
        storage = {"Pod": "pods", "Secret": "secrets", "Node": "nodes"}.get(str(kind))
        key = name if storage == "nodes" else f"{namespace}/{name}"
        found = self._objects.store.collection(storage).objects.get(key) if storage else None
        if found is None or storage is None:
            raise errors.not_found("", storage or str(kind).lower(), name)
        return {"kind": str(kind), "name": name, "uid": found.uid}


def _subject(spec: Mapping[str, Any]) -> UserInfo:
    if not spec.get("user") and not spec.get("groups"):
        cause = errors.invalid_value("spec.user", "", "at least one of user or group must be specified")
        raise errors.invalid("authorization.k8s.io", "SubjectAccessReview", "", [cause])
    return UserInfo(str(spec.get("user") or ""), tuple(spec.get("groups") or ()), str(spec.get("uid") or ""))


def _shown(user: UserInfo) -> Document:
    shown: Document = {"username": user.name}
    if user.uid:
        shown["uid"] = user.uid
    shown["groups"] = list(user.groups)
    if user.extra:
        shown["extra"] = {key: list(values) for key, values in user.extra.items()}
    return shown
