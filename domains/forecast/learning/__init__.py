"""Learning of profiles at run time: the periodic refit, and attribution of node totals."""
