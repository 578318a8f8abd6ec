"""libFuzzer on one target: `python -m tests.fuzz.engine NAME [CORPUS...] [-option=value...]`.

Instead of a corpus a file may be given, an input that is run once.
"""

from __future__ import annotations

import sys
from random import Random

from tests.fuzz import TARGETS, load, mutator_of
from tests.fuzz.fence import Fence
from tools.setup_fuzz import FOLDER

# Where Python bytes are looked at: branches and comparisons here tell libFuzzer which inputs are new.
INSTRUMENTED = ["decodeonce", "tarfile", "zipfile", "gzip", "csv", "PIL"]


def main() -> None:
    """Run it; libFuzzer ends the process."""
    name, *arguments = sys.argv[1:] or ["--help"]
    if name not in TARGETS:
        sys.exit(f"{__doc__}\ntargets: {', '.join(TARGETS)}")
    sys.path.append(str(FOLDER))
    import atheris

    with atheris.instrument_imports(include=INSTRUMENTED):
        target = load(name)
    for seed in target.seeds():  # what is imported late is now
        target.TestOneInput(seed)
    mutate = mutator_of(target)
    own = {}
    if mutate is not None:
        own["custom_mutator"] = lambda data, size, seed: mutate(bytes(data), size, Random(seed), atheris.Mutate)
    atheris.Setup([sys.argv[0], *arguments], target.TestOneInput, **own)
    Fence()
    atheris.Fuzz()


if __name__ == "__main__":
    main()
