"""One whole run under a seed: arrivals and disruptions, then quiet, then the invariants."""
