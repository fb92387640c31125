"""What a plugin answers: a code, the plugin's name and its reasons. Never None: success is a value too."""

from __future__ import annotations

from enum import Enum

import msgspec

from multisched.model.visible_text import whole_characters


class Code(Enum):
    """Status codes as upstream, each with its consequence."""

    SUCCESS = "Success"
    ERROR = "Error"
    """An internal failure (a plugin raised, answered nonsense or took too long): retried with backoff."""
    UNSCHEDULABLE = "Unschedulable"
    """Does not fit now; preemption might help. Waits for an event that can."""
    UNSCHEDULABLE_AND_UNRESOLVABLE = "UnschedulableAndUnresolvable"
    """Does not fit and preemption cannot help. Waits for an event that can."""
    WAIT = "Wait"
    """Permit only: hold the pod until it is allowed, rejected or timed out."""
    SKIP = "Skip"
    """The plugin has nothing to say about this pod: its later points are not called in this attempt."""
    PENDING = "Pending"
    """Waits for something outside; requeued by its event without backoff."""

    @property
    def is_rejection(self) -> bool:
        """True for an expected refusal, as opposed to success or to a failure of ours."""
        return self in _REJECTIONS


_REJECTIONS = frozenset({Code.UNSCHEDULABLE, Code.UNSCHEDULABLE_AND_UNRESOLVABLE, Code.PENDING})


class Status(msgspec.Struct, frozen=True):
    """A code with the plugin that gave it and its sentences."""

    code: Code = Code.SUCCESS
    plugin: str = ""
    reasons: tuple[str, ...] = ()
    is_denied: bool = False
    """The reasons are the API server's words: it refused, for good, what was asked of it for this pod."""
    condition_reason: str = ""
    """One word: the reason in the pod's PodScheduled condition. Empty: Unschedulable, or SchedulerError for an error.

    It counts where the status is about the pod, and not about one node: from PreFilter, Reserve, Permit and PreBind."""

    def __post_init__(self) -> None:
        """Refused where it is made, in the plugin, and not where it is read."""
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
        return self.code is Code.SUCCESS

    @property
    def message(self) -> str:
        """The reasons in one line, as upstream joins them."""
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
        """An error with the API server's words: a write it refused for good (an admission webhook, a policy, a 422)."""
        return Status(Code.ERROR, reasons=reasons, is_denied=True)

    def by(self, plugin: str) -> Status:
        """The same status with the plugin's name on it."""
        if self.plugin == plugin:
            return self
        return Status(self.code, plugin, self.reasons, self.is_denied, self.condition_reason)


SUCCESS = Status()
SKIP = Status(Code.SKIP)
