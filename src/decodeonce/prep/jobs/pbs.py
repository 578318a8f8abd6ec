"""Directives and commands of PBS (OpenPBS, PBS Professional)."""

from __future__ import annotations

import os

from decodeonce.prep.jobs.base import Chain, Job, Site, clock

MAIL_EVENTS = {"plan": "a", "finish": "ae"}  # aborted, ended
# See qstat(1B). Q is also the state of jobs that wait for free nodes.
STATES = {"Q": "pending", "H": "waiting", "W": "waiting", "R": "running", "B": "running", "E": "running"}


def current_umask() -> int:
    """Return the umask of this process."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


class PBS:
    """PBS, as in the PBS Professional Reference Guide. A job's log is NAME.oID.INDEX in the folder of qsub."""

    suffix = ".pbs"
    queue_flag = "-q"
    submit = "qsub"
    hold = "-h"
    release = "qrls"
    show = "qstat"
    cancel = "qdel"
    states = "qstat -t"
    unknown_job = "Unknown Job Id|Job has finished"  # the latter if the server keeps a history
    again = "afterany"  # pbsdsh returns 0 even if a task failed
    with_store = "-v STORE "  # only the name, because the value may contain commas
    logs = ("*.o{number}", "*.o{number}.*")
    forbidden = ""
    forbidden_in_script = " \t\n\"'\\"

    def head(self, job: Job, site: Site, chain: Chain) -> list[str]:
        """Return the #PBS lines, which contain no path."""
        memory = f":mem={chain.mem.lower()}b" if chain.mem else ""
        options = [
            f"-N {job.shown_name}",
            "-j oe",
            "-r y",
            f"-W umask={current_umask():03o}",  # MoM's is 077
            f"-l select={job.nodes}:ncpus={job.cpus}:mpiprocs=1{memory}",
            *([f"-l walltime={clock(chain.seconds)}"] if chain.seconds else []),
            *([f"-A {chain.account}"] if chain.account else []),
            *([f"{site.queue_flag} {chain.queue}"] if chain.queue else []),
            *([f"-M {chain.mail}", f"-m {MAIL_EVENTS.get(job.name, 'n')}"] if chain.mail else []),
        ]
        if job.array and chain.tasks > 1:  # PBS has no arrays of one element
            options.append(f"-J 0-{chain.tasks - 1}" + (f"%{chain.max_running}" if chain.max_running else ""))
        if job.nodes > 1 and not any("place=" in one for one in (*site.directives, *chain.directives)):
            options.append("-l place=scatter")  # by default PBS may put all chunks of `select` on one host
        return [f"#PBS {option}" for option in (*options, *site.directives_of(job.array), *chain.directives)]

    def parse_states(self, printed: str) -> list[str]:
        """Parse the table of qstat: the state is the letter in the last column but one."""
        rows = [words for line in printed.splitlines()[2:] if len(words := line.split()) > 1]  # no blank line or note
        rows = rows[1:] if len(rows) > 1 else rows  # the first line of an array is the array itself
        return [STATES.get(row[-2], row[-2]) for row in rows if row[-2] not in "FX"]

    def with_signal(self, command: str, chain: Chain) -> str:
        """Run the task under timeout(1), because PBS sends no signal before a time limit."""
        if chain.seconds is None:
            return command
        return f"timeout --preserve-status --signal=USR1 {chain.seconds - chain.lead} {command}"

    def after(self, condition: str) -> str:
        """PBS deletes a job whose condition can no longer be met."""
        return f'-W depend="{condition}"'
