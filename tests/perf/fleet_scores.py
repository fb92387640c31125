"""Where a fleet's pods go by PeakForecast's score alone: its own profiles, curves and levels, without the rest of the program.

A fleet of 500 pods takes a fifth of a second, so hundreds of fleets can tell a percent apart, which a few cannot. Pods
go to a node with the highest score, as whole numbers have it, by lot among equals. No other plugin has a say.
"""

from __future__ import annotations

import numpy as np

from domains.forecast.curves.level_score import PODS_PER_UPDATE, FleetLevel, fleet_square, level_squares, scores_of
from domains.forecast.curves.node_curves import NodeCurves
from domains.forecast.curves.quantized_profiles import QuantizedProfiles
from domains.forecast.ledger.peak_ledger import load_factor
from domains.forecast.simulation.fits import FitCache, LearningSettings
from domains.forecast.units import MILLI
from multisched.forecasting.fit_settings import FitSettings
from multisched.forecasting.profiles import Profiles
from tests.perf.fleet_kinds import Fleet
from tests.perf.fleet_placements import Nodes, capacities, room, scenario_of

WINDOW_DAYS = 28.0


def profiles_of(fleet: Fleet) -> Profiles:
    """What is learned of the known part, by the settings that ship."""
    scenario = scenario_of(fleet)
    return FitCache(scenario).until(scenario.known_until_s, LearningSettings(FitSettings(), WINDOW_DAYS), 1)


def place_by_score(fleet: Fleet, profiles: Profiles, order: Nodes, seed: int) -> Nodes:
    """The node of each pod of the order."""
    rng = np.random.default_rng(seed)
    quantized = QuantizedProfiles(profiles, profiles.dimensions)
    unknown = (0,) * len(profiles.dimensions)
    curves = [quantized.curve(number, unknown) for number in range(len(profiles.services))]
    has, cores = capacities(fleet).T * MILLI, room(fleet)
    factors = load_factor(has, quantized.quantum_milli, quantized.stand_in_milli)
    mean_row = load_factor(has.mean(axis=1, keepdims=True), quantized.quantum_milli, quantized.stand_in_milli)
    share = quantized.quantum_milli / has.sum(axis=1, keepdims=True)
    weights, fleet_level = np.ones(len(has)), FleetLevel()
    held = NodeCurves(len(has), profiles.slots)
    total = np.zeros((len(has), profiles.slots))
    asked, where, looked_at = np.zeros(len(cores)), np.empty(len(order), np.int64), -1
    for pod, service in enumerate(order.tolist()):
        if looked_at < 0 or (pod - looked_at) * PODS_PER_UPDATE > pod:
            fleet_level.update(fleet_square(total * share, weights), mean_row)
            looked_at = pod
        rows = np.flatnonzero(asked + fleet.asked[service] <= cores + 1e-9)
        curve = curves[service]
        squares = level_squares(held.outlook(rows, curve), curve, factors[:, rows], weights)
        scores = scores_of(squares, fleet_level.anchor(curve, weights))
        node = int(rng.choice(rows[scores == scores.max()]))
        where[pod] = node
        held.add(node, curve, 1)
        total += curve.quanta
        asked[node] += fleet.asked[service]
    return where
