package share

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"

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
`, n.Job, nfsPort, addr, threads, recoveryPath(folder), leaseSeconds, graceSeconds, cacheEntries) + exports.String() + jailedText(n), nil
}

// jailedText is the end of the configuration of a server in a jail: an earlier version's lacks it.
// Such a server is the job's user, and tries to be nobody else.
func jailedText(n fleet.Network) string {
	if n.Share.UID == 0 {
		return "# It runs in a jail.\n"
	}
	return "# It runs in a jail, as the job's user.\nVFS { only_one_user = true; }\n"
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
