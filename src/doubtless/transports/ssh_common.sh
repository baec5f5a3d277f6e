# What the conversation and the detached run have in common. POSIX shell alone: dash, busybox, bash.

say() { printf '%s\n' "$*"; }

# Links carry facts: one is made in one call, together with what it says, or not at all.
linked() {
  readlink "$1" 2>/dev/null && return
  [ -h "$1" ] || return 1
  set -- "$(ls -ld "$1")"
  say "${1##* -> }"
}

saved() { sync "$@" 2>/dev/null || sync; }

put() { printf '%s\n' "$2" >"$1.new" && mv -f "$1.new" "$1"; }

clock() { date +%s; }

boot() {
  found=$(cat /proc/sys/kernel/random/boot_id 2>/dev/null || sysctl -n kern.boottime 2>/dev/null)
  found=$(printf '%s' "$found" | tr -cd '0-9a-f-')
  say "${found:--}"
}

space() {
  found=$(readlink /proc/self/ns/pid 2>/dev/null | tr -cd '0-9')
  say "${found:--}"
}

# When a process began, in ticks since the host did; a number that was used again differs in it.
started() {
  { read -r found <"/proc/$1/stat"; } 2>/dev/null || { say -; return; }
  set -- ${found##*) }
  shift 19
  say "$1"
}

# Whether a process of group $1 lives. Those that only wait to be buried don't.
group() {
  if [ -r /proc/self/stat ]; then
    wanted=$1
    for each in /proc/[0-9]*/stat; do
      { read -r found <"$each"; } 2>/dev/null || continue
      set -- ${found##*) }
      [ "$1" = Z ] || [ "$3" != "$wanted" ] || { say yes; return; }
    done
    # Where others' processes are hidden, one of them may be in it.
    if [ -r /proc/1/stat ]; then say no; else say unsure; fi
  elif kill -s 0 -- "-$1" 2>/dev/null; then
    say yes
  elif found=$(ps -A -o pgid= 2>/dev/null) && [ -n "$found" ]; then
    for each in $found; do
      [ "$each" != "$1" ] || { say yes; return; }
    done
    say no
  else
    say unsure
  fi
}

# Whether anything lives of the run that a claim tells of: run:attempt:pid:started:boot:space:group.
lives() {
  old_ifs=$IFS
  IFS=:
  set -- $1
  IFS=$old_ifs
  now_boot=$(boot)
  if [ "$5" = - ] || [ "$now_boot" = - ]; then
    say unsure
  elif [ "$5" != "$now_boot" ]; then
    say no
  elif [ "$6" != "$(space)" ]; then
    say unsure
  else
    now_started=$(started "$3")
    if [ "$now_started" != - ] && [ "$now_started" != "$4" ]; then
      say no
    elif [ "$7" = own ]; then
      group "$3"
    elif [ "$now_started" != - ]; then
      say yes
    else
      say unsure
    fi
  fi
}

# The last claim of the folder $1 that tells of a run, and its number.
last_run() {
  number=0 run='' run_number=0
  while claim=$(linked "$1/claim.$((number + 1))"); do
    number=$((number + 1))
    case $claim in run:*) run=$claim run_number=$number ;; esac
  done
}
