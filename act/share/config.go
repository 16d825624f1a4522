package share

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"pagurus/fleet"
)

const (
	nfsPort = 2049
	// threads is how many requests a server works on at once; ganesha's own
	// default is 200, each with a stack.
	threads = 16
	// leaseSeconds is after how long a client that is not heard from loses its
	// locks. Longer than a guest may be suspended in a move.
	leaseSeconds = 60
	// graceSeconds is how long a new server waits for clients of its
	// predecessor to claim their open files and locks. It ends as soon as all
	// have, so the figure only counts when a guest died with the server.
	graceSeconds = 15
	// cacheEntries bounds how many files a server remembers; about 3 KB each.
	cacheEntries = 10000
	// openFiles bounds how many it keeps open for reuse.
	openFiles = 4096
)

// configText is the server's configuration, and the record of what it was
// started with: another text, another server.
//
// Everybody in the guests is the job's user, whatever they claim to be: a
// guest's root is the user's own, and NFS believes its clients. So a job
// reaches what its user could reach anyway and nothing else. The price is that
// the user's further groups do not count.
func configText(n fleet.Network, folder string) (string, error) {
	export, err := quoted(n.Share.Export)
	if err != nil {
		return "", err
	}
	if _, err := quoted(folder); err != nil { // what is in it has plain names
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
EXPORT {
	Export_Id = 1;
	Path = "%s";
	Pseudo = %s;
	Access_Type = None;
	%s
	Protocols = 4;
	Transports = TCP;
	SecType = sys;
	# Files change on the host too: editors, compilers, the user's shell.
	Attr_Expiration_Time = 1;
	CLIENT { Clients = %s; Access_Type = RW; }
	FSAL { Name = VFS; }
}
`, n.Job, nfsPort, addr, threads, recoveryPath(folder), leaseSeconds, graceSeconds, cacheEntries, filesPath(folder), export, squash, guests), nil
}

// filesPath is where the server, and nobody else, sees the job's directory.
func filesPath(folder string) string { return filepath.Join(folder, "files") }

// recoveryPath is where the server notes its clients for the one after it.
func recoveryPath(folder string) string { return filepath.Join(folder, "recovery") }

// quoted is a path as ganesha's configuration wants it. It knows no escapes.
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

// powers is all of root's that the server keeps: acting as the user, and
// opening files by their handles.
const powers = "-all,+chown,+dac_override,+dac_read_search,+fowner,+fsetid,+setuid,+setgid,+mknod"

// prelude is run in the server's own mount namespace. Ganesha always tells the
// portmapper and the message bus of the machine about itself, through sockets
// that a network namespace does not hide; there it would get in the way of a
// file server of the machine's own.
//
// It exports what it finds in the list of mounts, but from version 6 on nothing
// that is a tmpfs there, as /tmp of Debian 13 is: a tmpfs loses its files at a
// restart of the machine. So does everything of a job's that is in one, which is
// the user's choice, so the server reads a list in which a tmpfs is called
// otherwise. It is laid over the file of the very process that becomes the server.
const prelude = `mounts=$1
sed 's/^\([^ ]* [^ ]*\) tmpfs /\1 memory /' /proc/self/mounts >"$mounts" || exit
mount --bind "$mounts" /proc/$$/mounts || exit
shift
for s in /run/rpcbind.sock /run/dbus/system_bus_socket; do
	[ ! -e $s ] || mount --bind /dev/null $s || exit
done
ulimit -n $1 2>/dev/null; shift
exec "$@"`

// command is the server's, ready to be started in its network namespace.
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
		"MALLOC_ARENA_MAX=2"} // glibc reserves an arena for each thread otherwise
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd, nil
}
