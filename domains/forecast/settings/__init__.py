"""The args of PeakForecast: parsed and checked, as immutable values."""
