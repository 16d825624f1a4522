package view

import (
	"cmp"
	"time"

	"pagurus/fleet"
)

// AuditTable shows who did what, oldest first.
func AuditTable(records []fleet.AuditRecord) Table {
	t := Table{Columns: []string{"WHEN", "WHO", "FROM", "DID", "ON", "RESULT"}, Empty: "nothing of this kind was done in that time"}
	for _, r := range records {
		from := cmp.Or(r.From, "here")
		t.Rows = append(t.Rows, []string{r.At.Local().Format(time.DateTime), cell(r.Who()), cell(from), cell(r.Did), orDash(cell(r.On)), cell(r.Result())})
	}
	return t
}
