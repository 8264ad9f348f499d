set -uf
LC_ALL=C
export LC_ALL
unset http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY

#@values@

NEW_LINE='
'

# ── time: centiseconds since the machine started, from a clock that nobody sets ──

now() {
  read -r UP _ </proc/uptime
  NOW=${UP%.*}${UP#*.}
}

seconds() {
  printf '%d.%02d' $(($1 / 100)) $(($1 % 100))
}

has() {
  command -v "$1" >/dev/null 2>&1
}

# Runs a program for at most so many seconds; its exit code is 137 when they were too few. Not by `timeout`: that of busybox
# leaves a process behind which holds the output open, for a second or, when it is old, for the whole time.
within() {
  SECONDS_GIVEN=$1
  shift
  { "$@" <&5 5<&- & } 5<&0 # what runs in the background has no standard input of its own
  CHILD=$!
  (
    trap 'kill "${NAP:-}"; exit' TERM
    sleep "$SECONDS_GIVEN" &
    NAP=$!
    wait "$NAP"
    kill -KILL "$CHILD"
  ) </dev/null >/dev/null 2>&1 4>&- & # 4: where by_wget keeps its output, which would never end
  GUARD=$!
  { wait "$CHILD"; } 2>/dev/null
  ENDED=$?
  kill "$GUARD" 2>/dev/null
  return "$ENDED"
}

# ── log: never waits for a pipe that is full ──

say() {
  LINE="epp drain: $1"
  if [ "$LOG" = - ]; then
    # shellcheck disable=SC2016 # the inner shell expands it
    within 1 sh -c 'printf "%s\n" "$1"' sh "$LINE" 2>/dev/null || LOG=
  elif [ -n "$LOG" ]; then
    # shellcheck disable=SC2016
    within 1 sh -c 'printf "%s\n" "$1" >>"$2"' sh "$LINE" "$LOG" 2>/dev/null || LOG=
  fi
}

# Says what a source says when it is of another kind than before.
say_change() { # number of the source, its name, kind, sentence
  eval "KIND=\${said_$1:-}"
  if [ "$KIND" != "$3" ]; then
    eval "said_$1=\$3"
    say "$2: $4"
  fi
}

# ── HTTP: each client prints the body and then, on a line of its own, the status, or refused, late or failed ──

by_curl() { # method, URL, seconds, token
  {
    if [ -n "$4" ]; then printf 'header = "authorization: Bearer %s"\n' "$4"; fi
    if [ "$1" = POST ]; then printf 'header = "content-length: 0"\n'; fi
  } | within "$3" curl -q -K - -s -g --noproxy '*' -X "$1" --max-time "$3" --max-filesize "$MOST_BYTES" \
    -H 'accept: text/plain, */*;q=0.1' -w '\n%{http_code}' "$2"
  case $? in
    0) ;;
    7) printf '\nrefused' ;;
    28 | 137) printf '\nlate' ;;
    *) printf '\nfailed' ;;
  esac
}

by_python3() {
  printf '%s' "$4" | within "$3" python3 -c "$PYTHON_CALL" "$1" "$2" "$3" "$MOST_BYTES" 2>/dev/null
  case $? in
    0) ;;
    137) printf '\nlate' ;;
    *) printf '\nfailed' ;;
  esac
}

by_bash() {
  printf '%s\n' "$4" | within "$3" bash -c "$BASH_CALL" bash "$1" "$2" "$MOST_BYTES" 2>/dev/null
  case $? in
    0) ;;
    7) printf '\nrefused' ;;
    137) printf '\nlate' ;;
    *) printf '\nfailed' ;;
  esac
}

by_wget() {
  WITHIN=$3
  URL_ASKED=$2
  TOKEN_SENT=$4
  if [ "$1" = POST ]; then set -- --post-data=; else set --; fi
  if [ -n "$TOKEN_SENT" ]; then set -- "$@" "--header=authorization: Bearer $TOKEN_SENT"; fi
  if [ -n "$WGET_IS_GNU" ]; then set -- "$@" -nv -t 1 --max-redirect=0; else set -- "$@" -q; fi
  { ERRORS=$(within "$WITHIN" wget "$@" -S -O - "$URL_ASKED" 2>&1 >&4); } 4>&1
  RESULT=$?
  ANSWERED=
  case $ERRORS in
    *HTTP/1.*)
      ANSWERED=${ERRORS##*HTTP/1.}
      ANSWERED=${ANSWERED#* }
      ANSWERED=${ANSWERED%%[!0-9]*}
      ;;
  esac
  case $RESULT,$ANSWERED,$ERRORS in
    0,[0-9]*,* | *,[1345]??,* | *,20[1-9],*) printf '\n%s' "$ANSWERED" ;;
    137,*) printf '\nlate' ;;
    *refused*) printf '\nrefused' ;;
    *) printf '\nfailed' ;;
  esac
}

by_client() {
  case $CLIENT in
    curl) by_curl "$@" ;;
    python3) by_python3 "$@" ;;
    bash) by_bash "$@" ;;
    wget) by_wget "$@" ;;
    *) printf '\nfailed' ;;
  esac
}

choose_client() {
  WGET_IS_GNU=
  if has wget && wget --version >/dev/null 2>&1; then WGET_IS_GNU=yes; fi
  CLIENT=nothing
  # wget last when there is a token, since it shows it to whoever may list processes.
  if [ -n "$TOKEN" ]; then set -- curl python3 bash wget; else set -- curl wget python3 bash; fi
  for TOOL in "$@"; do
    if has "$TOOL"; then
      CLIENT=$TOOL
      return
    fi
  done
  say 'expected curl, wget, python3 or bash here, found none: can ask nobody'
}

call() { # method, URL, token; sets STATUS and BODY
  now
  LIMIT=$((BEGAN + MAX_WAIT - NOW))
  if [ "$LIMIT" -gt "$CALL_LIMIT" ]; then LIMIT=$CALL_LIMIT; fi
  if [ "$LIMIT" -lt 10 ]; then LIMIT=10; fi
  # A client whose page is cut by head may say so on standard error, since nobody ends it by SIGPIPE.
  ANSWER=$(by_client "$1" "$2" "$(seconds "$LIMIT")" "$3" 2>/dev/null | head -c "$MOST_BYTES" | tr -d '\000')
  BODY=
  STATUS=failed
  if [ "${#ANSWER}" -ge "$MOST_BYTES" ]; then return; fi # looking for its last line may take minutes
  STATUS=${ANSWER##*"$NEW_LINE"}
  BODY=${ANSWER%"$NEW_LINE"*}
  case $STATUS in
    [1-5][0-9][0-9] | refused | late) ;;
    *) STATUS=failed ;;
  esac
}

# ── the endpoint pickers: told again each time, since one that was restarted has forgotten ──

told_by_picker() { # number, name, requests
  eval "known_$1=yes count_$1=$3"
  if [ "$3" = 0 ]; then say_change "$1" "$2" idle 'no requests'; else say_change "$1" "$2" busy "$3 requests"; fi
}

silent_picker() { # number, name, HTTP status
  case $3 in
    refused | failed) WHY='it cannot be reached' ;;
    late) WHY='it does not answer in time' ;;
    400) WHY='it does not understand the call (400)' ;;
    401 | 403) WHY="it does not allow it ($3): the token is missing or wrong, or it is not this pod's address" ;;
    *) WHY="it answers $3" ;;
  esac
  say_change "$1" "$2" "$WHY" "$WHY"
}

# Says that an endpoint drains and asks for the count; prints one line: number of the source and `told:REQUESTS`, `unknown:`,
# `starting:` or `silent:STATUS`.
ask_picker() { # number, URL, endpoint
  call POST "$2/api/v1/endpoints/$3/drain?keep=$KEEP" "$TOKEN"
  SAYS=silent:$STATUS
  case $STATUS in
    404)
      call GET "$2/readyz" ''
      SAYS=starting:
      if [ "$STATUS" = 200 ]; then SAYS=unknown:; fi
      ;;
    200)
      call GET "$2/api/v1/endpoints/$3/drained?timeout=0s" "$TOKEN"
      case $STATUS in
        200) SAYS=told:0 ;;
        202)
          COUNT=${BODY#*\"in_flight_requests\":}
          COUNT=${COUNT# }
          COUNT=${COUNT%%[!0-9]*}
          case $COUNT in '' | 0 | ??????????*) COUNT=1 ;; esac # old wgets of busybox show no body beside 202
          SAYS=told:$COUNT
          ;;
        *) SAYS=silent:$STATUS ;;
      esac
      ;;
  esac
  printf '%s\n' "$1:$SAYS"
}

hear_picker() { # number, name, what it says
  case $3 in
    unknown:)
      eval "UNKNOWN=\$((\${unknown_$1:-0} + 1))"
      eval "unknown_$1=\$UNKNOWN"
      if [ "$UNKNOWN" -ge 2 ]; then eval "known_$1=yes"; fi # a count that was told before holds
      WHY='it does not know this endpoint'
      say_change "$1" "$2" "$WHY" "$WHY"
      return
      ;;
    starting:)
      WHY='it is not ready and does not know this endpoint yet'
      say_change "$1" "$2" "$WHY" "$WHY"
      ;;
    told:*) told_by_picker "$1" "$2" "${3#told:}" ;;
    *) silent_picker "$1" "$2" "${3#silent:}" ;;
  esac
  eval "unknown_$1=0"
}

# All at once: one that does not answer must not keep the others from hearing that this endpoint drains.
ask_pickers() { # sets PICKERS
  SAID_BY_PICKERS=$(
    NUMBER=0
    for PICKER in $PICKER_URLS; do
      for ENDPOINT in $ENDPOINTS; do
        NUMBER=$((NUMBER + 1))
        ask_picker "$NUMBER" "$PICKER" "$ENDPOINT" &
      done
    done
    wait
  )
  PICKERS=0
  for PICKER in $PICKER_URLS; do
    for ENDPOINT in $ENDPOINTS; do
      PICKERS=$((PICKERS + 1))
      SAYS=silent:failed
      for EACH in $SAID_BY_PICKERS; do
        if [ "${EACH%%:*}" = "$PICKERS" ]; then SAYS=${EACH#*:}; fi
      done
      hear_picker "$PICKERS" "$PICKER about $ENDPOINT" "$SAYS"
    done
  done
}

# ── the engine's page ──

server_refuses() {
  call GET "$URL/" ''
  [ "$STATUS" = refused ]
}

numbers_on_page() { # kind of page; sets WAITING, RUNNING and FORM
  WAITING=- RUNNING=- FORM=page
  if has awk; then
    NUMBERS=$(printf '%s\n' "$BODY" | within 5 awk -v form="$1" "$AWK_PAGE")
  elif has python3; then
    NUMBERS=$(printf '%s\n' "$BODY" | within 5 python3 -c "$PYTHON_PAGE" "$1" "$TERMS")
  else
    NUMBERS=
  fi
  case $NUMBERS in
    *' '*' '*)
      WAITING=${NUMBERS%% *}
      FORM=${NUMBERS##* }
      RUNNING=${NUMBERS#* }
      RUNNING=${RUNNING%% *}
      ;;
  esac
}

# Reads one page; sets PAGE to told (with REQUESTS), late, gone or silent (with WHY).
read_page() { # kind, URL
  call GET "$2" ''
  PAGE=silent
  case $STATUS in
    200)
      numbers_on_page "$1"
      if [ "$RUNNING" != - ] && [ "$WAITING" != - ]; then
        PAGE=told
        REQUESTS=$WAITING+$RUNNING
        if [ "$WAITING" = 0 ]; then REQUESTS=$RUNNING; elif [ "$RUNNING" = 0 ]; then REQUESTS=$WAITING; fi
      elif [ "$RUNNING" != - ]; then
        PAGE=told REQUESTS=$RUNNING
      elif [ "$WAITING" != - ] && { [ "$WAITING" != 0 ] || [ -z "$NEEDS_RUNNING" ]; }; then
        PAGE=told REQUESTS=$WAITING
      elif [ "$FORM" = blank ] && [ -n "$BLANK_IS_IDLE" ]; then
        PAGE=told REQUESTS=0
      else
        WHY='the page does not say how many requests run'
      fi
      ;;
    late) PAGE=late ;;
    refused)
      WHY='nothing listens at the port of the page'
      if server_refuses; then PAGE=gone; fi
      ;;
    failed) WHY='there is no whole page' ;;
    *) WHY="the page answers $STATUS" ;;
  esac
}

ask_page() {
  if [ -z "$SERVER_KNOWN" ]; then
    PAGE=silent
    WHY='no engine is named'
  elif [ -z "$PAGES" ]; then
    PAGE=silent
    WHY='this engine tells no load'
    if server_refuses; then PAGE=gone; fi
  else
    FIRST=
    for EACH in $PAGES; do
      read_page "${EACH%%|*}" "${EACH#*|}"
      if [ "$PAGE" = told ]; then
        PAGES=$EACH # once one has told something, only that
        FIRST=
        break
      elif [ "$PAGE" = gone ]; then
        FIRST=
        break
      elif [ -z "$FIRST" ]; then
        FIRST=$PAGE
        FIRST_WHY=${WHY:-}
      fi
    done
    if [ -n "$FIRST" ]; then
      PAGE=$FIRST
      WHY=$FIRST_WHY
    fi
  fi
  PAGE_BUSY=
  case $PAGE in
    told)
      PAGE_SPOKE=yes
      if [ "$REQUESTS" = 0 ]; then
        say_change page "the engine's page" idle 'no requests'
      else
        PAGE_BUSY=yes
        SAW_LOAD=yes
        say_change page "the engine's page" busy "$REQUESTS requests"
      fi
      ;;
    late)
      PAGE_SPOKE=yes
      PAGE_BUSY=yes
      say_change page "the engine's page" late 'it does not answer in time, so it is probably busy'
      ;;
    gone) say_change page "the engine's page" gone 'the server refuses connections' ;;
    silent)
      PAGE_BUSY=$PAGE_SPOKE
      say_change page "the engine's page" "$WHY" "$WHY"
      ;;
  esac
}

# ── the decision; epp/drain/idle_watch.py has the same ──

judge() { # centiseconds since the wait began; sets DONE and VERDICT
  DONE=
  KNOWN=
  COUNTED=
  NUMBER=0
  while [ "$NUMBER" -lt "$PICKERS" ]; do
    NUMBER=$((NUMBER + 1))
    eval "KNOWN=\$KNOWN\${known_$NUMBER:-} COUNT=\${count_$NUMBER:-0}"
    if [ "$COUNT" != 0 ]; then COUNTED=yes; fi
  done
  GONE=
  if [ "$PAGE" = gone ]; then GONE=yes; fi
  BUSY=
  if [ -n "$GONE" ] && [ -n "$PAGE_SPOKE" ]; then
    :
  elif [ -n "$PAGE_BUSY" ]; then
    BUSY="busy by the engine's page"
  elif [ -n "$COUNTED" ]; then
    BUSY="busy by the endpoint picker's count"
  elif [ -n "$PAGE_SPOKE" ] && [ -n "$PAGE_FREEZES" ] && [ -z "$SAW_LOAD$KNOWN" ]; then
    BUSY="the engine's page may stand still while a request runs, and no endpoint picker tells more"
  fi
  if [ "$1" -lt "$MIN_WAIT" ]; then
    VERDICT="waits at least $(seconds "$MIN_WAIT") s"
  elif [ -n "$BUSY" ]; then
    IDLE=0
    VERDICT=$BUSY
  elif [ -z "$GONE$PAGE_SPOKE$KNOWN" ]; then
    DONE=yes
    VERDICT='neither an endpoint picker nor the engine tells of requests, so only the minimum was waited'
  else
    if [ "$IDLE" = 0 ]; then IDLE_SINCE=$1; fi
    IDLE=$((IDLE + 1))
    SPAN=0
    if [ -n "$PAGE_SPOKE" ] && [ -z "$GONE" ]; then SPAN=$PAGE_LAG; fi
    VERDICT='idle so far'
    if [ "$IDLE" -ge "$IDLE_SAMPLES" ] && { [ "$SPAN" = 0 ] || [ $(($1 - IDLE_SINCE)) -gt "$SPAN" ]; }; then
      DONE=yes
      VERDICT=idle
      if [ -n "$GONE" ]; then VERDICT="nothing listens at the model server's port"; fi
    fi
  fi
}

# ── what to start with ──

choose_log() {
  LOG=$LOG_FILE
  if [ -z "$LOG" ]; then LOG=/proc/1/fd/1; fi
  # A pipe that nobody reads must not hold this either.
  # shellcheck disable=SC2016
  if ! within 1 sh -c ': >>"$1"' sh "$LOG" 2>/dev/null; then LOG=-; fi
}

read_token() {
  TOKEN=
  if [ -z "$TOKEN_FILE" ]; then return; fi
  TOKEN=$(within 1 head -c 4097 "$TOKEN_FILE" 2>/dev/null | tr -d '\000\r\n')
  case $TOKEN in
    '' | *[!A-Za-z0-9._~+/=:-]*)
      TOKEN=
      say "--epp-token-file $TOKEN_FILE: expected a token, found none; goes on without"
      ;;
  esac
  if [ "${#TOKEN}" -gt 4096 ]; then TOKEN=; fi
}

own_endpoint() {
  IP=${POD_IP:-}
  if [ -z "$IP" ] && [ -r /proc/sys/kernel/hostname ] && [ -r /etc/hosts ]; then
    read -r OWN_NAME </proc/sys/kernel/hostname
    while read -r ADDRESS NAMES; do
      case " $NAMES " in *" $OWN_NAME "*) IP=$ADDRESS ;; esac
    done </etc/hosts
  fi
  if [ -z "$IP" ]; then IP=127.0.0.1; fi
  case $IP in *:*) IP="[$IP]" ;; esac
  ENDPOINTS=$IP:$PORT
}

wait_until_idle() {
  PAGE_SPOKE='' SAW_LOAD='' IDLE=0 IDLE_SINCE=0 PICKERS=0
  while :; do
    now
    AT=$((NOW - BEGAN))
    if [ "$AT" -ge "$MAX_WAIT" ]; then
      say "gives up after $(seconds "$AT") s, ${VERDICT:-nothing is known}"
      return
    fi
    ask_pickers
    ask_page
    judge "$AT"
    now
    if [ -n "$DONE" ]; then
      say "done after $(seconds $((NOW - BEGAN))) s: $VERDICT"
      return
    fi
    NEXT=$((AT + INTERVAL))
    if [ "$NEXT" -gt "$MAX_WAIT" ]; then NEXT=$MAX_WAIT; fi
    PAUSE=$((BEGAN + NEXT - NOW))
    if [ "$PAUSE" -gt 0 ]; then
      sleep "$(seconds "$PAUSE")" &
      wait "$!"
    fi
  done
}

trap 'exit 0' EXIT
trap 'say "ends early: told to by a signal"; exit 0' TERM INT
trap '' PIPE
now
BEGAN=$NOW
choose_log
read_token
choose_client
if [ -z "$ENDPOINTS" ]; then own_endpoint; fi
say "$ENGINE drains${PICKER_URLS:+, tells $PICKER_URLS about $ENDPOINTS}; waits $(seconds "$MIN_WAIT") to $(seconds "$MAX_WAIT") s (asks by $CLIENT)"
wait_until_idle
exit 0
