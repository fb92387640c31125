"""Changes of the configuration file during a run: changed settings, and mistakes.

Drawn from the seed. Changes add up, and the last file is valid. None restricts the nodes of a pod more than the pod itself does, so
that the checkers need not know them.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.kit.settings import configurations
from tests.kit.settings.setting import Setting, text_of

FILES: Final = (3, 7)
"""Number of valid files in a run."""
CHANGES: Final = (1, 3)
"""Number of changes from one file to the next."""
MISTAKES: Final = 0.35
"""Share of files that an invalid file precedes."""
WEIGHED: Final = ("TaintToleration", "NodeAffinity", "ImageLocality", "PodTopologySpread", "InterPodAffinity")
CPU_AND_MEMORY: Final = [{"name": "cpu", "weight": 1}, {"name": "memory", "weight": 1}]
TOLERATED: Final = "sim/nobody"
"""A taint key that no node has."""
KIT: Final = "tests.kit.plugins"
ORACLE: Final = f"{KIT}.slow_oracle:SlowOracle"
TALLY: Final = f"{KIT}.reserve_tally:ReserveTally"
RENEWED: Final = (f"{KIT}.permit_holds:HoldSome", f"{KIT}.permit_holds:HoldLonger")
"""Plugins with an ignored argument: with another value they are built again."""
TAKEN_OUT: Final = f"{KIT}.permit_holds:HoldSome"
UNBUILDABLE: Final = {"name": f"{KIT}.unbuildable:Unbuildable"}

Domain = dict[str, Any]
Change = Callable[[random.Random, Domain], None]


@dataclass(frozen=True, slots=True)
class ChangedFile:
    """One version of the file."""

    text: str
    is_good: bool


def drawn(rng: random.Random, setting: Setting) -> Sequence[ChangedFile]:
    """Returns the files of one run, in order."""
    document: dict[str, Any] = copy.deepcopy(dict(setting.document))
    kinds = _kinds(setting)
    files = []
    for number in range(rng.randint(*FILES)):
        if rng.random() < MISTAKES:
            files.append(ChangedFile(_mistaken(rng, document), is_good=False))
        for _ in range(rng.randint(*CHANGES)):
            rng.choice(kinds)(rng, rng.choice(document["domains"]))
        _change_server(rng, document)
        _renew_tallies(document, number)
        files.append(ChangedFile(text_of(document), is_good=True))
    return files


def _kinds(setting: Setting) -> Sequence[Change]:
    """Returns the kinds of changes that the checkers follow. Drawn arguments are not used with the default configuration."""
    everywhere = (_weigh, _weigh, _size, _requeue, _toggle_scorer, _sort, _tolerate)
    if setting.is_shipped:
        return (*everywhere, _pack, _limit, _limit)
    asking = (*everywhere, _renew, _renew, _renew, _toggle_permit, _give_args)
    return (*asking, _isolate) if setting.is_drawn else asking


# -- changes of one domain ---------------------------------------------------------------------------------------------


def _weigh(rng: random.Random, domain: Domain) -> None:
    names = [name for name in WEIGHED if name not in _disabled(domain)]
    own = [one["name"] for one in _enabled(domain) if one["name"] == ORACLE]
    _entry(domain, rng.choice([*names, *own]))["weight"] = rng.randint(0, 9)


def _size(rng: random.Random, domain: Domain) -> None:
    binds = rng.choice((2, 8, 16, 64))
    domain["concurrency"] = {"cycles": rng.choice((1, 3, 8)), "bindWorkers": binds, "maxInFlightBinds": binds}


def _requeue(rng: random.Random, domain: Domain) -> None:
    domain["queue"] = dict(rng.choice(configurations.QUEUES))


def _toggle_scorer(rng: random.Random, domain: Domain) -> None:
    """Disables or enables a plugin that scores."""
    disabled, name = _disabled(domain), "ImageLocality"
    if name in disabled:
        disabled.remove(name)
    elif not any(one["name"] == name for one in _enabled(domain)):
        disabled.append(name)


def _sort(rng: random.Random, domain: Domain) -> None:
    domain.setdefault("profile", {})["queueSort"] = rng.choice(("PrioritySort", "QOSSort"))


def _tolerate(rng: random.Random, domain: Domain) -> None:
    """Changes the tolerations of a domain that has none of its own, which these would replace."""
    if domain["name"] == "forecast":
        tolerations = [{"key": TOLERATED, "operator": "Exists"}] if rng.random() < 0.5 else []
        domain["policy"] = {"tolerations": tolerations}


def _pack(rng: random.Random, domain: Domain) -> None:
    strategy = {"type": rng.choice(("MostAllocated", "LeastAllocated")), "resources": CPU_AND_MEMORY}
    _entry(domain, "NodeResourcesFit")["args"] = {"scoringStrategy": strategy}


def _limit(rng: random.Random, domain: Domain) -> None:
    """Sets a limit that no reclaim reaches: the plugin that writes statuses of quotas is built again."""
    _entry(domain, "ElasticQuota")["args"] = {"maxEvictedOverNeeded": rng.choice((1_000, 2_000, 3_000))}


def _renew(rng: random.Random, domain: Domain) -> None:
    own = [one for one in _enabled(domain) if one["name"] in RENEWED]
    if own:
        rng.choice(own)["args"] = {"number": rng.getrandbits(16)}


def _toggle_permit(rng: random.Random, domain: Domain) -> None:
    enabled = _enabled(domain)
    kept = [one for one in enabled if one["name"] != TAKEN_OUT]
    domain["profile"]["plugins"]["enabled"] = kept if len(kept) < len(enabled) else [*enabled, {"name": TAKEN_OUT}]


def _give_args(rng: random.Random, domain: Domain) -> None:
    name = rng.choice(sorted(configurations.ARGS))
    if name not in _disabled(domain):
        _entry(domain, name)["args"] = rng.choice(configurations.ARGS[name])


def _isolate(rng: random.Random, domain: Domain) -> None:
    """Isolates a plugin. That needs a restart, as do all other changes of the profile until then."""
    _entry(domain, "NodeAffinity").update({"isolation": "thread", "timeout": rng.choice(("200ms", "300ms"))})


def _enabled(domain: Domain) -> list[dict[str, Any]]:
    plugins = domain.setdefault("profile", {}).setdefault("plugins", {})
    found: list[dict[str, Any]] = plugins.setdefault("enabled", [])
    return found


def _disabled(domain: Domain) -> list[str]:
    plugins = domain.setdefault("profile", {}).setdefault("plugins", {})
    found: list[str] = plugins.setdefault("disabled", [])
    return found


def _entry(domain: Domain, name: str) -> dict[str, Any]:
    enabled = _enabled(domain)
    found = next((one for one in enabled if one["name"] == name), None)
    if found is None:
        enabled.append(found := {"name": name})
    return found


def _renew_tallies(document: Mapping[str, Any], number: int) -> None:
    """Changes the argument of `ReserveTally` with each file, so that an instance that ends what another one began is detected."""
    for domain in document["domains"]:
        for entry in _enabled(domain):
            if entry["name"] == TALLY:
                entry["args"] = {"number": number}


# -- of the file -------------------------------------------------------------------------------------------------------


def _change_server(rng: random.Random, document: dict[str, Any]) -> None:
    """Sometimes changes a setting that needs a restart and affects no simulation."""
    if rng.random() < 0.3:
        document["server"] = {"port": rng.randint(1_024, 65_535)}


def _mistaken(rng: random.Random, document: Mapping[str, Any]) -> str:
    """Returns an invalid file with valid changes: none of these may come into force."""
    wrong = copy.deepcopy(dict(document))
    domain = rng.choice(wrong["domains"])
    for change in (_weigh, _size, _requeue):
        change(rng, domain)
    last = _enabled(wrong["domains"][-1])
    kind = rng.randrange(5)
    if kind == 0:
        return text_of(wrong)[:-1]
    if kind == 1:
        wrong["domain"] = []
    elif kind == 2:
        last.append({"name": "NodeAfinity"})
    elif kind == 3:
        plugin, args = rng.choice(configurations.REFUSED)
        last[:] = [one for one in last if one["name"] != plugin] + [{"name": plugin, "args": args}]
    else:
        last.append(UNBUILDABLE)
    return text_of(wrong)
