#!/usr/bin/env bash
# Installs a CRIU that can move containers on this machine's kernel: 4.2 or later. The
# versions of Debian 12, Debian 13 and Ubuntu 24.04 are older and cannot dump TCP sockets
# from Linux 6.16 on. Debian's next release has it. Its packages are unpacked, with all
# their libraries and the loader, into a folder of their own, so nothing of the system is
# replaced. The script may be run at any time and does only what is missing. With --check
# it only says whether anything is missing.
set -euo pipefail
export PATH=/usr/local/sbin:/usr/sbin:/sbin:$PATH # plain su leaves these out
export LC_ALL=C                                   # apt's output is read below
umask 022

prefix=${PAGURUS_CRIU_PREFIX:-/opt/pagurus-criu}
suite=forky
wanted=4.2
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
loader=ld-linux-x86-64.so.2
room=250  # MiB, while it runs; 20 stay
limit=900 # seconds for each download

say() { printf 'criu: %s\n' "$*"; }
fail() { printf 'criu: %s\n' "$*" >&2; exit 1; }

# version prints the version of a criu command, or nothing if it does not run.
version() { "$@" --version 2>/dev/null | sed -n 's/^Version: *//p' || :; }
enough() { [ -n "$1" ] && dpkg --compare-versions "$1" ge "$wanted"; }

command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null ||
  fail "only Debian and Ubuntu are known here: install CRIU $wanted or later by hand"
for criu in "$prefix/bin/criu" criu; do
  v=$(version "$criu")
  if enough "$v"; then
    say "$criu is version $v"
    exit
  fi
done
[ "${1-}" != --check ] || exit 1

[ "$(dpkg --print-architecture)" = amd64 ] || fail "containers move between amd64 machines only; this one is $(dpkg --print-architecture)"
[ -r "$keyring" ] || fail "the keys that sign Debian's packages are missing: apt-get install debian-archive-keyring"
[ "$(id -u)" -eq 0 ] || fail "making $prefix needs root: run this as root"

# A second run would fetch the same again. The lock ends with the process.
mkdir -p "$(dirname "$prefix")"
exec 9<"$(dirname "$prefix")"
flock 9
v=$(version "$prefix/bin/criu")
if enough "$v"; then
  say "$prefix/bin/criu is version $v"
  exit
fi

# Without room apt tries for ever.
free=$(df -Pm "$(dirname "$prefix")" | awk 'NR == 2 { print $4 }')
[ "$free" -ge $room ] || fail "$(dirname "$prefix") has $free MiB free, and $room are needed for a moment: make room there"

# An incomplete installation never has the final name, and is removed at the end. The
# leftovers of a killed run are removed now.
rm -rf "$prefix".new.*
new=$(mktemp -d "$prefix.new.XXXXXX")
trap 'rm -rf "$new"' EXIT
trap 'exit 1' HUP INT TERM
chmod 755 "$new"
mkdir -p "$new"/apt/{state/lists/partial,cache/archives/partial} "$new"/{bin,lib,x}
: >"$new/apt/status"

# The mirror that this machine's administrator chose, if it is Debian's: it is near, or
# the only reachable one. Settings on the command line override the machine's
# configuration, which provides the others, such as a proxy. With an empty list of
# installed packages apt fetches everything that criu needs, down to the C library.
codename=$(. /etc/os-release && printf %s "${VERSION_CODENAME-}")
mirror=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' 2>/dev/null |
  awk -v own="$codename" '$2 == own && /:\/\/.*debian/ && !found++ { print $1 }') || mirror=
mirror=${mirror:-http://deb.debian.org/debian}
echo "deb [arch=amd64 target=Packages signed-by=$keyring] $mirror $suite main" >"$new/apt/sources.list"
apt() {
  timeout "$limit" apt-get -q -y -o Dpkg::Use-Pty=0 -o APT::Sandbox::User=root -o APT::Architectures=amd64 -o APT::Default-Release= \
    -o Dir::State="$new/apt/state" -o Dir::State::Lists="$new/apt/state/lists" -o Dir::State::status="$new/apt/status" \
    -o Dir::Cache="$new/apt/cache" -o Dir::Cache::Archives="$new/apt/cache/archives" \
    -o Dir::Etc::SourceList="$new/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null \
    -o Dir::Etc::Preferences=/dev/null -o Dir::Etc::PreferencesParts=/dev/null \
    -o Acquire::Languages=none -o APT::Update::Error-Mode=any "$@" >"$new/apt/log" 2>&1
}
said() { { grep "$1" "$new/apt/log" || cat "$new/apt/log"; } | tail -n 1; }

say "asking $mirror for Debian $suite"
apt update || fail "the package lists of Debian $suite cannot be fetched from $mirror: $(said '^\(E\|Err\|W\):')"
say "fetching criu and what it is made of"
apt install --download-only --no-install-recommends criu ||
  fail "the packages of criu cannot be fetched from $mirror: $(said '^E:')"

for deb in "$new"/apt/cache/archives/*.deb; do
  [ -e "$deb" ] || fail "apt fetched no packages: $(said .)"
  dpkg-deb -x "$deb" "$new/x" || fail "${deb##*/} cannot be unpacked: is there room in $(dirname "$prefix")?"
  dpkg-deb -W "$deb" >>"$new/packages"
done
for lib in "$new"/x/{usr/,}lib/x86_64-linux-gnu; do
  [ ! -d "$lib" ] || find "$lib" -maxdepth 1 -name '*.so*' -exec cp -a -t "$new/lib" {} +
done
mv "$new"/x/usr/sbin/criu "$new/bin/criu.real" || fail "Debian $suite's package of criu is not as expected: it has no /usr/sbin/criu"
[ -e "$new/lib/$loader" ] || fail "Debian $suite's C library is not as expected: it has no $loader"
mkdir "$new/doc"
for text in "$new"/x/usr/share/doc/*/copyright; do
  [ ! -f "$text" ] || cp "$text" "$new/doc/$(basename "$(dirname "$text")")"
done
v=$(version "$new/lib/$loader" --library-path "$new/lib" "$new/bin/criu.real")
enough "$v" || fail "the criu of Debian $suite ${v:+is version $v and }does not do here: version $wanted or later is wanted"
# CRIU never executes itself again, so starting it with its own loader suffices.
cat >"$new/bin/criu" <<END
#!/bin/sh
exec "$prefix/lib/$loader" --library-path "$prefix/lib" --argv0 criu "$prefix/bin/criu.real" "\$@"
END
chmod 755 "$new/bin/criu"
rm -rf "$new/apt" "$new/x"

# From here on the new version is used. Programs of an older one keep running: their files
# are gone only when they end.
[ ! -e "$prefix" ] || mv -T "$prefix" "$prefix.new.old"
mv -T "$new" "$prefix"
rm -rf "$prefix.new.old"
say "$prefix/bin/criu is version $v"
