"""Documents of `multisched gpu` as tables, with cards as bars. Pure."""

from __future__ import annotations

from typing import Any, Final

from multisched.model.visible_text import escaped
from multisched.observe.tables import as_table

BARS: Final = "▁▂▃▄▅▆▇█"
EMPTY, UNHEALTHY = "·", "!"
CARDS_SHOWN: Final = 16
WIDTH: Final = 20
"""Characters of the bar of one card."""
MILLI: Final = 1000

Document = dict[str, Any]


def nodes(found: Document, *, is_wide: bool) -> str:
    """Renders a row per node."""
    if not found["nodes"]:
        return f"domain {escaped(found['domain'])} has no nodes with GPUs"
    has_fit = "fit" in found
    head = ["node", "mode", "cards", "free", "pods", "unconfirmed", "lock", "fragments", "problems"]
    rows = [_node_row(one) for one in found["nodes"]]
    if has_fit:
        head.insert(4, "fit")
        for row, one in zip(rows, found["nodes"], strict=True):
            row.insert(4, one["fit"])
    parts = [as_table(head, rows, is_wide=is_wide)]
    problems = [f"{one['node']}: {problem}" for one in found["nodes"] for problem in one["problems"]]
    parts += ["\n".join(map(escaped, problems))] if problems else []
    return "\n\n".join([*parts, *_fit(found), _footer(found)])


def _node_row(one: Document) -> list[object]:
    cards = one["cards"]
    healthy = [card for card in cards if card["isHealthy"]]
    unused = sum(card["freeMilli"] == MILLI for card in healthy)
    free = f"{unused} of {len(cards)}" if cards else _free_units(one)
    waiting = f"{len(one['unconfirmed'])}, {_age(one['unconfirmed'][0]['ageSeconds'])}" if one["unconfirmed"] else "-"
    fragments = _cards(one["fragmentMilli"]) if cards else "-"
    problems = len(one["problems"]) or "-"
    return [
        one["node"],
        one["mode"] or "-",
        bars(cards),
        free,
        one["pods"],
        waiting,
        _lock(one["lock"]),
        fragments,
        problems,
    ]


def _free_units(one: Document) -> str:
    units = (f"{u['allocatable'] - u['requested']} of {u['allocatable']} {u['resource']}" for u in one["units"])
    return ", ".join(units) or "-"


def bars(cards: list[Document]) -> str:
    """Returns one character per card that shows which part of it pods hold."""
    shown = "".join(_bar(card) for card in cards[:CARDS_SHOWN])
    return shown + (f" +{len(cards) - CARDS_SHOWN}" if len(cards) > CARDS_SHOWN else "") or "-"


def _bar(card: Document) -> str:
    used = MILLI - card["freeMilli"]
    if not card["isHealthy"]:
        return UNHEALTHY
    return BARS[-(-used * len(BARS) // MILLI) - 1] if used else EMPTY


def node(found: Document, *, is_wide: bool) -> str:
    """Renders a row per card, then a row per pod."""
    one = found["node"]
    line = f"{one['node']}   mode {one['mode'] or '-'}, {len(one['cards'])} cards, {one['pods']} pods with GPUs"
    parts = [escaped(line)]
    if one["lock"]:
        parts.append(escaped(f"locked for {_lock(one['lock'])}: {one['lock']['text']}"))
    if one["cards"]:
        head = [
            "card",
            "used",
            "",
            "free",
            "cores free",
            "fragment",
            "pods",
            "numa",
            "model",
            *(["id", "link"] if is_wide else []),
        ]
        parts.append(as_table(head, [_card_row(card, is_wide=is_wide) for card in one["cards"]], is_wide=True))
    if one["units"]:
        rows = [[u["resource"], u["allocatable"], u["requested"]] for u in one["units"]]
        parts.append(as_table(["units", "allocatable", "requested"], rows))
    if one["holds"]:
        head = ["pod", "dialect", "holds", "confirmed"]
        parts.append(as_table(head, [_hold_row(hold) for hold in one["holds"]], is_wide=is_wide))
    if one["problems"]:
        parts.append("\n".join(f"problem: {escaped(problem)}" for problem in one["problems"]))
    return "\n\n".join([*parts, *_fit(found, one), _footer(found)])


def _card_row(card: Document, *, is_wide: bool) -> list[object]:
    used = MILLI - card["freeMilli"]
    filled = -(-used * WIDTH // MILLI)
    bar = "unhealthy" if not card["isHealthy"] else "█" * filled + EMPTY * (WIDTH - filled)
    free = f"{card['freeMilli']} milli"
    if card["memory"] is not None:
        free = f"{card['freeMemory']} of {card['memory']} {card['unit']}"
    numa = "-" if card["numa"] is None else card["numa"]
    more = [card["id"], card["link"]] if is_wide else []
    used_percent = f"{-(-used // 10)} %" if card["isHealthy"] else "-"
    fragment = f"{card['fragmentMilli']} milli" if card["fragmentMilli"] else "-"
    return [
        card["card"],
        bar,
        used_percent,
        free,
        f"{card['freeCores']} %",
        fragment,
        card["pods"],
        numa,
        card["model"],
        *more,
    ]


def _hold_row(hold: Document) -> list[object]:
    if hold["cards"]:
        held = ", ".join(map(_held, hold["cards"]))
        if hold["isWhole"]:
            held = f"card {', '.join(str(card['card']) for card in hold['cards'])}"
    elif hold["missing"]:
        held = f"card {', '.join(hold['missing'])}, not published now"
    else:
        held = f"{hold['count']} cards of unknown index"
    confirmed = "yes" if hold["isConfirmed"] else f"no, {_age(hold['ageSeconds'])}"
    return [hold["pod"], hold["dialect"], held, confirmed]


def _held(card: Document) -> str:
    amount = f"{card['milli']} milli" if card["memory"] is None else f"{card['memory']} {card['unit']}"
    cores = f" and {card['cores']} % of the cores" if card["cores"] else ""
    return f"{amount}{cores} of card {card['card']}"


def _fit(found: Document, one: Document | None = None) -> list[str]:
    """Renders how many more pods fit in total and, if `one` is given, on that node."""
    fit = found.get("fit")
    if fit is None:
        return []
    total = f"{fit['total']}{' or more' if fit['isLimit'] else ''}"
    here = "" if one is None else f"{one['fit']} of them on {one['node']}; "
    lines = [f"{total} more of {fit['pod']} fit{'; ' if here or fit['nextMessage'] else ''}{here}".rstrip("; ")]
    if fit["otherNodes"] and one is None:
        lines.append(f"{sum(fit['otherNodes'].values())} of them on nodes without GPUs")
    if fit["nextMessage"]:
        lines.append(f"the next one: {fit['nextMessage']}")
    return ["\n".join(map(escaped, [*lines, *fit["notes"]]))]


def _lock(lock: Document | None) -> str:
    if lock is None:
        return "-"
    return f"{lock['pod'] or 'an unknown pod'}, {_age(lock['ageSeconds'])}"


def _age(seconds: int | None) -> str:
    if seconds is None:
        return "age unknown"
    return f"{seconds} s" if seconds < 600 else f"{seconds // 60} min"


def _cards(milli: int) -> str:
    return f"{milli / MILLI:.2f}" if milli else "-"


def _footer(found: Document) -> str:
    legend = f"{EMPTY} unused, {BARS[0]}{BARS[-1]} partly to fully used, {UNHEALTHY} unhealthy"
    kinds = found["typicalPods"]
    fragments = f"fragments: what typical pods cannot use ({kinds} kind{'' if kinds == 1 else 's'} of pods)"
    notes = [f"{escaped(note)}\n" for note in found.get("notes", ())]
    return f"{''.join(notes)}domain {escaped(found['domain'])}; cards: {legend}; {fragments}; it is {found['now']}"
