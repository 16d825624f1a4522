package xen

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"pagurus/act/host"
)

// toolLimit is how long xl may take: some seconds, and much longer on an emulated machine that is busy.
const toolLimit = 4 * time.Minute

// findTools finds Xen's programs for the hypervisor that runs: Debian has them in a folder for each version, beside each other.
func findTools() (tools, error) {
	if !host.IsXen() {
		return tools{}, errors.New("this is not the first domain of a Xen host: install the package xen-system-amd64 and boot with Xen")
	}
	var version []string
	for _, part := range []string{"major", "minor"} {
		b, err := os.ReadFile("/sys/hypervisor/version/" + part)
		if err != nil {
			return tools{}, fmt.Errorf("which Xen this is: %w", err)
		}
		version = append(version, strings.TrimSpace(string(b)))
	}
	of := strings.Join(version, ".")
	for _, dir := range []string{"/usr/lib/xen-" + of + "/bin", "/usr/lib/xen/bin", "/usr/local/lib/xen/bin", "/usr/libexec/xen/bin"} {
		t := tools{XL: filepath.Join(dir, "xl"), Helper: filepath.Join(dir, "libxl-save-helper")}
		if _, err := os.Stat(t.Helper); err != nil {
			continue
		}
		if _, err := os.Stat(t.XL); err != nil {
			if t.XL, err = exec.LookPath("xl"); err != nil {
				continue
			}
		}
		return t, nil
	}
	return tools{}, fmt.Errorf("the programs of Xen %s, which runs here, are not installed: apt-get install xen-utils-%s", of, of)
}

// command is a call of xl.
func (t tools) command(ctx context.Context, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, t.XL, args...)
	c.Env = []string{"LC_ALL=C", "PATH=" + filepath.Dir(t.XL) + ":/usr/sbin:/usr/bin:/sbin:/bin"}
	c.WaitDelay = time.Second
	return c
}

// run calls xl, and waits for its end.
func (t tools) run(ctx context.Context, args ...string) error {
	_, err := t.output(ctx, args...)
	return err
}

func (t tools) output(ctx context.Context, args ...string) (string, error) {
	ctx, stop := context.WithTimeout(ctx, toolLimit)
	defer stop()
	c := t.command(ctx, args...)
	var out, complaint bytes.Buffer
	c.Stdout, c.Stderr = &out, &complaint
	if err := c.Run(); err != nil {
		said := oneLine(complaint.String())
		return "", fmt.Errorf("xl %s: %w: %s", args[0], cmp.Or(ctx.Err(), err), said[max(0, len(said)-mostSaid):])
	}
	return out.String(), nil
}

// mostSaid is how much of what xl said an error shows.
const mostSaid = 900

// domain is what xl says of one.
type domain struct {
	Name    string // empty: xenstored has none, as when xl has just begun to make it, or xenstored was started again
	UUID    string
	Number  int
	MiB     int64
	State   string        // as "r-----": running, blocked, stopped for a while, shut down, crashed, dying
	CPUTime time.Duration // all that it has used
	Reason  int           // why it shut down; -1: it has not
}

// Reasons of a domain that has shut down (xen/sched.h).
const suspendReason = 2

var reasons = map[int]string{0: "poweroff", 1: "reboot", 3: "crash", 4: "watchdog", 5: "soft reset"}

// destroyed is the end of a domain that somebody destroyed.
const destroyed = "destroyed"

// list returns all domains but the first.
func (t tools) list(ctx context.Context) ([]domain, error) {
	out, err := t.output(ctx, "list", "-v")
	if err != nil {
		return nil, err
	}
	return parseList(out)
}

// parseList reads the table of xl list -v.
func parseList(text string) (all []domain, err error) {
	for i, line := range strings.Split(strings.TrimSpace(text), "\n") {
		f := strings.Fields(line)
		if i == 0 {
			continue // the headings
		}
		if len(f) < 8 {
			if len(f) > 0 && f[0] == unnamed {
				continue // it is just being made, or goes
			}
			return nil, fmt.Errorf("xl list says %q", line)
		}
		d := domain{Name: f[0], UUID: f[6], State: f[4], Reason: -1}
		if d.Name == unnamed {
			d.Name = ""
		}
		number, err := strconv.Atoi(f[1])
		mib, err2 := strconv.ParseInt(f[2], 10, 64)
		seconds, err3 := strconv.ParseFloat(f[5], 64)
		if err := errors.Join(err, err2, err3); err != nil {
			return nil, fmt.Errorf("xl list says %q: %w", line, err)
		}
		d.Number, d.MiB, d.CPUTime = number, mib, time.Duration(seconds*float64(time.Second))
		if reason, err := strconv.ParseInt(f[7], 16, 32); err == nil && strings.ContainsAny(d.State, "sc") {
			d.Reason = int(reason)
		}
		if number > 0 {
			all = append(all, d)
		}
	}
	return all, nil
}

// unnamed is what xl list calls a domain whose name it cannot find.
const unnamed = "(null)"

// uuidOf is the UUID of a domain of ours, made of its name (RFC 9562, version 5). Xen has it from the domain's first moment and without
// xenstored, and a guest reads the same one wherever it is (/sys/hypervisor/uuid).
func uuidOf(name string) string {
	return uuid.NewSHA1(uuid.Nil, []byte("pagurus domain "+name)).String()
}

// find finds a domain by its name or its UUID. One that is dying counts for gone: it lasts until nobody maps its memory, as its warden does.
func find(all []domain, name string) (domain, bool) {
	id := uuidOf(name)
	i := slices.IndexFunc(all, func(d domain) bool {
		return !strings.Contains(d.State, "d") && (d.Name == name || d.UUID == id)
	})
	if i < 0 {
		return domain{}, false
	}
	return all[i], true
}

// destroy ends a domain, if there is one of this name or its UUID.
func (t tools) destroy(name string) error {
	for end := time.Now().Add(toolLimit); ; time.Sleep(lookSoon) {
		all, err := t.list(context.Background())
		if err != nil {
			return err
		}
		d, is := find(all, name)
		if !is {
			return nil
		}
		if err = t.run(context.Background(), "destroy", strconv.Itoa(d.Number)); err != nil && time.Now().After(end) {
			return err
		}
	}
}

const lookSoon = 100 * time.Millisecond
