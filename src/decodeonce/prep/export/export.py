"""Export a finished store as pictures: a folder for each class, or WebDataset's tars; all of them, or nothing at DEST.

They are written to a hidden folder next to DEST, which is renamed to DEST as the last step. A block of rows is durable
before the journal records it. After a kill, a block is known to be done, or is written again with the same bytes.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from decodeonce.errors import DecodeonceError, Stopped, StoreError
from decodeonce.prep.build.journal import Journals
from decodeonce.prep.export.images import MODES, ExportPaths, ExportSettings, ImageWriter, encoded_name
from decodeonce.prep.processes.child import ChildDied, Parent
from decodeonce.prep.processes.workers import run_workers
from decodeonce.store import Store, disk, open_store
from decodeonce.store.checks import check_file
from decodeonce.store.durable import make_folder, remove_file, remove_tree, sync_folder, write_atomic
from decodeonce.store.locks import LOCK, locked

CLASS_LIST = "classes.txt"  # the names in label order, as --classes takes them; a name that is no line goes without
Progress = Callable[[int], None]


@dataclass(frozen=True)
class Exported:
    """What lies at DEST now; `sorted_classes` says whether labels follow the names, as in a build from a folder."""

    pictures: int
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
    """Write every row of `source` as a picture into the new folder `dest`, each row checked.

    Form "folder" writes DEST/<class>/<row>_<stem of its source>.png, the row in eight digits, so that no two names are
    the same and none is hidden. A class without rows is an empty folder. Form "webdataset" writes DEST/shard-000000.tar
    and so on, with <row>.png, <row>.cls (its label) and <row>.json for each row: its line of samples.tsv, its columns,
    and the class names of its boxes. DEST/classes.txt has the classes in label order. PNG keeps every pixel. The bytes
    depend on the store, the settings and the encoder, not on `workers`.

    After a kill, call it again: it resumes, and `dest` does not exist until it is complete.

    Args:
        source: The finished store.
        dest: A folder that does not exist yet.
        settings: What rows become.
        workers: How many processes to use.
        progress: Called with the number of rows since its last call, first with those of an earlier run.

    Raises:
        DecodeonceError: If the place, or an unfinished export with other settings, forbids it.
        StoreError: If the store is damaged, a staged part, or has a class that no folder can be named after.
        Stopped: If a worker process died, or the store cannot be read for a reason that may pass.
        OSError: If `dest` cannot be written.
    """
    folders = _class_folders(source) if settings.form == "folder" else []
    _check_source(source)
    paths, facts = ExportPaths(Path(dest)), settings.facts(source)
    _check_place(source, paths)
    with locked(paths.work):
        make_folder(paths.work)  # raises an error that says so if nothing can be written here
        claimed = _is_claimed(paths, facts)
        renamed = claimed and not paths.pictures.exists()  # by a run that was killed just then
        there = os.path.lexists(paths.dest)
        if there and not renamed:
            raise _is_here(paths)
        if not there:
            if renamed or not claimed:
                _begin(paths, facts, folders, [cls.name for cls in source.classes])
            _write_blocks(source, paths, settings, workers, progress or (lambda rows: None))
            disk.replace(paths.pictures, paths.dest)
        sync_folder(paths.work.parent)  # where it was renamed before, too: that run may have been killed before this
        if _removed(paths.journals, paths.scratch):
            sync_folder(paths.work)  # the claim goes last: without it nobody knows whose the rest is
            _removed(paths.work)
    names = [encoded_name(cls.name) for cls in source.classes]
    return Exported(len(source), len(source.classes), names == sorted(names))


def _removed(*folders: Path) -> bool:
    """Remove folders, and return whether that worked; the export is whole without it, and a rerun may do it."""
    try:
        for folder in folders:
            remove_tree(folder)
    except OSError:
        return False
    return True


def _class_folders(source: Store) -> list[str]:
    """The folders of the classes, by label; StoreError for a name that leads elsewhere, or that a build passes over."""
    folders: dict[bytes, None] = {}
    for label, cls in enumerate(source.classes):
        name = encoded_name(cls.name)
        if not name or name.startswith(b".") or b"/" in name or b"\0" in name or len(name) > 255 or name in folders:
            raise StoreError(
                f"{source.paths.root}: class {label} is {cls.name[:99]!r}, expected a name that a folder of its own "
                "can have: not hidden, without '/', at most 255 bytes; export it --as webdataset"
            )
        folders[name] = None
    return [os.fsdecode(name) for name in folders]


def _check_source(source: Store) -> None:
    source.check_held(range(len(source)), "export from the whole store")
    channels = source.manifest.shape[2]
    if channels not in MODES:
        raise StoreError(f"{source.paths.root}: rows have {channels} channels; of 1 or 3 pictures can be made")
    for path in (source.paths.samples, source.paths.checksums):
        check_file(path, source.manifest.files[path.name])


def _is_here(paths: ExportPaths) -> DecodeonceError:
    return DecodeonceError(f"{paths.dest}: is here already; choose another DEST, or remove it first")


def _check_place(source: Store, paths: ExportPaths) -> None:
    if os.path.lexists(paths.dest) and not paths.work.exists():
        raise _is_here(paths)
    for folder in Path(os.path.realpath(paths.work)).parents:
        if folder.exists() and folder.samefile(source.paths.root):
            raise DecodeonceError(f"{paths.dest}: lies in the store to be exported; choose a DEST elsewhere")


def _is_claimed(paths: ExportPaths, facts: dict[str, Any]) -> bool:
    """Whether this very export was begun; DecodeonceError where another one was."""
    if not paths.claim.exists():
        return False
    found = json.loads(paths.claim.read_bytes())
    differ = [
        f"{key} {found.get(key, 'absent')}, not {facts.get(key, 'absent')}"
        for key in {**found, **facts}
        if found.get(key) != facts.get(key)
    ]
    if differ:
        advice = f"go on as it was begun, or remove {paths.work}"
        raise DecodeonceError(f"{paths.dest}: an unfinished export is here: {'; '.join(differ)}; {advice}")
    return True


def _begin(paths: ExportPaths, facts: dict[str, Any], folders: list[str], names: list[str]) -> None:
    """Make the folders anew, and say last what they are for."""
    ours = (paths.journals, paths.scratch, paths.pictures)
    foreign = {*os.listdir(paths.work)} - {LOCK, *(path.name for path in (*ours, paths.claim))}
    if foreign:
        found = f"{min(foreign)!r} is in it, expected an unfinished export"
        raise DecodeonceError(f"{paths.work}: {found}; move that, or choose another DEST")
    remove_file(paths.claim)
    for folder in ours:
        remove_tree(folder)
        make_folder(folder)
    for name in folders:
        disk.mkdir(paths.pictures / name)
    if CLASS_LIST not in folders and all(name == name.strip() and name.isprintable() for name in names):
        write_atomic(paths.pictures / CLASS_LIST, [b"".join(encoded_name(name) + b"\n" for name in names)])
    sync_folder(paths.pictures)
    write_atomic(paths.claim, [json.dumps(facts).encode()], scratch=paths.scratch)


def _write_blocks(
    source: Store, paths: ExportPaths, settings: ExportSettings, workers: int, progress: Callable[[int], None]
) -> None:
    """Write every block that no journal has done."""
    remove_tree(paths.scratch)
    make_folder(paths.scratch)
    done, size = set(Journals(paths.journals).blocks()), settings.block_rows(source)
    left = [block for block in range(-(-len(source) // size)) if block not in done]
    progress(sum(min(size, len(source) - block * size) for block in done))
    if min(workers, len(left)) > 1:
        task = {"store": str(source.paths.root), "dest": str(paths.dest.absolute()), "settings": asdict(settings)}
        try:
            return run_workers(__name__, min(workers, len(left)), task, iter(left), progress)
        except ChildDied as died:
            hint = "fewer --workers need less memory" if died.status == -signal.SIGKILL else "see above"
            raise Stopped(f"{died}; {hint}; what is done is kept: run the same command again") from None
    with closing(ImageWriter(source, paths, settings, progress)) as writer:
        for block in left:
            writer.write(block)


def main(arguments: list[str]) -> int:
    """Write the blocks that a parent orders; tell of every row."""
    with Parent(arguments) as parent:
        task = parent.receive()
        paths, settings = ExportPaths(Path(task["dest"])), ExportSettings(**task["settings"])
        writer = ImageWriter(open_store(task["store"]), paths, settings, parent.report)
        for block in parent.orders():
            writer.write(block)
    return 0
