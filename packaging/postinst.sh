#!/bin/sh
# After @PACKAGE@ was unpacked. Debian says "configure" and the version that was there
# before, rpm how many there are now.
set -e
case "$1" in
configure) upgrade=$2 ;;
1) upgrade= ;;
[2-9]*) upgrade=yes ;;
*) exit 0 ;;
esac

if [ @PACKAGE@ = pagurus ]; then
  if command -v systemd-sysusers >/dev/null; then
    systemd-sysusers pagurus.conf
  elif ! getent passwd pagurus >/dev/null; then
    useradd --system --no-create-home --shell /usr/sbin/nologin pagurus
  fi
  # Not systemd-tmpfiles, which is not everywhere where packages are unpacked.
  for folder in /run/pagurus /var/lib/pagurus; do
    [ -d $folder ] || install -d -m 0755 $folder
  done
fi

# Nothing is enabled or started: a host joins first. What ran runs on, as what is new.
# That a controller waits until it leads must not hold up the upgrade.
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload || :
  if [ -n "$upgrade" ]; then
    systemctl --no-block try-restart @PACKAGE_UNIT@ || :
  fi
fi
