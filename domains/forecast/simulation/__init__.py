"""The forecast domain's contribution to `multisched simulate`. May import `multisched.simulate`, `config` and `cluster`."""
