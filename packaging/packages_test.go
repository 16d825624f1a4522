// Package packaging has what Pagurus's packages are made of. It has no code. Its tests make
// the packages, and install and purge them where nothing of it stays.
package packaging

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"pagurus/cmd/roles"
	"pagurus/internal/testkit"
)

// packages are the names of the packages.
var packages = []string{"pagurus", "pagurus-controller"}

func run(t *testing.T, command ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(command, " "), err, out)
	}
	return string(out)
}

// made gives the .deb of each package.
func made(t *testing.T) map[string]string {
	t.Helper()
	run(t, "make", "-s", "-C", "..", "build", "docs")
	dir := t.TempDir()
	run(t, "../scripts/packages", dir, "deb")
	out := map[string]string{}
	for _, name := range packages {
		found, err := filepath.Glob(filepath.Join(dir, name+"_*_amd64.deb"))
		if err != nil || len(found) != 1 {
			t.Fatalf("%s is made as %q, %v", name, found, err)
		}
		out[name] = found[0]
	}
	return out
}

func field(t *testing.T, deb, name string) string {
	t.Helper()
	return strings.TrimSpace(run(t, "dpkg-deb", "--field", deb, name))
}

// The packages hold what their units name, with modes that all may read, and can be
// installed, removed and purged, after which nothing is left.
func TestPackages(t *testing.T) {
	testkit.Root(t)
	debs := made(t)
	version := field(t, debs["pagurus"], "Version")
	if got := field(t, debs["pagurus-controller"], "Depends"); !strings.Contains(got, "pagurus (= "+version+")") {
		t.Errorf("the controller's package needs %q, not pagurus %s", got, version)
	}
	files := map[string]string{} // mode by path
	for _, name := range packages {
		if got := field(t, debs[name], "Package"); got != name {
			t.Errorf("%s is called %s", name, got)
		}
		for line := range strings.Lines(run(t, "dpkg-deb", "--contents", debs[name])) {
			part := strings.Fields(line)
			if part[1] != "root/root" {
				t.Errorf("%s belongs to %s", part[5], part[1])
			}
			files[strings.TrimPrefix(part[5], ".")] = part[0]
		}
	}
	checkFiles(t, files)
	checkUnits(t, files)
	checkKept(t, files)
	checkConfiguration(t)
	for _, deb := range debs {
		checkScripts(t, deb)
	}
	if conffiles := run(t, "dpkg-deb", "--info", debs["pagurus"], "conffiles"); !strings.Contains(conffiles, "/etc/pagurus/config.toml") {
		t.Errorf("the configuration is no conffile: %q", conffiles)
	}
	install(t, debs)
}

func checkFiles(t *testing.T, files map[string]string) {
	t.Helper()
	for path, mode := range files {
		want := "-rw-r--r--"
		if strings.HasPrefix(path, "/usr/bin/pagurus") || strings.HasSuffix(path, "/") {
			want = "-rwxr-xr-x"
		}
		if link := mode[0] == 'l'; link != strings.HasSuffix(path, ".so") || !link && mode[1:] != want[1:] {
			t.Errorf("%s is %s", path, mode)
		}
	}
	for _, name := range []string{roles.ClientProgram, roles.AgentProgram, roles.ControllerProgram, roles.GuestProgram, "pagurus-shim", "pagurus-daemon"} {
		if files["/usr/bin/"+name] == "" {
			t.Errorf("%s is not beside the others", name)
		}
	}
	for _, path := range []string{
		"/usr/lib/sysusers.d/pagurus.conf", "/usr/lib/tmpfiles.d/pagurus.conf", "/etc/pagurus/conf.d/05-controller.toml",
		"/usr/share/bash-completion/completions/pagurus", "/usr/share/zsh/vendor-completions/_pagurus",
		"/usr/share/fish/vendor_completions.d/pagurus.fish", "/usr/share/man/man1/pagurus.1.gz", "/usr/include/pagurus.f90",
	} {
		if files[path] == "" {
			t.Errorf("no package has %s", path)
		}
	}
}

// page is a man page that a unit names.
var page = regexp.MustCompile(`man:(\S+)\((\d)\)`)

func checkUnits(t *testing.T, files map[string]string) {
	t.Helper()
	for name, command := range map[string]*cobra.Command{
		"pagurus-agent":      roles.AgentCommand("", nil),
		"pagurus-controller": roles.ControllerCommand("", nil),
	} {
		if files["/usr/lib/systemd/system/"+name+".service"] == "" {
			t.Errorf("no package has %s.service", name)
		}
		text, err := os.ReadFile(name + ".service")
		if err != nil {
			t.Fatal(err)
		}
		wanted := []string{"Type=notify", "KillMode=process", "Delegate=yes", "Restart=on-failure", "WatchdogSec="}
		if name == roles.ControllerProgram {
			wanted = append(wanted, fmt.Sprint("RestartPreventExitStatus=", roles.ExitRemoved, "\n"))
		}
		for _, want := range wanted {
			if !bytes.Contains(text, []byte("\n"+want)) {
				t.Errorf("%s.service has no %s", name, want)
			}
		}
		for _, p := range page.FindAllStringSubmatch(string(text), -1) {
			if files["/usr/share/man/man"+p[2]+"/"+p[1]+"."+p[2]+".gz"] == "" {
				t.Errorf("no package has %s", p[0])
			}
		}
		_, after, _ := strings.Cut(string(text), "\nExecStart=")
		line, _, _ := strings.Cut(after, "\n")
		words := strings.Fields(line)
		if len(words) == 0 || files[words[0]] == "" {
			t.Fatalf("%s.service starts %q, which no package has", name, line)
		}
		if err := command.ParseFlags(words[1:]); err != nil || len(command.Flags().Args()) > 0 {
			t.Errorf("%s.service: %q: %v, arguments %q", name, line, err, command.Flags().Args())
		}
	}
}

// checkKept: what the agent's unit keeps of its memory counts only as far as the slice keeps it.
func checkKept(t *testing.T, files map[string]string) {
	t.Helper()
	if files["/usr/lib/systemd/system/system.slice.d/pagurus.conf"] == "" {
		t.Error("no package has the slice's memory")
	}
	kept := regexp.MustCompile(`(?m)^MemoryMin=\d+M$`)
	var lines []string
	for _, name := range []string{"pagurus-agent.service", "system.slice.conf"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, kept.FindString(string(text)))
	}
	if lines[0] == "" || lines[0] != lines[1] {
		t.Errorf("the agent's unit has %q, the slice %q", lines[0], lines[1])
	}
}

func checkScripts(t *testing.T, deb string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "control")
	run(t, "dpkg-deb", "--control", deb, dir)
	for _, name := range []string{"postinst", "prerm", "postrm"} {
		path := filepath.Join(dir, name)
		run(t, "sh", "-n", path)
		if text, err := os.ReadFile(path); err != nil || bytes.Contains(text, []byte("@P")) {
			t.Errorf("%s of %s is not filled in: %v", name, deb, err)
		}
	}
}

// install installs and purges the packages in a mount namespace, where all that is written
// goes to a layer over this machine's root. It compares which paths there are about Pagurus.
func install(t *testing.T, debs map[string]string) {
	t.Helper()
	layer := t.TempDir()
	out := run(t, "unshare", "--mount", "--net", "--propagation", "private", "sh", "-c", trying, "try", layer, debs["pagurus"], debs["pagurus-controller"])
	if got := strings.Fields(out[strings.LastIndex(out, "LEFT:")+len("LEFT:"):]); len(got) > 0 {
		slices.Sort(got)
		t.Errorf("after a purge there still is %q", got)
	}
	t.Log(out)
}

// uses is a program that is linked with libpagurus; it runs where there is no Pagurus.
const uses = `#include <pagurus.h>
int main(void) {
	struct pagurus_place here;
	return pagurus_where(&here) != PAGURUS_NONE;
}
`

// What `make install` installs below a prefix is found there by a compiler, pkg-config and python3.
func TestInstalledLibraryIsFound(t *testing.T) {
	testkit.Root(t)
	prefix := t.TempDir()
	run(t, "make", "-s", "-C", "..", "install", "PREFIX="+prefix)
	program := filepath.Join(prefix, "uses")
	if err := os.WriteFile(program+".c", []byte(uses), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PKG_CONFIG_PATH", filepath.Join(prefix, "lib/pkgconfig"))
	flags := strings.Fields(run(t, "pkg-config", "--cflags", "--libs", "pagurus"))
	run(t, append([]string{"gcc", "-Wall", "-Werror", "-o", program, program + ".c"}, flags...)...)
	t.Setenv("LD_LIBRARY_PATH", filepath.Join(prefix, "lib"))
	run(t, program)
	t.Setenv("PYTHONPATH", filepath.Join(prefix, "lib/python3/dist-packages"))
	run(t, "python3", "-c", "import libpagurus as p; assert p._library and p.where() is None")
}

const trying = `set -e
layer=$1
mount -t tmpfs tmpfs "$layer"
mkdir "$layer/upper" "$layer/work" "$layer/root"
mount -t overlay -o "lowerdir=/,upperdir=$layer/upper,workdir=$layer/work" overlay "$layer/root"
cat "$2" >"$layer/root/pagurus.deb"
cat "$3" >"$layer/root/controller.deb"
mount -t tmpfs tmpfs "$layer/root/run"
# Other tests may write here meanwhile.
mkdir -p "$layer/root/var/cache/pagurus-test"
for each in tmp var/tmp var/cache/pagurus-test; do mount -t tmpfs tmpfs "$layer/root/$each"; done
mount --rbind /dev "$layer/root/dev"
mount --rbind /proc "$layer/root/proc"
cat >"$layer/root/tmp/uses.c" <<'END'
` + uses + `END
cat >"$layer/root/tmp/inside" <<'END'
set -e
export PATH=/usr/local/sbin:/usr/sbin:/sbin:$PATH DEBIAN_FRONTEND=noninteractive LC_ALL=C
rm -rf /var/lib/pagurus /etc/pagurus /opt/pagurus-criu
userdel pagurus 2>/dev/null || :
mkdir -p /run/lock
about() { find /etc /opt /run /usr /var -xdev -name '*pagurus*' 2>/dev/null | sort; getent passwd pagurus || :; }
about >/tmp/before
says() { [ "$2" = "$3" ] || { echo "$1 is $2, not $3"; exit 1; }; }
dpkg --install /pagurus.deb /controller.deb
says /run/pagurus "$(stat -c %a:%U /run/pagurus)" 755:root
says /var/lib/pagurus "$(stat -c %a:%U /var/lib/pagurus)" 755:root
getent passwd pagurus
pagurus version
pagurus-agent --version
pagurus-controller --version
unset PKG_CONFIG_PATH LD_LIBRARY_PATH PYTHONPATH PYTHONDONTWRITEBYTECODE PYTHONPYCACHEPREFIX
gcc -Wall -Werror -o /tmp/uses /tmp/uses.c $(pkg-config --cflags --libs pagurus)
/tmp/uses
/usr/bin/python3 -c 'import libpagurus as p; assert p._library and p.where() is None'
ls /usr/lib/python3/dist-packages/__pycache__/libpagurus.*.pyc # which must not stay
systemd-analyze verify --man=no /usr/lib/systemd/system/pagurus-agent.service /usr/lib/systemd/system/pagurus-controller.service
dpkg --install /pagurus.deb /controller.deb # an upgrade
mkdir -p /var/lib/pagurus/etcd /var/lib/pagurus/images /etc/pagurus/conf.d /etc/systemd/system/pagurus-agent.service.d /var/lib/pagurus/audit /var/lib/pagurus/before-restore-1 /var/lib/pagurus/restoring-2 /var/lib/pagurus/joining /var/lib/pagurus/removed-3
touch /var/lib/pagurus/etcd/store /var/lib/pagurus/authority.key /run/pagurus/agent.lock /etc/pagurus/conf.d/10-cluster.toml
touch /var/lib/pagurus/before-restore-1/authority.key /var/lib/pagurus/restoring-2/authority.key /var/lib/pagurus/restored.json /var/lib/pagurus/audit/2026-11.jsonl
touch /var/lib/pagurus/spool.term /var/lib/pagurus/controller.json /var/lib/pagurus/controller.removed /var/lib/pagurus/peer.crt /var/lib/pagurus/peer.key
# A head that becomes an ordinary host keeps no secret of the cluster, and can be a new head.
dpkg --purge pagurus-controller
left=$(ls /var/lib/pagurus; ls /etc/pagurus/conf.d 2>/dev/null || :)
says "what the controller left" "$(echo $left)" images
dpkg --install /controller.deb
touch /var/lib/pagurus/authority.key
mkdir -p /var/lib/pagurus/etcd
touch /var/lib/pagurus/etcd/store
dpkg --remove pagurus-controller pagurus
[ -e /var/lib/pagurus/etcd/store ] || { echo "removing removed the state"; exit 1; }
[ ! -e /usr/bin/pagurus ] || { echo "the program is still there"; exit 1; }
dpkg --purge pagurus-controller pagurus
rm /pagurus.deb /controller.deb
echo LEFT:
about >/tmp/after
grep -vxFf /tmp/before /tmp/after || :
END
chroot "$layer/root" sh /tmp/inside
`

// checkConfiguration finds the settings that the shipped file suggests and that there are not.
func checkConfiguration(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile("config.toml")
	if err != nil {
		t.Fatal(err)
	}
	suggested := regexp.MustCompile(`(?m)^# ([a-z-]+ = )`).ReplaceAll(text, []byte("$1"))
	if bytes.Equal(suggested, text) {
		t.Error("config.toml suggests nothing")
	}
	file := filepath.Join(t.TempDir(), "config.toml")
	if err := os.WriteFile(file, suggested, 0o644); err != nil {
		t.Fatal(err)
	}
	run(t, "../bin/pagurus", "config", "check", file)
	// A flag of the unit would count more than what `pagurus cluster init --listen` writes.
	unit, err := os.ReadFile("pagurus-controller.service")
	if err != nil || bytes.Contains(unit, []byte("--listen")) {
		t.Errorf("the unit says where the controller listens, which files could not change: %v", err)
	}
	if out := run(t, "../bin/pagurus", "config", "show", "--config", "controller.toml"); !regexp.MustCompile(`controller\.listen +:7461`).MatchString(out) {
		t.Errorf("without `pagurus cluster init` the controller listens as in %s", out)
	}
}
