package demo

import (
	"testing"
	"time"

	"pagurus/fleet"
)

const log = `LAMMPS (29 Aug 2024)
   Step          Temp          E_pair         E_mol
         0   3             -6.7733681      0
        50   1.6498549     -4.7539134      0
Loop time of 1.25 on 4 procs for 50 steps with 4000 atoms
Total wall time: 0:00:01
`

func TestCompareForgivesTimingsOnly(t *testing.T) {
	slower := `LAMMPS (29 Aug 2024)
   Step          Temp          E_pair         E_mol
         0   3             -6.7733681      0
        50   1.6498549     -4.7539134      0
Loop time of 9.75 on 4 procs for 50 steps with 4000 atoms
Total wall time: 0:00:09
`
	if c := compare(log, slower); c.Differs != "" || c.Thermo != 2 || c.Lines != 4 {
		t.Errorf("%+v", c)
	}
	wrong := `LAMMPS (29 Aug 2024)
   Step          Temp          E_pair         E_mol
         0   3             -6.7733681      0
        50   1.6498549     -4.7539135      0
`
	if compare(log, wrong).Differs == "" {
		t.Error("a wrong digit was not seen")
	}
	if compare(log, log[:60]).Differs == "" {
		t.Error("a cut log was not seen")
	}
	if compare("", "").Differs == "" {
		t.Error("two empty logs are no result")
	}
}

func TestStallLooksOnlyNearThePause(t *testing.T) {
	at := time.Unix(1000, 0)
	gaps := []fleet.Gap{{At: at.Add(-9 * time.Second), Took: 5 * time.Second}, {At: at.Add(-20 * time.Millisecond), Took: 90 * time.Millisecond}}
	if got, ok := stall(gaps, at); !ok || got != 90*time.Millisecond {
		t.Errorf("stall is %v, %v", got, ok)
	}
	if _, ok := stall(nil, at); ok {
		t.Error("a stall out of nothing")
	}
}
