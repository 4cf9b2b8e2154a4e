"""`python -m compatfix`, for environments whose scripts are not on the path."""

from compatfix.cli import main

if __name__ == "__main__":
    main(prog_name="compatfix")
