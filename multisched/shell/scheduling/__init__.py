"""One domain's pods from its queue to a definite outcome: attempts, their results, nominations and binding cycles."""
