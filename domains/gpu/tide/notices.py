"""The notice of an eviction, as an annotation on each pod of the gang: its text, and which texts on pods are accepted.

All members carry the same text, a JSON object: `deadline` (the gang is not evicted earlier), `issued`, `for` (what gets the cards),
`pods` (number of members) and `id`. So the notice survives restarts and failovers, and a job can read it. Texts are untrusted:
a text that is not a notice for this gang is ignored and reported. The id is a digest of the gang and the other fields, so a text
that was copied to another gang with a pod's manifest is ignored, too. It is no protection against users who may patch pods; the
ValidatingAdmissionPolicy in `deploy/base` denies these writes. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from typing import Final

import msgspec
import orjson

from domains.gpu.dialects.own import TIDE_HOOK, TIDE_NOTICE
from multisched.model.api_time import micro_timestamp
from multisched.model.job_progress import zoned_seconds
from multisched.model.visible_text import escaped

TEXT_BYTES_MAX: Final = 1024
FOR_CHARS_MAX: Final = 200
NOTICE_MAX_S: Final = 86_400.0
"""Longest accepted time from issue to deadline, so that a wrong deadline does not protect a gang forever."""
SKEW_MAX_S: Final = 60.0
"""How far in the future the time of issue may be: the clocks of two replicas differ."""


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """A notice to one gang. Times are epoch seconds."""

    gang: str
    issued_s: float
    deadline_s: float
    for_demand: str
    pods: int = 1
    """Members of the gang when it was issued. With fewer after the deadline, the eviction has begun."""
    overrides_min_run_time: bool = False

    @property
    def id(self) -> str:
        """Identifies the notice in requests to the hook; a later deadline does not change it."""
        text = f"{self.gang}\n{micro_timestamp(_moment(self.issued_s))}\n{self.for_demand}"
        return sha256(text.encode()).hexdigest()[:16]

    @property
    def text(self) -> str:
        """The value of the annotation."""
        fields: dict[str, object] = {
            "deadline": micro_timestamp(_moment(self.deadline_s)),
            "for": self.for_demand,
            "id": self.id,
            "issued": micro_timestamp(_moment(self.issued_s)),
            "pods": self.pods,
        }
        if self.overrides_min_run_time:
            fields["overridesMinRunTime"] = True
        return orjson.dumps(fields).decode()


class NoticeError(ValueError):
    """The text is not a notice for the gang; the message says why."""


class _Text(msgspec.Struct):
    deadline: str
    issued: str
    id: str
    for_demand: str = msgspec.field(name="for", default="")
    pods: int = 1
    overrides: bool = msgspec.field(name="overridesMinRunTime", default=False)


_decoder = msgspec.json.Decoder(_Text)


def read_notice(text: str, gang: str, now_s: float) -> Notice:
    """Reads the annotation of a member of the gang. Raises NoticeError."""
    if len(text.encode("utf-8", "replace")) > TEXT_BYTES_MAX:
        raise NoticeError(f"is longer than {TEXT_BYTES_MAX} bytes")
    try:
        found = _decoder.decode(text.encode("utf-8", "replace"))
        notice = Notice(
            gang=gang,
            issued_s=zoned_seconds(found.issued),
            deadline_s=zoned_seconds(found.deadline),
            for_demand=found.for_demand,
            pods=found.pods,
            overrides_min_run_time=found.overrides,
        )
    except (msgspec.DecodeError, ValueError, OverflowError, RecursionError) as error:
        raise NoticeError("is not the text of a notice") from error
    if len(found.for_demand) > FOR_CHARS_MAX or found.for_demand != escaped(found.for_demand):
        raise NoticeError(f"`for` is longer than {FOR_CHARS_MAX} characters, or has hidden ones")
    if not 0 < notice.deadline_s - notice.issued_s <= NOTICE_MAX_S or notice.issued_s > now_s + SKEW_MAX_S:
        raise NoticeError("its times are not those of a notice")
    if notice.id != found.id:
        raise NoticeError("was not written for this gang")
    return notice


class GangNotice(msgspec.Struct, frozen=True):
    """The notice that the annotations of a gang's members give together."""

    notice: Notice | None
    """The notice with the latest deadline; None if no member has a valid one."""
    lacking: frozenset[str]
    """uids of the members without exactly this text; empty without a notice."""
    is_hook_called: bool
    """A member says that the hook was called for this notice."""
    problems: Mapping[str, str]
    """uid -> why its text is not a notice."""


def notice_of(gang: str, annotations: Mapping[str, Mapping[str, str]], now_s: float) -> GangNotice:
    """Reads the notice of a gang. `annotations`: uid of each member -> its annotations."""
    found: dict[str, Notice] = {}
    problems: dict[str, str] = {}
    for uid, written in annotations.items():
        text = written.get(TIDE_NOTICE, "")
        if not text:
            continue
        try:
            found[uid] = read_notice(text, gang, now_s)
        except NoticeError as error:
            problems[uid] = str(error)
    if not found:
        return GangNotice(None, frozenset(), False, problems)
    notice = max(found.values(), key=lambda one: (one.deadline_s, one.id))
    lacking = frozenset(uid for uid in annotations if found.get(uid) != notice)
    is_called = any(written.get(TIDE_HOOK) == notice.id for written in annotations.values())
    return GangNotice(notice, lacking, is_called, problems)


def _moment(at_s: float) -> datetime:
    return datetime.fromtimestamp(round(at_s, 3), UTC)
