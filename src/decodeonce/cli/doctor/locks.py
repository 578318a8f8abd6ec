"""Check whether locks on a file system exclude the processes of other nodes, as far as its mount options tell."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from decodeonce.cli.doctor.check import Finding, ok, warn

# Mount options of NFS and Lustre with which a lock excludes only processes of the same node, or is refused.
LOCAL_LOCKS = {"nolock", "local_lock=all", "local_lock=flock", "localflock", "noflock"}
# FUSE file systems that leave locks to the kernel of each node.
WITHOUT_LOCKS = {"fuse.sshfs", "fuse.rclone", "fuse.s3fs", "fuse.gcsfuse"}
ADVICE = "do not run two commands on one store at the same time from several nodes, except `prep build` and `prep work`"


def locks(place: Path, mountinfo: Path = Path("/proc/self/mountinfo")) -> Finding:
    """Check the locks of the file system that holds the folder `place`."""
    fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        pass
    except OSError as error:
        return warn(f"{place}: no locks: {error.strerror}", ADVICE)
    finally:
        os.close(fd)
    device = os.stat(place).st_dev
    for line in reversed(mountinfo.read_text(errors="surrogateescape").splitlines()):
        before, _, after = line.partition(" - ")
        if before.split()[2] == f"{os.major(device)}:{os.minor(device)}":
            kind, *_, options = after.split()
            why = sorted(LOCAL_LOCKS & {*options.split(","), *before.split()[5].split(",")})
            if why or kind in WITHOUT_LOCKS:
                how = f" mounted with {why[0]}" if why else ""
                return warn(f"{place}: {kind}{how}: locks do not exclude other nodes", ADVICE)
            return ok(f"{place}: {kind}: no mount option restricts locks to this node")
    return ok(f"{place}: locks work on this node; its mount is not known")
