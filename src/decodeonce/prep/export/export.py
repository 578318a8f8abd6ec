"""Export a finished store as image files in class folders, or as WebDataset tars.

The files are written to a hidden folder next to DEST, which is renamed to DEST as the last step. So DEST is complete or
does not exist. A block of rows is durable before the journal records it. After a kill, blocks without a record are
written again, with the same bytes.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from decodeonce.errors import DecodeonceError, Stopped, StoreError
from decodeonce.prep.building.journal import Journals
from decodeonce.prep.export.images import MODES, ExportPaths, ExportSettings, ImageWriter, encoded_name
from decodeonce.prep.processes.child import ChildDied, Parent
from decodeonce.prep.processes.workers import run_workers
from decodeonce.store import Store, disk, open_store
from decodeonce.store.checks import check_file
from decodeonce.store.durable import make_folder, remove_file, remove_tree, sync_folder, write_atomic
from decodeonce.store.locks import LOCK, locked

CLASS_LIST = "classes.txt"  # class names in label order, for --classes; not written if a name does not fit on a line


@dataclass(frozen=True)
class Exported:
    """The result of `export_store`.

    Attributes:
        images: Number of exported images.
        classes: Number of classes.
        sorted_classes: Whether the classes are sorted by name. If not, a build from the exported folders needs the
            class list to assign the same labels.
    """

    images: int
    classes: int
    sorted_classes: bool


def export_store(
    source: Store,
    dest: str | os.PathLike[str],
    settings: ExportSettings,
    *,
    workers: int = 1,
    progress: Callable[[int], None] | None = None,
) -> Exported:
    """Write every row of a store as an image into a new folder, and check the checksum of each row.

    The form "folder" writes DEST/<class>/<row>_<stem of the source name>.png. The row has eight digits, so names are
    unique and not hidden. A class without rows becomes an empty folder.

    The form "webdataset" writes DEST/shard-000000.tar and so on. A row has three members: <row>.png, <row>.cls with
    its label, and <row>.json with its line of samples.tsv, its columns and the class names of its boxes.

    DEST/classes.txt lists the classes in label order. PNG keeps every pixel. The bytes depend on the store, the
    settings and the encoder, not on `workers`.

    If the call is interrupted, repeat it to resume. `dest` does not exist until the export is complete.

    Args:
        source: The finished store.
        dest: Path of the folder to create.
        settings: Form, quality and size of shards.
        workers: Number of worker processes.
        progress: Function that is called with the number of rows since its last call; the first call reports the rows
            of an earlier run.

    Returns:
        The number of images and classes.

    Raises:
        DecodeonceError: If `dest` exists or is inside the store, or an export to it was begun with other settings.
        StoreError: If the store is damaged, is a staged part, or has a class name that cannot be the name of a folder.
        Stopped: If a worker process died, or the store cannot be read because of a temporary error.
        OSError: If `dest` cannot be written.

    Example:
        >>> export_store(open_store("train.store"), "images", ExportSettings("folder"))
    """
    folders = _class_folders(source) if settings.form == "folder" else []
    _check_source(source)
    paths, facts = ExportPaths(Path(dest)), settings.facts(source)
    taken = f"{paths.dest}: already exists; choose another DEST, or remove it first"
    if os.path.lexists(paths.dest) and not paths.work.exists():
        raise DecodeonceError(taken)
    for folder in Path(os.path.realpath(paths.work)).parents:
        if folder.exists() and folder.samefile(source.paths.root):
            raise DecodeonceError(f"{paths.dest}: is inside the store to be exported; choose a DEST elsewhere")
    with locked(paths.work):
        make_folder(paths.work)  # raises an error if the parent folder is read-only
        claimed = _is_claimed(paths, facts)
        renamed = claimed and not paths.images.exists()  # a run was killed right after the rename
        if not os.path.lexists(paths.dest):
            if renamed or not claimed:
                _begin(paths, facts, folders, [cls.name for cls in source.classes])
            blocks = _write_blocks(source, paths, settings, workers, progress or (lambda rows: None))
            if len(Journals(paths.journals).blocks()) < blocks:  # as may happen without locks
                raise Stopped(
                    f"{paths.work}: another export to {paths.dest} removed images; run the same command again"
                )
            disk.replace(paths.images, paths.dest)
        elif not renamed:
            raise DecodeonceError(taken)
        # If an earlier run did the rename, it may have been killed before this sync, so sync in any case.
        sync_folder(paths.work.parent)
        with suppress(OSError):  # the export is complete anyway; a rerun tries again
            remove_tree(paths.journals)
            remove_tree(paths.scratch)
            sync_folder(paths.work)  # the claim is removed last, because it identifies the rest
            remove_tree(paths.work)
    names = [encoded_name(cls.name) for cls in source.classes]
    return Exported(len(source), len(source.classes), names == sorted(names))


def _class_folders(source: Store) -> list[str]:
    """Return the folder names by label; raise StoreError for a class name that is unsafe or that builds skip."""
    folders: dict[bytes, None] = {}
    for label, cls in enumerate(source.classes):
        name = encoded_name(cls.name)
        if not name or name.startswith(b".") or b"/" in name or b"\0" in name or len(name) > 255 or name in folders:
            raise StoreError(
                f"{source.paths.root}: class {label} is {cls.name[:99]!r}, expected a unique folder name, "
                "not hidden, without '/', of at most 255 bytes; use --as webdataset"
            )
        folders[name] = None
    return [os.fsdecode(name) for name in folders]


def _check_source(source: Store) -> None:
    source.check_held(range(len(source)), "export from the whole store")
    channels = source.manifest.shape[2]
    if channels not in MODES:
        raise StoreError(
            f"{source.paths.root}: rows have {channels} channels; only rows with 1 or 3 channels can be exported"
        )
    for path in (source.paths.samples, source.paths.checksums):
        check_file(path, source.manifest.files[path.name])


def _is_claimed(paths: ExportPaths, facts: dict[str, object]) -> bool:
    """Return whether this export was begun; raise DecodeonceError if one with other settings was."""
    if not paths.claim.exists():
        return False
    found = json.loads(paths.claim.read_bytes())
    differ = [
        f"{key} was {found.get(key, 'absent')}, now {facts.get(key, 'absent')}"
        for key in {**found, **facts}
        if found.get(key) != facts.get(key)
    ]
    if differ:
        advice = f"run it with the original settings, or remove {paths.work}"
        raise DecodeonceError(
            f"{paths.dest}: an export with other settings is unfinished: {'; '.join(differ)}; {advice}"
        )
    return True


def _begin(paths: ExportPaths, facts: dict[str, object], folders: list[str], names: list[str]) -> None:
    """Create empty folders, and last the claim that identifies the export."""
    ours = (paths.journals, paths.scratch, paths.images)
    foreign = {*os.listdir(paths.work)} - {LOCK, *(path.name for path in (*ours, paths.claim))}
    if foreign:
        found = f"contains {min(foreign)!r}, expected only an unfinished export"
        raise DecodeonceError(f"{paths.work}: {found}; move it away, or choose another DEST")
    remove_file(paths.claim)
    for folder in ours:
        remove_tree(folder)
        make_folder(folder)
    for name in folders:
        disk.mkdir(paths.images / name)
    if CLASS_LIST not in folders and all(name == name.strip() and name.isprintable() for name in names):
        write_atomic(paths.images / CLASS_LIST, [b"".join(encoded_name(name) + b"\n" for name in names)])
    sync_folder(paths.images)
    write_atomic(paths.claim, [json.dumps(facts).encode()], scratch=paths.scratch)


def _write_blocks(
    source: Store, paths: ExportPaths, settings: ExportSettings, workers: int, progress: Callable[[int], None]
) -> int:
    """Write every block that no journal records, and return the number of all blocks."""
    remove_tree(paths.scratch)
    make_folder(paths.scratch)
    done, size = set(Journals(paths.journals).blocks()), settings.block_rows(source)
    blocks = -(-len(source) // size)
    left = [block for block in range(blocks) if block not in done]
    progress(sum(min(size, len(source) - block * size) for block in done))
    if min(workers, len(left)) > 1:
        task = {"store": str(source.paths.root), "dest": str(paths.dest.absolute()), "settings": asdict(settings)}
        try:
            run_workers(__name__, min(workers, len(left)), task, iter(left), progress)
        except ChildDied as died:
            hint = "fewer --workers need less memory" if died.status == -signal.SIGKILL else "see above"
            raise Stopped(f"{died}; {hint}; finished blocks are kept: run the same command again") from None
    else:
        with closing(ImageWriter(source, paths, settings, progress)) as writer:
            for block in left:
                writer.write(block)
    return blocks


def main(arguments: list[str]) -> int:
    """Run a worker process: write the blocks that the parent orders, and report every row."""
    with Parent(arguments) as parent:
        task = parent.receive()
        paths, settings = ExportPaths(Path(task["dest"])), ExportSettings(**task["settings"])
        writer = ImageWriter(open_store(task["store"]), paths, settings, parent.report)
        for block in parent.orders():
            writer.write(block)
    return 0
