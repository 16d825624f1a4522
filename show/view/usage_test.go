package view

import (
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
)

// used is usage of two users on two hosts, and of a month.
func used() fleet.UsageAnswer {
	at := time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)
	about := func(end time.Time, r fleet.JobResult, code int) *fleet.UsedBy {
		return &fleet.UsedBy{Name: "lmp|x", GID: 100, Guests: 2, Ranks: 4, Need: fleet.Resources{CPUs: 2, MemoryBytes: 512 << 20}, Kind: fleet.VM,
			Submitted: at, Started: at.Add(time.Minute), Ended: end, Result: r, Exit: &fleet.Exit{Code: code}}
	}
	return fleet.UsageAnswer{
		At: at, Cluster: "physics", Users: map[uint32]fleet.UserID{1000: "ada"}, NoPower: map[fleet.HostID]string{"host2": "it has no counters"},
		Records: []fleet.UsageRecord{
			{Period: "2026-01", UID: 1001, Hosts: map[fleet.HostID]fleet.Usage{"host1": {CPUSeconds: 360}}},
			{Period: "2026-03-03", UID: 1000, Job: "j7", Born: 1, About: about(time.Time{}, "", 0), Hosts: map[fleet.HostID]fleet.Usage{
				"host1": {CPUSeconds: 3600, HeldCPUSeconds: 7200, MemoryByteSeconds: 3600 << 30, HeldByteSeconds: 7200 << 30, Joules: 36000, MeteredCPUSeconds: 3600}}},
			{Period: "2026-03-04", UID: 1000, Job: "j7", Born: 1, About: about(at.Add(26*time.Hour), fleet.JobFinished, 0), Hosts: map[fleet.HostID]fleet.Usage{
				"host1": {Moves: 1, MovedBytes: 1 << 30, BlackoutSeconds: 0.25}, "host2": {CPUSeconds: 1800, SuspendedSeconds: 60}}},
			{Period: "2026-03-04", UID: 1001, Job: "j8", Born: 2, About: about(at.Add(time.Hour), fleet.JobFinished, 137), Hosts: map[fleet.HostID]fleet.Usage{"host2": {CPUSeconds: 1}}},
		},
	}
}

func TestUsageTables(t *testing.T) {
	for by, want := range map[UsageBy]string{
		UsageByUser: `
USER  UID   JOBS  CPU     CPU-HELD  MEMORY      MEMORY-HELD  MOVES  STOOD-STILL  ENERGY
ada   1000  1     1.50 h  2.00 h    1.00 GiB·h  2.00 GiB·h   1      1m00s        0.010 kWh
-     1001  1     6.0 min  0 s    0.00 GiB·h  0.00 GiB·h   0      0 s          -
! energy is known of 62 % of the processor time
! host2: it has no counters
`,
		UsageByJob: `
JOB  USER  UID   PROGRAM  RESULT    CPU     CPU-HELD  MEMORY      MEMORY-HELD  MOVES  STOOD-STILL  ENERGY
j7   ada   1000  lmp|x    finished  1.50 h  2.00 h    1.00 GiB·h  2.00 GiB·h   1      1m00s        0.010 kWh
-    -     1001  -        -         6.0 min  0 s    0.00 GiB·h  0.00 GiB·h   0      0 s          -
j8   -     1001  lmp|x    finished  1.0 s  0 s    0.00 GiB·h  0.00 GiB·h   0      0 s          -
! rows without a job are of months whose jobs are added up
! energy is known of 62 % of the processor time
! host2: it has no counters
`,
		UsageByHost: `
HOST   JOBS  CPU     CPU-HELD  MEMORY      MEMORY-HELD  MOVES  STOOD-STILL  ENERGY
host1  1     1.10 h  2.00 h    1.00 GiB·h  2.00 GiB·h   1      250 ms       0.010 kWh
host2  2     30.0 min  0 s    0.00 GiB·h  0.00 GiB·h   0      1m00s        -
! energy is known of 62 % of the processor time
! host2: it has no counters
`} {
		got := plainLines(UsageTable(used(), UsageRows(used(), by, ""), by).Text())
		if got != plainLines(want) {
			t.Errorf("by %s:\n%s\nwant\n%s", by, got, plainLines(want))
		}
	}
	if rows := UsageRows(used(), UsageByUser, "host2"); len(rows) != 2 || rows[0].CPUSeconds != 1800 {
		t.Errorf("on one host: %+v", rows)
	}
	if rows := UsageRows(fleet.UsageAnswer{}, UsageByUser, ""); len(rows) != 0 || !strings.Contains(UsageTable(fleet.UsageAnswer{}, rows, UsageByUser).Text(), "nothing") {
		t.Errorf("%+v", rows)
	}
}

// plainLines are the words of a text's lines.
func plainLines(text string) string {
	var out []string
	for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
		out = append(out, strings.Join(strings.Fields(line), " "))
	}
	return strings.Join(out, "\n")
}

func TestUsageCSV(t *testing.T) {
	a := used()
	a.Records[3].About.Name = "=cmd()"
	rows := UsageCSV(UsageRows(a, UsageByJob, ""))
	for i, r := range rows {
		if len(r) != len(rows[0]) {
			t.Errorf("row %d has %d columns of %d", i, len(r), len(rows[0]))
		}
	}
	if r := rows[1]; r[0] != "ada" || r[2] != "j7" || r[9] != "5400.000" || r[7] != "2026-03-05T14:00:00Z" {
		t.Errorf("%q", r)
	}
	if r := rows[3]; r[5] != "'=cmd()" {
		t.Errorf("a spreadsheet would compute %q", r[5])
	}
}

func TestSacctLines(t *testing.T) {
	none := func(uint32) string { return "" }
	lines := SacctLines(used(), time.Time{}, Names{User: none, Group: func(uint32) string { return "users" }})
	if len(lines) != 2 { // a month has no jobs
		t.Fatalf("%q", lines)
	}
	want := "7|7|physics|vm|normal|ada|users|100|ada|1000|2026-03-04T12:00:00|2026-03-04T12:00:00|2026-03-04T12:01:00|2026-03-05T14:00:00|1-01:59:00|0:0|COMPLETED|2|4|4|1024M|" +
		"cpu=4,mem=1024M,node=2|cpu=4,energy=36000,mem=1024M,node=2|UNLIMITED|host1,host2|lmp_x"
	if lines[1] != want {
		t.Errorf("%s\nwant\n%s", lines[1], want)
	}
	if !strings.Contains(lines[0], "|1001|1001|") && !strings.Contains(lines[0], "|1001|users|100|1001|1001|") {
		t.Errorf("a user without a name: %s", lines[0])
	}
	if f := strings.Split(lines[0], "|"); len(f) != len(SacctFields) || f[15] != "137:0" || f[16] != "FAILED" {
		t.Errorf("%q", f)
	}
	if got := SacctLines(used(), time.Date(2026, 3, 5, 0, 0, 0, 0, time.UTC), Names{none, none}); len(got) != 1 {
		t.Errorf("ended since: %q", got)
	}
	for _, c := range []struct {
		of   fleet.UsedBy
		want string
	}{
		{fleet.UsedBy{Result: fleet.JobCancelled}, "CANCELLED"}, {fleet.UsedBy{Result: fleet.JobCancelled, Overran: true}, "TIMEOUT"},
		{fleet.UsedBy{Result: fleet.JobFailed, LostWith: "host1"}, "NODE_FAIL"}, {fleet.UsedBy{Result: fleet.JobFailed}, "FAILED"},
	} {
		if got := slurmState(&c.of); got != c.want {
			t.Errorf("%+v: %s", c.of, got)
		}
	}
	if got := slurmExit(&fleet.Exit{Code: 137, Signal: "SIGKILL"}); got != "0:9" {
		t.Error(got)
	}
}
