"""Directives and commands of Slurm."""

from __future__ import annotations

from decodeonce.prep.jobs.base import Chain, Job, clock
from decodeonce.prep.jobs.site import Site

MAIL_TYPES = {"plan": "FAIL", "finish": "END,FAIL"}


class Slurm:
    """Slurm, see https://slurm.schedmd.com/sbatch.html."""

    suffix = ".slurm"
    submit = "sbatch --parsable"
    hold = "--hold"
    release = "scontrol release"
    show = "scontrol show job"
    cancel = "scancel"
    states = "squeue -h -r -o %T,%r -j"
    unknown_job = "Invalid job id"
    again = "afternotok"  # an array is not ok if an element failed; Slurm then cancels a round that nothing needs
    with_store = "--export=ALL "  # the default, but sites and scripts may change it
    # Slurm replaces % patterns in the whole path of a log; with a backslash it replaces none, so all jobs share a log.
    forbidden = "%\\"
    forbidden_in_script = ""

    def head(self, job: Job, site: Site, chain: Chain) -> list[str]:
        """Return the #SBATCH lines. They contain no path, in which sbatch would interpret spaces, quotes and %."""
        options = [
            f"--job-name={job.shown_name}",
            f"--output={job.name}-%A_%a.log" if job.array else f"--output={job.name}-%j.log",
            "--open-mode=append",  # otherwise a requeued task overwrites its log
            "--requeue",
            f"--nodes={job.nodes}",
            "--ntasks-per-node=1",
            f"--cpus-per-task={job.cpus}",
            *([f"--mem={chain.mem}"] if chain.mem else []),
            *([f"--time={clock(chain.seconds)}"] if chain.seconds else []),
            *([f"--account={chain.account}"] if chain.account else []),
            *([f"{site.queue_flag}={chain.queue}"] if chain.queue else []),
            *([f"--mail-user={chain.mail}"] if chain.mail else []),
        ]
        if chain.mail:
            options.append(f"--mail-type={MAIL_TYPES.get(job.name, 'NONE')}")
        if job.array:
            options.append(f"--array=0-{chain.tasks - 1}" + (f"%{chain.max_running}" if chain.max_running else ""))
            # B: signals the command that replaces the script. Without it, the processes of srun get the signal.
            options += [f"--signal={'' if job.nodes > 1 else 'B:'}USR1@{chain.lead}"] if chain.seconds else []
        return [f"#SBATCH {option}" for option in (*options, *site.directives_of(job.array))]

    def parse_states(self, printed: str) -> list[str]:
        """Parse the lines STATE,REASON."""
        lines = printed.splitlines()  # a reason may have spaces
        return ["waiting" if "PENDING,Dependency" in line else line.split(",")[0].lower() for line in lines]

    def with_signal(self, command: str, chain: Chain) -> str:
        """Return the command itself, because the directives make Slurm send the signal."""
        return command

    def after(self, condition: str) -> str:
        """Cancel a job whose condition can no longer be met; by default it stays in the queue forever."""
        return f'--dependency="{condition}" --kill-on-invalid-dep=yes'
