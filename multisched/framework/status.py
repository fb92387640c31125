"""Status: the result of a plugin, with a code, the plugin's name and its reasons. Never None: success is a value too."""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec

from multisched.model.visible_text import whole_characters


class Code(Enum):
    """Status codes as upstream."""

    SUCCESS = "Success"
    ERROR = "Error"
    """An internal failure (a plugin raised, returned an invalid result or timed out): retried with backoff."""
    UNSCHEDULABLE = "Unschedulable"
    """Does not fit now; preemption may help. The pod waits for an event that may help."""
    UNSCHEDULABLE_AND_UNRESOLVABLE = "UnschedulableAndUnresolvable"
    """Does not fit, and preemption cannot help. The pod waits for an event that may help."""
    WAIT = "Wait"
    """Permit only: hold the pod until it is allowed, rejected or timed out."""
    SKIP = "Skip"
    """The plugin does not apply to this pod: its later points are not called in this attempt."""
    PENDING = "Pending"
    """Waits for something external; requeued by its event without backoff."""

    __hash__ = object.__hash__  # Enum's own hash is a Python call in each look-up of a reason

    @property
    def is_rejection(self) -> bool:
        """True for an expected refusal; False for success and for internal failures."""
        return self in _REJECTIONS


_SUCCESS: Final = Code.SUCCESS
"""A constant, because in Python 3.11 looking up an enum member takes as long as three calls."""
_REJECTIONS = frozenset({Code.UNSCHEDULABLE, Code.UNSCHEDULABLE_AND_UNRESOLVABLE, Code.PENDING})


class Status(msgspec.Struct, frozen=True):
    """A code with the plugin that returned it and its reasons."""

    code: Code = Code.SUCCESS
    plugin: str = ""
    reasons: tuple[str, ...] = ()
    is_denied: bool = False
    """The reasons are the API server's message: it permanently refused a write for this pod."""
    condition_reason: str = ""
    """One word: the reason in the pod's PodScheduled condition. Empty: Unschedulable, or SchedulerError for an error.

    Used only for a status about the pod instead of a node: from PreFilter, PostFilter, Reserve, Permit and PreBind.
    """

    def __post_init__(self) -> None:
        """Validates the fields here, so that the error points to the plugin that created the status."""
        if not isinstance(self.code, Code) or not isinstance(self.reasons, tuple):
            raise TypeError(f"Status({self.code!r}, reasons={self.reasons!r}): not a Code and a tuple of texts")
        for reason in self.reasons:
            if not isinstance(reason, str):
                raise TypeError(f"Status: reason {reason!r} is not a text")
        word = self.condition_reason
        if word and not (isinstance(word, str) and word.isascii() and word.isidentifier()):
            raise ValueError(f"Status: condition_reason {word!r} is not one word")
        if not all(map(str.isascii, self.reasons)):
            whole = tuple(whole_characters(reason) for reason in self.reasons)
            msgspec.structs.force_setattr(self, "reasons", whole)

    @property
    def is_success(self) -> bool:
        return self.code is _SUCCESS

    @property
    def message(self) -> str:
        """The reasons in one line, joined as upstream does."""
        return ", ".join(self.reasons)

    @staticmethod
    def skip() -> Status:
        return SKIP

    @staticmethod
    def unschedulable(*reasons: str) -> Status:
        return Status(Code.UNSCHEDULABLE, reasons=reasons)

    @staticmethod
    def unresolvable(*reasons: str) -> Status:
        return Status(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, reasons=reasons)

    @staticmethod
    def pending(*reasons: str) -> Status:
        return Status(Code.PENDING, reasons=reasons)

    @staticmethod
    def error(*reasons: str) -> Status:
        return Status(Code.ERROR, reasons=reasons)

    @staticmethod
    def denied(*reasons: str) -> Status:
        """Returns an error with the API server's message for a permanently refused write (an admission webhook, a policy, a 422)."""
        return Status(Code.ERROR, reasons=reasons, is_denied=True)

    def by(self, plugin: str) -> Status:
        """Returns the same status with the plugin's name."""
        if self.plugin == plugin:
            return self
        return Status(self.code, plugin, self.reasons, self.is_denied, self.condition_reason)


SUCCESS = Status()
SKIP = Status(Code.SKIP)
