"""Learning: what a refit makes of a reading, and where the latest profiles are kept between two lives of the program.

Runs in a worker thread. The file is replaced whole, so that a reader never sees half of it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path

from domains.forecast.attributed import with_attribution
from domains.forecast.attribution import AttributionSettings, attribute
from domains.forecast.capacity import MeasuredCapacity, SettingError
from domains.forecast.fit import fit
from domains.forecast.fit_settings import FitSettings
from domains.forecast.profiles import Profiles
from domains.forecast.profiles_file import ProfilesFileError, dumps, loads
from domains.forecast.source import Reading

logger = logging.getLogger(__name__)


class Learner:
    """Makes profiles of readings and keeps them in a file, if one is named."""

    def __init__(self, settings: FitSettings, capacities: Mapping[str, object], file: str) -> None:
        self._settings = settings
        self._measured = {name: one for name, one in capacities.items() if isinstance(one, MeasuredCapacity)}
        self._file = file

    def learn(self, reading: Reading, version: int, now_s: float) -> Profiles:
        """Profiles per service, and shares of node totals for what is measured by nodes only. Raises ValueError."""
        profiles = fit(reading.usage, self._settings, version, now_s)
        if reading.totals is not None:
            found = attribute(
                reading.totals, AttributionSettings(zone=self._settings.zone, quantile=self._settings.quantile)
            )
            profiles = with_attribution(profiles, found)
        for name, capacity in self._measured.items():
            answered = reading.capacities.get(name)
            if answered:  # an empty answer takes nothing away
                capacity.measure(answered)
        self._keep(profiles)
        return profiles

    def known(self, *, is_needed: bool) -> Profiles | None:
        """The profiles of an earlier life; None where there are none. Raises SettingError for a file that is needed."""
        if not self._file:
            return None
        try:
            return loads(Path(self._file).read_bytes())
        except FileNotFoundError as error:
            if is_needed:
                raise SettingError(f"args.profilesFile: there is no {self._file}; name a file of profiles") from error
            return None
        except (OSError, ProfilesFileError) as error:
            if is_needed:
                raise SettingError(f"args.profilesFile: {self._file}: {error}") from error
            logger.warning("profiles of before are not used", extra={"file": self._file, "error": str(error)})
            return None

    def _keep(self, profiles: Profiles) -> None:
        """What cannot be written is told: the profiles are good all the same."""
        if not self._file:
            return
        beside = Path(f"{self._file}.new")
        try:
            beside.write_bytes(dumps(profiles))
            os.replace(beside, self._file)
        except OSError as error:
            logger.warning("profiles are not kept", extra={"file": self._file, "error": str(error)})
