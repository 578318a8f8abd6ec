#!/bin/bash
# Submits the jobs as a chain, each after the previous one. If one is refused, or on Ctrl-C, it cancels all.
set -Eeuo pipefail
cd -- @JOBS@
record=$PWD/submitted unknown=@UNKNOWN_JOB@
if [ -e "$record" ]; then
  while IFS=$'\t' read -r name id _ cluster; do
    [ -z "$cluster" ] || export SLURM_CLUSTERS="$cluster"
    if found=$(@STATES@ "$id" 2> /dev/null); then  # without warnings
      if [ -n "$found" ]; then
        echo "$name $id is still in the queue; to cancel this chain, run: prep cancel "@OUT@ >&2
        exit 1
      fi
    elif problem=$(@STATES@ "$id" 2>&1) || ! [[ $problem =~ $unknown ]]; then
      echo "$name $id may still be in the queue: $problem; run this again when the batch system answers" >&2
      exit 1
    fi
  done < "$record"
fi
[ ! -L "$record" ] || { echo "$record: is a link, through which this would write elsewhere; remove it" >&2; exit 1; }
: > "$record"
# Inside an allocation of Slurm, such as that of salloc, its variables would contradict those of the new jobs.
for name in ${SLURM_JOB_ID:+"${!SLURM_@}"}; do
  case $name in SLURM_CONF | SLURM_CLUSTERS) ;; *) unset "$name" ;; esac
done
jobs=() stopped=
undo() { # starts with the last job, which waits for the others
  trap - ERR
  local kept=
  for ((i = ${#jobs[@]} - 1; i >= 0; i--)); do
    @CANCEL@ "${jobs[i]}" || { kept=yes; echo "could not cancel ${jobs[i]}" >&2; }
  done
  [ -n "$kept" ] || rm "$record"  # prep cancel needs it
}
trap undo ERR
trap stopped=yes INT TERM HUP
check() { # between two commands of the batch system, so that no id gets lost
  [ -z "$stopped" ] || { undo; echo "stopped; the jobs so far are cancelled" >&2; exit 130; }
}
submit() { # NAME [OPTION...] SCRIPT
  check
  id=$(trap - ERR; trap '' INT TERM HUP; @SUBMIT@ "${@:2}")
  cluster=
  [[ $id != *";"* ]] || export SLURM_CLUSTERS="${id#*;}" cluster="${id#*;}"  # Slurm may print ID;CLUSTER
  id=${id%%;*}
  jobs+=("$id")
  printf '%s\t%s\t@SCHEDULER@\t%s\n' "$1" "$id" "$cluster" >> "$record"
}
submit plan @HOLD@ @PLAN@  # held until the chain is complete
plan=$id
@OTHER_JOBS@
for id in "${jobs[@]}"; do
  @SHOW@ "$id" > /dev/null || {
    echo "job $id was accepted but is not in the queue; the other jobs of the chain are cancelled" >&2
    false
  }
done
check
@RELEASE@ "$plan"
echo "${jobs[*]}"
