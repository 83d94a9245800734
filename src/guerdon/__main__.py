"""`python -m guerdon`, and `torchrun -m guerdon` for training on several devices."""

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # the working directory, which `-m` puts before installed packages
    from guerdon.cli import main

    main()
