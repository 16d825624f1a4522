package view

import (
	"strings"
	"testing"

	"pagurus/fleet"
)

func TestChangesTable(t *testing.T) {
	k := fleet.ChangesMade{Limits: fleet.ChangeLimits{Requests: 3000, Stored: 32 << 20}, Bytes: 5 << 20, Users: []fleet.UserChanges{{UID: 7, User: "ada", Requests: 12, Bytes: 4 << 20}}}
	if got := ChangesTable(k); len(got.Rows) != 2 || strings.Join(got.Rows[0], " ") != "ada 7 12 3000 "+Bytes(4<<20)+" "+Bytes(32<<20) || strings.Join(got.Rows[1], " ") != "all - - - "+Bytes(5<<20)+" -" {
		t.Errorf("%+v", got)
	}
}

func TestGrowthTable(t *testing.T) {
	g := fleet.GrowthUsed{Each: 16, Guests: 5, Users: []fleet.UserGrowth{{UID: 7, User: "ada", Guests: 4}, {UID: 8, Guests: 1}}}
	if got := GrowthTable(g); len(got.Rows) != 3 || strings.Join(got.Rows[0], " ") != "ada 7 4 16" || strings.Join(got.Rows[2], " ") != "all - 5 -" || len(got.Notes) != 1 {
		t.Errorf("%+v", got)
	}
	if g.Each = 0; GrowthTable(g).Rows[0][3] != "-" || len(GrowthTable(g).Notes) != 0 {
		t.Errorf("without a limit: %+v", GrowthTable(g))
	}
}
