#!/bin/sh
# Brings what the workers in examples/ need onto this machine: Node with amqplib,
# Python with pika, PHP with php-amqplib, Ruby with bunny, Java with its client.
# From the distribution's packages, where it has them, and the npm registry.
#
#   scripts/clients.sh            all of them
#   scripts/clients.sh node php   these
#
# What cannot be had is said, and its tests are skipped: the reason is left in
#   ${HOPBACK_CLIENTS:-${XDG_CACHE_HOME:-$HOME/.cache}/hopback/clients}/<language>.missing
# where the virtual environment of Python is too, if there is no package of pika.
set -eu

FOLDER=${HOPBACK_CLIENTS:-${XDG_CACHE_HOME:-$HOME/.cache}/hopback/clients}
EXAMPLES=$(cd "$(dirname "$0")/../examples" && pwd)

say() { printf '%s\n' "$*"; }

# --- what is there: each prints its versions, or fails ------------------------

node_there() {
  command -v npm >/dev/null && node -e 'process.exit(parseInt(process.versions.node) < 18 ? 1 : 0)' 2>/dev/null &&
    (cd "$EXAMPLES/node" && node -e '
      const version = (file) => JSON.parse(require("fs").readFileSync(file)).version;
      const want = require("./package.json").dependencies.amqplib, have = version("node_modules/amqplib/package.json");
      if (want !== have) process.exit(1);
      console.log(`node ${process.versions.node}, amqplib ${have}`)' 2>/dev/null)
}

python_there() {
  for p in "$FOLDER/venv/bin/python" /usr/bin/python3 python3; do
    "$p" -c 'import pika, platform; print("python", platform.python_version() + ", pika", pika.__version__)' 2>/dev/null && return
  done
  return 1
}

php_there() {
  php -r '@include "PhpAmqpLib/autoload.php"; if (!class_exists("PhpAmqpLib\Package")) exit(1);
    echo "php ", PHP_VERSION, ", php-amqplib ", PhpAmqpLib\Package::VERSION, "\n";' 2>/dev/null
}

ruby_there() {
  ruby -e 'require "bunny"; puts "ruby #{RUBY_VERSION}, bunny #{Bunny::VERSION}"' 2>/dev/null
}

java_there() {
  [ -e /usr/share/java/amqp-client.jar ] && [ -e /usr/share/java/slf4j-api.jar ] && command -v javac >/dev/null || return 1
  for jar in /usr/share/java/amqp-client-*.jar; do :; done
  jar=${jar##*/amqp-client-}
  say "$(javac -version 2>&1 | sed 's/^javac/java/'), amqp-client ${jar%.jar}"
}

packages_of() {
  case $1 in
    node) if ! command -v npm >/dev/null; then say nodejs npm; fi ;;
    python) say python3 python3-pika ;;
    php) say php-cli php-amqplib ;;
    ruby) say ruby ruby-bunny ;;
    java) command -v javac >/dev/null || say default-jdk-headless; say librabbitmq-client-java ;;
    *) printf 'clients: %s: known are node, python, php, ruby and java\n' "$1" >&2; exit 2 ;;
  esac
}

# --- installing ---------------------------------------------------------------

SUDO=
root() {
  [ "$(id -u)" = 0 ] && return
  command -v sudo >/dev/null || return 1
  if sudo -n true 2>/dev/null; then SUDO="sudo -n"; return; fi
  [ -t 0 ] && [ -t 2 ] && SUDO=sudo
}

LOG=$(mktemp)
trap 'rm -f "$LOG"' EXIT

# apt PACKAGE... fails where that cannot be done; why is in the log.
UPDATED=
apt() {
  command -v apt-get >/dev/null || { say "this machine has no apt-get" >"$LOG"; return 1; }
  root || { say "installing $* needs root, or a sudo that works without a terminal" >"$LOG"; return 1; }
  get="env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends -o Dpkg::Use-Pty=0"
  say "installing $* from this machine's packages"
  $SUDO $get "$@" </dev/null >"$LOG" 2>&1 && return
  [ -z "$UPDATED" ] || return 1
  UPDATED=yes # the lists may be older than the mirror's packages
  $SUDO apt-get update -qq >"$LOG" 2>&1 && $SUDO $get "$@" </dev/null >"$LOG" 2>&1
}

install() {
  packages=$(packages_of "$1")
  case $1 in
    node)
      [ -z "$packages" ] || apt $packages || return 1
      (cd "$EXAMPLES/node" && npm ci --ignore-scripts --no-audit --no-fund) </dev/null >"$LOG" 2>&1
      ;;
    python)
      apt $packages && python_there >/dev/null && return
      python3 -m venv "$FOLDER/venv" >"$LOG" 2>&1 &&
        "$FOLDER/venv/bin/python" -m pip install -q -r "$EXAMPLES/python/requirements.txt" </dev/null >"$LOG" 2>&1
      ;;
    *) apt $packages ;;
  esac
}

[ $# -gt 0 ] || set -- node python php ruby java
mkdir -p "$FOLDER"
if command -v flock >/dev/null; then # one set-up at a time
  exec 9>"$FOLDER/.lock"
  flock 9
fi
for want in "$@"; do
  packages_of "$want" >/dev/null
  if ! "${want}_there" >/dev/null; then
    : >"$LOG"
    install "$want" || true
  fi
  if version=$("${want}_there"); then
    rm -f "$FOLDER/$want.missing"
    say "client: $version"
  else
    { printf '%s with its RabbitMQ client cannot be had on this machine: ' "$want"; tail -n 3 "$LOG" | tr '\n' ' '; } >"$FOLDER/$want.missing"
    say "client: $(cat "$FOLDER/$want.missing")"
  fi
done
