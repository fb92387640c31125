"""Who a client of the embedded API server is, and what it may do."""
