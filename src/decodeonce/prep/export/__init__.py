"""Give the pictures of a store back, as folders of files or as WebDataset's tars."""

from decodeonce.prep.export.export import Exported, export_store
from decodeonce.prep.export.images import ExportSettings

__all__ = ["ExportSettings", "Exported", "export_store"]
