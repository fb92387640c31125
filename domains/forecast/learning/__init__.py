"""Learning of profiles from usage: the fit, its backtest, attribution of node totals, and the periodic refit."""
