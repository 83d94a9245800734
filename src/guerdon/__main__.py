"""`python -m guerdon`, and `torchrun -m guerdon` for training on several devices."""

from guerdon.cli import main

if __name__ == "__main__":
    main()
