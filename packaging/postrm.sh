#!/bin/sh
# After @PACKAGE@ was removed. Purging leaves nothing of it on this machine, but for the
# logins in people's homes, which other machines may share.
set -e
# systemd forgets what is gone.
reload() {
  [ ! -d /run/systemd/system ] || systemctl daemon-reload || :
}
reload
[ "$1" = purge ] || exit 0

# A user's files may be mounted in these folders: nothing is removed through a mount.
drop() {
  for path in "$@"; do
    if grep -qs " $path[/ ]" /proc/self/mounts; then
      echo "@PACKAGE@: something is mounted in $path, which stays" >&2
    else
      rm -rf --one-file-system "$path"
    fi
  done
}

rm -f /etc/systemd/system/*.wants/@PACKAGE_UNIT@
drop /etc/systemd/system/@PACKAGE_UNIT@.d
if [ @PACKAGE@ = pagurus ]; then
  drop /etc/pagurus /run/pagurus /var/lib/pagurus /opt/pagurus-criu
  if getent passwd pagurus >/dev/null; then
    userdel pagurus || :
  fi
else
  # What makes this machine a head; other hosts' settings may stay beside it.
  drop /etc/pagurus/conf.d/10-cluster.toml
  drop /var/lib/pagurus/etcd /var/lib/pagurus/spool /var/lib/pagurus/audit /var/lib/pagurus/authority.crt /var/lib/pagurus/authority.key
  # Of a controller among several.
  drop /var/lib/pagurus/spool.term /var/lib/pagurus/controller.json /var/lib/pagurus/controller.removed /var/lib/pagurus/peer.crt /var/lib/pagurus/peer.key
  drop /var/lib/pagurus/joining /var/lib/pagurus/removed-*
  # A restore keeps what it replaced, with its keys.
  drop /var/lib/pagurus/restored.json /var/lib/pagurus/before-restore-* /var/lib/pagurus/restoring-*
  rm -f /run/pagurus/controller.sock /run/pagurus/controller.sock.lock
fi
reload # the links that named the unit are gone, too
