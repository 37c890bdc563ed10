#!/bin/sh
# Installs kernelbroker from the archive that this script came with. It uses no registry and no network.
#
#   sh install.sh [--prefix DIR] [--publish ADDRESS:PORT] [--plain] [--key FILE]
#   sh install.sh --check      only check the archive and this machine; changes nothing
#   sh install.sh --start      start what is installed again, for example after a change of settings.env
#   sh install.sh --uninstall [--prefix DIR] [--purge]
#
#   --prefix   the directory of settings, token, workspaces and sockets (/var/lib/kernelbroker). Keep it
#              short: a socket's path has at most 107 bytes.
#   --publish  the address of the broker for clients (127.0.0.1:8720)
#   --plain    use `docker run`, even if docker compose is installed
#   --key      the public key that must have signed the archive; get it from your supplier, not from the archive
#   --purge    remove shared/ and wheels/ as well, with the files that you have added
# A second run changes nothing. A run from another archive upgrades: it keeps token, settings and workspaces, and
# goes back to the version before if the new one does not come up.
set -eu

prefix=/var/lib/kernelbroker
publish=
plain=
key=
purge=
task=install
healthy_s=180
least_memory_mb=2048
least_disk_mb=1024
upgrading=

say() { printf '%s\n' "kernelbroker: $*"; }
fail() { printf '%s\n' "kernelbroker: $*" >&2; exit 1; }

usage() { sed -n '2,/^set/s/^# \{0,1\}//p' "$here/install.sh"; }

main() {
  here=$(cd "$(dirname "$0")" && pwd)
  while [ $# -gt 0 ]; do
    case $1 in
      --prefix) [ $# -gt 1 ] || fail "--prefix needs a directory"; prefix=$2; shift ;;
      --publish) [ $# -gt 1 ] || fail "--publish needs ADDRESS:PORT"; publish=$2; shift ;;
      --key) [ $# -gt 1 ] || fail "--key needs a file"; key=$2; shift ;;
      --plain) plain=yes ;;
      --purge) purge=yes ;;
      --check) task=check ;;
      --start) task=start ;;
      --uninstall) task=uninstall ;;
      -h | --help) usage; exit 0 ;;
      *) usage >&2; fail "unknown option $1; the options are above" ;;
    esac
    shift
  done
  case $prefix in
    / | *[!A-Za-z0-9/._-]* | */../* | */..) fail "--prefix $prefix is invalid: use letters, digits and ._- only, and no .." ;;
    /*) prefix=${prefix%/} ;;
    *) fail "--prefix $prefix must be an absolute path" ;;
  esac
  [ ${#prefix} -le 50 ] || fail "--prefix $prefix is too long for the sockets below it: at most 50 characters"
  case $publish in
    '' | *:[0-9]*) ;;
    *) fail "--publish $publish is invalid: use ADDRESS:PORT, such as 127.0.0.1:8720" ;;
  esac
  case $task in
    uninstall)
      check_engine
      uninstall
      ;;
    start)
      must_be_root
      check_engine
      [ -e "$prefix/.env" ] || fail "nothing is installed in $prefix"
      here=$prefix
      start
      ;;
    *)
      check_archive
      check_engine
      check_machine
      if [ $task = check ]; then
        say "the archive is complete, the engine answers, and this machine meets the requirements"
      else
        must_be_root
        install
      fi
      ;;
  esac
}

# Checks

check_archive() {
  command -v sha256sum >/dev/null || fail "sha256sum is missing: install coreutils"
  [ -f "$here/SHA256SUMS" ] || fail "SHA256SUMS is missing beside this script: unpack the archive again"
  # Each file must exist, be listed, and have the listed checksum. No other file is used.
  for file in images.tar.gz images.env images.list compose.yaml settings.env install.sh; do
    grep -q "^[0-9a-f]\{64\}  $file\$" "$here/SHA256SUMS" || fail "$file is not in SHA256SUMS: do not use this archive"
  done
  for file in "$here"/wheels/*; do
    [ ! -e "$file" ] || grep -qF "  wheels/${file##*/}" "$here/SHA256SUMS" \
      || fail "wheels/${file##*/} is not in SHA256SUMS: do not use this archive"
  done
  check_signature
  (cd "$here" && sha256sum --quiet --strict -c SHA256SUMS) >&2 \
    || fail "the archive was damaged or changed: fetch it again. Nothing was installed."
}

check_signature() {
  if [ -n "$key" ]; then
    [ -f "$key" ] || fail "the key $key does not exist"
    [ -f "$here/SHA256SUMS.sig" ] || fail "the archive has no signature: do not use this archive"
    command -v openssl >/dev/null || fail "--key needs openssl: install it"
    is_signed_by "$key" || fail "the signature is not by $key: do not use this archive. Nothing was installed."
    say "the signature is by $key"
  elif [ -f "$here/SHA256SUMS.sig" ] && command -v openssl >/dev/null; then
    is_signed_by "$here/signing-key.pub" \
      || fail "the archive was damaged or changed: its signature is wrong. Nothing was installed."
    say "the archive is signed by the key with the SHA-256 $(openssl pkey -pubin -in "$here/signing-key.pub" -outform DER \
      | sha256sum | cut -c 1-64). Compare it with that of your supplier, or use --key."
  fi
}

is_signed_by() { openssl dgst -sha256 -verify "$1" -signature "$here/SHA256SUMS.sig" "$here/SHA256SUMS" >/dev/null 2>&1; }

check_engine() {
  command -v docker >/dev/null || fail "docker is missing: install it from your distribution's media"
  docker version >/dev/null 2>&1 || fail "the container engine does not answer: start it, or use an account with access to it"
}

# Names every problem before it fails.
check_machine() {
  problems=0
  [ "$(uname -s)" = Linux ] || problem "this machine runs $(uname -s), not Linux"
  case $(uname -m) in
    x86_64) machine=amd64 ;;
    aarch64) machine=arm64 ;;
    *) machine=$(uname -m) ;;
  esac
  wanted=$(value_of KERNELBROKER_ARCHITECTURE "$here/images.env")
  [ "$machine" = "$wanted" ] || problem "this machine is $machine, and the archive is for $wanted: fetch the one for $machine"
  at_least "$(uname -r)" 4 15 || problem "the kernel is $(uname -r): 4.15 or later is needed"
  engine=$(docker version --format '{{.Server.Version}}')
  at_least "$engine" 20 10 || problem "the engine is $engine: 20.10 or later is needed"
  processors=$(getconf _NPROCESSORS_ONLN)
  [ "$processors" -ge 2 ] || say "warning: there is one processor; use two or more"
  memory=$(awk '/^MemTotal:/ { print int($2 / 1024) }' /proc/meminfo)
  [ "$memory" -ge $least_memory_mb ] || problem "there are $memory MiB of memory: $least_memory_mb are needed"
  docker info --format '{{range $name, $_ := .Runtimes}}{{$name}} {{end}}' | grep -q runsc || [ "$(form)" = dind ] \
    || say "warning: the engine has no gVisor (runsc), so that sandboxes share the kernel of this machine"
  if [ -n "$(stale)" ]; then
    check_room "$(docker info --format '{{.DockerRootDir}}')" "$(value_of KERNELBROKER_DISK_MB "$here/images.env")" "the images"
  fi
  check_room "$prefix" $least_disk_mb "the broker and its workspaces"
  if [ -z "$(ours broker)" ]; then
    port=${publish:-127.0.0.1:8720}
    port=${port##*:}
    ! is_taken "$port" || problem "port $port is in use: choose another one with --publish"
  fi
  [ $problems = 0 ] || fail "this machine does not meet the requirements: see the problems above. Nothing was installed."
}

problem() {
  printf '%s\n' "kernelbroker: problem: $*" >&2
  problems=1
}

# at_least VERSION MAJOR MINOR. A version in another form is no reason to refuse.
at_least() {
  major=${1%%.*}
  minor=${1#*.}
  minor=${minor%%[!0-9]*}
  case $major in '' | *[!0-9]*) return 0 ;; esac
  [ "$major" -gt "$2" ] || { [ "$major" -eq "$2" ] && [ "${minor:-0}" -ge "$3" ]; }
}

# check_room DIRECTORY MEGABYTES WHAT
check_room() {
  directory=$1
  while [ ! -d "$directory" ]; do directory=$(dirname "$directory"); done
  free=$(df -Pm "$directory" | awk 'NR == 2 { print $4 }')
  [ "$free" -ge "$2" ] || problem "$free MB are free in $directory: $3 need $2"
}

# True if a program listens on this port: the kernel lists it in hexadecimal, with the state 0A.
is_taken() {
  cat /proc/net/tcp /proc/net/tcp6 2>/dev/null \
    | awk -v port=":$(printf '%04X' "$1")\$" '$4 == "0A" && $2 ~ port { found = 1 } END { exit !found }'
}

# The value of a variable in images.env or .env
value_of() { sed -n "s/^$1=//p" "$2" | tail -n 1; }

form() { value_of KERNELBROKER_FORM "$here/images.env"; }

ours() { docker ps --all --quiet --filter "label=kernelbroker.deployment=$prefix" --filter "label=kernelbroker.service=$1"; }

# The id of an image, or nothing
id_of() { docker image inspect --format '{{.Id}}' "$1" 2>/dev/null || true; }

# The images of the archive that the engine does not have. Engines that keep images in containerd have other ids than
# the archive: those of an installation are in images.loaded.
stale() {
  while read -r id name; do
    current=$(id_of "$name")
    [ "$current" = "$id" ] || grep -qx "$id $current" "$prefix/images.loaded" 2>/dev/null || echo "$name"
  done <"$here/images.list"
}

must_be_root() { [ "$(id -u)" = 0 ] || fail "run this script as root: it gives the workspaces to another user"; }

# Installing

install() {
  archive=$here
  missing=$(stale)
  if [ -e "$prefix/.env" ] && { [ -n "$missing" ] || is_different; }; then
    keep_previous
  fi
  if [ -n "$missing" ]; then
    say "loading the images; this takes about a minute"
    docker load --quiet --input "$archive/images.tar.gz"
  else
    say "the engine already has the images"
  fi
  make_files
  while read -r id name; do echo "$id $(id_of "$name")"; done <"$archive/images.list" >"$prefix/images.loaded"
  start
  if [ -n "$upgrading" ]; then
    upgrading=
    trap - EXIT INT TERM
    remove_images "$prefix/previous/tags"
    rm -rf "$prefix/previous"
  fi
}

is_different() {
  for file in compose.yaml images.env images.list; do
    cmp -s "$here/$file" "$prefix/$file" || return 0
  done
  return 1
}

installed_files=".env compose.yaml install.sh settings.env images.env images.list images.loaded init"

# Remembers what is installed. From here on, a failure of this script goes back to it.
keep_previous() {
  umask 077
  say "upgrading version $(value_of KERNELBROKER_VERSION "$prefix/images.env") to $(value_of KERNELBROKER_VERSION "$here/images.env")"
  rm -rf "$prefix/previous"
  mkdir "$prefix/previous"
  for file in $installed_files; do
    [ ! -e "$prefix/$file" ] || cp "$prefix/$file" "$prefix/previous/$file"
  done
  [ ! -e "$prefix/images" ] || cp -al "$prefix/images" "$prefix/previous/images"
  while read -r _ name; do
    id=$(id_of "$name")
    [ -z "$id" ] || echo "$id $name"
  done <"$prefix/images.list" >"$prefix/previous/tags"
  upgrading=yes
  trap go_back EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
}

# shellcheck disable=SC2317  # a trap calls it
go_back() {
  [ -n "$upgrading" ] || return 0
  upgrading=
  trap - EXIT
  set +e
  say "going back to the version before" >&2
  cd "$prefix" || exit 1
  while read -r id name; do docker tag "$id" "$name"; done <previous/tags
  for file in $installed_files; do
    [ ! -e "previous/$file" ] || cp "previous/$file" "$file"
  done
  if [ -e previous/images ]; then
    rm -rf images
    mv previous/images images
  fi
  if sh install.sh --start --prefix "$prefix" ${plain:+--plain} >&2; then
    remove_images "$archive/images.list"
    rm -rf previous
    fail "the upgrade failed, for the reason above. The version before runs again."
  fi
  fail "the upgrade failed, and the version before did not start: its files are in $prefix/previous"
}

# Removes images of a list that the installation does not need. Those that sandboxes still use are removed next time.
remove_images() {
  { cat "$prefix/images.old" 2>/dev/null || true; cut -d ' ' -f 1 "$1"; } | sort -u >"$prefix/images.all"
  while read -r name; do id_of "$name"; done <<END >"$prefix/images.needed"
$(cut -d ' ' -f 2 "$prefix/images.list")
END
  while read -r id; do
    grep -qx "$id" "$prefix/images.needed" || docker image rm "$id" >/dev/null 2>&1 || [ -z "$(id_of "$id")" ] || echo "$id"
  done <"$prefix/images.all" >"$prefix/images.old"
  rm "$prefix/images.all" "$prefix/images.needed"
  if [ -s "$prefix/images.old" ]; then
    say "sessions still use images of another version; the next upgrade removes them"
  else
    rm "$prefix/images.old"
  fi
}

make_files() {
  umask 077
  mkdir -p "$prefix/data" "$prefix/run" "$prefix/shared" "$prefix/wheels"
  chmod 700 "$prefix" "$prefix/data" "$prefix/run"
  chmod 755 "$prefix/shared" "$prefix/wheels" # sandboxes read them
  if [ "$here" != "$prefix" ]; then
    for file in compose.yaml install.sh images.env images.list; do cp "$here/$file" "$prefix/$file"; done
    if [ "$(form)" = dind ]; then
      cp "$here/init" "$prefix/init"
      rm -rf "$prefix/images"
      cp -al "$here/images" "$prefix/images" 2>/dev/null || cp -a "$here/images" "$prefix/images"
    fi
  fi
  [ -e "$prefix/settings.env" ] || cp "$here/settings.env" "$prefix/settings.env"
  for part in $(value_of KERNELBROKER_TEMPLATES "$here/images.env"); do
    grep -q "KERNELBROKER_TEMPLATES__${part}__" "$prefix/settings.env" \
      || printf '%s\n' "KERNELBROKER_TEMPLATES__${part}__PROFILE=$part" "KERNELBROKER_TEMPLATES__${part}__POOL__MIN_SIZE=0" \
        >>"$prefix/settings.env"
  done
  if [ ! -s "$prefix/token" ]; then
    head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$prefix/token.new"
    mv "$prefix/token.new" "$prefix/token"
  fi
  socket=${DOCKER_HOST:-unix:///var/run/docker.sock}
  case $socket in
    unix://*) socket=${socket#unix://} ;;
    *) fail "DOCKER_HOST is $socket, but the engine must be on this machine: set it to unix://PATH" ;;
  esac
  if [ -z "$publish" ] && [ -e "$prefix/.env" ]; then
    publish=$(value_of KERNELBROKER_PUBLISH "$prefix/.env")
  fi
  {
    printf '%s\n' "COMPOSE_PROJECT_NAME=$(project)" "KERNELBROKER_DIR=$prefix" \
      "KERNELBROKER_PUBLISH=${publish:-127.0.0.1:8720}" "KERNELBROKER_TOKEN_FILE=$prefix/token" "DOCKER_SOCKET=$socket"
    grep -E '^(IMAGE_|KERNELBROKER_([A-Z]+_)?IMAGE)' "$here/images.env"
  } >"$prefix/.env.new"
  mv "$prefix/.env.new" "$prefix/.env"
}

project() { if [ "$(form)" = dind ]; then echo kernelbroker-dind; else echo kernelbroker; fi; }

# Starting

# Starts what is installed, and runs a cell.
start() {
  here=$prefix
  network=$(project)_default
  volume=$(project)_engine
  [ "$(form)" != dind ] || healthy_s=600 # the first start loads the images
  if [ -n "$plain" ]; then
    with=plain
  elif docker compose version >/dev/null 2>&1; then
    with="docker compose"
  elif command -v docker-compose >/dev/null; then
    with=docker-compose
  else
    with=plain
  fi
  say "starting with ${with}"
  case $with in
    plain) start_plain ;;
    *) start_compose ;;
  esac
  say "waiting until the broker is healthy"
  wait_for broker
  said=$(docker exec "$(ours broker)" kernelbroker exec 'print(6 * 7)') || fail "the broker runs, but a test cell failed: $said"
  [ "$said" = 42 ] || fail "the broker runs, but a test cell printed '$said' instead of 42"
  say "a test cell ran. The broker is at http://$(installed KERNELBROKER_PUBLISH), and its token is in $prefix/token"
}

installed() { value_of "$1" "$prefix/.env"; }

# The full name of the image that a variable of .env names
full_name() {
  version=$(installed IMAGE_VERSION)
  echo "$(installed IMAGE_PREFIX)$(installed "$1"):${version:-latest}"
}

start_compose() {
  if [ -n "$(docker ps --all --quiet --filter "label=kernelbroker.deployment=$prefix" --filter label=kernelbroker.plain)" ]; then
    stop_ours # compose does not use containers and networks that it has not created
    docker network rm "$network" >/dev/null
    [ "$(form)" = dind ] || docker volume rm "$volume" >/dev/null
  fi
  # The broker stops while the filter runs, and leaves its sandboxes to the next one.
  if [ -n "$upgrading" ] || [ $task = start ]; then
    (cd "$prefix" && $with --project-name "$(project)" --file compose.yaml stop broker)
  fi
  (cd "$prefix" && $with --project-name "$(project)" --file compose.yaml up --detach)
}

# The same options as in compose.yaml; tests/compose/test_offline.py compares the two.
start_plain() {
  stop_ours
  docker network inspect "$network" >/dev/null 2>&1 || docker network create "$network" >/dev/null
  docker volume create "$volume" >/dev/null
  publish=$(installed KERNELBROKER_PUBLISH)
  kernel=$(installed KERNELBROKER_IMAGE)
  if [ "$(form)" = dind ]; then
    start_plain_dind
  else
    start_plain_containers
  fi
}

start_plain_containers() {
  broker=$(full_name KERNELBROKER_BROKER_IMAGE)
  run_plain engine-filter --network none --memory 128m --pids-limit 64 --cpus 1 \
    --init --user 0:0 --cap-drop ALL --security-opt no-new-privileges:true --read-only \
    --volume "$volume:/run/engine" --volume "$(installed DOCKER_SOCKET):/var/run/docker.sock" \
    --health-cmd "python -m engine_filter.ping" --health-interval 5s --health-timeout 5s --health-start-period 20s \
    --entrypoint python "$broker" -m engine_filter "--image=$kernel" --image= --image= \
    "--image-prefix=$(installed IMAGE_PREFIX)" "--image-version=$(installed IMAGE_VERSION)" \
    "--data-dir=$prefix/data" "--run-dir=$prefix/run" "--shared=$prefix/shared" "--shared=$prefix/wheels"
  wait_for engine-filter
  run_plain broker --network "$network" --memory 1g --pids-limit 256 --cpus 1 \
    --init --user 0:0 --cap-drop ALL --security-opt no-new-privileges:true --read-only \
    --cap-add CHOWN --cap-add DAC_OVERRIDE --cap-add FOWNER \
    --tmpfs /tmp:mode=1777,size=16m --stop-timeout 90 --publish "$publish:8720" \
    --volume "$volume:/run/engine" --volume "$prefix/token:/run/secrets/token:ro" \
    --volume "$prefix/data:$prefix/data" --volume "$prefix/run:$prefix/run" \
    --volume "$prefix/shared:$prefix/shared:ro" --volume "$prefix/wheels:$prefix/wheels:ro" \
    --env-file "$prefix/settings.env" \
    --env KERNELBROKER_TOKEN_FILE=/run/secrets/token \
    --env KERNELBROKER_DOCKER__HOST=unix:///run/engine/docker.sock \
    --env "KERNELBROKER_DOCKER__IMAGE=$kernel" \
    --env KERNELBROKER_DOCKER__BROWSER_IMAGE=kernelbroker-browser \
    --env "KERNELBROKER_DOCKER__IMAGE_PREFIX=$(installed IMAGE_PREFIX)" \
    --env "KERNELBROKER_DOCKER__IMAGE_VERSION=$(installed IMAGE_VERSION)" \
    --env "KERNELBROKER_DOCKER__DATA_DIR=$prefix/data" \
    --env "KERNELBROKER_DOCKER__RUN_DIR=$prefix/run" \
    --env "KERNELBROKER_SANDBOX__SHARED_DATA=$prefix/shared" \
    --env "KERNELBROKER_PACKAGES__WHEELS=$prefix/wheels" \
    "$broker"
}

start_plain_dind() {
  run_plain broker --network "$network" --stop-timeout 90 --publish "$publish:8720" \
    --cap-add SYS_ADMIN --cap-add NET_ADMIN --device-cgroup-rule 'a *:* rwm' \
    --security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined \
    --volume "$volume:/var/lib/docker" --volume "$prefix/images:/images:ro" \
    --volume "$prefix/init:/opt/kernelbroker/bin/init:ro" --volume "$prefix/token:/run/secrets/token:ro" \
    --volume "$prefix/shared:/shared:ro" --volume "$prefix/wheels:/wheels:ro" \
    --env-file "$prefix/settings.env" \
    --env KERNELBROKER_TOKEN_FILE=/run/secrets/token \
    --env "KERNELBROKER_DOCKER__IMAGE=$kernel" \
    --env "KERNELBROKER_DOCKER__IMAGE_PREFIX=$(installed IMAGE_PREFIX)" \
    --env "KERNELBROKER_DOCKER__IMAGE_VERSION=$(installed IMAGE_VERSION)" \
    --env KERNELBROKER_SANDBOX__SHARED_DATA=/shared \
    --env KERNELBROKER_PACKAGES__WHEELS=/wheels \
    "$(full_name KERNELBROKER_DIND_IMAGE)"
}

run_plain() {
  service=$1
  shift
  docker run --detach --name "$(project)_${service}_1" --restart unless-stopped \
    --label "kernelbroker.deployment=$prefix" --label "kernelbroker.service=$service" --label kernelbroker.plain=yes \
    "$@" >/dev/null
}

# Waits until a service is healthy. One that ends again and again fails at once.
wait_for() {
  waited=0
  while :; do
    container=$(ours "$1")
    state=$(docker inspect --format '{{.RestartCount}} {{if .State.Health}}{{.State.Health.Status}}{{end}}' "$container" 2>/dev/null) \
      || state="0 gone"
    [ "${state#* }" != healthy ] || return 0
    if [ $waited -ge $healthy_s ] || [ "${state%% *}" -ge 3 ]; then
      docker logs --tail 20 "$container" >&2 || true
      fail "the $1 is not healthy after $waited s; its last log lines are above"
    fi
    sleep 1
    waited=$((waited + 1))
  done
}

# Uninstalling

stop_ours() {
  for service in broker engine-filter; do # in this order: the broker removes its sandboxes, or leaves them to the next
    for container in $(ours $service); do
      docker stop "$container" >/dev/null
      docker rm "$container" >/dev/null
    done
  done
}

uninstall() {
  stop_ours
  # Remove the containers that the broker has left, or those of a broker that was killed
  for container in $(docker ps --all --quiet --filter "label=kernelbroker.data=$prefix/data"); do
    docker rm --force "$container" >/dev/null
  done
  if [ -e "$prefix/.env" ]; then
    here=$prefix
    docker network rm "$(project)_default" >/dev/null 2>&1 || true
    docker volume rm "$(project)_engine" >/dev/null 2>&1 || true
    for name in $(cut -d ' ' -f 2 "$prefix/images.list") $(cat "$prefix/images.old" 2>/dev/null); do
      [ -z "$(id_of "$name")" ] || docker image rm "$name" >/dev/null 2>&1 || say "the image $name is in use, and is not removed"
    done
    rm -rf "$prefix/data" "$prefix/run" "$prefix/images" "$prefix/previous"
    for file in $installed_files token images.old; do rm -f "$prefix/$file"; done
  fi
  [ -z "$purge" ] || rm -rf "$prefix/shared" "$prefix/wheels"
  rmdir "$prefix/shared" "$prefix/wheels" "$prefix" 2>/dev/null || true
  [ ! -e "$prefix" ] || say "files that you added to $prefix are not removed; --purge removes shared/ and wheels/"
  say "uninstalled"
}

main "$@"
