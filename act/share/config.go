package share

import (
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"pagurus/fleet"
)

const (
	nfsPort = 2049
	// threads is the number of requests a server handles at once. ganesha's default is
	// 200, each with a stack.
	threads = 16
	// leaseSeconds is after how long a silent client loses its locks. It exceeds the
	// suspension of a guest in a move.
	leaseSeconds = 60
	// graceSeconds is how long a new server waits for its predecessor's clients to
	// reclaim open files and locks. It ends as soon as all have, so the limit only
	// matters when a guest died with the server.
	graceSeconds = 15
	// cacheEntries limits the cached files of a server, about 3 KB each.
	cacheEntries = 10000
	// openFiles limits the files kept open for reuse.
	openFiles = 4096
)

// configText is the server's configuration, and also identifies what a running server was
// started with: another text means another server.
//
// All users in the guests are mapped to the job's user: a guest's root is controlled by
// the user, and NFS trusts its clients. So a job reaches only what its user can reach.
// The price is that the user's supplementary groups do not count.
func configText(n fleet.Network, folder string) (string, error) {
	if _, err := quoted(folder); err != nil { // names inside of it are plain
		return "", err
	}
	squash := fmt.Sprintf("Squash = all_squash;\n\tAnonymous_Uid = %d;\n\tAnonymous_Gid = %d;", n.Share.UID, n.Share.GID)
	if n.Share.UID == 0 {
		squash = "Squash = no_root_squash;"
	}
	addr := n.Subnet.ShareAddr()
	guests, err := addr.Prefix(fleet.SubnetPrefixBits)
	if err != nil {
		return "", err
	}
	var exports strings.Builder
	for i, d := range n.Share.Directories() {
		path, err := quoted(d.Path)
		if err != nil {
			return "", err
		}
		access := "RW"
		if d.ReadOnly {
			access = "RO"
		}
		fmt.Fprintf(&exports, exportText, i+1, filesPath(folder, i), path, squash, guests, clients, access)
	}
	return fmt.Sprintf(`# The files of job %s. Written by Pagurus; changes are lost.
NFS_CORE_PARAM {
	Protocols = 4;
	NFS_Port = %d;
	Bind_addr = %s;
	Enable_UDP = false;
	Enable_NLM = false;
	Enable_RQUOTA = false;
	Enable_NFS_Stats = false;
	mount_path_pseudo = true;
	RPC_Ioq_ThrdMax = %d;
	heartbeat_freq = 0;
	# It asks the kernel for a favour that takes CAP_SYS_RESOURCE, and goes
	# without it. Version 4 does not know the word and only warns of it.
	allow_set_io_flusher_fail = true;
}
NFSV4 {
	RecoveryBackend = fs;
	RecoveryRoot = "%s";
	Lease_Lifetime = %d;
	Grace_Period = %d;
	Only_Numeric_Owners = true;
	Delegations = false;
}
NFS_KRB5 { Active_krb5 = false; }
MDCACHE {
	NParts = 1;
	Cache_Size = 1009;
	Entries_HWMark = %d;
}
LOG {
	Default_Log_Level = EVENT;
	# It tells of every broken request, and any guest can send those; all
	# that it tells is said at one level.
	COMPONENTS { TIRPC = FATAL; }
}
EXPORT_DEFAULTS { Access_Type = None; }
`, n.Job, nfsPort, addr, threads, recoveryPath(folder), leaseSeconds, graceSeconds, cacheEntries) + exports.String(), nil
}

// exportText is one directory.
const exportText = `EXPORT {
	Export_Id = %d;
	Path = "%s";
	Pseudo = %s;
	Access_Type = None;
	%s
	Protocols = 4;
	Transports = TCP;
	SecType = sys;
	# Files change on the host too: editors, compilers, the user's shell.
	Attr_Expiration_Time = 1;
	CLIENT { Clients = %s, %s; Access_Type = %s; }
	FSAL { Name = VFS; }
}
`

// clients are the addresses of hosts' file clients.
var clients = netip.PrefixFrom(fleet.ClientAddr(0), fleet.ClientPrefixBits)

// filesPath is where only the server sees the job's directory number i.
func filesPath(folder string, i int) string {
	if i == 0 {
		return filepath.Join(folder, "files")
	}
	return filepath.Join(folder, fmt.Sprintf("files%d", i))
}

// recoveryPath is where the server stores its clients for its successor.
func recoveryPath(folder string) string { return filepath.Join(folder, "recovery") }

// quoted is a path for ganesha's configuration, which has no escapes.
func quoted(path string) (string, error) {
	control := func(r rune) bool { return r < ' ' || r == 0x7f }
	switch {
	case !filepath.IsAbs(path) || filepath.Clean(path) != path:
		return "", fmt.Errorf("the directory %q cannot be shared, because its path is not whole: name one that begins with / and has no .. in it", path)
	case path == "/":
		return "", fmt.Errorf("the directory / cannot be shared, because it would hide the guest's own files: submit from a directory of your own")
	case strings.Contains(path, `"`) || strings.ContainsFunc(path, control):
		return "", fmt.Errorf("the directory %q cannot be shared, because its path has a quotation mark or a control character in it: rename it or submit from another directory", path)
	}
	return `"` + path + `"`, nil
}

// powers are root's capabilities that the server keeps: acting as the user, and opening
// files by handles.
const powers = "-all,+chown,+dac_override,+dac_read_search,+fowner,+fsetid,+setuid,+setgid,+mknod"

// prelude runs in the server's own mount namespace. Ganesha always registers with the
// machine's portmapper and message bus, through sockets that a network namespace does not
// hide. That would disturb the machine's own file server.
//
// Ganesha exports only what is in the list of mounts, and from version 6 on no tmpfs,
// such as Debian 13's /tmp, because a tmpfs loses its files at a reboot. A job's files in
// a tmpfs are the user's choice, so the server reads a list in which a tmpfs has another
// name. It is mounted over the list of the process that becomes the server.
const prelude = `mounts=$1
sed 's/^\([^ ]* [^ ]*\) tmpfs /\1 memory /' /proc/self/mounts >"$mounts" || exit
mount --bind "$mounts" /proc/$$/mounts || exit
shift
for s in /run/rpcbind.sock /run/dbus/system_bus_socket; do
	[ ! -e $s ] || mount --bind /dev/null $s || exit
done
ulimit -n $1 2>/dev/null; shift
exec "$@"`

// command is the server's command, to be started in its network namespace.
func command(program, config, folder string) (*exec.Cmd, error) {
	path, err := exec.LookPath(program)
	if err != nil {
		return nil, fmt.Errorf("the NFS server is missing: apt-get install nfs-ganesha nfs-ganesha-vfs: %w", err)
	}
	cmd := exec.Command("/bin/sh", "-c", prelude, "sh", filepath.Join(folder, "mounts"), fmt.Sprint(openFiles),
		"setpriv", "--no-new-privs", "--inh-caps=-all", "--bounding-set="+powers, "--",
		path, "-F", "-f", config, "-L", "STDERR", "-p", filepath.Join(folder, "ganesha.pid"))
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8",
		"MALLOC_ARENA_MAX=2"} // otherwise glibc reserves an arena for each thread
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd, nil
}
