"""What stands between a decision and its POST: PreBind, the last look, limits."""
