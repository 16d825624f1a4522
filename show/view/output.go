package view

import (
	"fmt"
	"strings"

	"pagurus/fleet"
)

// namedJobs is how many of a user's jobs a note names.
const namedJobs = 5

// OutputTable shows how much is kept of programs' output, a row for each user.
func OutputTable(o fleet.Output) Table {
	t := Table{Columns: []string{"USER", "UID", "JOBS", "OUTPUT", "LIMIT"}}
	for _, u := range o.Users {
		t.Rows = append(t.Rows, []string{cell(string(u.User)), fmt.Sprint(u.UID), fmt.Sprint(len(u.Jobs)), Bytes(u.Bytes), limit(o.Limits.Each)})
		var over []string
		for _, j := range u.Jobs {
			if !j.Ended.IsZero() && len(over) < namedJobs {
				over = append(over, fmt.Sprintf("%s %s", j.Job, Bytes(j.Bytes)))
			}
		}
		if u.Waits != "" {
			t.Notes = append(t.Notes, "programs wait: "+u.Waits)
		}
		if len(over) > 0 {
			t.Notes = append(t.Notes, fmt.Sprintf("the most of uid %d in ended jobs: %s; `pagurus job rm` removes them, and each goes %s after its end", u.UID, strings.Join(over, ", "), fleet.ShortDuration(o.Limits.Keep)))
		}
	}
	t.Rows = append(t.Rows, []string{"all", "-", "-", Bytes(o.Bytes), limit(o.Limits.All)})
	t.Notes = append(t.Notes, fmt.Sprintf("there is room for %s more", Bytes(o.Free)))
	return t
}

// CheckpointsTable shows how much vaults keep of checkpoints, a row for each user.
func CheckpointsTable(k fleet.CheckpointsKept) Table {
	t := Table{Columns: []string{"USER", "UID", "CHECKPOINTS", "SIZE", "LIMIT"}}
	for _, u := range k.Users {
		t.Rows = append(t.Rows, []string{cell(string(u.User)), fmt.Sprint(u.UID), fmt.Sprint(u.Count), Bytes(u.Bytes), limit(k.Limits.Each)})
	}
	t.Rows = append(t.Rows, []string{"all", "-", "-", Bytes(k.Bytes), limit(k.Limits.All)})
	return t
}

// ImagesTable shows how much images take, a row for each user.
func ImagesTable(k fleet.ImagesKept) Table {
	t := Table{Columns: []string{"USER", "UID", "IMAGES", "SIZE", "LIMIT"}}
	for _, u := range k.Users {
		most := limit(k.Limits.Each)
		if u.UID == 0 {
			most = "-" // the cluster's
		}
		t.Rows = append(t.Rows, []string{cell(string(u.User)), fmt.Sprint(u.UID), fmt.Sprint(len(u.Names)), Bytes(u.Bytes), most})
	}
	t.Rows = append(t.Rows, []string{"all", "-", "-", Bytes(k.Bytes), limit(k.Limits.All)})
	return t
}

// GrowthTable shows by how many guests jobs have grown, a row for each user.
func GrowthTable(g fleet.GrowthUsed) Table {
	t := Table{Columns: []string{"USER", "UID", "GROWN-BY", "LIMIT"}}
	most := "-"
	if g.Each > 0 {
		most = fmt.Sprint(g.Each)
	}
	for _, u := range g.Users {
		t.Rows = append(t.Rows, []string{cell(string(u.User)), fmt.Sprint(u.UID), fmt.Sprint(u.Guests), most})
	}
	t.Rows = append(t.Rows, []string{"all", "-", fmt.Sprint(g.Guests), "-"})
	if g.Each > 0 {
		t.Notes = append(t.Notes, fmt.Sprintf("all jobs of a user together may grow by %d guests", g.Each))
	}
	return t
}

// ChangesTable shows what users have had the controller change, a row for each.
func ChangesTable(k fleet.ChangesMade) Table {
	t := Table{Columns: []string{"USER", "UID", "REQUESTS", "LIMIT", "STORED", "LIMIT"}, Notes: []string{"what is used up of each share, which comes back within a minute"}}
	most := "-"
	if k.Limits.Requests > 0 {
		most = fmt.Sprint(k.Limits.Requests)
	}
	for _, u := range k.Users {
		t.Rows = append(t.Rows, []string{cell(string(u.User)), fmt.Sprint(u.UID), fmt.Sprint(u.Requests), most, Bytes(u.Bytes), limit(k.Limits.Stored)})
	}
	t.Rows = append(t.Rows, []string{"all", "-", "-", "-", Bytes(k.Bytes), limit(k.Limits.StoredAll)})
	return t
}

// limit is a limit of bytes, where 0 is none.
func limit(bytes int64) string {
	if bytes == 0 {
		return "-"
	}
	return Bytes(bytes)
}
