"""`python -m actors` is `perdure`."""

from actors.cli import main

if __name__ == "__main__":
    main()
