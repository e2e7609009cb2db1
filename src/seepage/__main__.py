"""`python -m seepage` is `seepage`."""

from seepage.cli import main

if __name__ == "__main__":  # and not where a worker imports the main module anew
    main()
