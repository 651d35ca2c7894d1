"""`python -m vedette`."""

from vedette.interfaces.cli import main

if __name__ == "__main__":
    main()
