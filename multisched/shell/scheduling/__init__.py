"""Scheduling of one domain: attempts, their results, nominations and binding cycles."""
