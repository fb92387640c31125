"""`python -m multisched` is `multisched`."""

from multisched.cli import main

if __name__ == "__main__":
    main()
