"""Crash tests like those of databases: each disk call of a command fails once, then the command runs again.

Everything that decodeonce writes goes through `decodeonce.store.disk`. double.py replaces it with a test double that
counts the calls of a command and its workers and makes one of them go wrong. The call fails (EIO, ENOSPC, EDQUOT,
EINTR), does less than asked, or ends with a SIGKILL of its process, of the parent, or of all processes, also in the
middle of a write, between two sectors of 512 bytes. Small builds are tested at every call in turn. Larger builds are
tested at random calls, with up to four faults in a row.

After each fault:

- The command must end with 0, or with 1 or 75 and one line that names a file and says what to do. It must never print a
  traceback or hang.
- Nothing may report an incomplete store as complete (open_store, verify_store, the status). A store that opens must be
  complete to the byte.
- The same command runs again. It must leave exactly the files of an uninterrupted command.

power.py records what a command does, and derives what a disk may hold if the power fails at any moment. The bytes of a
file are durable once it was flushed; a name is durable once its folder was flushed. Everything else may be there or
not, or be torn between two sectors. The extremes and some mixtures are written to disk and checked as above. Blocks in
the journal must still be done, and once a command has returned 0, everything must be there. The same is tested for a
command that was killed and run again: the second run must flush what the first left only in memory.

The commands (targets.py) are `prep build` to npy and HDF5, with kept boxes, and a larger one with two workers;
`convert`, `stage`, `column add` and `repair`. They run their command line in a fork of a process that has imported
everything (points.py). A point takes 0.1 s of processor time; starting a build would take six times that. Workers are
forks, too (forking.py); only exec(2) is missing. Blocks are small (12 KiB), so that tiny images fill several blocks and
three shards. The last shard is removed once four bad images have left their holes.

`python -m tests.crash npy:faults npy:power:30 stage:again` tests these suites, completely or with a limit of random
points, and prints the number of points and the failures. --ignore fsync shows the failures on a disk that ignores
flushes. `make test` tests a sample, `make test-all` all points. Real full disks are in test_points.py, real processes
in test_processes.py.
"""
