"""Run libFuzzer on one target: `python -m tests.fuzz.engine NAME [CORPUS...] [-option=value...]`.

With a file instead of a corpus folder, run the target once with the content of the file.
"""

import sys
from random import Random

from tests.fuzz import TARGETS, load
from tests.fuzz.fence import build_fence
from tools.setup_fuzz import FOLDER

# Python code that reads the input. Branches and comparisons in it show libFuzzer which inputs are new.
INSTRUMENTED = ["decodeonce", "tarfile", "zipfile", "gzip", "csv", "PIL"]


def main() -> None:
    """Run libFuzzer, which ends the process."""
    name, *arguments = sys.argv[1:] or ["--help"]
    if name not in TARGETS:
        sys.exit(f"{__doc__}\ntargets: {', '.join(TARGETS)}")
    sys.path.append(str(FOLDER))
    import atheris

    with atheris.instrument_imports(include=INSTRUMENTED):
        target = load(name)
    for seed in target.seeds():  # import modules that are imported on first use
        target.TestOneInput(seed)
    own = {}
    if mutate := getattr(target, "mutate", None):
        own["custom_mutator"] = lambda data, size, seed: mutate(bytes(data), size, Random(seed), atheris.Mutate)
    atheris.Setup([sys.argv[0], *arguments], target.TestOneInput, **own)
    build_fence()
    atheris.Fuzz()


if __name__ == "__main__":
    main()
