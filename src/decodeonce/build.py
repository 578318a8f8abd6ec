"""Build, convert and repair stores. The names below are imported when they are first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from decodeonce.lazy import lazy_imports

if TYPE_CHECKING:
    from decodeonce.prep.building.build import build as build
    from decodeonce.prep.building.build import make_plan as make_plan
    from decodeonce.prep.building.build import plan_unless_built as plan_unless_built
    from decodeonce.prep.building.finish import finish as finish
    from decodeonce.prep.building.output_dir import is_built as is_built
    from decodeonce.prep.building.plan import Plan as Plan
    from decodeonce.prep.building.pool import Progress as Progress
    from decodeonce.prep.building.pool import WorkSettings as WorkSettings
    from decodeonce.prep.building.pool import work as work
    from decodeonce.prep.convert.convert import Conversion as Conversion
    from decodeonce.prep.convert.convert import convert as convert
    from decodeonce.prep.pixels.user_map import MapSample as MapSample
    from decodeonce.prep.pixels.user_map import find_map as find_map
    from decodeonce.prep.recipe import BoxRules as BoxRules
    from decodeonce.prep.recipe import Recipe as Recipe
    from decodeonce.prep.recipe import UserMap as UserMap
    from decodeonce.prep.repair.repair import Repair as Repair
    from decodeonce.prep.repair.repair import repair_store as repair_store
    from decodeonce.store.select import Selection as Selection

__getattr__, __dir__ = lazy_imports(__name__)
