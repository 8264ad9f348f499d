IFS= read -r token
method=$1 rest=${2#http://} most=$3
[ "$rest" != "$2" ] || exit 1
authority=${rest%%/*}
host=${authority%:*} port=${authority##*:} path=/${rest#*/}
host=${host#[} host=${host%]}
if ! error=$( (exec 3<>"/dev/tcp/$host/$port") 2>&1 ); then
  case $error in *refused*) exit 7 ;; esac
  exit 1
fi
exec 3<>"/dev/tcp/$host/$port" || exit 1
{
  printf "%s %s HTTP/1.0\r\nHost: %s\r\nAccept: text/plain, */*;q=0.1\r\nConnection: close\r\n" "$method" "$path" "$authority"
  [ "$method" = GET ] || printf "Content-Length: 0\r\n"
  [ -z "$token" ] || printf "Authorization: Bearer %s\r\n" "$token"
  printf "\r\n"
} >&3
IFS=" " read -r version status _ <&3
case $version in HTTP/*) ;; *) exit 1 ;; esac
length= carriage=$(printf "\r")
while IFS= read -r line <&3; do
  line=${line%"$carriage"}
  [ -n "$line" ] || break
  case $line in
    [Cc][Oo][Nn][Tt][Ee][Nn][Tt]-[Ll][Ee][Nn][Gg][Tt][Hh]:*) length=${line#*:} length=${length// /} ;;
    [Tt][Rr][Aa][Nn][Ss][Ff][Ee][Rr]-*) exit 1 ;;
  esac
done
[ -z "$length" ] || [ "$length" -lt "$most" ] || exit 1
body=$(head -c "${length:-$most}" <&3; printf x)
body=${body%x}
[ -z "$length" ] || [ "$length" = "${#body}" ] || exit 1
printf "%s\n%s" "$body" "${status%"$carriage"}"
