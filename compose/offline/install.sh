#!/bin/sh
# Installs kernelbroker from the archive that this script came with. It uses no registry.
#
#   sh install.sh [--prefix DIR] [--publish ADDRESS:PORT] [--plain]
#   sh install.sh --check only check the archive and the engine; changes nothing
#   sh install.sh --uninstall [--prefix DIR]
#
#   --prefix   the directory of settings, token, workspaces and sockets (/var/lib/kernelbroker). Keep it
#              short: a socket's path has at most 107 bytes.
#   --publish  the address of the broker for clients (127.0.0.1:8720)
#   --plain    use `docker run`, even if docker compose is installed
# A second run changes nothing. A run from another archive replaces the containers and keeps the settings.
set -eu

prefix=/var/lib/kernelbroker
publish=
plain=
task=install
network=kernelbroker_default
volume=kernelbroker_engine
healthy_s=180

say() { printf '%s\n' "kernelbroker: $*"; }
fail() { printf '%s\n' "kernelbroker: $*" >&2; exit 1; }

usage() { sed -n '2,/^set/s/^# \{0,1\}//p' "$here/install.sh"; }

main() {
  here=$(cd "$(dirname "$0")" && pwd)
  while [ $# -gt 0 ]; do
    case $1 in
      --prefix) [ $# -gt 1 ] || fail "--prefix needs a directory"; prefix=$2; shift ;;
      --publish) [ $# -gt 1 ] || fail "--publish needs ADDRESS:PORT"; publish=$2; shift ;;
      --plain) plain=yes ;;
      --check) task=check ;;
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
  if [ $task = uninstall ]; then
    check_engine
    uninstall
  else
    check_archive
    check_engine
    if [ $task = check ]; then
      say "the archive is complete, and the engine answers"
    else
      install
    fi
  fi
}

# Checks

check_archive() {
  command -v sha256sum >/dev/null || fail "sha256sum is missing: install coreutils"
  [ -f "$here/SHA256SUMS" ] || fail "SHA256SUMS is missing beside this script: unpack the archive again"
  # Each file must exist, be listed, and have the listed checksum. No other file is used.
  for file in images.tar.gz images.env compose.yaml settings.env install.sh; do
    grep -q "^[0-9a-f]\{64\}  $file\$" "$here/SHA256SUMS" || fail "$file is not in SHA256SUMS: do not use this archive"
  done
  (cd "$here" && sha256sum --quiet --strict -c SHA256SUMS) >&2 \
    || fail "the archive was damaged or changed: fetch it again. Nothing was installed."
}

check_engine() {
  command -v docker >/dev/null || fail "docker is missing: install it from your distribution's media"
  docker version >/dev/null 2>&1 || fail "the container engine does not answer: start it, or use an account with access to it"
}

# The value of a variable in images.env or .env
value_of() { sed -n "s/^$1=//p" "$2" | tail -n 1; }

ours() { docker ps --all --quiet --filter "label=kernelbroker.deployment=$prefix" --filter "label=kernelbroker.service=$1"; }

# Installing

install() {
  [ "$(id -u)" = 0 ] || fail "run this script as root: it gives the workspaces to another user"
  kernel=$(value_of KERNELBROKER_IMAGE "$here/images.env")
  broker=$(value_of KERNELBROKER_BROKER_IMAGE "$here/images.env")
  if has KERNELBROKER_IMAGE && has KERNELBROKER_BROKER_IMAGE; then
    say "the engine already has the images"
  else
    say "loading the images; this takes about a minute"
    docker load --quiet --input "$here/images.tar.gz"
  fi
  make_files
  choose
  case $with in
    plain) start_plain ;;
    *) start_compose ;;
  esac
  verify
}

# True if the engine has exactly the image of the archive under its name
has() {
  [ "$(docker image inspect --format '{{.Id}}' "$(value_of "$1" "$here/images.env")" 2>/dev/null)" \
    = "$(value_of "${1}_ID" "$here/images.env")" ]
}

make_files() {
  umask 077
  mkdir -p "$prefix/data" "$prefix/run" "$prefix/shared" "$prefix/wheels"
  chmod 700 "$prefix" "$prefix/data" "$prefix/run"
  chmod 755 "$prefix/shared" "$prefix/wheels" # sandboxes read them
  for file in compose.yaml install.sh; do
    [ "$here" = "$prefix" ] || cp "$here/$file" "$prefix/$file"
  done
  [ -e "$prefix/settings.env" ] || cp "$here/settings.env" "$prefix/settings.env"
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
  publish=${publish:-127.0.0.1:8720}
  cat >"$prefix/.env" <<END
COMPOSE_PROJECT_NAME=kernelbroker
KERNELBROKER_DIR=$prefix
KERNELBROKER_PUBLISH=$publish
KERNELBROKER_TOKEN_FILE=$prefix/token
KERNELBROKER_IMAGE=$kernel
KERNELBROKER_BROKER_IMAGE=$broker
DOCKER_SOCKET=$socket
END
}

choose() {
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
}

start_compose() {
  if [ -n "$(docker ps --all --quiet --filter "label=kernelbroker.deployment=$prefix" --filter label=kernelbroker.plain)" ]; then
    stop_ours # compose does not use containers and networks that it has not created
    docker network rm $network >/dev/null
    docker volume rm $volume >/dev/null
  fi
  (cd "$prefix" && $with --project-name kernelbroker --file compose.yaml up --detach)
}

# The same options as in compose.yaml; tests/compose/test_offline.py compares the two.
start_plain() {
  stop_ours
  docker network inspect $network >/dev/null 2>&1 || docker network create $network >/dev/null
  docker volume create $volume >/dev/null
  run_plain engine-filter --network none --memory 128m --pids-limit 64 --cpus 1 \
    --volume "$socket:/var/run/docker.sock" \
    --health-cmd "python -m engine_filter.ping" --health-interval 5s --health-timeout 5s --health-start-period 20s \
    --entrypoint python "$broker" -m engine_filter "--image=$kernel" \
    --image=kernelbroker-code --image=kernelbroker-browser \
    "--data-dir=$prefix/data" "--run-dir=$prefix/run" "--shared=$prefix/shared" "--shared=$prefix/wheels"
  wait_for engine-filter
  run_plain broker --network $network --memory 1g --pids-limit 256 --cpus 1 \
    --cap-add CHOWN --cap-add DAC_OVERRIDE --cap-add FOWNER \
    --tmpfs /tmp:mode=1777,size=16m --stop-timeout 90 --publish "$publish:8720" \
    --volume "$prefix/token:/run/secrets/token:ro" \
    --volume "$prefix/data:$prefix/data" --volume "$prefix/run:$prefix/run" \
    --volume "$prefix/shared:$prefix/shared:ro" --volume "$prefix/wheels:$prefix/wheels:ro" \
    --env-file "$prefix/settings.env" \
    --env KERNELBROKER_TOKEN_FILE=/run/secrets/token \
    --env KERNELBROKER_DOCKER__HOST=unix:///run/engine/docker.sock \
    --env "KERNELBROKER_DOCKER__IMAGE=$kernel" \
    --env KERNELBROKER_DOCKER__BROWSER_IMAGE=kernelbroker-browser \
    --env "KERNELBROKER_DOCKER__DATA_DIR=$prefix/data" \
    --env "KERNELBROKER_DOCKER__RUN_DIR=$prefix/run" \
    --env "KERNELBROKER_SANDBOX__SHARED_DATA=$prefix/shared" \
    --env "KERNELBROKER_PACKAGES__WHEELS=$prefix/wheels" \
    "$broker"
}

run_plain() {
  service=$1
  shift
  docker run --detach --name "kernelbroker_${service}_1" --restart unless-stopped --init --user 0:0 \
    --label "kernelbroker.deployment=$prefix" --label "kernelbroker.service=$service" --label kernelbroker.plain=yes \
    --cap-drop ALL --security-opt no-new-privileges:true --read-only \
    --volume "$volume:/run/engine" "$@" >/dev/null
}

wait_for() {
  waited=0
  while [ "$(docker inspect --format '{{.State.Health.Status}}' "$(ours "$1")")" != healthy ]; do
    if [ $waited -ge $healthy_s ]; then
      docker logs --tail 20 "$(ours "$1")" >&2
      fail "the $1 is not healthy after $healthy_s s; its last log lines are above"
    fi
    sleep 1
    waited=$((waited + 1))
  done
}

verify() {
  say "waiting until the broker is healthy"
  wait_for broker
  said=$(docker exec "$(ours broker)" kernelbroker exec 'print(6 * 7)') || fail "the broker runs, but a test cell failed: $said"
  [ "$said" = 42 ] || fail "the broker runs, but a test cell printed '$said' instead of 42"
  say "a test cell ran. The broker is at http://$publish, and its token is in $prefix/token"
}

# Uninstalling

stop_ours() {
  for service in broker engine-filter; do # in this order: the broker removes its sandboxes
    for container in $(ours $service); do
      docker stop "$container" >/dev/null
      docker rm "$container" >/dev/null
    done
  done
}

uninstall() {
  stop_ours
  # Remove the containers of a broker that was killed
  for container in $(docker ps --all --quiet --filter "label=kernelbroker.data=$prefix/data"); do
    docker rm --force "$container" >/dev/null
  done
  docker network rm $network >/dev/null 2>&1 || true
  docker volume rm $volume >/dev/null 2>&1 || true
  if [ -e "$prefix/.env" ]; then
    for key in KERNELBROKER_IMAGE KERNELBROKER_BROKER_IMAGE; do
      docker image rm "$(value_of $key "$prefix/.env")" >/dev/null 2>&1 || say "an image is in use, and is not removed"
    done
    rm -rf "$prefix/data" "$prefix/run"
    for file in .env compose.yaml settings.env token install.sh; do rm -f "$prefix/$file"; done
  fi
  rmdir "$prefix/shared" "$prefix/wheels" "$prefix" 2>/dev/null || true
  [ ! -e "$prefix" ] || say "files that you added to $prefix are not removed"
  say "uninstalled"
}

main "$@"
