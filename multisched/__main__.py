"""`python -m multisched`."""

from __future__ import annotations

from multisched.cli import main

if __name__ == "__main__":
    main()
