package turns

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

// piece is the nth work of somebody.
type piece struct {
	rank Rank
	who  string
	n    int
}

// Whatever comes in whatever order: all that was taken is done once, in the order of who sent it; of one rank nobody has two
// turns while another waits for the first; people never wait for more than InARow turns of hosts, and hosts for one of people.
func TestEverybodyHasTheirTurn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q Queue[piece]
		sent, done := map[string]int{}, map[string]int{}
		waits := map[Rank]map[string]map[string]int{Hosts: {}, People: {}} // turns of others since somebody began to wait
		other := map[Rank]int{}                                            // turns of the other rank since one began to wait
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "comes") {
				rank := Rank(rapid.IntRange(0, 1).Draw(t, "rank"))
				who := fmt.Sprint(rank, rapid.IntRange(0, 4).Draw(t, "who"))
				for range rapid.IntRange(1, 30).Draw(t, "many") {
					if !q.Push(rank, who, 0, piece{rank, who, sent[who]}) {
						t.Fatal("it was not taken")
					}
					sent[who]++
				}
				if waits[rank][who] == nil {
					waits[rank][who] = map[string]int{}
				}
				continue
			}
			p, ok := q.Pop()
			if none := len(waits[Hosts])+len(waits[People]) == 0; ok == none {
				t.Fatalf("something is next: %v, and nobody waits: %v", ok, none)
			}
			if !ok {
				continue
			}
			if p.n != done[p.who] {
				t.Fatalf("%v comes after %d", p, done[p.who])
			}
			done[p.who]++
			for who, turns := range waits[p.rank] {
				if turns[p.who]++; who != p.who && turns[p.who] > 1 {
					t.Fatalf("%s has a second turn while %s waits", p.who, who)
				}
			}
			delete(waits[p.rank], p.who)
			if done[p.who] < sent[p.who] {
				waits[p.rank][p.who] = map[string]int{}
			}
			other[p.rank] = 0
			if rest := 1 - p.rank; len(waits[rest]) > 0 {
				other[rest]++
			} else {
				other[rest] = 0
			}
			if other[People] > InARow || other[Hosts] > 1 {
				t.Fatalf("people waited for %d turns of hosts, hosts for %d of people", other[People], other[Hosts])
			}
		}
		for q.Len() > 0 {
			p, _ := q.Pop()
			done[p.who]++
		}
		if fmt.Sprint(sent) != fmt.Sprint(done) {
			t.Fatalf("of %v %v was done", sent, done)
		}
	})
}

// Who has as much waiting as they may is told so, others are not, and it has room again with the first turn.
func TestWhatWaitsIsBounded(t *testing.T) {
	var q Queue[int]
	for i := range 5 {
		if got := q.Push(People, "eve", 3, i); got != (i < 3) {
			t.Errorf("piece %d of eve is taken: %v", i, got)
		}
	}
	if !q.Push(People, "ada", 3, 10) {
		t.Error("ada has no room because of eve")
	}
	if got, _ := q.Pop(); got != 0 {
		t.Errorf("first is %d", got)
	}
	if got, _ := q.Pop(); got != 10 {
		t.Errorf("then is %d, not what ada asked for", got)
	}
	if !q.Push(People, "eve", 3, 5) {
		t.Error("eve has no room again")
	}
}
