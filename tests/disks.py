"""Mount file systems that are small enough to fill up, or that report any free space."""

import errno
import os
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.packages import give_up


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """Mount a tmpfs of this size (in the units of mount(8)) in `folder`, or skip the test if that is not possible.

    If CI is set, the test fails instead, because a skipped test would go unnoticed there.
    """
    with _mounted(folder, "tmpfs", f"size={size}") as disk:
        yield disk


@contextmanager
def reporting_disk(folder: Path, figures: tuple[int, int, int, int, int]) -> Iterator[Path]:
    """Mount an empty FUSE file system that reports these f_blocks, f_bfree, f_bavail, f_files and f_ffree."""
    try:
        fd = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        give_up(f"FUSE requires root and /dev/fuse: {error.strerror}")
    server = threading.Thread(target=_serve, args=(fd, figures), daemon=True)
    try:
        with _mounted(folder, "fuse", f"fd={fd},rootmode=40000,user_id=0,group_id=0", fd) as disk:
            server.start()  # reading an unmounted descriptor would fail
            yield disk
        server.join()
    finally:
        os.close(fd)


def _serve(fd: int, figures: tuple[int, int, int, int, int]) -> None:
    """Answer the kernel's requests for an empty folder until it is unmounted (struct fuse_* of linux/fuse.h)."""
    attributes = struct.pack("<6Q10I", 1, 0, 0, 0, 0, 0, 0, 0, 0, 0o40755, 2, 0, 0, 0, 4096, 0)
    answers = {
        3: bytes(16) + attributes,  # GETATTR
        17: struct.pack("<5Q4I24x", *(figure % 2**64 for figure in figures), 4096, 255, 4096, 0),  # STATFS
        26: struct.pack("<4I2H2I2H32x", 7, 31, 0, 0, 12, 9, 1 << 16, 1, 1, 0),  # INIT
        34: b"",  # ACCESS
        38: b"",  # DESTROY
    }
    while True:
        try:
            request = os.read(fd, 1 << 20)
        except OSError as error:
            if error.errno == errno.EINTR:
                continue
            return  # ENODEV: unmounted
        _, operation, unique = struct.unpack_from("<IIQ", request)
        if operation in (2, 36, 42):  # FORGET, INTERRUPT and BATCH_FORGET expect no answer
            continue
        answer, failure = answers.get(operation, b""), 0
        if operation not in answers:
            failure = errno.ENOENT if operation == 1 else errno.ENOSYS  # LOOKUP: no such name
        os.write(fd, struct.pack("<IiQ", 16 + len(answer), -failure, unique) + answer)


@contextmanager
def _mounted(folder: Path, kind: str, options: str, *fds: int) -> Iterator[Path]:
    disk = folder / "disk"
    disk.mkdir()
    mount = ["mount", "-i", "-t", kind, "-o", options, kind, str(disk)]
    mounted = subprocess.run(mount, pass_fds=fds, capture_output=True, text=True, check=False)
    if mounted.returncode:
        # The reason contains no folder or size, so that pytest reports all skipped tests in one line.
        reason = mounted.stderr.partition("\n")[0].rpartition(": ")[2]
        give_up(f"mounting a {kind} requires root: {reason}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)
