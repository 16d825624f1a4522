// Package endnotice looks for what says that this host goes away at a known time: logind and its scheduled shutdown, a battery, clouds
// that take spot instances back, Slurm that preempts the agent's job.
//
// It decides nothing and knows no guests, except whether there are any: logind is asked to wait until there are none. Its tests
// run against the real logind in the machine lab, against a D-Bus daemon with what logind documents of itself, and against HTTP
// servers at the address of clouds' metadata that say what these document, also in a host of a lab (spot.txtar).
package endnotice

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"pagurus/fleet"
)

// Tell is told which notices stand. With an error it is unknown what stands, and what stood before counts on.
type Tell func(pending []fleet.EndNotice, err error)

// Source looks for notices of some kinds.
type Source interface {
	// Name is what it asks, for people.
	Name() string
	// Watch looks until ctx ends. It tells what stands as soon as it knows, and when that changes. empty reports whether the host has no
	// guests.
	Watch(ctx context.Context, tell Tell, empty func() bool)
}

// Config says what to look at.
type Config struct {
	Kinds   []fleet.EndNoticeKind
	Signals <-chan os.Signal // of Slurm
	Over    func()           // Slurm has ended the job, and the host is empty; nil: nothing follows
	Root    string           // of the file system; empty: /
}

// Open makes the sources of some kinds and asks nothing yet.
func Open(c Config) (all []Source) {
	has := func(k fleet.EndNoticeKind) bool { return slices.Contains(c.Kinds, k) }
	if has(fleet.ShutdownNotice) || has(fleet.SleepNotice) {
		all = append(all, &logind{shutdown: has(fleet.ShutdownNotice), sleep: has(fleet.SleepNotice)})
	}
	if has(fleet.BatteryNotice) {
		all = append(all, &battery{folder: c.Root + "/sys/class/power_supply"})
	}
	if has(fleet.AWSNotice) {
		all = append(all, newCloud(fleet.AWSNotice, metadata, &amazon{}))
	}
	if has(fleet.GoogleNotice) {
		all = append(all, newCloud(fleet.GoogleNotice, metadata, &google{}))
	}
	if has(fleet.AzureNotice) {
		all = append(all, newCloud(fleet.AzureNotice, metadata, &azure{}))
	}
	if has(fleet.SlurmNotice) {
		all = append(all, &slurm{job: os.Getenv("SLURM_JOB_ID"), signals: c.Signals, over: c.Over})
	}
	return all
}

// Parse reads kinds as an administrator writes them; "off" alone is none, and "cloud" the one in which this machine is, if any.
func Parse(words []string) (kinds []fleet.EndNoticeKind, err error) {
	for _, w := range words {
		k := fleet.EndNoticeKind(strings.TrimSpace(w))
		switch {
		case k == Off && len(words) == 1:
			return nil, nil
		case k == Cloud:
			if k = CloudOf("/"); k == "" {
				continue
			}
		case !slices.Contains(fleet.EndNoticeKinds, k):
			return nil, fmt.Errorf("there is no notice %q: there are %s, %s for the cloud in which this machine is, or %s alone", w, fleet.Enumerate(names(), "and"), Cloud, Off)
		}
		if !slices.Contains(kinds, k) {
			kinds = append(kinds, k)
		}
	}
	return kinds, nil
}

// Words that Parse takes besides the kinds.
const (
	Cloud = "cloud"
	Off   = "off"
)

func names() (out []string) {
	for _, k := range fleet.EndNoticeKinds {
		out = append(out, string(k))
	}
	return out
}

// CloudOf is the cloud in which a machine is, by what its firmware says; empty: none that is known.
func CloudOf(root string) fleet.EndNoticeKind {
	say := func(file string) string {
		text, err := os.ReadFile(root + "/sys/class/dmi/id/" + file)
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(text))
	}
	switch {
	case say("sys_vendor") == "Amazon EC2":
		return fleet.AWSNotice
	case say("product_name") == "Google Compute Engine":
		return fleet.GoogleNotice
	case say("chassis_asset_tag") == azureTag:
		return fleet.AzureNotice
	}
	return ""
}

// azureTag is in the chassis of each virtual machine of Azure, and of no other of Hyper-V.
const azureTag = "7783-7084-3265-9085-8269-3286-77"

// metadata is where the three clouds answer a virtual machine about itself.
const metadata = "http://169.254.169.254"

// wait waits, and is false when ctx has ended.
func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// direct is a client that no proxy and no redirection leads elsewhere.
func direct(limit time.Duration) *http.Client {
	return &http.Client{
		Timeout:       limit,
		Transport:     &http.Transport{Proxy: nil, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}
