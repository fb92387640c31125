"""Reads services from a CSV file: `service,replicas` and one column per requested resource."""

from __future__ import annotations

import csv
import re
from pathlib import Path

from multisched.config.document import Problem
from multisched.model.quantity import QuantityError, parse_milli
from multisched.simulate.scenario import Service
from multisched.simulate.scenario_schema import (
    REPLICAS_MAX,
    SERVICE_NAME,
    SERVICES_MAX,
    refuse_fraction,
    requested_resource,
)

REQUEST, REQUEST_GIB = "_request", "_request_gib"


def read_services(path: Path, problems: list[Problem]) -> list[Service]:
    """Reads services in file order. `cpu_request` is in cores, `memory_request_gib` in GiB, any other `NAME_request` a quantity."""
    try:
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            rows = list(csv.reader(file))
    except OSError as error:
        problems.append(Problem(str(path), 1, 1, "", f"cannot be read: {error.strerror}; name a readable CSV file"))
        return []
    except csv.Error as error:
        problems.append(Problem(str(path), 1, 1, "", f"is not CSV: {error}"))
        return []
    header = [name.strip() for name in rows[0]] if rows else []
    missing = [name for name in ("service", "replicas") if name not in header]
    if missing:
        fix = "begin the file with service,replicas,cpu_request,memory_request_gib"
        problems.append(Problem(str(path), 1, 1, "", f"no column {', '.join(missing)}; {fix}"))
        return []
    found: list[Service] = []
    for line, row in enumerate(rows[1:], 2):
        if not row:
            continue
        if len(found) >= SERVICES_MAX:
            problems.append(Problem(str(path), line, 1, "", f"more than {SERVICES_MAX} services; remove some"))
            break
        if len(row) != len(header):
            text = f"has {len(row)} fields, the header has {len(header)}"
            problems.append(Problem(str(path), line, 1, "", text))
            continue
        found.append(_service(path, line, dict(zip(header, (cell.strip() for cell in row), strict=True)), problems))
    return found


def _service(path: Path, line: int, row: dict[str, str], problems: list[Problem]) -> Service:
    def report(column: str, message: str) -> None:
        problems.append(Problem(str(path), line, 1, column, message))

    name = row["service"]
    if not re.fullmatch(SERVICE_NAME, name):
        report("service", f"{name[:40]!r} is not a name; write at most 40 lower-case letters, digits and dashes")
    replicas = row["replicas"]
    is_count = replicas.isdecimal() and int(replicas) <= REPLICAS_MAX
    if not is_count:
        report("replicas", f"{replicas[:40]!r} is not a whole number from 0 to {REPLICAS_MAX}")
    requests = {}
    for column, text in row.items():
        is_gib = column.endswith(REQUEST_GIB)
        if not (is_gib or column.endswith(REQUEST)) or not text:
            continue
        resource, quantity = column.removesuffix(REQUEST_GIB if is_gib else REQUEST), f"{text}Gi" if is_gib else text
        try:
            if parse_milli(quantity) < 0:
                report(column, f"{text[:40]!r} is below zero")
            refuse_fraction(requested_resource(resource), quantity)
        except QuantityError as error:
            report(column, f"{error}; write a number such as 0.5")
        except ValueError as error:
            report(column, str(error))
        requests[resource] = quantity
    return Service(name, int(replicas) if is_count else 0, requests)
