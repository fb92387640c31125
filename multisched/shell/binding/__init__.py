"""The steps between a scheduling decision and the POST of its binding: PreBind, the last check, limits."""
