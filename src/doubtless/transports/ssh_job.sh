# One run, apart from every conversation. Its arguments: the folder of markers, whether its process
# group is its own, the number of the first step, until when it may begin by this host's clock, and
# the mask for what the steps make.
# It ends with 0 when it ran; 10 voided, 11 locked, 12 begun before, 13 can't write, 14 lock taken
# over, 15 too late: nothing was run then.

umask 077
base=$1 group=$2 first=$3 until=$4 mask=$5 took=''
folder=$base/$ref

# What machines read: always whole, by a name that never changes.
note() {
  put "$folder/status" "{\"operation\":\"$id\",\"reference\":\"$ref\",\"attempt\":$attempt,\
\"phase\":\"$1\",\"step\":$2,\"pid\":$$,\"begun\":$begun,\"ended\":$3,\"exit\":$4,\"output\":$5}"
}

digest() {
  for tool in sha256sum 'shasum -a 256' 'openssl dgst -sha256 -r'; do
    found=$($tool <"$1" 2>/dev/null) || continue
    say "sha256:${found%% *}"
    return
  done
  found=$(cksum <"$1")
  say "cksum:${found%% *}"
}

release_lock() {
  [ -n "$lock" ] || return 0
  case $(linked "$base/locks/$lock") in "$ref":*) rm -f "$base/locks/$lock" ;; esac
}

# End before anything was run. A lock that an earlier run of this operation has stays.
leave() {
  [ -z "$took" ] || release_lock
  exit "$1"
}

take_lock() {
  [ -n "$lock" ] || return 0
  [ ! -h "$base/locks/$lock.over.$ref" ] || exit 14
  until ln -s "$ref:$(($(clock) + lock_s)):$id" "$base/locks/$lock" 2>/dev/null; do
    found=$(linked "$base/locks/$lock") || exit 13
    case $found in "$ref":*) return ;; *) exit 11 ;; esac
  done
  took=yes
}

# Of all who come, one makes the next claim. A void one stops those that it was made against.
take_claim() {
  number=1
  until ln -s "run:$attempt:$$:$(started $$):$(boot):$(space):$group" \
    "$folder/claim.$number" 2>/dev/null; do
    found=$(linked "$folder/claim.$number") || leave 13
    case $found in
      run:*)
        linked "$folder/claim.$((number + 1))" >/dev/null || leave 12
        ;;
      *) [ "${found#*:}" -lt "$attempt" ] || leave 10 ;;
    esac
    number=$((number + 1))
  done
}

# Free a lock whose time is over and whose holder runs no more. What it was stays beside it.
take_over() {
  held=$(linked "$base/locks/$1") || { say "the lock $1 is not held"; return 3; }
  holder=${held%%:*} rest=${held#*:}
  expires=${rest%%:*} holder_id=${rest#*:}
  [ "$2" = "$holder_id" ] || [ "$2" = "$holder" ] ||
    { say "the lock $1 is held by $holder_id, not by $2"; return 3; }
  [ "$(clock)" -gt "$expires" ] ||
    { say "the lock $1 is held by $holder_id until $expires"; return 3; }
  (
    last_run "$base/$holder"
    [ -z "$run" ] || [ -f "$base/$holder/run.$run_number/end" ] || [ "$(lives "$run")" = no ]
  ) || { say "$holder_id, which holds the lock $1, may still run"; return 3; }
  ln -s "$ref" "$base/locks/$1.over.$holder" 2>/dev/null ||
    { say "the lock $1 is being taken over by $(linked "$base/locks/$1.over.$holder")"; return 3; }
  mv -f "$base/locks/$1" "$base/locks/$1.was.$holder" || return 1
  saved "$base/locks"
  say "taken over from $holder_id, whose time was over at $expires"
}

# One step under a marker of its own. Own functions are called, everything else is a program.
step() {
  index=$1 name=$2 how=$3
  shift 3
  [ "$index" -ge "$first" ] || return 0
  here=$folder/run.$number/step.$index.$name
  { mkdir "$here" && : >"$here/out" && : >"$here/err"; } || exit 1
  note running "\"$name\"" null null null
  saved "$here" "$folder/run.$number" "$folder/status" "$folder"
  if [ "$how" = own ]; then
    "$@" </dev/null >>"$here/out" 2>>"$here/err"
  else
    (
      umask "$mask"
      exec env DOUBTLESS_OPERATION_ID="$id" DOUBTLESS_CORRELATION_ID="$correlation" "$@"
    ) </dev/null >>"$here/out" 2>>"$here/err"
  fi
  code=$?
  sum=$(digest "$here/out")
  put "$here/digest" "$sum" && put "$here/exit" "$code" || exit 1
  saved "$here/digest" "$here/exit" "$here"
  return "$code"
}

run_job() {
  begun=$(clock) sum='' name=''
  case $begun in
    '' | *[!0-9]*) begun=null ;;
    *) [ "$begun" -le "$until" ] || exit 15 ;;
  esac
  take_lock
  take_claim
  mkdir "$folder/run.$number" || exit 12
  saved "$folder" "$base" "$base/locks"
  rm -f "$folder/job.$attempt"
  steps
  code=$?
  put "$folder/run.$number/end" "$code"
  ended=$(clock)
  case $ended in '' | *[!0-9]*) ended=null ;; esac
  note ended "\"$name\"" "$ended" "$code" "\"$sum\""
  saved "$folder/run.$number/end" "$folder/status" "$folder/run.$number" "$folder"
  release_lock
  exit 0
}
