"""From pictures to a store: plan, work, finish. Imports neither torch nor the loader."""

from decodeonce.prep.build import Progress, Work, build, make_plan, work
from decodeonce.prep.finish import finish
from decodeonce.prep.recipe import Recipe
from decodeonce.prep.sources import FolderSource, ImagenetSource, Source, open_imagenet

__all__ = [
    "FolderSource",
    "ImagenetSource",
    "Progress",
    "Recipe",
    "Source",
    "Work",
    "build",
    "finish",
    "make_plan",
    "open_imagenet",
    "work",
]
