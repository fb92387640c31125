"""Leases of this process, takeover of domains, and handover of nodes from one leader to another."""
