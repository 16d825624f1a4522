package image

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// Where Debian is when this machine does not say.
const (
	debianMirror   = "http://deb.debian.org/debian"
	securityMirror = "http://deb.debian.org/debian-security"
	debianKeyring  = "/usr/share/keyrings/debian-archive-keyring.gpg"
)

// An archive is where packages come from and how apt gets at them here.
type archive struct {
	main, security string
	options        []string // apt settings of this machine that matter for reaching it
}

// findArchive uses what this machine uses, if it is a Debian: its
// administrator will have chosen a near mirror or the only reachable one.
func findArchive(ctx context.Context) (archive, error) {
	if _, err := os.Stat(debianKeyring); err != nil {
		return archive{}, errors.New("the keys of the Debian archive are missing: apt-get install debian-archive-keyring")
	}
	a := archive{main: debianMirror, security: securityMirror}
	if release := osRelease("/etc/os-release"); release["ID"] == "debian" {
		out, err := exec.CommandContext(ctx, "apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages").Output()
		if err == nil {
			a.choose(string(out), release["VERSION_CODENAME"])
		}
	}
	for _, key := range []string{"Acquire::http::Proxy", "Acquire::https::Proxy", "Acquire::Check-Valid-Until", "Acquire::Check-Date"} {
		out, err := exec.CommandContext(ctx, "apt-config", "shell", "V", key).Output()
		if err != nil {
			continue
		}
		v := strings.Trim(strings.TrimPrefix(strings.TrimSpace(string(out)), "V="), "'")
		if v != "" && !strings.ContainsAny(v, "\"'\\\n") {
			a.options = append(a.options, fmt.Sprintf("%s %q", key, v))
		}
	}
	return a, nil
}

// choose takes the mirrors from apt's list of index files: "URI release component" a line.
func (a *archive) choose(targets, codename string) {
	main, security := "", ""
	for _, line := range strings.Split(targets, "\n") {
		f := strings.Fields(line)
		if len(f) != 3 || f[2] != "main" || !strings.Contains(f[0], "://") {
			continue
		}
		uri := strings.TrimSuffix(f[0], "/")
		switch f[1] {
		case codename, "stable":
			if main == "" && strings.Contains(uri, "debian") {
				main = uri
			}
		case codename + "-security", "stable-security":
			if security == "" {
				security = uri
			}
		}
	}
	if main != "" {
		a.main = main
	}
	if security != "" {
		a.security = security
	}
}

// sources is the sources.list of a suite.
func (a archive) sources(suite string) []string {
	signed := "[signed-by=" + debianKeyring + "] "
	lines := []string{"deb " + signed + a.main + " " + suite + " main"}
	if suite != "sid" && suite != "unstable" && suite != "testing" {
		lines = append(lines,
			"deb "+signed+a.main+" "+suite+"-updates main",
			"deb "+signed+a.security+" "+suite+"-security main")
	}
	return lines
}

// osRelease reads a file in the form of /etc/os-release; empty if it is not there.
func osRelease(path string) map[string]string {
	out := map[string]string{}
	f, err := os.Open(path)
	if err != nil {
		return out
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if k, v, ok := strings.Cut(sc.Text(), "="); ok {
			out[k] = strings.Trim(v, `"'`)
		}
	}
	return out
}
