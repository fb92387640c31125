"""Documents, reports and metrics of the forecast."""
