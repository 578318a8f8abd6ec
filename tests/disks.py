"""Mount file systems that are small enough to fill up, or that report any free space."""

import errno
import os
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from tests.packages import give_up


def small_disk(folder: Path, size: str) -> AbstractContextManager[Path]:
    """Mount a tmpfs of this size (in the units of mount(8)) in `folder`, or skip the test if that is not possible.

    If CI is set, the test fails instead, because a skipped test would go unnoticed there.
    """
    return _mounted(folder, "tmpfs", f"size={size}")


def reporting_disk(folder: Path, figures: tuple[int, int, int, int, int]) -> AbstractContextManager[Path]:
    """Mount an empty FUSE file system that reports these f_blocks, f_bfree, f_bavail, f_files and f_ffree."""
    statistics = struct.pack("<5Q4I24x", *(figure % 2**64 for figure in figures), 4096, 255, 4096, 0)
    return _fuse(folder, {STATFS: statistics})


def failing_disk(folder: Path, name: str, operation: int, code: int) -> AbstractContextManager[Path]:
    """Mount a FUSE file system with one file of 999 bytes, for which LOOKUP or OPEN fails with the errno `code`."""
    found = struct.pack("<4Q2I", 2, 0, 3600, 3600, 0, 0) + _attributes(2, 0o100644, 999)
    return _fuse(folder, {LOOKUP: found, operation: code}, name)


@contextmanager
def disk_with_sectors(folder: Path, sector: int, size: int, options: str = "rw") -> Iterator[Path]:
    """Mount an ext4 file system of `size` bytes on a disk with sectors of `sector` bytes, with these mount options."""
    image = folder / "disk.img"
    with open(image, "wb") as file:
        file.truncate(size)
    subprocess.run(["mkfs.ext4", "-q", "-b", "4096", str(image)], check=True)
    command = ["losetup", "--find", "--show", "--sector-size", str(sector), str(image)]
    loop = subprocess.run(command, capture_output=True, text=True, check=False)
    if loop.returncode:
        give_up(f"a disk in a file requires root: {loop.stderr.strip().rpartition(': ')[2]}")
    device = loop.stdout.strip()
    try:
        with _mounted(folder, "ext4", options, device=device) as disk:
            yield disk
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)


LOOKUP, GETATTR, OPEN, STATFS, INIT, ACCESS, DESTROY = 1, 3, 14, 17, 26, 34, 38  # FUSE_* of linux/fuse.h
UNANSWERED = (2, 36, 42)  # FORGET, INTERRUPT and BATCH_FORGET


def _attributes(number: int, mode: int, size: int) -> bytes:
    """Return a struct fuse_attr of linux/fuse.h."""
    return struct.pack("<6Q10I", number, size, 0, 0, 0, 0, 0, 0, 0, mode, 2, 0, 0, 0, 4096, 0)


@contextmanager
def _fuse(folder: Path, answers: dict[int, bytes | int], name: str = "") -> Iterator[Path]:
    """Mount a folder of a FUSE file system whose only name is `name`; `answers` has a struct or errno by operation."""
    try:
        fd = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        give_up(f"FUSE requires root and /dev/fuse: {error.strerror}")
    answers = {
        GETATTR: bytes(16) + _attributes(1, 0o40755, 0),
        INIT: struct.pack("<4I2H2I2H32x", 7, 31, 0, 0, 12, 9, 1 << 16, 1, 1, 0),
        STATFS: bytes(80),
        ACCESS: b"",
        DESTROY: b"",
        **answers,
    }
    server = threading.Thread(target=_serve, args=(fd, answers, name.encode() + b"\0"), daemon=True)
    try:
        with _mounted(folder, "fuse", f"fd={fd},rootmode=40000,user_id=0,group_id=0", fd) as disk:
            server.start()  # reading an unmounted descriptor would fail
            yield disk
        server.join()
    finally:
        os.close(fd)


def _serve(fd: int, answers: dict[int, bytes | int], name: bytes) -> None:
    """Answer the kernel's requests until the file system is unmounted."""
    while True:
        try:
            request = os.read(fd, 1 << 20)
        except OSError as error:
            if error.errno == errno.EINTR:
                continue
            return  # ENODEV: unmounted
        _, operation, unique = struct.unpack_from("<IIQ", request)
        if operation in UNANSWERED:
            continue
        answer = answers.get(operation, errno.ENOSYS)
        if operation == LOOKUP and request[40:] != name:
            answer = errno.ENOENT
        data, failure = (answer, 0) if isinstance(answer, bytes) else (b"", answer)
        os.write(fd, struct.pack("<IiQ", 16 + len(data), -failure, unique) + data)


@contextmanager
def _mounted(folder: Path, kind: str, options: str, *fds: int, device: str = "none") -> Iterator[Path]:
    disk = folder / "disk"
    disk.mkdir()
    mount = ["mount", "-i", "-t", kind, "-o", options, device, str(disk)]
    mounted = subprocess.run(mount, pass_fds=fds, capture_output=True, text=True, check=False)
    if mounted.returncode:
        # The reason contains no folder or size, so that pytest reports all skipped tests in one line.
        reason = mounted.stderr.partition("\n")[0].rpartition(": ")[2]
        give_up(f"mounting a {kind} requires root: {reason}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)
