"""Build a store from a source's images in three steps: plan, decode, finish. Safe to kill and rerun at any moment."""

from decodeonce.prep.building.build import build, make_plan, plan_unless_built
from decodeonce.prep.building.finish import finish
from decodeonce.prep.building.output_dir import is_built
from decodeonce.prep.building.pool import Progress, WorkSettings, work

__all__ = ["Progress", "WorkSettings", "build", "finish", "is_built", "make_plan", "plan_unless_built", "work"]
