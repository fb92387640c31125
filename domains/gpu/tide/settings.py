"""The args of GpuTide: the policy of the tide. Every error names the field and the fix.

    - name: GpuTide
      args:
        inference: {selector: {matchLabels: {tier: serving}}, minPriority: 1000, namespaces: [serving], floor: 40, ceiling: 700}
        evictable: {selector: {matchLabels: {kind: training}}}   # which training pods may be evicted; default: all
        notice: 90s                 # from the notice to the eviction
        grace: 30s                  # from the eviction until its cards are free, at most
        minRunTime: 30m             # a gang is not evicted for this time after each start
        hook: {url: https://checkpoint.example/tide, timeout: 10s, caFile: /etc/tide/ca.crt}
        growth: {quiet: 10m, ahead: 30m}
        headroom: {min: 1, max: 64}
        evictionCap: 400            # cards per hour
        zone: Europe/Berlin         # of windows, and of the days of the forecast
        windows: [{from: "07:00", to: "19:00", cards: 600}]      # used while there is too little history
        frozen: false

Immutable. The policy of a domain in the configuration (`policy:`) has fixed fields, so the tide's are args of its plugin.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from domains.gpu.tide.windows import DemandWindows, read_windows
from multisched.framework.plugin_args import Fields
from multisched.model.decode_selectors import Refusal, WireLabelSelector, compile_label_selector
from multisched.model.loopback_name import is_loopback_name
from multisched.model.selectors import LabelSelector, is_dns_label

CARDS_MAX: Final = 1_000_000
NAMESPACES_MAX: Final = 256
PRIORITY_MIN, PRIORITY_MAX = -(2**31), 2**31 - 1
NOTICE_MIN_S, NOTICE_MAX_S = 1.0, 3_600.0
DURATION_MAX_S: Final = 86_400.0
HOOK_TIMEOUT_MAX_S: Final = 300.0
URL_CHARS_MAX: Final = 2_048
_FIELDS: Final = (
    "inference",
    "evictable",
    "notice",
    "grace",
    "minRunTime",
    "hook",
    "growth",
    "headroom",
    "evictionCap",
    "zone",
    "windows",
    "frozen",
)
_PODS: Final = ("selector", "minPriority", "namespaces")


class PodsRule(msgspec.Struct, frozen=True):
    """Selects pods; all of its parts must hold."""

    selector: LabelSelector = LabelSelector()
    """Without requirements it selects all pods."""
    namespaces: frozenset[str] = frozenset()
    """Empty: all namespaces."""
    min_priority: int | None = None
    """None: all priorities."""

    def selects(self, namespace: str, labels: Mapping[str, str], priority: int) -> bool:
        return (
            (not self.namespaces or namespace in self.namespaces)
            and (self.min_priority is None or priority >= self.min_priority)
            and self.selector.matches(labels)
        )

    @property
    def is_open(self) -> bool:
        """Whether it selects every pod."""
        return not (self.selector.requirements or self.namespaces or self.min_priority is not None)


class HookSettings(msgspec.Struct, frozen=True):
    """The checkpoint hook, called once when a gang gets its notice."""

    url: str
    timeout_s: float = 10.0
    ca_file: str = ""
    """PEM file of the certificate authority that signed its certificate; empty: those of the system."""


class TideSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The policy of the tide, checked. Cards are whole GPUs, durations seconds."""

    inference: PodsRule = PodsRule()
    """The inference pods of the domain; its other pods are training."""
    evictable: PodsRule = PodsRule()
    """The training pods that may be evicted."""
    floor_cards: int = 0
    """Cards that training never takes."""
    ceiling_cards: int | None = None
    """Cards of inference beyond which nothing is evicted for it; None: no ceiling."""
    notice_s: float = 90.0
    """From the notice to the eviction."""
    grace_s: float = 30.0
    """From the eviction until the cards are free: what training pods take to end, at most."""
    min_run_s: float = 1_800.0
    """A gang is not evicted for this time after each start, unless demand exceeds the upper band."""
    quiet_s: float = 600.0
    """Training grows only into cards that inference has not needed for this long."""
    ahead_s: float = 1_800.0
    """Training grows only into cards that inference is not expected to need for this long."""
    min_headroom_cards: int = 1
    """Least part of the headroom for errors of the forecast."""
    max_headroom_cards: int = CARDS_MAX
    eviction_cap_cards: int | None = None
    """Cards evicted in an hour beyond which training does not grow; None: no cap."""
    hook: HookSettings | None = None
    zone: str = "UTC"
    windows: DemandWindows | None = None
    """The cards that inference needs at given times, used while there is too little history."""
    is_frozen: bool = False
    """Nothing is decided: no notice, no eviction, no change of the training limit."""

    @property
    def horizon_s(self) -> float:
        """Notice + grace: from a decision until its cards are free."""
        return self.notice_s + self.grace_s


def tide_settings(args: Mapping[str, Any], path: str = "args") -> TideSettings:
    """Reads the args. Raises PluginArgsError with all problems."""
    defaults = TideSettings()
    with Fields(args, path, _FIELDS) as fields:
        inference = fields.below("inference", (*_PODS, "floor", "ceiling"))
        growth = fields.below("growth", ("quiet", "ahead"))
        headroom = fields.below("headroom", ("min", "max"))
        settings = TideSettings(
            inference=_inference(inference),
            evictable=_pods(fields.below("evictable", _PODS)),
            floor_cards=inference.integer("floor", 0, 0, CARDS_MAX),
            ceiling_cards=_optional(inference, "ceiling"),
            notice_s=_duration_s(fields, "notice", defaults.notice_s, NOTICE_MIN_S, NOTICE_MAX_S),
            grace_s=_duration_s(fields, "grace", defaults.grace_s, 0.0, NOTICE_MAX_S),
            min_run_s=_duration_s(fields, "minRunTime", defaults.min_run_s, 0.0, DURATION_MAX_S),
            quiet_s=_duration_s(growth, "quiet", defaults.quiet_s, 0.0, DURATION_MAX_S),
            ahead_s=_duration_s(growth, "ahead", defaults.ahead_s, 0.0, DURATION_MAX_S),
            min_headroom_cards=headroom.integer("min", defaults.min_headroom_cards, 0, CARDS_MAX),
            max_headroom_cards=headroom.integer("max", CARDS_MAX, 0, CARDS_MAX),
            eviction_cap_cards=_optional(fields, "evictionCap"),
            hook=_hook(fields),
            zone=fields.text("zone", "UTC"),
            windows=read_windows(fields, CARDS_MAX),
            is_frozen=fields.flag("frozen", default=False),
        )
        _refuse_contradictions(fields, inference, growth, headroom, settings)
    return settings


def _inference(fields: Fields) -> PodsRule:
    found = _pods(fields)
    if found.is_open and not fields.is_refused():
        text = "selects every pod, so that nothing is training; write selector, minPriority or namespaces of inference pods"
        fields.refuse_at(fields.path, text)
    return found


def _pods(fields: Fields) -> PodsRule:
    minimum = fields.integer("minPriority", 0, PRIORITY_MIN, PRIORITY_MAX) if fields.has("minPriority") else None
    namespaces = fields.names("namespaces", NAMESPACES_MAX)
    for name in namespaces:
        if not is_dns_label(name):
            fields.refuse(
                "namespaces", f"{name[:64]!r} cannot name a namespace; write lower-case letters, digits and -"
            )
    return PodsRule(_selector(fields), frozenset(namespaces), minimum)


def _selector(fields: Fields) -> LabelSelector:
    if not fields.has("selector"):
        return LabelSelector()
    example = "write for instance {matchLabels: {tier: serving}}"
    parts = fields.below("selector", ("matchLabels", "matchExpressions"))
    if parts.is_refused():
        return LabelSelector()
    try:
        wire = msgspec.convert(fields.value("selector"), WireLabelSelector)
        found = compile_label_selector(wire, "selector")
    except msgspec.ValidationError as error:
        fields.refuse("selector", f"{error}; {example}")
        return LabelSelector()
    except Refusal as error:
        fields.refuse("selector", f"{str(error).removeprefix('selector: ')}; {example}")
        return LabelSelector()
    assert found is not None, "there is a selector"
    if not found.requirements:
        fields.refuse("selector", f"is empty; {example}, or remove it")
    return found


def _optional(fields: Fields, name: str) -> int | None:
    return fields.integer(name, 0, 0, CARDS_MAX) if fields.has(name) else None


def _duration_s(fields: Fields, name: str, default_s: float, low_s: float, high_s: float) -> float:
    found_s = fields.duration_s(name, default_s, low_s)
    if found_s > high_s:
        fields.refuse(name, f"{fields.text(name)} is too long; write at most {high_s:g}s")
        return default_s
    return found_s


def _hook(fields: Fields) -> HookSettings | None:
    if not fields.has("hook"):
        return None
    hook = fields.below("hook", ("url", "timeout", "caFile"))
    url = hook.text("url")
    if why := _why_no_hook(url):
        hook.refuse("url", why)
    timeout_s = _duration_s(hook, "timeout", HookSettings("").timeout_s, 0.1, HOOK_TIMEOUT_MAX_S)
    return HookSettings(url, timeout_s, hook.text("caFile"))


def _why_no_hook(url: str) -> str:
    """Returns why the hook cannot be called at this URL, with the fix; empty for a usable one."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        parts, host = urlsplit(""), None
    is_local = parts.scheme == "http" and is_loopback_name(parts.netloc)
    if (
        not host
        or not url.isprintable()
        or " " in url
        or len(url) > URL_CHARS_MAX
        or not (parts.scheme == "https" or is_local)
    ):
        return f"is {url[:80]!r}; write https://HOST/PATH"
    if "@" in parts.netloc:
        return "names a user or a password, which would appear in logs; remove it"
    return ""


def _refuse_contradictions(
    fields: Fields, inference: Fields, growth: Fields, headroom: Fields, settings: TideSettings
) -> None:
    """Refuses combinations of values that are valid alone."""
    ceiling, notice, horizon = settings.ceiling_cards, fields.text("notice") or "90s", settings.horizon_s
    if ceiling is not None and ceiling < settings.floor_cards:
        text = f"{ceiling} is below the floor of {settings.floor_cards} cards; raise it, or lower inference.floor"
        inference.refuse("ceiling", text)
    for number, window in enumerate(settings.windows.windows if settings.windows is not None else ()):
        if ceiling is not None and window.cards > ceiling:
            text = f"{window.cards} is above the ceiling of {ceiling} cards; lower it, or raise inference.ceiling"
            fields.refuse_at(f"{fields.at('windows')}[{number}].cards", text)
    if settings.max_headroom_cards < settings.min_headroom_cards:
        text = f"{settings.max_headroom_cards} is below headroom.min, {settings.min_headroom_cards}; raise it, or lower headroom.min"
        headroom.refuse("max", text)
    if settings.max_headroom_cards == 0 and not headroom.is_refused():
        text = (
            f"0 keeps no card free, so each inference pod would wait for notice + grace ({horizon:g}s); "
            "write at least what inference grows by in that time"
        )
        headroom.refuse("max", text)
    if 0 < settings.min_run_s < settings.notice_s:
        text = (
            f"is shorter than the notice, {notice}, so that a gang could be evicted before it ends; "
            f"write at least {notice}, or shorten notice"
        )
        fields.refuse("minRunTime", text)
    if settings.quiet_s < horizon:
        text = (
            f"is shorter than notice + grace ({horizon:g}s), so that training would grow into cards that were just freed; "
            f"write at least {horizon:g}s"
        )
        growth.refuse("quiet", text)
    if settings.ahead_s < settings.min_run_s:
        text = (
            f"is shorter than minRunTime ({settings.min_run_s:g}s), so that a gang could start into a rise during which it must "
            f"not be evicted; write at least {settings.min_run_s:g}s, or shorten minRunTime"
        )
        growth.refuse("ahead", text)
    cap = settings.eviction_cap_cards
    if cap is not None and cap < settings.min_headroom_cards:
        text = (
            f"{cap} is below headroom.min, {settings.min_headroom_cards}, so that training would never grow; raise it"
        )
        fields.refuse("evictionCap", text)
