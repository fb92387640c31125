"""The section `gpuTide` of a scenario file: types, bounds and defaults of every field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, field

from multisched.config.sections import Seconds, Section
from multisched.simulate.scenario_schema import ScenarioHeader

Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Cards = Annotated[int, Meta(ge=1, le=1_000_000)]


class CurveShape(Section, frozen=True):
    """A day of inference: low by night, a logistic rise in the morning, a plateau, a fall that takes twice as long as the rise."""

    mean_over_peak: Annotated[float, Meta(gt=0.0, lt=1.0)] = 0.335
    """The default is that of genai26 (Alibaba, cluster-trace-v2026-GenAI)."""
    rise_in_30m: Annotated[float, Meta(gt=0.0, le=0.9)] = 0.3
    """The fastest rise within 30 min over the peak."""
    low: Annotated[float, Meta(ge=0.0, lt=1.0)] = 0.05
    """The least demand over the peak."""
    rises_at_hour: Annotated[float, Meta(ge=0.0, lt=24.0)] = 9.0
    """When the rise is fastest."""
    noise: Annotated[float, Meta(ge=0.0, le=0.2)] = 0.01
    """Standard deviation over the peak of seeded noise that is correlated over ten minutes."""


class Inference(Section, frozen=True):
    """The inference pods."""

    curve: str | None = None
    """CSV `timestamp,cards`, relative to the scenario; days before the played ones are the history of the forecast."""
    shape: CurveShape = CurveShape()
    """Without a curve."""
    peak: Cards = 600
    """The highest demand in cards; a curve is not scaled."""
    pod_cards: Annotated[int, Meta(ge=1, le=8)] = 1
    """Cards of each pod."""
    scale_every: Seconds = 15.0
    """How often the number of pods follows the demand. Of a scale-down the youngest pods are deleted."""


class Jobs(Section, frozen=True):
    """The training jobs."""

    file: str | None = None
    """CSV in the format of philly: timestamp, duration (s), num_gpus. Default: drawn with widths and durations like philly's."""
    begin: str | None = field(default=None, name="from")
    """The moment of the file at which the played days begin; jobs that would still run then are there. Default: its first job."""
    load: Annotated[float, Meta(gt=0.0, le=20.0)] | None = None
    """GPU time that the jobs of the played days ask for, over what inference leaves of all cards: jobs of a file are repeated or
    left out for it. Default: 1.5 for drawn jobs, and each job of a file once."""
    checkpoint_every: Seconds = 1_800.0
    restart_cost: Annotated[float, Meta(ge=0.0, le=86_400.0)] = field(default=120.0, name="restartCostSeconds")
    """Seconds in which a gang that was evicted repeats no work and does no new work after it started again."""
    hook: bool = True
    """The gangs answer the checkpoint hook: with a checkpoint, between hookAnswerSeconds after the notice."""
    hook_answer: tuple[float, float] = field(default=(30.0, 60.0), name="hookAnswerSeconds")


class ForecastError(Section, frozen=True):
    """How wrong the forecast is that the tide gets."""

    scale: Annotated[float, Meta(gt=0.0, le=10.0)] = 1.0
    """The forecast is this many times what it should be."""
    late_minutes: Annotated[float, Meta(ge=-720.0, le=720.0)] = 0.0
    """The forecast expects everything this much later; negative: earlier."""


class GpuTideSection(Section, frozen=True):
    """The section `gpuTide`."""

    nodes: Annotated[int, Meta(ge=1, le=5_000)] = 125
    cards_per_node: Annotated[int, Meta(ge=1, le=64)] = 8
    days: Annotated[int, Meta(ge=1, le=60)] = 2
    """Number of days to play. Of a longer curve, only the last days are played; a shorter one is played whole."""
    history_days: Annotated[int, Meta(ge=0, le=60)] = 14
    """Days of the shape before the played ones, from which the forecast is learned."""
    inference: Inference = Inference()
    jobs: Jobs = Jobs()
    forecast: ForecastError = ForecastError()
    settings: Mapping[str, Any] = {}
    """Args of GpuTide; `inference` needs no selector here. Default: notice 60s, grace 30s."""
    static_share: Share = 0.6
    """Share of the nodes that only inference uses under the policy `static`; training uses only the others."""
    stop_seconds: Annotated[float, Meta(ge=0.0, le=600.0)] = 5.0
    """From the deletion of a pod until its cards are free."""


class GpuTideFile(ScenarioHeader, frozen=True, kw_only=True):
    """A scenario file with the section."""

    gpu_tide: GpuTideSection
