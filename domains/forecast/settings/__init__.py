"""The args of PeakForecast: read, checked, and handed on as immutable values."""
