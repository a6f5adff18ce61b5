"""`python -m lerope`, which is also what torchrun starts: torchrun ... -m lerope train ..."""

from lerope.cli.main import main

if __name__ == "__main__":
    main()
