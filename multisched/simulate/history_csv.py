"""The known part of the usage as the file that PeakForecast reads: timestamp, service, resource, value."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from multisched.simulate.scenario import Scenario


def write_history(scenario: Scenario, path: Path) -> None:
    """One line per sample of each service, per replica; gaps are left out."""
    usage = scenario.usage
    history = scenario.history()
    times = [str(usage.start_s + step * usage.step_s) for step in range(history.shape[2])]
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write("timestamp,service,resource,value\n")
        for service, values in zip(scenario.services, history, strict=True):
            for dimension, row in zip(usage.dimensions, values, strict=True):
                middle = f",{service.name},{dimension},"
                known = np.flatnonzero(~np.isnan(row)).tolist()
                samples = row.tolist()
                file.writelines(f"{times[step]}{middle}{samples[step]!r}\n" for step in known)
