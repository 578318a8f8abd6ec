"""Many reads of one thread at a time, with Linux AIO (io_submit(2)); the C library has no functions for it.

io_uring could do the same, but containers usually block it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
import threading
from _thread import start_new_thread
from functools import partial
from typing import Any

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
PREFER_WRITER_NONRECURSIVE = 2  # of pthread.h: no new read begins while a fork waits
_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long


class ForkGuard:
    """Keeps a process from forking while reads are in flight.

    Before Linux 6.5, a write to a page after a fork could move the parent to a copy of it, while the data of the disk
    still went to the old page (open(2), O_DIRECT).

    Each read holds a pthread_rwlock_t for reading, and a fork holds it for writing. No signal interrupts the C
    functions that wait for it. Ctrl-C is postponed until after the fork: Python would print a KeyboardInterrupt that is
    raised in any function that it calls before or after a fork, also in those of the standard library.
    """

    def __init__(self) -> None:
        library, kind, lock = ctypes.CDLL(None), ctypes.c_uint64(), (ctypes.c_uint64 * 8)()  # at least their sizes
        library.pthread_rwlockattr_init(ctypes.byref(kind))
        library.pthread_rwlockattr_setkind_np(ctypes.byref(kind), PREFER_WRITER_NONRECURSIVE)
        create = partial(library.pthread_rwlock_init, lock, ctypes.byref(kind))
        create()
        self.enter: partial[int] = partial(library.pthread_rwlock_rdlock, lock)  # begins reads, after forks
        self.leave: partial[int] = partial(library.pthread_rwlock_unlock, lock)  # ends reads
        self._handler: Any = None  # of Ctrl-C, while it is postponed
        self._postponed = False
        wait = partial(library.pthread_rwlock_wrlock, lock)
        # In the child, the threads that wait for the lock do not exist, so it gets a new one.
        os.register_at_fork(before=wait, after_in_parent=self.leave, after_in_child=create)
        # The last function that is registered is the first one that is called before a fork.
        os.register_at_fork(before=self._postpone, after_in_parent=self._deliver, after_in_child=self._restore)

    def _postpone(self) -> None:
        is_main = threading.current_thread() is threading.main_thread()  # the only thread that handles signals
        if is_main and self._handler is None:  # not a fork within a fork
            self._postponed, handler = False, signal.getsignal(signal.SIGINT)
            if callable(handler):
                self._handler = handler
                signal.signal(signal.SIGINT, self._note)

    def _note(self, number: int, frame: object) -> None:
        self._postponed = True

    def _restore(self) -> None:
        if threading.current_thread() is threading.main_thread() and callable(self._handler):
            signal.signal(signal.SIGINT, self._handler)
            self._handler = None

    def _deliver(self) -> None:
        self._restore()
        if threading.current_thread() is threading.main_thread() and self._postponed:
            # The new thread runs when this one has left the fork, or 5 ms later.
            start_new_thread(signal.pthread_kill, (threading.get_ident(), signal.SIGINT))


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
        self._context: ctypes.c_ulong | None = None
        if platform.machine() not in CALLS:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        self._setup, self._destroy, self._getevents, self._submit = CALLS[platform.machine()]
        self._context, self._events = ctypes.c_ulong(0), np.zeros(most, EVENT)
        self._function = _syscall  # the module may be gone when the queue is
        _call(self._setup, ctypes.c_long(most), ctypes.byref(self._context))

    def close(self) -> None:
        """Free the queue, which takes up to 10 ms. A second call does nothing."""
        context, self._context = self._context, None
        if context:  # a child after a fork has no context, and gets an error
            self._function(self._destroy, context)

    # In the main thread, Ctrl-C during a finalizer is lost. There, call close().
    __del__ = close

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
