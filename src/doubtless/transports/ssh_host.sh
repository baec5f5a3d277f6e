# One conversation. It is read from standard input, says who it is, and then answers orders, a line
# each. When the link breaks it ends; what it started does not.

mask=$(umask)
umask 077
# Caught, and not ignored: what is ignored here would stay so in the commands that are run.
trap : HUP PIPE
[ -n "$base" ] || base=$HOME/.local/state/doubtless
folder=$base/$ref

raw() {
  say "raw $1"
  shift
  "$@" 2>/dev/null </dev/null
  code=$?
  say
  say "$nonce $code"
}

first_part() { [ ! -f "$1" ] || dd if="$1" bs="$kept_bytes" count=1; }

# Make the place for markers, and be sure that it can be written to.
prepare() {
  why=$({ mkdir -p "$base/locks" && printf '%s\n' probe >"$base/probe.$$" &&
    rm -f "$base/probe.$$"; } 2>&1 | tr '\n' ' ')
  [ -z "$why" ] || { say "unwritable $why"; return; }
  [ -h "$base/id" ] || {
    ln -s "$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')" "$base/id" 2>/dev/null
    saved "$base"
  }
}

tell_run() {
  living=$(lives "$run")
  here=$folder/run.$run_number
  shown=
  for each in "$here"/step.*; do
    [ -d "$each" ] || continue
    shown=$each
    say "step ${each##*/step.} $(cat "$each/exit" 2>/dev/null || say -)" \
      "$(cat "$each/digest" 2>/dev/null || say -)"
  done
  # Asked for last: a run that ended meanwhile is not taken for one that died.
  if [ -f "$here/end" ]; then say "end $(cat "$here/end")"; else say "alive $living"; fi
  [ ! -e "$here/seen" ] || say seen
  [ -z "$shown" ] || {
    raw out first_part "$shown/out"
    raw err first_part "$shown/err"
  }
}

report() {
  say "base $base"
  found=$(linked "$base/id") && say "id $found"
  say "now $(clock)"
  number=0
  while claim=$(linked "$folder/claim.$((number + 1))"); do
    number=$((number + 1))
    say "claim $claim"
  done
  last_run "$folder"
  [ -z "$run" ] || tell_run
  if [ -n "$lock" ]; then
    found=$(linked "$base/locks/$lock") && say "lock $found"
    [ ! -h "$base/locks/$lock.over.$ref" ] || say taken
  fi
  missing
  say done
}

# Run the job apart from this conversation, and wait for it as long as the link lasts.
go() {
  job=$folder/job.$attempt
  { mkdir "$folder" || [ -d "$folder" ]; } 2>/dev/null && put "$job" "$job_text" 2>/dev/null ||
    { say 'ran 13'; return; }
  if command -v setsid >/dev/null 2>&1; then
    setsid sh "$job" "$base" own "$1" "$2" "$mask" </dev/null >/dev/null 2>&1 &
  else
    nohup sh "$job" "$base" shared "$1" "$2" "$mask" </dev/null >/dev/null 2>&1 &
  fi
  wait $!
  say "ran $?"
}

# End all processes of the run: what its command had done by then stays.
stop_run() {
  last_run "$folder"
  [ -n "$run" ] && [ ! -f "$folder/run.$run_number/end" ] && [ "$(lives "$run")" = yes ] || return
  [ "${run##*:}" = own ] || return
  leader=${run#run:*:}
  leader=${leader%%:*}
  kill -s TERM -- "-$leader" && say "signalled $leader"
  tries=0
  while [ "$tries" -lt 20 ] && [ "$(lives "$run")" = yes ]; do
    tries=$((tries + 1))
    [ "$tries" -ne 10 ] || kill -s KILL -- "-$leader"
    sleep 1
  done
}

begun=$(clock)
case $begun in '' | *[!0-9]*) begun=0 ;; esac
say "$nonce doubtless 1"
while read -r order one two; do
  case $order in
    prepare) prepare; report ;;
    report) report ;;
    status) raw status ask_status ;;
    go) go "$one" "$((begun + two))"; report ;;
    mark)
      # Only beside what is there, and only where that claim is free: nobody else's is replaced.
      { mkdir "$folder" || [ -d "$folder" ]; } 2>/dev/null
      ln -s "$two" "$folder/claim.$one" 2>/dev/null && saved "$folder" "$base"
      report
      ;;
    seen) last_run "$folder"; : >"$folder/run.$run_number/seen"; report ;;
    stop) stop_run; report ;;
    *) break ;;
  esac
done
