"""`python -m multisched`."""

from __future__ import annotations

from multisched.cli.main import main

if __name__ == "__main__":
    main()
