"""What PBS (OpenPBS, PBS Professional) wants written."""

from __future__ import annotations

from decodeonce.prep.jobs.base import Chain, Job, clock
from decodeonce.prep.jobs.site import Site


class PBS:
    """qsub, as in the PBS Professional Reference Guide; a job's log is NAME.oID.INDEX in the folder of qsub."""

    suffix = ".pbs"
    submit = "qsub"
    hold = "-h"
    release = "qrls"
    show = "qstat"
    cancel = "qdel"
    with_store = "-v STORE "  # by name alone: its value may have commas
    unfit = ""

    def head(self, job: Job, site: Site, chain: Chain) -> list[str]:
        """#PBS lines; no path stands in them."""
        memory = f":mem={chain.mem.lower()}b" if chain.mem else ""
        options = [
            f"-N prep-{job.name}",
            "-j oe",
            "-r y",
            f"-l select={job.nodes}:ncpus={job.cpus}:mpiprocs=1{memory}",
            *([f"-l walltime={clock(chain.seconds)}"] if chain.seconds else []),
            *([f"-A {chain.account}"] if chain.account else []),
            *([f"{site.queue_flag} {chain.queue}"] if chain.queue else []),
        ]
        if job.array and chain.tasks > 1:  # PBS knows no array of one
            options.append(f"-J 0-{chain.tasks - 1}" + (f"%{chain.max_running}" if chain.max_running else ""))
        if job.nodes > 1 and not any("place=" in directive for directive in site.directives):
            options.append("-l place=scatter")  # by default PBS may put all chunks of `select` on one host
        return [f"#PBS {option}" for option in (*options, *site.directives)]

    def warned(self, command: str, chain: Chain) -> str:
        """PBS sends no signal before a limit, so timeout(1) does."""
        if chain.seconds is None:
            return command
        return f"timeout --preserve-status --signal=USR1 {chain.seconds - chain.lead} {command}"

    def after(self, condition: str) -> str:
        """PBS itself deletes a job whose condition can come true no more."""
        return f'-W depend="{condition}"'
