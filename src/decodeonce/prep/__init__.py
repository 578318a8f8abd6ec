"""From pictures to a store: plan, work, finish. Imports neither torch nor the loader."""

from decodeonce.prep.build import Progress, Work, build, make_plan, work
from decodeonce.prep.finish import finish
from decodeonce.prep.recipe import BoxRules, Recipe
from decodeonce.prep.sources import (
    BoxedSource,
    FolderSource,
    ImagenetSource,
    Source,
    open_imagenet,
    open_list,
    open_parquet,
    open_webdataset,
)
from decodeonce.prep.usermap import find_map

__all__ = [
    "BoxRules",
    "BoxedSource",
    "FolderSource",
    "ImagenetSource",
    "Progress",
    "Recipe",
    "Source",
    "Work",
    "build",
    "find_map",
    "finish",
    "make_plan",
    "open_imagenet",
    "open_list",
    "open_parquet",
    "open_webdataset",
    "work",
]
