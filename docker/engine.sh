#!/bin/sh
# Prints the address of a Docker engine. Where none runs, one is started, and installed first where it is missing
# (Debian's docker.io; as root). Says why not on standard error.
set -u
socket=unix:///var/run/docker.sock
for host in "${DOCKER_HOST:-$socket}" "$socket"; do
  if DOCKER_HOST=$host docker info >/dev/null 2>&1; then echo "$host"; exit 0; fi
done
if [ "$(id -u)" != 0 ]; then
  echo "no Docker engine answers, and only root can start one: start Docker, or set DOCKER_HOST" >&2
  exit 1
fi
log=${TMPDIR:-/tmp}/fkjoin-dockerd.log
if ! command -v dockerd >/dev/null 2>&1; then
  if ! command -v apt-get >/dev/null 2>&1; then
    echo "dockerd is not installed, and there is no apt-get to install it with" >&2
    exit 1
  fi
  { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends docker.io iptables; } \
    >"$log" 2>&1 || { echo "docker.io cannot be installed:" >&2; tail -5 "$log" >&2; exit 1; }
fi
# dockerd gives up where its containerd takes more than 15 s, as it may on a busy machine: what is in memory by then starts sooner.
starts=0
start() {
  starts=$((starts + 1))
  setsid nohup dockerd --host "$socket" >>"$log" 2>&1 </dev/null &
  engine=$!
}
start
tries=0
until DOCKER_HOST=$socket docker info >/dev/null 2>&1; do
  tries=$((tries + 1))
  if ! kill -0 $engine 2>/dev/null && [ $starts -lt 5 ]; then start; fi
  if [ $tries -gt 240 ] || ! kill -0 $engine 2>/dev/null; then
    echo "dockerd does not come up:" >&2
    tail -5 "$log" >&2
    exit 1
  fi
  sleep 0.5
done
echo "$socket"
