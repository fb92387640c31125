"""The forecast: how full nodes will be, and how well that is known."""

from __future__ import annotations

from typing import Final

from tests.monitoring.panels import DOMAIN, Board, Figure, Graph, Query, Row, rate

BOARD: Final = Board(
    "forecast",
    "multisched / forecast",
    "How full nodes will be and are, how well that was foretold, and whether the forecast still learns.",
    (
        Row(
            "Is it well?",
            (
                Figure(
                    "Age of the profiles",
                    Query(f"max by (domain) (multisched_forecast_profiles_age_seconds{{{DOMAIN}}})", "{{domain}}"),
                    "Since the newest sample in them. It should stay near the refresh interval.",
                    unit="s",
                    steps=((None, "green"), (86_400, "orange"), (604_800, "red")),
                ),
                Figure(
                    "Services with a profile",
                    Query(f"max by (domain) (multisched_forecast_services{{{DOMAIN}}})", "{{domain}}"),
                    "What is known from history.",
                ),
                Figure(
                    "Refits failed in a row",
                    Query(f"max by (domain) (multisched_forecast_refit_failures_in_a_row{{{DOMAIN}}})", "{{domain}}"),
                    "0 is right; the last good profiles stay in force meanwhile.",
                    steps=((None, "green"), (1, "orange"), (3, "red")),
                ),
                Figure(
                    "Fullest node at its peak",
                    Query(
                        f'max by (dimension) (multisched_forecast_node_peak_ratio{{percentile="100", {DOMAIN}}})',
                        "{{dimension}}",
                    ),
                    "Predicted, over capacity. Above 100 % a node will be too full: `multisched repair plan`.",
                    unit="percentunit",
                    steps=((None, "green"), (0.9, "orange"), (1, "red")),
                    width=8,
                ),
                Figure(
                    "Background task",
                    Query(
                        f"min by (domain, plugin) (multisched_background_running{{{DOMAIN}}})", "{{domain}} {{plugin}}"
                    ),
                    "1 while it runs.",
                    steps=((None, "red"), (1, "green")),
                ),
            ),
        ),
        Row(
            "Nodes",
            (
                Graph(
                    "Predicted peak of nodes",
                    [
                        Query(
                            f"max by (dimension, percentile) (multisched_forecast_node_peak_ratio{{{DOMAIN}}})",
                            "{{dimension}} p{{percentile}}",
                        )
                    ],
                    "At the time of the week with the highest load, as a share of capacity; percentile over nodes, 100 is the highest.",
                    unit="percentunit",
                ),
                Graph(
                    "Predicted for now",
                    [
                        Query(
                            f"max by (dimension, percentile) (multisched_forecast_node_expected_ratio{{{DOMAIN}}})",
                            "{{dimension}} p{{percentile}}",
                        )
                    ],
                    "For this time of the week, over capacity.",
                    unit="percentunit",
                ),
                Graph(
                    "Measured",
                    [
                        Query(
                            f"max by (dimension, percentile) (multisched_forecast_node_load_ratio{{{DOMAIN}}})",
                            "{{dimension}} p{{percentile}}",
                        )
                    ],
                    "When nodes were looked at last. Compare with what was predicted for now.",
                    unit="percentunit",
                ),
            ),
        ),
        Row(
            "What it stands on",
            (
                Graph(
                    "Pods by what speaks for them",
                    [Query(f"max by (domain, source) (multisched_forecast_pods{{{DOMAIN}}})", "{{domain}} {{source}}")],
                    "`own` is best; of `no_history` and `no_service` only the requests are known.",
                    is_stacked=True,
                ),
                Graph(
                    "Pods bound without a profile of their own, per second",
                    [
                        Query(
                            rate("multisched_forecast_fallback_total", DOMAIN, "domain, reason"),
                            "{{domain}} {{reason}}",
                        )
                    ],
                    "By what stood in for it.",
                ),
                Graph(
                    "Profiles by what they are made from",
                    [
                        Query(
                            f"max by (dimension, origin) (multisched_forecast_profiles{{{DOMAIN}}})",
                            "{{dimension}} {{origin}}",
                        )
                    ],
                    "`seasonal` has a week of its own, `quantile` one value for all of it.",
                    is_stacked=True,
                ),
                Graph(
                    "Error on the last days",
                    [
                        Query(
                            f"max by (dimension, percentile) (multisched_forecast_backtest_error_ratio{{{DOMAIN}}})",
                            "{{dimension}} p{{percentile}}",
                        ),
                        Query(
                            f"max by (dimension, percentile) (multisched_forecast_attribution_error_ratio{{{DOMAIN}}})",
                            "{{dimension}} p{{percentile}} attributed",
                        ),
                    ],
                    "Mean pinball loss over the mean; percentile over services. A rise means that services changed.",
                    unit="percentunit",
                ),
                Graph(
                    "Refits",
                    [
                        Query(
                            f"sum by (domain) (increase(multisched_forecast_refits_total{{{DOMAIN}}}[1h]))",
                            "{{domain}} put in force",
                        ),
                        Query(
                            f"sum by (domain) (increase(multisched_forecast_refit_failures_total{{{DOMAIN}}}[1h]))",
                            "{{domain}} failed",
                        ),
                        Query(
                            f"sum by (domain) (increase(multisched_forecast_polls_failed_total{{{DOMAIN}}}[1h]))",
                            "{{domain}} looks at the load failed",
                        ),
                    ],
                    "In an hour.",
                ),
                Graph(
                    "Duration of the last refit",
                    [
                        Query(
                            f"max by (domain) (multisched_forecast_refit_duration_seconds{{{DOMAIN}}})", "{{domain}}"
                        ),
                    ],
                    "It runs in a process of its own.",
                    unit="s",
                ),
            ),
        ),
    ),
)
