"""Run `prep` as `python -m decodeonce.cli`."""

from decodeonce.cli import main

main()
