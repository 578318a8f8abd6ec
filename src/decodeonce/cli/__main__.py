"""`python -m decodeonce.cli` is `prep`."""

from decodeonce.cli import main

main()
