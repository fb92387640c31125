"""Units of nodes in an order, as ResourcePolicy of ACK has them."""
