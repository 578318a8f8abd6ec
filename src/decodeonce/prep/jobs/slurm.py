"""What Slurm wants written."""

from __future__ import annotations

from decodeonce.prep.jobs.base import Chain, Job, clock
from decodeonce.prep.jobs.site import Site


class Slurm:
    """sbatch: https://slurm.schedmd.com/sbatch.html."""

    suffix = ".slurm"
    submit = "sbatch --parsable"
    hold = "--hold"
    release = "scontrol release"
    show = "scontrol show job"
    cancel = "scancel"
    with_store = "--export=ALL "  # the default, but for sites and scripts that say otherwise
    unfit = "%\\"  # replaced also in the path of the folder; with a backslash nothing is, and all logs are one

    def head(self, job: Job, site: Site, chain: Chain) -> list[str]:
        """#SBATCH lines; no path stands in them, where blanks, quotes and % would have meanings of sbatch's own."""
        options = [
            f"--job-name=prep-{job.name}",
            f"--output={job.name}-%A_%a.log" if job.array else f"--output={job.name}-%j.log",
            "--open-mode=append",  # else a task that runs again after its node was lost begins its log anew
            "--requeue",
            f"--nodes={job.nodes}",
            "--ntasks-per-node=1",
            f"--cpus-per-task={job.cpus}",
            *([f"--mem={chain.mem}"] if chain.mem else []),
            *([f"--time={clock(chain.seconds)}"] if chain.seconds else []),
            *([f"--account={chain.account}"] if chain.account else []),
            *([f"{site.queue_flag}={chain.queue}"] if chain.queue else []),
        ]
        if job.array:
            options.append(f"--array=0-{chain.tasks - 1}" + (f"%{chain.max_running}" if chain.max_running else ""))
            # to the command that the script becomes, or to the processes that srun starts
            options += [f"--signal={'' if job.nodes > 1 else 'B:'}USR1@{chain.lead}"] if chain.seconds else []
        return [f"#SBATCH {option}" for option in (*options, *site.directives)]

    def warned(self, command: str, chain: Chain) -> str:
        """The command itself: Slurm sends the signal that the directives ask for."""
        return command

    def after(self, condition: str) -> str:
        """By default a job whose condition can come true no more stays in the queue for ever."""
        return f'--dependency="{condition}" --kill-on-invalid-dep=yes'
