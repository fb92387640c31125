"""What the forecast domain adds to `multisched simulate`. May import `multisched.simulate` and what its hooks need."""
