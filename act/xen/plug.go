package xen

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"pagurus/internal/note"
)

// The names of the programs that xl calls to plug a guest's link and disk in, and out. Debian's take three seconds each under emulation,
// and xl gives them 40. They are links to pagurus-daemon in the guest's folder, where nothing can be executed that is a file: it is in /run.
const (
	linkName = "pagurus-xen-link"
	diskName = "pagurus-xen-disk"
)

// plugs are what these programs do, for /bin/sh. The guest's link is no port of a bridge: the other end of such a port, peer, is joined with
// it, both ways, and nothing of either reaches this host. So the port is there before the guest and after it, as any guest's.
var plugs = map[string]string{
	linkName: `
joins() {
  tc qdisc add dev "$1" clsact 2>/dev/null
  tc filter del dev "$1" ingress pref 1 2>/dev/null # of a guest before: matchall knows no replace
  tc filter add dev "$1" ingress pref 1 handle 1 protocol all matchall action mirred egress redirect dev "$2"
}
plugs() {
  vifname=$(xenstore-read "$XENBUS_PATH/vifname") || return
  [ "$vif" = "$vifname" ] || ip link set dev "$vif" name "$vifname" || return
  ip link set dev "$vifname" mtu "$(cat "/sys/class/net/$peer/mtu")" address fe:ff:ff:ff:ff:ff txqueuelen 1000 || return # as a TAP's: what waited for a guest comes at once
  if [ -d /proc/sys/net/ipv6 ]; then
    ip link set dev "$vifname" addrgenmode none && ip link set dev "$peer" addrgenmode none || return
  fi
  joins "$vifname" "$peer" && joins "$peer" "$vifname" && ip link set dev "$peer" up && ip link set dev "$vifname" up
}
case $1 in
online | add)
  if why=$(plugs 2>&1); then
    xenstore-write "$XENBUS_PATH/hotplug-status" connected
  else
    xenstore-write "$XENBUS_PATH/hotplug-error" "join $vif with $peer: $why" "$XENBUS_PATH/hotplug-status" error
    printf 'join %s with %s: %s\n' "$vif" "$peer" "$why" >&2
    exit 1
  fi
  ;;
*) xenstore-rm "$XENBUS_PATH/hotplug-status" ;;
esac
`,
	diskName: `
case $1 in
add)
  disk=$(xenstore-read "$XENBUS_PATH/params")
  xenstore-write "$XENBUS_PATH/physical-device" "$(stat -L -c %t:%T "$disk")" "$XENBUS_PATH/physical-device-path" "$disk" "$XENBUS_PATH/hotplug-status" connected
  ;;
*) xenstore-rm "$XENBUS_PATH/hotplug-status" ;;
esac
`,
}

// linkPlugs makes the links to this process's program. It is called again by the next process that has xl unplug.
func linkPlugs() error {
	for name := range plugs {
		if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if err := os.Symlink(fmt.Sprintf("/proc/%d/exe", os.Getpid()), name); err != nil {
			return err
		}
	}
	return nil
}

// plug is the program of that name.
func plug(name string) func([]string) error {
	return func(args []string) error {
		var s spec
		if err := note.Load(filepath.Join(filepath.Dir(os.Args[0]), specFile), &s); err != nil {
			return err
		}
		return syscall.Exec("/bin/sh", append([]string{"sh", "-c", plugs[name], name}, args...), append(os.Environ(), "peer="+s.Port.Peer))
	}
}
