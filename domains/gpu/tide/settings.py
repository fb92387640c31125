"""The args of GpuTide, the policy of the tide. Every error names the field and the fix."""

from __future__ import annotations

import msgspec


class HookSettings(msgspec.Struct, frozen=True):
    """The checkpoint hook."""

    url: str
    """https://…"""
    timeout_s: float = 10.0


class TideSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The policy of the tide, checked. Durations are in seconds."""

    inference_labels: tuple[tuple[str, str], ...] = ()
    """Labels that inference pods have (all of them)."""
    inference_namespaces: tuple[str, ...] = ()
    """Namespaces of inference pods; empty: any."""
    inference_min_priority: int | None = None
    """Least priority of inference pods; None: any."""
    floor_cards: int = 0
    """Cards that training never takes."""
    ceiling_cards: int | None = None
    """Cards of inference beyond which training is not evicted; None: no ceiling."""
    evictable_labels: tuple[tuple[str, str], ...] = ()
    """Labels that training pods must have to be evicted; empty: every training pod."""
    evictable_namespaces: tuple[str, ...] = ()
    notice_s: float = 90.0
    """From the notice to the eviction."""
    grace_s: float = 30.0
    """From the eviction until the cards are free: what pods take to end, at most."""
    min_run_s: float = 1800.0
    """A gang that started is not evicted for so long, unless demand exceeds the upper band."""
    quiet_s: float = 900.0
    """Training grows into cards that inference did not need for so long."""
    ahead_s: float = 1800.0
    """Training grows only into cards that inference is not expected to need for so long."""
    min_headroom_cards: int = 1
    """Least error that the headroom allows for."""
    hook: HookSettings | None = None
    is_frozen: bool = False
