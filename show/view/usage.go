package view

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"pagurus/fleet"
)

// UsageBy is whose usage is added up in a row.
type UsageBy string

// What usage may be added up by.
const (
	UsageByUser UsageBy = "user"
	UsageByJob  UsageBy = "job"
	UsageByHost UsageBy = "host"
)

// UsageBys are all of them.
var UsageBys = []string{string(UsageByUser), string(UsageByJob), string(UsageByHost)}

// UsageRow is what a user's jobs, a job, or jobs on a host used.
type UsageRow struct {
	User    fleet.UserID    `json:"user,omitempty"`
	UID     *uint32         `json:"uid,omitempty"` // nil: of a host
	Job     fleet.JobID     `json:"job,omitempty"` // empty in a row by job: of months whose jobs are added up
	Host    fleet.HostID    `json:"host,omitempty"`
	Jobs    int             `json:"jobs"` // that are known one by one
	Program string          `json:"program,omitempty"`
	Began   *time.Time      `json:"began,omitempty"`
	Ended   *time.Time      `json:"ended,omitempty"`
	Result  fleet.JobResult `json:"result,omitempty"`
	fleet.Usage
	StoppedSeconds float64 `json:"stopped_seconds"` // blackouts and suspensions
}

// OnlyUser leaves the records of one user, who is named as in the list of users, or by uid.
func OnlyUser(a fleet.UsageAnswer, name string) (fleet.UsageAnswer, error) {
	uid, err := strconv.ParseUint(name, 10, 32)
	if err != nil {
		err = fmt.Errorf("there is no user %q: `pagurus user ls` lists them; or give the uid", name)
		for id, of := range a.Users {
			if string(of) == name {
				uid, err = uint64(id), nil
			}
		}
		if err != nil {
			return a, err
		}
	}
	kept := []fleet.UsageRecord{}
	for _, r := range a.Records {
		if r.UID == uint32(uid) {
			kept = append(kept, r)
		}
	}
	a.Records = kept
	return a, nil
}

// jobOf names a job: numbers may be given again after a restore.
type jobOf struct {
	id   fleet.JobID
	born int64
}

// UsageRows adds up records, most processor time first. Only parts on hosts that are wanted count; an empty host
// is any.
func UsageRows(a fleet.UsageAnswer, by UsageBy, host fleet.HostID) []UsageRow {
	rows, jobs := map[string]*UsageRow{}, map[string]map[jobOf]bool{}
	for _, r := range a.Records {
		for _, id := range slices.Sorted(maps.Keys(r.Hosts)) {
			if host != "" && id != host {
				continue
			}
			key := usageKey(r, id, by)
			row := rows[key]
			if row == nil {
				row = &UsageRow{}
				rows[key], jobs[key] = row, map[jobOf]bool{}
			}
			row.name(a, r, id, by)
			row.Usage = row.Usage.Plus(r.Hosts[id])
			if r.Daily() {
				jobs[key][jobOf{r.Job, r.Born}] = true
			}
		}
	}
	out := make([]UsageRow, 0, len(rows))
	for key, row := range rows {
		row.Jobs, row.StoppedSeconds = len(jobs[key]), row.Usage.StoppedSeconds()
		out = append(out, *row)
	}
	slices.SortFunc(out, func(x, y UsageRow) int {
		return cmp.Or(cmp.Compare(y.CPUSeconds, x.CPUSeconds), Compare(string(x.Job), string(y.Job)), Compare(string(x.Host), string(y.Host)), cmp.Compare(orZero(x.UID), orZero(y.UID)))
	})
	return out
}

func orZero(n *uint32) uint32 {
	if n == nil {
		return 0
	}
	return *n
}

// usageKey is the same for records that are in one row.
func usageKey(r fleet.UsageRecord, host fleet.HostID, by UsageBy) string {
	switch by {
	case UsageByHost:
		return string(host)
	case UsageByJob:
		if r.Daily() {
			return fmt.Sprintf("%s/%d", r.Job, r.Born)
		}
	}
	return fmt.Sprint(r.UID)
}

// name says whose row it is.
func (row *UsageRow) name(a fleet.UsageAnswer, r fleet.UsageRecord, host fleet.HostID, by UsageBy) {
	if by == UsageByHost {
		row.Host = host
		return
	}
	uid := r.UID
	row.UID, row.User = &uid, a.Users[uid]
	if by != UsageByJob || !r.Daily() {
		return
	}
	row.Job = r.Job
	if of := r.About; of != nil {
		row.Program, row.Result, row.Began, row.Ended = of.Name, of.Result, known(of.Started), known(of.Ended)
	}
}

func known(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// UsageTable shows rows to people.
func UsageTable(a fleet.UsageAnswer, rows []UsageRow, by UsageBy) Table {
	t := Table{Empty: "nothing was used in that time"}
	switch by {
	case UsageByUser:
		t.Columns = []string{"USER", "UID", "JOBS"}
	case UsageByJob:
		t.Columns = []string{"JOB", "USER", "UID", "PROGRAM", "RESULT"}
	case UsageByHost:
		t.Columns = []string{"HOST", "JOBS"}
	}
	t.Columns = append(t.Columns, "CPU", "CPU-HELD", "MEMORY", "MEMORY-HELD", "MOVES", "STOOD-STILL", "ENERGY")
	var sum fleet.Usage
	for _, r := range rows {
		sum = sum.Plus(r.Usage)
		uid := "-"
		if r.UID != nil {
			uid = fmt.Sprint(*r.UID)
		}
		var row []string
		switch by {
		case UsageByUser:
			row = []string{orDash(cell(string(r.User))), uid, fmt.Sprint(r.Jobs)}
		case UsageByJob:
			row = []string{orDash(cell(string(r.Job))), orDash(cell(string(r.User))), uid, orDash(cell(r.Program)), orDash(string(r.Result))}
		case UsageByHost:
			row = []string{cell(string(r.Host)), fmt.Sprint(r.Jobs)}
		}
		u := r.Usage
		t.Rows = append(t.Rows, append(row, hours(u.CPUSeconds), hours(u.HeldCPUSeconds), memoryHours(u.MemoryByteSeconds), memoryHours(u.HeldByteSeconds),
			fmt.Sprint(u.Moves), Took(time.Duration(u.StoppedSeconds()*float64(time.Second))), energy(u)))
	}
	t.Notes = usageNotes(a, sum, by, rows)
	return t
}

// usageNotes say what the figures lack.
func usageNotes(a fleet.UsageAnswer, sum fleet.Usage, by UsageBy, rows []UsageRow) (notes []string) {
	if by == UsageByJob && slices.ContainsFunc(rows, func(r UsageRow) bool { return r.Job == "" }) {
		notes = append(notes, "rows without a job are of months whose jobs are added up")
	}
	if sum.CPUSeconds > 0 && sum.MeteredCPUSeconds < 0.995*sum.CPUSeconds {
		notes = append(notes, fmt.Sprintf("energy is known of %.0f %% of the processor time", 100*sum.MeteredCPUSeconds/sum.CPUSeconds))
		hosts := slices.Sorted(maps.Keys(a.NoPower))
		for i, id := range hosts {
			if i == mostHostNotes {
				notes = append(notes, fmt.Sprintf("and %d more hosts do not tell theirs", len(hosts)-i))
				break
			}
			notes = append(notes, fmt.Sprintf("%s: %s", id, cell(a.NoPower[id])))
		}
	}
	return notes
}

// mostHostNotes is how many hosts a note is made for.
const mostHostNotes = 3

// hours writes processor time.
func hours(seconds float64) string {
	switch {
	case seconds == 0:
		return "0 s"
	case seconds < 59.95:
		return fmt.Sprintf("%.1f s", seconds)
	case seconds < 59.95*60:
		return fmt.Sprintf("%.1f min", seconds/60)
	}
	return fmt.Sprintf("%.2f h", seconds/3600)
}

// memoryHours writes memory times how long it was there.
func memoryHours(byteSeconds float64) string {
	return fmt.Sprintf("%.2f GiB·h", byteSeconds/(1<<30)/3600)
}

// energy writes what is known of it.
func energy(u fleet.Usage) string {
	if u.MeteredCPUSeconds == 0 {
		return "-"
	}
	return fmt.Sprintf("%.3f kWh", u.Joules/3.6e6)
}

// UsageCSV is rows for spreadsheets and programs: the first has the columns' names, and units are in these.
func UsageCSV(rows []UsageRow) [][]string {
	out := [][]string{{"user", "uid", "job", "host", "jobs", "program", "began", "ended", "result", "cpu_seconds", "held_cpu_seconds", "memory_byte_seconds",
		"held_memory_byte_seconds", "moves", "moved_bytes", "blackout_seconds", "suspended_seconds", "joules", "metered_cpu_seconds"}}
	for _, r := range rows {
		uid := ""
		if r.UID != nil {
			uid = fmt.Sprint(*r.UID)
		}
		out = append(out, []string{string(r.User), uid, string(r.Job), string(r.Host), fmt.Sprint(r.Jobs), formula(r.Program), stamp(r.Began), stamp(r.Ended), string(r.Result),
			decimal(r.CPUSeconds), decimal(r.HeldCPUSeconds), decimal(r.MemoryByteSeconds), decimal(r.HeldByteSeconds),
			fmt.Sprint(r.Moves), fmt.Sprint(r.MovedBytes), decimal(r.BlackoutSeconds), decimal(r.SuspendedSeconds), decimal(r.Joules), decimal(r.MeteredCPUSeconds)})
	}
	return out
}

// formula keeps a program's name from being computed by a spreadsheet.
func formula(s string) string {
	if s != "" && strings.ContainsRune("=+-@\t\r", rune(s[0])) {
		return "'" + s
	}
	return s
}

func stamp(t *time.Time) string {
	if t == nil {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

func decimal(f float64) string { return strconv.FormatFloat(f, 'f', 3, 64) }
