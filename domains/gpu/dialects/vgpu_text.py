"""The texts of HAMi and of Volcano's vGPU, which descends from it: registered cards on nodes, allocated cards on pods.

Node data is untrusted: each field is checked, and what cannot be read is named. Source: reference gpu 1.3 and 1.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from domains.gpu.cards import CARD_PERCENT, CARDS_MAX, MEMORY_MAX, Amount, Card, Mode
from domains.gpu.demand import GpuDemand, integer_within, shown
from domains.gpu.dialect import Choice
from domains.gpu.hold import CardName, Hold, Share
from multisched.model.objects import Pod

VENDOR: Final = "NVIDIA"
CORES_MAX: Final = 10_000
"""Largest accepted percentage of a card's cores: plugins oversubscribe at most a hundredfold."""
COUNT_MAX: Final = 1 << 15
TEXT_MAX: Final = 256 * 1024
"""The API server's limit for all annotations of an object."""
MIG_MODE: Final = "mig"
SEPARATORS: Final = frozenset(",:;")
"""The separators in annotations with allocated cards. An id that contains one of them would be read as several cards."""
NO_AMOUNT: Final = Amount(sharers=0)


class Registered(msgspec.Struct):
    """One registered card in HAMi's JSON form. Go's omitempty leaves out zero values."""

    id: str = ""
    index: int = 0
    count: int = 0
    devmem: int = 0
    devcore: int = 0
    type: str = ""
    numa: int = 0
    mode: str = ""
    health: bool = False


def read_registered(text: str, key: str, names: Sequence[str]) -> tuple[tuple[Card, ...], tuple[str, ...]]:
    """Returns the registered cards and the problems of those left out. `names`: fields of one card in the colon-separated form."""
    if len(text) > TEXT_MAX:
        return (), (f"annotation {key}: {len(text)} bytes, more than {TEXT_MAX}",)
    stripped = text.strip()
    if not stripped:
        return (), ()
    if stripped.startswith("["):
        try:
            rows = msgspec.json.decode(stripped.encode(), type=list[Registered])
        except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as error:
            return (), (f"annotation {key}: {str(error)[:120]}",)
    else:
        found = [_row(part, names) for part in stripped.split(":") if part.strip()]
        rows = [row for row in found if row is not None]
        if len(rows) < len(found) or not rows:
            return (), (f"annotation {key}: {shown(stripped)} is not a list of cards {','.join(names)}:",)
    return _cards(rows, key)


def _row(text: str, names: Sequence[str]) -> Registered | None:
    """Parses one card of the colon-separated form; None if a field is missing or is no number."""
    fields = dict(zip(names, text.split(","), strict=False))
    numbers = {
        name: _number(fields[name]) for name in ("index", "count", "devmem", "devcore", "numa") if name in fields
    }
    if len(fields) < min(len(names), 6) or None in numbers.values():
        return None
    return Registered(
        id=fields.get("id", ""),
        index=numbers.get("index") or 0,
        count=numbers.get("count") or 0,
        devmem=numbers.get("devmem") or 0,
        devcore=(numbers.get("devcore") or 0) if "devcore" in names else CARD_PERCENT,
        type=fields.get("type", ""),
        numa=numbers.get("numa") or 0,
        mode=fields.get("mode", ""),
        health=fields.get("health", "").strip().lower() == "true",
    )


def _number(text: str) -> int | None:
    digits = text.strip().removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
        return None
    return int(text.strip())


def _cards(rows: Sequence[Registered], key: str) -> tuple[tuple[Card, ...], tuple[str, ...]]:
    cards: list[Card] = []
    problems: list[str] = []
    ids: set[str] = set()
    has_index = len({row.index for row in rows}) == len(rows)
    for place, row in enumerate(rows[:CARDS_MAX]):
        field = _bad_field(row)
        if field or row.id in ids:
            problems.append(f"annotation {key}: card {place}: {field or f'id {shown(row.id)} appears twice'}")
            continue
        ids.add(row.id)
        index = row.index if has_index and 0 <= row.index < CARDS_MAX else place
        is_usable = row.health and row.mode != MIG_MODE
        if row.mode == MIG_MODE:
            problems.append(f"annotation {key}: card {place}: mode mig is not supported; the card is not used")
        cards.append(
            Card(
                index,
                row.devmem,
                cores=row.devcore,
                sharers_max=row.count,
                id=row.id,
                model=row.type,
                numa=row.numa,
                is_healthy=is_usable,
            )
        )
    if len(rows) > CARDS_MAX:
        problems.append(f"annotation {key}: {len(rows)} cards, more than {CARDS_MAX}; the others are not used")
    return tuple(sorted(cards, key=lambda card: card.index)), tuple(problems)


def _bad_field(row: Registered) -> str:
    """Returns the first field with an unusable value; empty if there is none."""
    if not row.id or len(row.id) > 128:
        return f"id {shown(row.id)} is empty or longer than 128 characters"
    if not SEPARATORS.isdisjoint(row.id):
        return f"id {shown(row.id)} has one of , : ;"
    for name, amount, largest in (
        ("devmem", row.devmem, MEMORY_MAX),
        ("devcore", row.devcore, CORES_MAX),
        ("count", row.count, COUNT_MAX),
    ):
        least = 0 if name == "devcore" else 1
        if not least <= amount <= largest:
            return f"{name} {amount} is not within {least}..{largest}"
    return ""


def allocated_text(pod: Pod, demand: GpuDemand, cards: Sequence[Card], choice: Choice, *, is_ended: bool) -> str:
    """Returns the cards of each container, init containers first: `id,NVIDIA,MiB,percent:` for each card, `;` after each container.

    `is_ended`: also after the last container (HAMi).
    """
    by_index = {card.index: card for card in cards}
    texts = [""] * (pod.spec.init_container_count + pod.spec.container_count)
    start = 0
    for part in demand.parts:
        chosen = choice[start : start + part.count]
        start += part.count
        place = part.container + (0 if part.is_init else pod.spec.init_container_count)
        for index in chosen:
            card = by_index[index]
            texts[place] += f"{card.id},{VENDOR},{part.amount.of(card).memory},{part.amount.cores}:"
    return ";".join(texts) + (";" if is_ended else "")


def read_allocated(text: str) -> list[list[tuple[str, int, int]]] | None:
    """Returns id, MiB and percent of each card of each container; None if the text cannot be read."""
    if len(text) > TEXT_MAX:
        return None
    containers: list[list[tuple[str, int, int]]] = []
    for container in text.split(";"):
        found = []
        for part in filter(None, container.split(":")):
            fields = part.split(",")
            memory = integer_within(fields[2], MEMORY_MAX, least=0) if len(fields) == 4 else None
            cores = integer_within(fields[3], CORES_MAX, least=0) if len(fields) == 4 else None
            if memory is None or cores is None:
                return None
            found.append((fields[0], memory, cores))
        containers.append(found)
    return containers


def shares_of(containers: Sequence[Sequence[tuple[str, int, int]]], init_count: int) -> tuple[Share, ...]:
    """Returns what a pod holds of each card: the larger of its largest init container and the sum of its containers."""
    main: dict[CardName, Amount] = {}
    init: dict[CardName, Amount] = {}
    for place, cards in enumerate(containers):
        for name, memory, cores in cards:
            amount = Amount(memory=memory, cores=cores)
            if place < init_count:
                init[name] = _most(init.get(name), amount)
            else:
                main[name] = _sum(main.get(name), amount)
    names = sorted({*main, *init}, key=str)
    return tuple(Share(name, _most(main.get(name), init.get(name))) for name in names)


def _sum(before: Amount | None, more: Amount) -> Amount:
    if before is None:
        return more
    return Amount(
        memory=before.memory + more.memory, cores=before.cores + more.cores, sharers=before.sharers + more.sharers
    )


def _most(one: Amount | None, other: Amount | None) -> Amount:
    if one is None or other is None:
        return one or other or Amount()
    return Amount(
        memory=max(one.memory, other.memory),
        cores=max(one.cores, other.cores),
        sharers=max(one.sharers, other.sharers),
    )


def hold_of_text(
    name: str, pod: Pod, text: str, modes: frozenset[Mode], requested: int, awaits: frozenset[str]
) -> Hold | None:
    """Returns the hold that the annotation text describes; a hold of unknown cards if it cannot be parsed.

    `requested`: number of cards in the pod's spec. If it is 0, the text is not from a device plugin, because the kubelet calls none
    for such a pod, and the pod holds no card. While the pod waits, the device plugin could still confuse it with another pod.
    """
    if not requested:
        return Hold(name, 0, NO_AMOUNT, awaits=awaits, modes=modes) if awaits else None
    containers = read_allocated(text)
    shares = shares_of(containers, pod.spec.init_container_count) if containers is not None else ()
    count = max(len(shares), requested)
    return Hold(name, count, Amount(percent=CARD_PERCENT), shares, awaits=awaits, modes=modes)


def list_in(text: str) -> tuple[str, ...]:
    """Returns the parts of a comma-separated list, without empty ones."""
    return tuple(part.strip() for part in text[:TEXT_MAX].split(",") if part.strip())
