#!/bin/sh
# Brings RabbitMQ onto this machine for tests and the demo. Nothing is started,
# and no broker that runs is touched.
#
#   scripts/setup.sh 3.10 4.0 4.3   these versions (the default)
#   scripts/setup.sh demo           any one broker
#   scripts/setup.sh versions       print the versions that this machine can test with
#   scripts/setup.sh mirror         print the Debian mirror that would be used
#
# The machine's own package is used where it has the version that is wanted. Every
# other version is a Debian tree of about 240 MB, used by chroot, in
#   ${HOPBACK_BROKERS:-${XDG_CACHE_HOME:-$HOME/.cache}/hopback/brokers}/<version>
#
# HOPBACK_DEBIAN_MIRROR  the mirror for the trees; default: the one that this
#                        machine's apt uses. Needed where that is not Debian's.
set -eu

FOLDER=${HOPBACK_BROKERS:-${XDG_CACHE_HOME:-$HOME/.cache}/hopback/brokers}
OS_RELEASE=${OS_RELEASE:-/etc/os-release} # these two can be set for a trial
APT_DIR=${APT_DIR:-/etc/apt}

say() { printf '%s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

# --- what is there already -------------------------------------------------

# home_version prints the version of the RabbitMQ whose own folder is $1.
home_version() {
  [ -x "$1/sbin/rabbitmq-server" ] || return 1
  case $1 in *rabbitmq_server-*) say "${1##*rabbitmq_server-}"; return ;; esac
  for p in "$1"/plugins/rabbit-[0-9]*; do
    [ -e "$p" ] || return 1
    p=${p##*/rabbit-}
    say "${p%.ez}"
    return
  done
}

# system_version prints the version of the machine's own RabbitMQ, if it has one.
system_version() {
  for d in /usr/lib/rabbitmq/lib/rabbitmq_server-* /usr/lib/rabbitmq /opt/rabbitmq \
    /opt/homebrew/opt/rabbitmq /usr/local/opt/rabbitmq; do
    home_version "$d" && return
  done
  true
}

# tree_version prints the version of the RabbitMQ in a tree or an unpacked release.
tree_version() {
  for d in "$1"/usr/lib/rabbitmq/lib/rabbitmq_server-*; do
    home_version "$d" && return
  done
  home_version "$1" || true
}

# is VERSION WANTED: 3.10.8 is 3.10, but 3.10.8 is not 3.1.
is() { case $1 in "$2" | "$2".*) true ;; *) false ;; esac; }

# have VERSION says where it is, or fails.
have() {
  v=$(system_version)
  if is "$v" "$1"; then say "RabbitMQ $1: $v, this machine's own"; return; fi
  v=$(tree_version "$FOLDER/$1")
  if is "$v" "$1"; then
    [ ! -d "$FOLDER/$1/usr" ] || hosts_in "$FOLDER/$1"
    say "RabbitMQ $1: $v in $FOLDER/$1"
    return
  fi
  return 1
}

# any says which broker there is, or fails.
any() {
  v=$(system_version)
  if [ -n "$v" ]; then say "RabbitMQ: $v, this machine's own"; return; fi
  for d in "$FOLDER"/*; do
    case $d in *.partial) continue ;; esac
    v=$(tree_version "$d")
    if [ -n "$v" ]; then say "RabbitMQ: $v in $d"; return; fi
  done
  return 1
}

engine() {
  for e in docker podman; do
    if command -v $e >/dev/null && $e info >/dev/null 2>&1; then
      say "RabbitMQ: none installed, containers of the running $e will do"
      return
    fi
  done
  return 1
}

# --- how to do things as root ------------------------------------------------

SUDO=
# root makes $SUDO what makes a command root's, or fails.
root() {
  [ "$(id -u)" = 0 ] && return
  command -v sudo >/dev/null || return 1
  if sudo -n true 2>/dev/null; then SUDO="sudo -n"; return; fi
  # A person at a terminal can type a password, a script cannot.
  [ -t 0 ] && [ -t 2 ] && SUDO=sudo
}

need_root() {
  root || die "$1 needs root: run this as root, or with a sudo that works without a terminal.
Without root: install RabbitMQ some other way, or start docker or podman; both are found by themselves."
}

# --- the machine's own package -----------------------------------------------

# candidate prints the version of rabbitmq-server that apt would install.
candidate() {
  c=$(apt-cache policy rabbitmq-server 2>/dev/null | sed -n 's/^ *Candidate: *//p')
  c=${c#*:}
  case $c in "" | *none*) ;; *) say "${c%%-*}" ;; esac
}

UPDATED=
update() {
  [ -n "$UPDATED" ] && return
  say "updating apt's lists"
  $SUDO apt-get update -qq || die "apt-get update failed"
  UPDATED=yes
}

# install PACKAGE... without recommendations, and without starting any service.
POLICY=/usr/sbin/policy-rc.d
MARK="# of hopback's set-up: no service is started while it installs packages"
install() {
  if [ -e $POLICY ] && ! grep -qF "$MARK" $POLICY; then
    $SUDO mv -f $POLICY $POLICY.before-hopback
  fi
  printf '#!/bin/sh\n%s\nexit 101\n' "$MARK" | $SUDO tee $POLICY >/dev/null
  $SUDO chmod 755 $POLICY
  say "installing $* from this machine's packages"
  get="env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends -o Dpkg::Use-Pty=0"
  if ! $SUDO $get "$@" </dev/null >"$LOG" 2>&1; then
    update # the lists may be older than the mirror's packages
    $SUDO $get "$@" </dev/null >"$LOG" 2>&1 || { cat "$LOG" >&2; die "installing $* failed"; }
  fi
  allow_services
}

# allow_services puts back what install changed, also after an earlier run of
# this script that was killed.
allow_services() {
  if [ -e $POLICY ] && grep -qF "$MARK" $POLICY; then $SUDO rm -f $POLICY; fi
  if [ -e $POLICY.before-hopback ] && [ ! -e $POLICY ]; then $SUDO mv -f $POLICY.before-hopback $POLICY; fi
}

# install_server installs the machine's own rabbitmq-server and keeps the system
# from starting it, or the Erlang port mapper that comes with it, at the next boot.
UNITS="rabbitmq-server.service epmd.socket epmd.service"
install_server() {
  new=
  for u in $UNITS; do
    [ -e "/lib/systemd/system/$u" ] || [ -e "/usr/lib/systemd/system/$u" ] || new="$new $u"
  done
  install rabbitmq-server
  if command -v systemctl >/dev/null; then
    for u in $new; do
      if [ -e "/lib/systemd/system/$u" ] || [ -e "/usr/lib/systemd/system/$u" ]; then
        $SUDO systemctl disable --quiet "$u" >/dev/null 2>&1 || true
      fi
    done
  elif command -v update-rc.d >/dev/null && [ -e /etc/init.d/rabbitmq-server ]; then
    $SUDO update-rc.d rabbitmq-server disable >/dev/null 2>&1 || true
  fi
}

# --- Debian trees --------------------------------------------------------------

# sources prints "URI SUITE" for each of apt's binary sources, in either format.
sources() {
  for f in "$APT_DIR"/sources.list "$APT_DIR"/sources.list.d/*.list; do
    [ -r "$f" ] || continue
    # deb [options] uri suite components; options may hold spaces
    awk '
      { sub(/#.*/, "") }
      $1 == "deb" {
        sub(/^[[:space:]]*deb[[:space:]]+/, ""); sub(/^\[[^]]*\][[:space:]]*/, "")
        print $1, $2
      }
    ' "$f"
  done
  for f in "$APT_DIR"/sources.list.d/*.sources; do
    [ -r "$f" ] || continue
    awk '
      function flush(   i, j, n, m, u, s) {
        if (types ~ /(^| )deb( |$)/ && enabled !~ /^(no|false|0)$/) {
          n = split(uris, u, " "); m = split(suites, s, " ")
          for (i = 1; i <= n; i++) for (j = 1; j <= m; j++) print u[i], s[j]
        }
        types = uris = suites = enabled = field = ""
      }
      /^[[:space:]]*#/ { next }
      /^[[:space:]]*$/ { flush(); next }
      /^[^[:space:]]/ {
        field = tolower($0); sub(/:.*/, "", field)
        sub(/^[^:]*:[[:space:]]*/, "")
      }
      { gsub(/[[:space:]]+/, " "); sub(/^ /, ""); sub(/ $/, "") }
      field == "types"   { types = (types == "" ? "" : types " ") $0 }
      field == "uris"    { uris = (uris == "" ? "" : uris " ") $0 }
      field == "suites"  { suites = (suites == "" ? "" : suites " ") $0 }
      field == "enabled" { enabled = tolower($0) }
      END { flush() }
    ' "$f"
  done
}

# mirror prints the Debian mirror to take trees from.
mirror() {
  if [ -n "${HOPBACK_DEBIAN_MIRROR:-}" ]; then say "$HOPBACK_DEBIAN_MIRROR"; return; fi
  id=$(. "$OS_RELEASE" 2>/dev/null && say "${ID:-}") || id=
  if [ "$id" != debian ]; then
    die "a Debian tree is needed, and this machine (${id:-unknown}) has no Debian mirror in its apt sources:
set HOPBACK_DEBIAN_MIRROR to the address of one"
  fi
  # The suites that the distribution itself is installed from, not its security
  # fixes, which are elsewhere, and not other people's repositories.
  found=$(sources | awk '
    $2 ~ /^(bookworm|trixie|forky|duke|sid|stable|testing|unstable|bullseye|oldstable)(-updates)?$/ &&
    $1 !~ /security/ && ($1 ~ /^https?:/ || $1 ~ /^mirror\+file:/ || $1 ~ /^file:/) { print $1; exit }')
  case $found in
    mirror+file:*) found=$(sed -n -e 's/#.*//' -e 's/[[:space:]].*//' -e '/./{p;q;}' "${found#mirror+file:}" 2>/dev/null) || found= ;;
  esac
  [ -n "$found" ] || die "no Debian mirror was found in $APT_DIR/sources.list or $APT_DIR/sources.list.d: set HOPBACK_DEBIAN_MIRROR"
  say "${found%/}"
}

# suite_of VERSION prints the Debian suite that has this RabbitMQ.
suite_of() {
  case $1 in
    3.10) say bookworm ;;
    4.0) say trixie ;;
    4.3) say sid ;;
    *) die "RabbitMQ $1: no Debian suite is known to have it; known are 3.10, 4.0 and 4.3.
Other versions: unpack a \"generic UNIX\" release into $FOLDER/$1 (Erlang must be installed)" ;;
  esac
}

# hosts_in TREE: the Erlang runtime must be able to look up localhost (4.3 stops
# with "epmd_error nxdomain" otherwise), and a fresh tree has no hosts file.
hosts_in() {
  grep -qs localhost "$1/etc/hosts" && return
  need_root "writing $1/etc/hosts"
  say '127.0.0.1 localhost' | $SUDO tee -a "$1/etc/hosts" >/dev/null
}

tree() {
  suite=$(suite_of "$1")
  from=$(mirror)
  need_root "making a Debian tree with RabbitMQ $1"
  if ! command -v mmdebstrap >/dev/null; then install mmdebstrap; fi
  if ! command -v mount >/dev/null; then install mount; fi # for the entry into a tree; not in every image
  if [ ! -e /usr/share/keyrings/debian-archive-keyring.gpg ]; then install debian-archive-keyring; fi
  set -- "$1" --variant=apt --include=rabbitmq-server,adduser,procps
  # An unstable suite's index is short-lived, and a machine's mirror may be frozen.
  [ "$suite" != sid ] || set -- "$@" '--aptopt=Acquire::Check-Valid-Until "false"'
  for o in http https; do
    p=$(apt-config dump "Acquire::$o::Proxy" 2>/dev/null | sed -n 's/.*"\(.*\)".*/\1/p')
    [ -z "$p" ] || set -- "$@" "--aptopt=Acquire::$o::Proxy \"$p\""
  done
  version=$1
  shift
  say "RabbitMQ $version: making a tree from Debian $suite in $FOLDER/$version (about half a minute)"
  partial=$FOLDER/$version.partial
  $SUDO rm -rf --one-file-system "$partial"
  if ! $SUDO mmdebstrap --quiet "$@" "$suite" "$partial" "$from" </dev/null >"$LOG" 2>&1; then
    tail -n 30 "$LOG" >&2
    $SUDO rm -rf --one-file-system "$partial"
    die "making the tree failed; another mirror can be given by HOPBACK_DEBIAN_MIRROR"
  fi
  got=$(tree_version "$partial")
  if ! is "$got" "$version"; then
    $SUDO rm -rf --one-file-system "$partial"
    die "Debian $suite has RabbitMQ ${got:-none} on this mirror, not $version. A mirror of an earlier day has it:
HOPBACK_DEBIAN_MIRROR=<address of a snapshot mirror>/archive/debian/<YYYYMMDD>T000000Z"
  fi
  hosts_in "$partial"
  $SUDO chmod 755 "$partial"
  $SUDO rm -rf "$FOLDER/$version"
  $SUDO mv "$partial" "$FOLDER/$version" # whole or not at all
  have "$version"
}

# --- what was asked for ----------------------------------------------------------

version() {
  have "$1" && return
  if command -v apt-get >/dev/null && [ -z "$(system_version)" ]; then
    c=$(candidate)
    if [ -z "$c" ] && root; then update; c=$(candidate); fi
    if is "$c" "$1"; then
      need_root "installing RabbitMQ $1"
      install_server
      have "$1" && return
    fi
  fi
  command -v apt-get >/dev/null || die "RabbitMQ $1 is not here, and this script can install it on Debian and Ubuntu only.
Put it into $FOLDER/$1 (a \"generic UNIX\" release), or start docker or podman: tests then use containers."
  tree "$1"
}

demo() {
  any && return
  if command -v apt-get >/dev/null && root; then
    [ -n "$(candidate)" ] || update
    if [ -n "$(candidate)" ]; then
      install_server
      any && return
    fi
  fi
  engine && return
  if ! command -v apt-get >/dev/null; then
    die "there is no RabbitMQ here. Install one with your package manager (macOS: brew install rabbitmq; Fedora: dnf install rabbitmq-server), or start docker or podman"
  fi
  need_root "installing RabbitMQ"
  die "there is no RabbitMQ here, and apt has no package rabbitmq-server (on Ubuntu it is in \"universe\")"
}

# versions prints what `make test` runs on: all versions where they are there or
# can be made, and otherwise the machine's own broker, "any".
versions() {
  for v in 3.10 4.0 4.3; do
    have "$v" >/dev/null && continue
    if ! command -v apt-get >/dev/null || ! (mirror) >/dev/null 2>&1; then
      say any
      return
    fi
  done
  say 3.10 4.0 4.3
}

case ${1:-} in
  -h | --help) sed -n '2,/^set -eu/{/^set -eu/d;s/^# \{0,1\}//;p;}' "$0"; exit ;;
  mirror) mirror; exit ;;
  versions) versions; exit ;;
esac
[ $# -gt 0 ] || set -- 3.10 4.0 4.3

# Quickly done when all is there: no lock, no root, no look at the network.
missing=
for want in "$@"; do
  if [ "$want" = demo ] || [ "$want" = any ]; then any || missing="$missing demo"; else have "$want" || missing="$missing $want"; fi
done
[ -n "$missing" ] || exit 0

mkdir -p "$FOLDER"
LOG=$(mktemp)
trap 'allow_services; rm -f "$LOG"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
# One set-up at a time: a second one waits, and then finds all done.
if command -v flock >/dev/null; then
  exec 9>"$FOLDER/.lock"
  flock 9
fi
for want in $missing; do
  case $want in demo | any) demo ;; *) version "$want" ;; esac
done
