"""By which leases this process may bind, what it has to know first, and how nodes go from one leader to another."""
