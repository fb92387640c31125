"""One run of a seed: arrivals and disruptions, then the wait until it has settled, then the invariants."""
