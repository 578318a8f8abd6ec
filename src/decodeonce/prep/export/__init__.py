"""Export the rows of a store as image files in class folders, or as WebDataset tars."""

from decodeonce.prep.export.export import Exported, export_store
from decodeonce.prep.export.images import ExportSettings

__all__ = ["ExportSettings", "Exported", "export_store"]
