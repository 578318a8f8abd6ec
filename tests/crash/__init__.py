"""Crash tests, as databases have them: every call that a command makes of its disk goes wrong once.

All that is written goes through `decodeonce.store.disk`. A double of it (double.py) counts the calls of a command,
those of its workers, too, and has one of them fail (EIO, ENOSPC, EDQUOT, EINTR), do less than it was asked for, or end
the process that made it, its parent, or all of them, by SIGKILL, also in the middle of a write, between two sectors of
512 bytes. For a small build that is done at every call in turn, for a larger one at random, up to four times in a row.

After each: the command ended as it should (0, or 1 or 75 with one line that names a file and says what to do; never a
traceback, never a hang); nothing calls whole what is not (open_store, verify_store, the status); what opens is whole
to the byte. Then the same command is run again, and the files are those of a command that nobody disturbed, no more
and no less.

power.py records what a command does and says what a disk may hold if the power fails after any of it: a file's bytes
are durable once it was flushed, a name once its folder was, all else may be there or not, or torn between two sectors.
The extremes and some mixtures are laid out, and looked at and gone on with as above. Blocks that were journalled must
still be done, and once a command has returned 0, all must be there. The same again for a command that was killed
anywhere and run again: what the first left in memory alone, the second must flush.

The commands (targets.py): `prep build` to npy, to HDF5, with kept boxes, a larger one with two workers; `convert`,
`stage`, `export` in both forms, `column add`, `repair`. They run as their command line, in a process that has imported
everything and forks (points.py): a point takes 0.1 s of processor time, of which a build's start would be six times
that. Workers are forks, too (forking.py): only exec(2) is left out; and blocks are small (12 KiB), so that tiny
pictures fill several of them, and three shards, the last of which goes when four bad pictures have left their holes.

`python -m tests.crash npy:faults npy:power:30 stage:again` tries those (all, or so many that are drawn) and prints how
many, and what was wrong; --forget fsync shows what a disk that ignores a flush comes to. `make test` tries a sample,
`make test-all` all. Real disks that are full at any page are in test_points.py, real processes in test_processes.py.
"""
