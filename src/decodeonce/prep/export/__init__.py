"""Export the rows of a store as image files in class folders, or as WebDataset tars."""

from decodeonce.prep.export.export import Exported, ExportSettings, export_store

__all__ = ["ExportSettings", "Exported", "export_store"]
