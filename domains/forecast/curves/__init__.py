"""Values over time: usage as it was measured, profiles as they are predicted, and what rows carry of them."""
