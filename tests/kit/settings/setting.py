"""The conditions of one simulated run, drawn from its seed: configuration, replicas, page size, arrivals.

Every second seed runs the default configuration, with all its times and limits; from LINKED_FROM on some of these let gangs of one
domain reserve capacity. The other seeds run three domains with remote plugins, pods held at Permit, and loans of nodes. Every
second one of these also has other settings of a user.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson
import yaml
from msgspec.structs import replace

from multisched.config import loading
from multisched.config.schema import Configuration
from multisched.framework.gangs import GANG_PLUGIN, ReservePolicy
from tests.kit.settings import configurations
from tests.kit.world.labels import ELASTIC_UNITS, LOAN, TIDE, UNIT

REFUSED_TRIED = 3
"""Number of configurations that are tried before a run and must be refused."""
PAGE_MIN_ITEMS, PAGE_MAX_ITEMS = 3, 50
ARRIVALS = (40, 80)
WORKLOADS = (2, 3)
REPLICAS = (2, 2, 2, 3)
SLOW_BINDS = 0.35
"""Share of runs in which a bind takes up to SLOW_BIND_MAX_S."""
SLOW_BIND_MAX_S = 2.5
ROLLOUTS = 0.25
"""Share of runs in which the lease settings are being rolled out."""
QUOTAS, GANGS = 0.65, 0.65
"""Shares of runs of teams with elastic quotas, and with gangs; some have both."""
TEAMED_FROM = 100
"""From this seed on there are teams: a sixth of the runs of `make sim`. Earlier seeds keep their traces: some are known to detect
defects.
"""
RELOADED_FROM: Final = 220
"""From this seed on the configuration file changes while the processes run."""
OWNED_FROM: Final = 300
"""From this seed on there are gangs owned by controllers, and quotas with fractions of devices. Earlier seeds keep their traces."""
LINKED_FROM: Final = 400
"""From this seed on quotas are ElasticQuotas, one object per level, and pods name them by a label."""
EDITED_FROM: Final = 500
"""From this seed up to TIDED_FROM runs have the shipped configuration and fewer disruptions, followed by edits (`scenarios.edits`)."""
TIDED_FROM: Final = 600
"""From this seed up to CONTESTED_FROM runs have the shipped configuration with GpuTide and fewer disruptions, followed by tides
(`scenarios.tides`).
"""
TIDE_NOTICE_S: Final = 4
TIDE_MIN_RUN_S: Final = 20
TIDE_ARGS: Final[Mapping[str, Any]] = {
    "inference": {"selector": {"matchLabels": {TIDE: "serving"}}},
    "evictable": {"selector": {"matchLabels": {TIDE: "training"}}},
    "notice": f"{TIDE_NOTICE_S}s",
    "grace": "2s",
    "minRunTime": f"{TIDE_MIN_RUN_S}s",
    "growth": {"quiet": "6s", "ahead": f"{TIDE_MIN_RUN_S}s"},
    "headroom": {"min": 0, "max": 1},
}
"""Seconds in place of minutes."""
CONTESTED_FROM: Final = 700
"""From this seed up to SERVERLESS_FROM all runs have nodes that share GPUs, and pods for them are urgent or form gangs
(`world.card_contests`). All else is as from OWNED_FROM on.
"""
SERVERLESS_FROM: Final = 800
"""From this seed up to RARE_FROM runs have the shipped configuration with ServerlessUnits and fewer disruptions, followed by jobs in
units (`scenarios.jobs`).
"""
ELASTIC_FROM: Final = 900
"""As from SERVERLESS_FROM on, with a further unit, whose capacity is elastic. Up to RARE_FROM."""
RARE_FROM: Final = 1_000
"""From this seed up to LENT_FROM runs are as from EDITED_FROM on, with the scenarios of `scenarios.rare_moments` in place of the edits."""
LENT_FROM: Final = 1_100
"""From this seed on runs have the shipped configuration with limited loans and fewer disruptions, followed by recalls
(`scenarios.loans`).
"""
LENDER: Final = "forecast"
LOAN_NOTICE_S: Final = 4
LOAN_GRACE_S: Final = 2
LOAN_DEADLINE_S: Final = 14
LENT, LENT_BY_HOURS, LENT_IDLE = "yes", "hours", "idle"
"""Values of the label LOAN of nodes: always on loan, for HOURS_OPEN_S in each HOURS_PERIOD_S, and idle capacity only."""
IDLE_THRESHOLD_PERCENT: Final = 75
HOURS_PERIOD_S, HOURS_OPEN_S = 240, 120
HOURS: Final = 40
"""Openings in the configuration; no run lasts longer."""
SHARES_AND_HEADROOM: Final = ((50, 0), (75, 500), (100, 1000), (75, 0), (50, 250))
"""Percent of unrequested room, and thousandths of cores that are kept free: never all of the room is lent."""
SERVERLESS_DOMAIN: Final = "job"
SANDBOX_TIMEOUT_S: Final = 8
REFUSED_TEXT: Final = "image policy"
"""What the message of a provider contains that refuses a template for good."""
EDITED_TAINT: Final = "sim/edited"
"""The taint that EDITED_DOMAIN tolerates once the configuration file is edited."""
EDITED_DOMAIN: Final = "forecast"
RESERVING = 0.5
"""Share of runs with ElasticQuotas and without drawn arguments in which gangs of RESERVING_DOMAIN may reserve capacity."""
RESERVING_DOMAIN: Final = "gpu"
"""No other gang of a run belongs to this domain, so that it is known which gangs take turns."""
RESERVING_SCHEDULER: Final = f"{RESERVING_DOMAIN}-scheduler"
RESERVE_AFTER_S: Final = (4, 9)
RESERVE_FOR_S: Final = 20
"""Longer than a small pod runs (`world.pod_streams`) and a gang backs off."""
RELOADED = 0.25
"""Share of the seeds from OWNED_FROM on in which the configuration file changes."""
CARDS = 0.6
"""Share of runs with gangs owned by controllers and trees of quotas in which some nodes share GPUs (`world.gpu_nodes`)."""
FEWER = 0.7
"""Factor of the number of single pods, applied once each for teams, for gangs, for gangs owned by controllers, and for nodes that
share GPUs.
"""
SHORT_LEASE = {"duration_s": 9.0, "renew_deadline_s": 3.0, "retry_period_s": 1.0}
"""It expires before the holder of a lease of fifteen seconds has to stop."""

_ASKING_DOMAIN = """
- name: {name}
  concurrency: {{cycles: 8, bindWorkers: 16, maxInFlightBinds: 16}}
  profile:
    plugins:
      enabled:
      - {{name: "tests.kit.plugins.slow_oracle:SlowOracle", weight: {weight}}}
      - {{name: "tests.kit.plugins.reserve_tally:ReserveTally"}}
      - {{name: "tests.kit.plugins.headcount:Headcount"}}
      - {{name: "tests.kit.plugins.permit_holds:HoldSome"}}
      - {{name: "tests.kit.plugins.permit_holds:HoldLonger"}}
"""
_ASKING_WEIGHTS = {"forecast": 50, "gpu": 5, "job": 5}
ASKING = f"""
apiVersion: multisched.io/v1
kind: MultischedConfiguration
domains:
{"".join(_ASKING_DOMAIN.format(name=name, weight=weight) for name, weight in _ASKING_WEIGHTS.items())}
  loans:
  - from: forecast
    selector:
      matchLabels: {{lend: "yes"}}
"""
"""Three domains whose parallel cycles conflict: their profiles wait for responses."""


SHIPPED: Final[Mapping[str, Any]] = {
    "apiVersion": "multisched.io/v1",
    "kind": "MultischedConfiguration",
    "domains": [{"name": name} for name in ("forecast", "gpu", "job")],
}
"""The default configuration as a file that lists its domains."""


@dataclass(frozen=True, slots=True)
class LoanTerms:
    """What one domain may hold on some nodes of LENDER."""

    borrower: str
    share_percent: int
    headroom_milli: int
    lent: str = LENT
    """Value of the label LOAN of these nodes."""

    @property
    def is_idle(self) -> bool:
        """Reports whether what pods of LENDER request and do not use is lent: up to `share_percent` may be used together."""
        return self.lent == LENT_IDLE

    def is_open(self, now_s: float) -> bool:
        """Reports whether anything may be held at this time (epoch seconds)."""
        return self.lent != LENT_BY_HOURS or now_s % HOURS_PERIOD_S < HOURS_OPEN_S

    def may_lend(self, now_s: float) -> bool:
        """Reports whether anything is lent: not if it could not be back before the loan closes."""
        return self.is_open(now_s) and self.is_open(now_s + LOAN_DEADLINE_S)


@dataclass(frozen=True, slots=True)
class Setting:
    """The conditions of one run."""

    configuration: Configuration
    document: Mapping[str, Any]
    """The document of the configuration, apart from leases."""
    is_shipped: bool
    """The default configuration, apart from lease groups, `reserve`, GpuTide and ServerlessUnits."""
    is_drawn: bool
    """User settings are drawn: arguments, extenders, additional plugins."""
    replicas: int
    page_items: int
    """Number of objects in each page of a list, whatever was requested."""
    arrivals: int
    """Number of single pods."""
    workloads: int
    bind_max_s: float
    """Maximum duration of a bind, in addition to the latency."""
    has_quotas: bool
    has_gangs: bool
    has_gang_workloads: bool
    """There are gangs owned by controllers, and possibly other gangs."""
    has_linked_quotas: bool
    """Quotas, if any, are ElasticQuotas of Koordinator's form."""
    has_card_nodes: bool
    """Some nodes share GPUs, with their device plugins."""
    has_card_contests: bool
    """Pods for these nodes are urgent or form gangs."""
    reserve: ReservePolicy | None
    """When gangs of RESERVING_DOMAIN may reserve capacity; None: never."""
    is_rollout: bool
    """Every second process has a configuration with a shorter lease."""
    is_reloaded: bool
    """The configuration file changes, and each process sees that at another time."""
    is_edited: bool
    """The scenarios of edits, or of rare moments, are run at the end. The configuration file changes by them alone."""
    has_tide: bool
    """The gpu domain has a tide, whose scenarios are run at the end. The configuration file changes by them alone."""
    has_units: bool
    """The job domain has ServerlessUnits, and scenarios of units are run at the end."""
    loans: tuple[LoanTerms, ...]
    """Limited loans of the nodes with the label LOAN, in file order; scenarios of loans are run at the end if there are any."""

    def configuration_of(self, number: int) -> Configuration:
        """Returns the configuration of the n-th process."""
        return self.with_lease(self.configuration, number)

    def with_lease(self, configuration: Configuration, number: int) -> Configuration:
        """Returns the configuration with the lease settings of this process, which are chosen for the run."""
        lease = self.configuration.lease
        if self.is_rollout and not number % 2:
            lease = replace(lease, **SHORT_LEASE)
        return replace(configuration, lease=lease)

    @property
    def judged(self) -> Configuration:
        """The configuration that checkers use: with the toleration that an edit of the file adds. No other node has that taint."""
        if not self.is_edited:
            return self.configuration
        domains = list(self.configuration.domains)
        (at,) = (at for at, domain in enumerate(domains) if domain.name == EDITED_DOMAIN)
        policy = loading.parse(text_of(edited_document(self.document)), "edited").domains[at].policy
        domains[at] = replace(domains[at], policy=policy)
        return replace(self.configuration, domains=domains)

    @property
    def has_faulty_plugin(self) -> bool:
        """Reports whether a domain has the faulty plugin, whose ledger also fails."""
        plugins = (one.name for domain in self.configuration.domains for one in domain.profile.plugins.enabled)
        return any(name.endswith(":Faulty") for name in plugins)


def rng_of(seed: int) -> random.Random:
    """Returns the generator of a run's conditions and disruptions."""
    return random.Random(f"{seed}/setting")


def drawn(seed: int, rng: random.Random) -> Setting:
    """Returns the setting of a seed. `rng`: from `rng_of`."""
    has_tide = TIDED_FROM <= seed < CONTESTED_FROM
    is_edited = EDITED_FROM <= seed < TIDED_FROM or RARE_FROM <= seed < LENT_FROM
    has_units = SERVERLESS_FROM <= seed < RARE_FROM
    loans = loan_terms(seed) if seed >= LENT_FROM else ()
    is_apart = has_tide or has_units or bool(loans)
    is_fixed = is_edited or is_apart
    is_shipped, is_drawn = seed % 2 == 0 or is_fixed, seed % 4 == 3 and not is_fixed
    if is_apart:
        document = lent_document(loans) if loans else tided_document() if has_tide else serverless_document(seed)
    else:
        document = SHIPPED if is_shipped else _asking(rng, is_drawn=is_drawn)
    has_links = LINKED_FROM <= seed < EDITED_FROM
    reserve = None if not has_links or is_drawn else _drawn_reserve(random.Random(f"{seed}/reserving"))
    if reserve is not None:
        document = _with_reserve(document, reserve)
    is_default = is_shipped and reserve is None and not is_apart
    configuration = loading.default() if is_default else loading.parse(text_of(document), "scenario")
    is_alone = not configuration.lease.enabled
    teams = random.Random(f"{seed}/teamed").random()
    has_quotas = is_edited or (seed >= TEAMED_FROM and not is_apart and teams < QUOTAS)
    is_owned = seed >= OWNED_FROM and not is_apart
    has_contests = CONTESTED_FROM <= seed < SERVERLESS_FROM
    may_have_cards = OWNED_FROM <= seed < LINKED_FROM
    has_cards = has_contests or (may_have_cards and random.Random(f"{seed}/shared GPUs").random() < CARDS)
    has_gangs = is_owned or (seed >= TEAMED_FROM and not is_apart and teams >= 1 - GANGS)
    # A max holds for all domains only if they share one lease. Without quotas they have separate leases, which is harder.
    lease = replace(configuration.lease, per_domain=not has_quotas)
    return Setting(
        configuration=replace(configuration, lease=lease),
        document=document,
        is_shipped=is_shipped,
        is_drawn=is_drawn,
        replicas=1 if is_alone else rng.choice(REPLICAS),
        page_items=rng.randint(PAGE_MIN_ITEMS, PAGE_MAX_ITEMS),
        arrivals=round(
            rng.randint(*ARRIVALS) * FEWER ** (has_quotas + has_gangs + is_owned + has_cards + 3 * is_apart)
        ),
        workloads=rng.randint(*WORKLOADS),
        bind_max_s=rng.uniform(1.0, SLOW_BIND_MAX_S) if rng.random() < SLOW_BINDS else 0.0,
        has_quotas=has_quotas,
        has_gangs=has_gangs,
        has_gang_workloads=is_owned,
        has_linked_quotas=has_links,
        has_card_nodes=has_cards,
        has_card_contests=has_contests,
        reserve=reserve,
        is_rollout=not is_alone and random.Random(f"{seed}/rollout").random() < ROLLOUTS,
        is_reloaded=is_edited
        or has_tide
        or (
            RELOADED_FROM <= seed < SERVERLESS_FROM
            and (not is_owned or random.Random(f"{seed}/files").random() < RELOADED)
        ),
        is_edited=is_edited,
        has_tide=has_tide,
        has_units=has_units,
        loans=loans,
    )


def serverless_units(seed: int) -> list[dict[str, Any]]:
    """Returns the args of two units, and of an elastic one from ELASTIC_FROM on. Their nodes have the label UNIT, their providers these
    rates.
    """
    rng = random.Random(f"{seed}/serverless units")
    found: list[dict[str, Any]] = []
    for name in ("vk-a", "vk-b"):
        rate = {"burst": rng.choice((6, 10, 20)), "perSecond": rng.choice((2, 4))}
        price = {"cpu": rng.choice((0.03, 0.05)), "memory": 0.006}
        unit: dict[str, Any] = {"name": name, "nodeSelector": {UNIT: name}, "rate": rate, "price": price}
        unit["sandboxTimeout"] = f"{SANDBOX_TIMEOUT_S}s"
        if rng.random() < 0.5:
            unit["roundTo"] = {"cpu": "250m", "memory": "128Mi"}
        if rng.random() < 0.5:
            unit["quota"] = {"pods": 60}
        found.append(unit)
    if seed >= ELASTIC_FROM:
        found += [_elastic_unit(name, random.Random(f"{seed}/{name}")) for name in sorted(ELASTIC_UNITS)]
    return found


def _elastic_unit(name: str, rng: random.Random) -> dict[str, Any]:
    unit: dict[str, Any] = {"name": name, "nodeSelector": {UNIT: name}, "rate": {"burst": 10, "perSecond": 4}}
    unit |= {"capacity": "elastic", "sandboxTimeout": f"{SANDBOX_TIMEOUT_S}s"}
    return unit | ({"quota": {"pods": 20}} if rng.random() < 0.5 else {})


def serverless_document(seed: int) -> Mapping[str, Any]:
    """Returns the shipped configuration with ServerlessUnits, drawn from the seed."""
    found = copy.deepcopy(dict(SHIPPED))
    (domain,) = (one for one in found["domains"] if one["name"] == SERVERLESS_DOMAIN)
    messages = [{"text": REFUSED_TEXT, "failure": "permanent"}]
    entry = {"name": "ServerlessUnits", "args": {"units": serverless_units(seed), "messages": messages}}
    domain["profile"] = {"plugins": {"enabled": [entry]}}
    return found


def loan_terms(seed: int) -> tuple[LoanTerms, ...]:
    """Returns the loans of one run: to one borrower, or to two, and of further nodes by hours, and of idle capacity."""
    rng = random.Random(f"{seed}/loans")
    borrowers = ["gpu", "job"] if rng.random() < 0.4 else ["job"]
    always = (LoanTerms(borrower, *rng.choice(SHARES_AND_HEADROOM)) for borrower in borrowers)
    others = ((LENT_BY_HOURS, 100), (LENT_IDLE, IDLE_THRESHOLD_PERCENT))
    return (*always, *(LoanTerms(borrowers[-1], percent, 0, lent) for lent, percent in others))


def lent_document(loans: Sequence[LoanTerms]) -> Mapping[str, Any]:
    """Returns the shipped configuration with loans of LENDER."""
    found = copy.deepcopy(dict(SHIPPED))
    back = {"notice": f"{LOAN_NOTICE_S}s", "grace": f"{LOAN_GRACE_S}s", "deadline": f"{LOAN_DEADLINE_S}s"}
    for loan in loans:
        (domain,) = (one for one in found["domains"] if one["name"] == loan.borrower)
        terms: dict[str, Any] = {"from": LENDER, "selector": {"matchLabels": {LOAN: loan.lent}}}
        terms |= (
            {"kind": "idle", "thresholdPercent": loan.share_percent}
            if loan.is_idle
            else {"sharePercent": loan.share_percent}
        )
        terms["return"] = {**back, "evictionsPerOwner": 100}
        if loan.headroom_milli:
            terms["headroom"] = {"cpu": f"{loan.headroom_milli}m"}
        if loan.lent == LENT_BY_HOURS:
            begins = range(0, HOURS * HOURS_PERIOD_S, HOURS_PERIOD_S)
            terms["hours"] = [{"from": _time_of_day(at_s), "to": _time_of_day(at_s + HOURS_OPEN_S)} for at_s in begins]
        domain.setdefault("loans", []).append(terms)
    return found


def _time_of_day(at_s: int) -> str:
    return f"{at_s // 3600:02}:{at_s // 60 % 60:02}"


def tided_document(*, is_frozen: bool = False) -> Mapping[str, Any]:
    """Returns the shipped configuration with a tide."""
    found = copy.deepcopy(dict(SHIPPED))
    (domain,) = (one for one in found["domains"] if one["name"] == "gpu")
    entry = {"name": "GpuTide", "args": {**TIDE_ARGS, "frozen": is_frozen}}
    domain["profile"] = {"plugins": {"enabled": [entry]}}
    return found


def edited_document(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the document with a toleration of EDITED_DOMAIN for EDITED_TAINT."""
    found = copy.deepcopy(dict(document))
    (domain,) = (one for one in found["domains"] if one["name"] == EDITED_DOMAIN)
    domain["policy"] = {"tolerations": [{"key": EDITED_TAINT, "operator": "Exists"}]}
    return found


def text_of(document: Mapping[str, Any]) -> str:
    """Returns the text of a configuration file, as JSON, which is YAML."""
    return orjson.dumps(document).decode()


def _asking(rng: random.Random, *, is_drawn: bool) -> Mapping[str, Any]:
    asking: Mapping[str, Any] = yaml.safe_load(ASKING)
    return configurations.drawn(rng, asking) if is_drawn else asking


def _drawn_reserve(rng: random.Random) -> ReservePolicy | None:
    return ReservePolicy(rng.randint(*RESERVE_AFTER_S), RESERVE_FOR_S) if rng.random() < RESERVING else None


def _with_reserve(document: Mapping[str, Any], reserve: ReservePolicy) -> Mapping[str, Any]:
    """Returns the configuration with turns to reserve capacity in one domain."""
    found = copy.deepcopy(dict(document))
    (domain,) = (one for one in found["domains"] if one["name"] == RESERVING_DOMAIN)
    plugins = domain.setdefault("profile", {}).setdefault("plugins", {})
    args = {"reserveAfter": f"{reserve.after_s:g}s", "reserveFor": f"{reserve.for_s:g}s"}
    plugins.setdefault("enabled", []).append({"name": GANG_PLUGIN, "args": args})
    return found


def fault_of_refusals(seed: int) -> str:
    """Tries some invalid configurations. Returns what is wrong with a response; empty for nothing."""
    asking, rng = yaml.safe_load(ASKING), random.Random(f"{seed}/refused")
    drawn = rng.sample(configurations.REFUSED, REFUSED_TRIED)
    found = (configurations.fault_of_refusal(asking, plugin, args) for plugin, args in drawn)
    return next((fault for fault in found if fault), "")
