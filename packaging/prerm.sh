#!/bin/sh
# Before @PACKAGE@ is removed. Debian says "remove", rpm that none remains. Before an
# upgrade nothing ends.
set -e
case "$1" in
remove | 0) ;;
*) exit 0 ;;
esac

# What python3 made of the module as root imported it.
[ @PACKAGE@ != pagurus ] || rm -f /usr/lib/python3/dist-packages/__pycache__/libpagurus.*.pyc

if [ -d /run/systemd/system ]; then
  systemctl stop @PACKAGE_UNIT@ || :
  [ "$1" = remove ] || systemctl --no-reload disable @PACKAGE_UNIT@ || :
  # Guests outlive the agent, but not its programs.
  if [ @PACKAGE@ = pagurus ]; then
    pagurus-agent --sweep || echo "pagurus: something of it still runs on this host" >&2
  fi
fi
