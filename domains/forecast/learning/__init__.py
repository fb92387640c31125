"""From usage to profiles: the fit, its backtest, attribution of node totals, and the refit that repeats them."""
