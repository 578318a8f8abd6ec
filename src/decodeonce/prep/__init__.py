"""From pictures to a store: plan, work, finish. Imports neither torch nor the loader."""

from decodeonce.prep.build import build, make_plan, plan_unless_built
from decodeonce.prep.finish import finish
from decodeonce.prep.place import is_built
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
from decodeonce.prep.work import Progress, Work, work

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
    "is_built",
    "make_plan",
    "open_imagenet",
    "open_list",
    "open_parquet",
    "open_webdataset",
    "plan_unless_built",
    "work",
]
