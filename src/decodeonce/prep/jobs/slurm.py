"""Directives and commands of Slurm."""

from __future__ import annotations

from decodeonce.prep.jobs.base import Chain, Job, Site, clock

MAIL_TYPES = {"plan": "FAIL", "finish": "END,FAIL"}


class Slurm:
    """The commands and options of Slurm, see https://slurm.schedmd.com/sbatch.html.

    The comments say what the attributes mean for every batch system.
    """

    suffix = ".slurm"
    queue_flag = "--partition"  # option for the name of a queue, unless the site has another one
    submit = "sbatch --parsable"  # prints the id of the job it submits
    hold = "--hold"  # option that keeps a job from starting until `release`
    release = "scontrol release"
    show = "scontrol show job"  # fails if the job is not in the queue
    cancel = "scancel"
    states = "squeue -h -r -o %T,%r -j"  # prints a line for each element that has not ended, for `parse_states`
    unknown_job = "Invalid job id"  # what `states` prints about a job that has left the queue
    # Condition of a further round on the earlier rounds. In Slurm, an array is not ok if an element failed. If no
    # element did, nothing needs the round, and Slurm cancels it.
    again = "afternotok"
    # Option that passes the variable STORE to a job. ALL is the default, but sites and scripts may change it.
    with_store = "--export=ALL "
    # Characters that the path of a log must not have. Slurm replaces % patterns in the whole path; with a backslash it
    # replaces none, so all jobs share a log.
    forbidden = "%\\"
    logs = ("*-{number}.log", "*-{number}_*.log")  # names of what a job prints, with the number of its id
    forbidden_in_script = ""  # characters that the path of a script must not have

    def head(self, job: Job, site: Site, chain: Chain) -> list[str]:
        """Return the directives of a job script.

        They contain no path, because sbatch would interpret spaces, quotes and % in it.
        """
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
        return [f"#SBATCH {option}" for option in (*options, *site.directives_of(job.array), *chain.directives)]

    def parse_states(self, printed: str) -> list[str]:
        """Return the state of each element, such as "waiting" for another job, "pending (Resources)" or "running"."""
        found = []
        for line in printed.splitlines():
            state, _, reason = line.partition(",")
            text = f"{state.lower()} ({reason})" if state == "PENDING" and reason != "None" else state.lower()
            found.append("waiting" if reason == "Dependency" else text)
        return found

    def with_signal(self, command: str, chain: Chain) -> str:
        """Return the shell command that runs a task and sends it SIGUSR1 shortly before its time limit.

        The directives already make Slurm send the signal.
        """
        return command

    def after(self, condition: str) -> str:
        """Return the options that make a job wait for a condition such as "afterok:1,afterany:2:3".

        If the condition can no longer be met, the job never runs. By default, Slurm would keep it in the queue forever.
        """
        return f'--dependency="{condition}" --kill-on-invalid-dep=yes'
