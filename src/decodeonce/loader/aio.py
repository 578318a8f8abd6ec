"""Many reads of one thread at a time, with Linux AIO (io_submit(2)); the C library has no functions for it.

io_uring could do the same, but containers usually block it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import threading

import numpy as np
from numpy.typing import NDArray

# struct iocb and struct io_event of linux/aio_abi.h, for little-endian machines.
REQUEST = np.dtype(
    [
        ("place", "<u8"),
        ("key", "<u4"),
        ("flags", "<u4"),
        ("opcode", "<u2"),  # 0: pread
        ("priority", "<i2"),
        ("fd", "<u4"),
        ("address", "<u8"),
        ("nbytes", "<u8"),
        ("offset", "<i8"),
        ("unused", "<u8", 2),
    ]
)
EVENT = np.dtype([("place", "<u8"), ("request", "<u8"), ("result", "<i8"), ("result2", "<i8")])
# The numbers of io_setup, io_destroy, io_getevents and io_submit.
CALLS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}
_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long


class ForkGuard:
    """Keeps a process from forking while reads are in flight.

    Before Linux 6.5, a write to a page after a fork could move the parent to a copy of it, while the data of the disk
    still went to the old page (open(2), O_DIRECT).
    """

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._in_flight = self._forks = 0
        os.register_at_fork(before=self._wait, after_in_parent=self._resume, after_in_child=self._resume)

    def enter(self) -> None:
        """Begin reads, after forks that wait."""
        with self._changed:
            self._changed.wait_for(lambda: not self._forks)
            self._in_flight += 1

    def leave(self) -> None:
        """End reads."""
        with self._changed:
            self._in_flight -= 1
            self._changed.notify_all()

    def _wait(self) -> None:
        self._changed.acquire()
        self._forks += 1
        self._changed.wait_for(lambda: not self._in_flight)

    def _resume(self) -> None:
        self._forks -= 1
        self._changed.notify_all()
        self._changed.release()


fork_guard = ForkGuard()


def _call(number: int, *arguments: object) -> int:
    """Make a system call without the interpreter's lock; raise OSError."""
    while (result := int(_syscall(ctypes.c_long(number), *arguments))) < 0:
        if (code := ctypes.get_errno()) != errno.EINTR:
            raise OSError(code, os.strerror(code))
    return result


class ReadQueue:
    """The reads that one thread has in flight, up to `most` at a time.

    Raises:
        OSError: The kernel has no AIO (ENOSYS), does not allow it (EPERM), or has no more room for it (EAGAIN; see
            /proc/sys/fs/aio-max-nr).
    """

    def __init__(self, most: int) -> None:
        if platform.machine() not in CALLS:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        self._setup, self._destroy, self._getevents, self._submit = CALLS[platform.machine()]
        self._context, self._events = ctypes.c_ulong(0), np.zeros(most, EVENT)
        self._function = _syscall  # the module may be gone when the queue is
        _call(self._setup, ctypes.c_long(most), ctypes.byref(self._context))

    def __del__(self) -> None:
        if getattr(self, "_context", None):  # a child after a fork has no context, and gets an error
            self._function(self._destroy, self._context)

    def start(self, requests: NDArray[np.void]) -> None:
        """Start reads, records of dtype REQUEST; the kernel writes to their addresses until `finish` has returned."""
        requests["place"] = np.arange(len(requests))
        self._requests, self._sent = requests, 0
        self._pointers = requests.ctypes.data + np.arange(len(requests), dtype=np.uint64) * np.uint64(REQUEST.itemsize)
        self._results = np.zeros(len(requests), np.int64)
        fork_guard.enter()
        self._send()

    def finish(self) -> NDArray[np.int64]:
        """Wait for all reads that were started; return the bytes of each, or the negative number of its error."""
        done = 0
        try:
            while done < self._sent:
                wanted = min(self._sent - done, len(self._events))
                at = ctypes.c_void_p(self._events.ctypes.data)
                got = _call(self._getevents, self._context, ctypes.c_long(wanted), ctypes.c_long(wanted), at, None)
                events = self._events[:got]
                self._results[events["place"]] = events["result"]
                done += got
                self._send()
        finally:
            fork_guard.leave()
        return self._results

    def _send(self) -> None:
        """Submit the requests that are left, as many as there is room for; those that are refused get their error."""
        while self._sent < len(self._requests):
            at = ctypes.c_void_p(self._pointers.ctypes.data + 8 * self._sent)
            left = ctypes.c_long(len(self._requests) - self._sent)
            try:
                self._sent += _call(self._submit, self._context, left, at)
            except OSError as error:
                self._results[self._sent :] = -(error.errno or errno.EIO)
                return
