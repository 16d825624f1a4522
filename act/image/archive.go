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

// Debian's defaults for a machine that configures none.
const (
	debianMirror   = "http://deb.debian.org/debian"
	securityMirror = "http://deb.debian.org/debian-security"
	debianKeyring  = "/usr/share/keyrings/debian-archive-keyring.gpg"
)

// An archive is the source of packages and apt's way to it.
type archive struct {
	main, security string
	options        []string // this machine's apt settings for reaching it
}

// findArchive uses this machine's archive, if it is a Debian: the administrator will have
// chosen a near or the only reachable mirror.
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

// choose picks the mirrors from apt's list of index files: "URI release component" a
// line.
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

// sources is the sources.list for a suite.
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

// osRelease reads a file in the form of /etc/os-release; empty if missing.
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
