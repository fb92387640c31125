"""Answers AdmissionReviews of quotas: refuses what `multisched quota lint` refuses, and warns of evictions.

An object is refused for its own problems, and for problems of others that it would cause. Problems that others already
have are warnings, so that they can be fixed one by one. A deletion is never refused. No pod is named, because a user
who may write quotas may not be allowed to see all pods. Computes in a thread, one review at a time, on a copy of the
program's state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import anyio
import msgspec

from multisched.config.schema import Configuration
from multisched.framework.background import InThread
from multisched.framework.device_demand import DeviceDemands
from multisched.framework.registry import Registry
from multisched.model.cluster_objects import ClusterObject, KoordinatorQuota
from multisched.model.decode import DecodeError
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import differ_in_version_only
from multisched.model.quotas.translation import api_of
from multisched.model.wire import UNREADABLE
from multisched.observe.admission_view import NotReviewedError
from multisched.observe.token_bucket import TokenBucket
from multisched.plugins.quota.quota_source import QUOTA_KINDS
from multisched.shell.program import Program
from multisched.shell.workers.background_threads import in_worker_thread
from multisched.whatif.quota_lint import KINDS, Finding, Linted, lint, problems_of
from multisched.whatif.quota_trial import Eviction, try_quotas
from multisched.whatif.quota_use import NO_DEMANDS, source_of
from multisched.whatif.sandbox import ClusterSnapshot, trial

API_VERSION: Final = "admission.k8s.io/v1"
PODS_TRIED_MAX: Final = 20_000
"""Limit of pods in a cluster for which a review tries evictions: an API server waits for seconds only."""
ATTEMPTS_MAX: Final = 200
TRIALS_PER_S: Final = 0.2
TRIALS_BURST: Final = 5
"""Rate of reviews that try evictions; any caller may send one."""
TOO_OFTEN: Final = "too many reviews to try which pods would be evicted; multisched quota lint shows it"
PROBLEMS_SHOWN: Final = 20
WARNINGS_SHOWN: Final = 20
WARNING_CHARS_MAX: Final = 256
EXISTING_PROBLEM_PATHS: Final = frozenset({"metadata.name", "apiVersion"})
"""Problems with an object's position among others, which existed before a change of the object."""

NO_OBJECT: Final = msgspec.Raw(b"null")


class _Request(msgspec.Struct):
    uid: str
    operation: str
    object: msgspec.Raw = NO_OBJECT
    oldObject: msgspec.Raw = NO_OBJECT


class _Review(msgspec.Struct):
    request: _Request
    apiVersion: str = ""


class Answer(msgspec.Struct, frozen=True):
    """The result of one review."""

    problems: tuple[Finding, ...] = ()
    """If there is one, the object is refused."""
    warnings: tuple[str, ...] = ()


class QuotaAdmission:
    """Implements `observe.admission_view.AdmissionSource` for a running program."""

    def __init__(
        self,
        program: Program,
        registry: Registry | None = None,
        in_thread: InThread = in_worker_thread,
    ) -> None:
        """`in_thread`: another way to compute, for tests."""
        self._program = program
        self._registry = registry
        self._in_thread = in_thread
        self._stage = anyio.Lock()
        self._trials = TokenBucket(program.clock.monotonic, rate=TRIALS_PER_S, burst=TRIALS_BURST)

    async def review(self, body: bytes) -> bytes:
        """See `AdmissionSource`. Reviews cost the loop little: pods are copied for a few trials only."""
        async with self._stage:
            known = _quotas_of(self._program)
            notes: tuple[str, ...] = ()
            demands = self._program.cache.ledgers.demands
            if await self._in_thread(lambda: changes_quotas(body, known)):
                if self._trials.try_take():
                    known = ClusterSnapshot.of(self._program)
                else:
                    notes = (TOO_OFTEN,)
            return await self._in_thread(
                lambda: reviewed(body, known, self._program.configuration, self._registry, notes, demands)
            )


def _quotas_of(program: Program) -> ClusterSnapshot:
    """Returns the program's quotas and namespaces, without pods and nodes."""
    objects = program.cache.objects
    kinds = (*QUOTA_KINDS, ObjectKind.NAMESPACE)
    return ClusterSnapshot((), (), objects=tuple((kind, one) for kind in kinds for one in objects.all(kind)))


def changes_quotas(body: bytes, known: ClusterSnapshot) -> bool:
    """Returns whether another tree would be in force. Raises NotReviewedError."""
    request = _request_of(body)
    found, _ = (None, ()) if request.operation == "DELETE" else _judged(request, known, NO_DEMANDS)
    return found is not None and found.after is not None and _tree(known) != _tree(found.after)


def reviewed(
    body: bytes,
    known: ClusterSnapshot,
    configuration: Configuration,
    registry: Registry | None = None,
    notes: tuple[str, ...] = (),
    demands: DeviceDemands = NO_DEMANDS,
) -> bytes:
    """Returns the response to a review for a known cluster; `notes` are additional warnings. Raises NotReviewedError."""
    request = _request_of(body)
    if request.operation == "DELETE":
        return _response(request.uid, _deleted(request, known))
    found, warnings = _judged(request, known, demands)
    if found is not None and not found.problems:
        warnings = (*warnings, *_evictions(known, found, configuration, registry), *notes)
    return _response(request.uid, Answer(() if found is None else found.problems, warnings))


def _judged(request: _Request, known: ClusterSnapshot, demands: DeviceDemands) -> tuple[Linted | None, tuple[str, ...]]:
    """Returns the object's problems and warnings; None for an object that changes no quota."""
    document = _document(request.object)
    api = api_of(document)
    kind = None if api is None else KINDS.get(api)
    if api is None or kind is None:
        return None, ()
    before = _decoded(kind, request.oldObject)
    own = _decoded(kind, msgspec.Raw(msgspec.json.encode(document)))
    if before is not None and own is not None and differ_in_version_only(before, own):
        return None, ()
    found = lint(api, [document], known, demands)
    key = None if own is None else f"{kind.definition.name} {own.key}"
    existing_problems = problems_of(kind, known.objects)
    old = [
        one
        for one in found.problems
        if one in existing_problems and (one.key != key or one.path in EXISTING_PROBLEM_PATHS)
    ]
    refused = tuple(one if one.key == key else _of_another(one) for one in found.problems if one not in old)
    warnings = (f"not in force: {one.key}: {one}" for one in old)
    odd = (str(one) for one in found.warnings)
    return msgspec.structs.replace(found, problems=refused), (*warnings, *odd)


def _of_another(one: Finding) -> Finding:
    """Adds the object's key to the path, because the request named another object."""
    return msgspec.structs.replace(one, path=f"{one.key}: {one.path}")


def _evictions(
    known: ClusterSnapshot, found: Linted, configuration: Configuration, registry: Registry | None
) -> Iterable[str]:
    """Returns the evictions by leaf, if another tree would be in force."""
    after = found.after
    if after is None or not after.nodes or _tree(known) == _tree(after):
        return ()
    pods = len(after.placed) + len(after.pending)
    if pods > PODS_TRIED_MAX:
        return (
            f"with {pods} pods it takes too long to try which pods would be evicted; multisched quota lint shows it",
        )
    with trial(configuration, after, registry) as sandbox:
        return _by_leaf(try_quotas(sandbox, after, ATTEMPTS_MAX).evictions)


def _request_of(body: bytes) -> _Request:
    try:
        review = msgspec.json.decode(body, type=_Review)
    except UNREADABLE as error:
        raise NotReviewedError(f"the body is not an AdmissionReview: {error}") from error
    if review.apiVersion != API_VERSION:
        raise NotReviewedError(f"apiVersion {review.apiVersion[:64]} is not {API_VERSION}")
    return review.request


def _document(raw: msgspec.Raw) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(raw)
    except UNREADABLE as error:
        raise NotReviewedError(f"request.object cannot be read: {error}") from error
    if not isinstance(document, dict):
        raise NotReviewedError("request.object is not an object")
    return document


def _decoded(kind: ObjectKind, raw: msgspec.Raw) -> ClusterObject | None:
    """Returns None if it is not an object."""
    try:
        return kind.definition.decode(raw)
    except (DecodeError, *UNREADABLE):
        return None


def _tree(snapshot: ClusterSnapshot) -> object:
    source = source_of(snapshot.objects)
    source.renew()
    return source.tree


def _deleted(request: _Request, known: ClusterSnapshot) -> Answer:
    """Returns the warnings about a quota's deletion."""
    document = _document(request.oldObject)
    api = api_of(document)
    kind = None if api is None else KINDS.get(api)
    one = None if kind is None else _decoded(kind, msgspec.Raw(msgspec.json.encode(document)))
    if one is None or kind not in QUOTA_KINDS:
        return Answer()
    objects = tuple((of, other) for of, other in known.objects if of is not kind or other.key != one.key)
    after = msgspec.structs.replace(known, objects=objects)
    others = [other for of, other in objects if of is kind]
    if isinstance(one, KoordinatorQuota) and any(
        isinstance(x, KoordinatorQuota) and x.parent == one.name for x in others
    ):
        return Answer((), (f"ElasticQuota {one.key} stays in force while other quotas are below it",))
    if _tree(known) is not None and _tree(after) is None:
        return Answer((), (one.deletion_note or "no quota is in force without it: its pods are not limited",))
    return Answer()


def _by_leaf(evictions: Iterable[Eviction]) -> Iterable[str]:
    by_leaf: dict[str, list[Eviction]] = {}
    for one in evictions:
        by_leaf.setdefault(one.leaf, []).append(one)
    for leaf, those in by_leaf.items():
        pods = f"{len(those)} pod{'' if len(those) == 1 else 's'}"
        yield f"{pods} of {leaf} would be evicted: {those[0].why}"


def _response(uid: str, answer: Answer) -> bytes:
    response: dict[str, Any] = {"uid": uid, "allowed": not answer.problems}
    if answer.problems:
        response["status"] = _status(answer.problems)
    if answer.warnings:
        shown = [one[:WARNING_CHARS_MAX] for one in answer.warnings[:WARNINGS_SHOWN]]
        left = len(answer.warnings) - len(shown)
        response["warnings"] = [*shown, *([f"{left} more; multisched quota lint shows all"] if left else [])]
    return msgspec.json.encode({"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response})


def _status(problems: tuple[Finding, ...]) -> Mapping[str, Any]:
    shown = problems[:PROBLEMS_SHOWN]
    left = len(problems) - len(shown)
    sentences = [str(one) for one in shown]
    more = [f"{left} more; multisched quota lint shows all"] if left else []
    causes = [{"reason": "FieldValueInvalid", "field": one.path, "message": f"{one.text}; {one.fix}"} for one in shown]
    return {
        "status": "Failure",
        "reason": "Invalid",
        "code": 422,
        "message": " | ".join([*sentences, *more]),
        "details": {"causes": causes},
    }
