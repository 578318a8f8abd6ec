"""What a build can read, and what a new source needs. The names below are imported when they are first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from decodeonce.lazy import lazy_imports

if TYPE_CHECKING:
    from decodeonce.prep.listing import Entry as Entry
    from decodeonce.prep.listing import Scan as Scan
    from decodeonce.prep.listing import Undecodable as Undecodable
    from decodeonce.prep.sources import Registered as Registered
    from decodeonce.prep.sources.base import DecodedRows as DecodedRows
    from decodeonce.prep.sources.base import Source as Source
    from decodeonce.prep.sources.boxed import BoxedSource as BoxedSource
    from decodeonce.prep.sources.classes import check_no_duplicates as check_no_duplicates
    from decodeonce.prep.sources.dataset import DatasetSource as DatasetSource
    from decodeonce.prep.sources.dataset import open_dataset as open_dataset
    from decodeonce.prep.sources.file_list import ListSource as ListSource
    from decodeonce.prep.sources.file_list import open_list as open_list
    from decodeonce.prep.sources.files import Links as Links
    from decodeonce.prep.sources.files import expecting as expecting
    from decodeonce.prep.sources.files import file_entry as file_entry
    from decodeonce.prep.sources.files import named_entries as named_entries
    from decodeonce.prep.sources.files import read_file as read_file
    from decodeonce.prep.sources.files import read_small as read_small
    from decodeonce.prep.sources.files import size_problem as size_problem
    from decodeonce.prep.sources.folder import FolderSource as FolderSource
    from decodeonce.prep.sources.folder import open_folder as open_folder
    from decodeonce.prep.sources.holders import SourceFile as SourceFile
    from decodeonce.prep.sources.holders import SourceFiles as SourceFiles
    from decodeonce.prep.sources.holders import source_file as source_file
    from decodeonce.prep.sources.imagenet import ImagenetSplit as ImagenetSplit
    from decodeonce.prep.sources.imagenet import open_imagenet as open_imagenet
    from decodeonce.prep.sources.paired import PairedSource as PairedSource
    from decodeonce.prep.sources.parquet import ParquetSource as ParquetSource
    from decodeonce.prep.sources.parquet import open_parquet as open_parquet
    from decodeonce.prep.sources.webdataset import WebdatasetSource as WebdatasetSource
    from decodeonce.prep.sources.webdataset import open_webdataset as open_webdataset

__getattr__, __dir__ = lazy_imports(__name__)
