"""What the forecast domain adds to `multisched simulate`. May import `multisched.simulate`, `config` and `cluster`."""
