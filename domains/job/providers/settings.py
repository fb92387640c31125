"""The args of ServerlessUnits: the serverless units of a cluster, and what is known of their providers. Every error names the field.

    - name: ServerlessUnits
      args:
        units:
          - name: eci
            nodeSelector: {type: virtual-kubelet}   # its nodes; a node belongs to the first unit that selects it
            rate: {burst: 100, perSecond: 20}       # creates of sandboxes: at once, and per second
            quota: {pods: 1000, cpu: "2000", memory: 4Ti}
            capacity: allocatable                   # or elastic: the nodes' allocatable cpu and memory limit nothing
            sizes: [{cpu: "1", memory: 2Gi}, {cpu: "2", memory: 4Gi}]   # or roundTo: {cpu: 250m, memory: 512Mi}
            price: {cpu: 0.05, memory: 0.006}       # per hour, of a core and of a GiB
            waitFirst: {maxWait: 1h}                # pods wait for other nodes as long as their deadline, or maxWait, lets them
            sandboxTimeout: 5m                      # a pod with a controller that has no sandbox by then is evicted
        messages: [{text: "image policy", failure: permanent}]   # what messages of the provider mean

Immutable.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from domains.job.providers.messages import Failure
from domains.job.providers.sizes import ListedSizes, Price, Size, Sizes, SteppedSizes
from multisched.framework.plugin_args import Fields
from multisched.model.quantity import parse_milli, parse_value

UNITS_MAX: Final = 32
SIZES_MAX: Final = 256
MESSAGES_MAX: Final = 256
BURST_MAX: Final = 100_000
PRICE_MAX: Final = 1e6
AMOUNT_MAX: Final = 2**62
SANDBOX_TIMEOUT_S: Final = 300.0
MAX_WAIT_S: Final = 3600.0
_SIZE: Final = ("cpu", "memory")
_UNIT: Final = (
    "name",
    "nodeSelector",
    "rate",
    "quota",
    "capacity",
    "sizes",
    "roundTo",
    "price",
    "waitFirst",
    "sandboxTimeout",
)
ALLOCATABLE, ELASTIC = "allocatable", "elastic"
"""`capacity`: whether the sums of cpu and memory on each node of the unit are limited."""


class Quota(msgspec.Struct, frozen=True):
    """Limits of the sum over all sandboxes of a unit; None: no limit."""

    pods: int | None = None
    cpu_milli: int | None = None
    memory_bytes: int | None = None


class ExactSizes(msgspec.Struct, frozen=True):
    """No rounding: a sandbox is as large as the requests."""

    def rounded(self, cpu_milli: int, memory_bytes: int) -> Size | None:
        return Size(cpu_milli, memory_bytes)


class UnitSettings(msgspec.Struct, frozen=True):
    """One serverless unit."""

    name: str
    node_selector: Mapping[str, str]
    burst: int = 100
    per_second: float = 20.0
    quota: Quota = Quota()
    is_elastic: bool = False
    """`capacity: elastic`: the sums of cpu and memory on its nodes are not checked; their numbers of pods are, and the quota."""
    sizes: Sizes = ExactSizes()
    price: Price = Price()
    max_wait_s: float | None = None
    """`waitFirst`: time after its creation for which a pod without a deadline waits for other nodes; None: no pod waits because of the
    price.
    """
    sandbox_timeout_s: float = SANDBOX_TIMEOUT_S

    def selects(self, labels: Mapping[str, str]) -> bool:
        return all(labels.get(key) == value for key, value in self.node_selector.items())


class ProviderSettings(msgspec.Struct, frozen=True):
    """All of the args."""

    units: tuple[UnitSettings, ...] = ()
    messages: tuple[tuple[str, Failure], ...] = ()


def provider_settings(args: Mapping[str, Any], path: str = "args") -> ProviderSettings:
    """Raises PluginArgsError."""
    with Fields(args, path, ("units", "messages")) as fields:
        units = tuple(_unit(entry) for entry in fields.entries("units", _UNIT, UNITS_MAX))
        seen: set[str] = set()
        for number, unit in enumerate(units):
            if unit.name in seen:
                fields.refuse_at(f"{fields.at('units')}[{number}].name", f"{unit.name} is used twice; rename one unit")
            seen.add(unit.name)
        messages = tuple(_message(entry) for entry in fields.entries("messages", ("text", "failure"), MESSAGES_MAX))
    return ProviderSettings(units, messages)


def _unit(fields: Fields) -> UnitSettings:
    name = fields.text("name")
    if not name and not fields.is_refused("name"):
        fields.refuse("name", "is missing; write a name of the unit, for example eci")
    selector = fields.pairs("nodeSelector")
    if not selector and not fields.is_refused("nodeSelector"):
        fields.refuse(
            "nodeSelector", "is missing; write labels of the unit's nodes, for example {type: virtual-kubelet}"
        )
    rate = fields.below("rate", ("burst", "perSecond"))
    quota = fields.below("quota", ("pods", *_SIZE))
    prices = fields.below("price", _SIZE)
    price = Price(prices.number("cpu", 0.0, 0.0, PRICE_MAX), prices.number("memory", 0.0, 0.0, PRICE_MAX))
    return UnitSettings(
        name=name,
        node_selector=selector,
        burst=rate.integer("burst", 100, 1, BURST_MAX),
        per_second=rate.above_zero("perSecond", 20.0, BURST_MAX),
        quota=Quota(
            quota.integer("pods", 0, 0, AMOUNT_MAX) if quota.has("pods") else None,
            _amount(quota, "cpu", least=0),
            _amount(quota, "memory", least=0),
        ),
        is_elastic=fields.choice("capacity", ALLOCATABLE, (ALLOCATABLE, ELASTIC)) == ELASTIC,
        sizes=_sizes(fields, price),
        price=price,
        max_wait_s=_max_wait_s(fields, price),
        sandbox_timeout_s=fields.duration_s("sandboxTimeout", SANDBOX_TIMEOUT_S, 1.0),
    )


def _max_wait_s(fields: Fields, price: Price) -> float | None:
    if not fields.has("waitFirst"):
        return None
    if price == Price():
        fields.refuse("waitFirst", "needs a price; write price: {cpu: 0.05, memory: 0.006}, or remove it")
    return fields.below("waitFirst", ("maxWait",)).duration_s("maxWait", MAX_WAIT_S, 1.0)


def _sizes(fields: Fields, price: Price) -> Sizes:
    if fields.has("sizes") and fields.has("roundTo"):
        fields.refuse("roundTo", "is given beside sizes; remove one of them")
        return ExactSizes()
    if fields.has("roundTo"):
        step = _size(fields.below("roundTo", _SIZE))
        return ExactSizes() if step is None else SteppedSizes(step)
    listed = [_size(entry) for entry in fields.entries("sizes", _SIZE, SIZES_MAX)]
    if fields.has("sizes") and not listed and not fields.is_refused("sizes"):
        fields.refuse("sizes", "is empty; write at least one size, or remove it")
    sizes = tuple(size for size in listed if size is not None)
    return ListedSizes(sizes, price) if sizes else ExactSizes()


def _size(fields: Fields) -> Size | None:
    cpu, memory = _amount(fields, "cpu", least=1), _amount(fields, "memory", least=1)
    for name, amount in (("cpu", cpu), ("memory", memory)):
        if amount is None:
            fields.refuse(name, "is missing; write what one sandbox of this size has")
    return None if cpu is None or memory is None else Size(cpu, memory)


def _amount(fields: Fields, name: str, *, least: int) -> int | None:
    """Returns thousandths of a core, or bytes; None if the field is missing or wrong."""
    found = fields.value(name)
    if found is None:
        return None
    example = f"write a quantity such as {'500m' if name == 'cpu' else '512Mi'}"
    if isinstance(found, bool) or not isinstance(found, str | int | float):
        fields.refuse(name, f"is no quantity; {example}")
        return None
    try:
        amount = parse_milli(found) if name == "cpu" else parse_value(found)
    except ValueError as error:
        fields.refuse(name, f"{error}; {example}")
        return None
    if not least <= amount <= AMOUNT_MAX:
        fields.refuse(name, f"{found} is not within {least}..{AMOUNT_MAX}")
        return None
    return amount


def _message(fields: Fields) -> tuple[str, Failure]:
    text = fields.text("text")
    if not text.strip() and not fields.is_refused("text"):
        fields.refuse("text", "is empty, and every message contains that; write a part of the message")
    names = [failure.value for failure in Failure]
    return text, Failure(fields.choice("failure", Failure.TRANSIENT.value, names))
