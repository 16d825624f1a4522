package view

import (
	"time"

	"pagurus/fleet"
)

// AuditTable shows who did what, oldest first.
func AuditTable(records []fleet.AuditRecord) Table {
	t := Table{Columns: []string{"WHEN", "WHO", "FROM", "DID", "ON", "RESULT"}, Empty: "nothing was done in that time"}
	for _, r := range records {
		from, result := "here", "done"
		if r.From != "" {
			from = r.From
		}
		if r.Refused != "" {
			result = "refused: " + r.Refused
		}
		t.Rows = append(t.Rows, []string{r.At.Local().Format(time.DateTime), cell(r.Who()), cell(from), cell(r.Did), orDash(cell(r.On)), cell(result)})
	}
	return t
}
