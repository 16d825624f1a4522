package view

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"pagurus/fleet"
)

// This file writes ended jobs as Slurm's `sacct --parsable2 --noheader --allocations` does with the fields that Open XDMoD's
// shredder for Slurm reads (https://open.xdmod.org/resource-manager-slurm.html). Times are in UTC, as the shredder expects.

// SacctFields are the fields of a line, by sacct's names.
var SacctFields = []string{"jobid", "jobidraw", "cluster", "partition", "qos", "account", "group", "gid", "user", "uid", "submit", "eligible", "start", "end", "elapsed",
	"exitcode", "state", "nnodes", "ncpus", "reqcpus", "reqmem", "reqtres", "alloctres", "timelimit", "nodelist", "jobname"}

// Names find names of users and groups of this machine; empty: there is none.
type Names struct {
	User, Group func(id uint32) string
}

// SacctLines has a line for each job that ended since a time. A guest counts as a node, as the program sees it; the list of nodes
// has the hosts on which guests were.
func SacctLines(a fleet.UsageAnswer, since time.Time, n Names) []string {
	jobs := map[jobOf]*fleet.UsageRecord{}
	for _, r := range a.Records {
		if !r.Daily() || r.About == nil {
			continue
		}
		k := jobOf{r.Job, r.Born}
		if jobs[k] == nil {
			jobs[k] = &fleet.UsageRecord{Job: r.Job, Born: r.Born, UID: r.UID, Hosts: map[fleet.HostID]fleet.Usage{}}
		}
		j := jobs[k]
		j.About = r.About // records are sorted, so this is the newest
		for host, u := range r.Hosts {
			j.Hosts[host] = j.Hosts[host].Plus(u)
		}
	}
	var ended []fleet.UsageRecord
	for _, j := range jobs {
		if !j.About.Ended.IsZero() && !j.About.Ended.Before(since) {
			ended = append(ended, *j)
		}
	}
	slices.SortFunc(ended, func(x, y fleet.UsageRecord) int {
		return cmp.Or(x.About.Ended.Compare(y.About.Ended), cmp.Compare(x.Job.Number(), y.Job.Number()))
	})
	out := make([]string, 0, len(ended))
	for _, j := range ended {
		out = append(out, sacctLine(a, j, n))
	}
	return out
}

// sacctLine is one job's.
func sacctLine(a fleet.UsageAnswer, r fleet.UsageRecord, n Names) string {
	j := r.About
	user := cmp.Or(string(a.Users[r.UID]), n.User(r.UID), fmt.Sprint(r.UID))
	group := cmp.Or(n.Group(j.GID), fmt.Sprint(j.GID))
	cpus, mebi := j.Guests*j.Need.CPUs, int64(j.Guests)*(j.Need.MemoryBytes>>20)
	start := j.Started
	if start.IsZero() { // its guests were there, and its program never ran
		start = j.Ended
	}
	asked := fmt.Sprintf("cpu=%d,mem=%dM,node=%d", cpus, mebi, j.Guests)
	had := asked
	if u := r.Sum(); u.MeteredCPUSeconds > 0 {
		had = fmt.Sprintf("cpu=%d,energy=%.0f,mem=%dM,node=%d", cpus, u.Joules, mebi, j.Guests)
	}
	limit := "UNLIMITED"
	if j.Time > 0 {
		limit = slurmTime(j.Time)
	}
	hosts := make([]string, 0, len(r.Hosts))
	for _, id := range slices.Sorted(maps.Keys(r.Hosts)) {
		hosts = append(hosts, string(id))
	}
	number := fmt.Sprint(r.Job.Number())
	fields := []string{number, number, a.Cluster, cmp.Or(string(j.Kind), "all"), "normal", user, group, fmt.Sprint(j.GID), user, fmt.Sprint(r.UID),
		slurmStamp(j.Submitted), slurmStamp(j.Submitted), slurmStamp(start), slurmStamp(j.Ended), slurmTime(j.Ended.Sub(start)),
		slurmExit(j.Exit), slurmState(j), fmt.Sprint(j.Guests), fmt.Sprint(cpus), fmt.Sprint(cpus), fmt.Sprintf("%dM", mebi), asked, had, limit, strings.Join(hosts, ","), j.Name}
	for i, f := range fields {
		fields[i] = strings.ReplaceAll(Clean(f), "|", "_")
	}
	return strings.Join(fields, "|")
}

// slurmStamp is a time, in UTC.
func slurmStamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05") }

// slurmTime is [days-]hours:minutes:seconds.
func slurmTime(d time.Duration) string {
	s := int64(max(d, 0) / time.Second)
	text := fmt.Sprintf("%02d:%02d:%02d", s/3600%24, s/60%60, s%60)
	if days := s / 86400; days > 0 {
		text = fmt.Sprintf("%d-%s", days, text)
	}
	return text
}

// slurmExit is code:signal.
func slurmExit(e *fleet.Exit) string {
	switch {
	case e == nil:
		return "0:0"
	case e.Signal != "" && e.Code > 128:
		return fmt.Sprintf("0:%d", e.Code-128)
	}
	return fmt.Sprintf("%d:0", e.Code)
}

// slurmState says how a job ended, in Slurm's words.
func slurmState(j *fleet.UsedBy) string {
	switch {
	case j.Overran:
		return "TIMEOUT"
	case j.Result == fleet.JobCancelled:
		return "CANCELLED"
	case j.LostWith != "":
		return "NODE_FAIL"
	case j.Result == fleet.JobFinished && (j.Exit == nil || j.Exit.Code == 0):
		return "COMPLETED"
	}
	return "FAILED"
}
