package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"time"

	owners "pagurus/decide/presence"
	"pagurus/fleet"
)

// sampleEvery is how often the sensors are asked.
const sampleEvery = time.Second

// owner is what the agent knows of the one whom its host belongs to.
type owner struct {
	mu      sync.Mutex
	begun   time.Time // with its monotonic part
	policy  fleet.OwnerPolicy
	watch   owners.Watch
	sampled time.Time // zero: not yet
	held    *float64  // what guests are held to together while they give way; nil: they do not
	settled bool      // held is what the host has

	news   chan struct{} // capacity 1: the controller should know at once
	agreed chan struct{} // capacity 1: policy has changed
}

func newOwner() owner {
	return owner{news: make(chan struct{}, 1), agreed: make(chan struct{}, 1), begun: time.Now()}
}

func (a *Agent) policyFile() string { return filepath.Join(a.Config.Run, "owner.json") }

// attend watches over the owner until ctx ends. What the owner agreed to last
// counts from the start: the controller may be away.
func (a *Agent) attend(ctx context.Context) {
	if a.Sensors == nil {
		return
	}
	text, err := os.ReadFile(a.policyFile())
	var p fleet.OwnerPolicy
	if err == nil {
		err = json.Unmarshal(text, &p)
	}
	if err == nil {
		a.setPolicy(p)
	} else if !errors.Is(err, fs.ErrNotExist) {
		a.Log.Warn("what the host's owner agreed to is not known until the controller says it", "cause", err)
	}
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		a.sample(ctx)
		select {
		case <-ctx.Done():
		case <-tick.C:
		case <-a.owner.agreed:
		}
	}
}

// agree takes what the controller says that the owner has agreed to.
func (a *Agent) agree(p fleet.OwnerPolicy) {
	if a.Sensors == nil || !a.setPolicy(p) {
		return
	}
	text, err := json.Marshal(p)
	if err == nil {
		err = writeFile(a.policyFile(), text)
	}
	a.trouble("remembering what the host's owner agreed to", err)
	poke(a.owner.agreed)
}

// setPolicy reports whether that is another policy than before.
func (a *Agent) setPolicy(p fleet.OwnerPolicy) bool {
	a.owner.mu.Lock()
	defer a.owner.mu.Unlock()
	if reflect.DeepEqual(p, a.owner.policy) {
		return false
	}
	a.owner.policy = p
	return true
}

// sample asks the sensors and has guests give way, or no longer, by what they
// say.
func (a *Agent) sample(ctx context.Context) {
	o := &a.owner
	o.mu.Lock()
	p := o.policy
	o.mu.Unlock()
	seen := a.ask(ctx, p.Exclusive)
	if ctx.Err() != nil {
		return
	}
	now := time.Now()
	o.mu.Lock()
	was := o.watch.Owner(0, now)
	o.watch = owners.Next(o.watch, p, owners.Moment{At: now.Sub(o.begun), Clock: now, CPUs: a.Facts().Capacity.CPUs, Sample: seen})
	is := o.watch.Owner(0, now)
	first := o.sampled.IsZero()
	o.sampled = now
	o.mu.Unlock()
	a.trouble("having guests give way to the host's owner", a.giveWay(owners.Share(is.State, p)))
	if was.State != is.State || first {
		a.Log.Info("the host's owner", "is", is.State, "was", was.State, "signs", is.Why)
		poke(o.news)
	}
}

// ask asks the sensors. A panic in one costs its sample, not the agent.
func (a *Agent) ask(ctx context.Context, exclusive []string) (out fleet.OwnerSample) {
	defer func() {
		if p := recover(); p != nil {
			a.Log.Error("panic in the owner's sensors", "panic", p)
			out = fleet.OwnerSample{Deaf: []string{fmt.Sprintf("all sensors: %v", p)}}
		}
	}()
	return a.Sensors.Sample(ctx, exclusive)
}

// giveWay holds all guests to a part of the CPUs, and to what nobody else
// wants; nil: to neither. What the host has already is not set again.
func (a *Agent) giveWay(part *float64) error {
	o := &a.owner
	if a.Classes == nil || o.settled && reflect.DeepEqual(part, o.held) {
		return nil
	}
	o.settled, o.held = false, part
	var err error
	if part == nil {
		err = a.Classes.Restore()
	} else {
		err = a.Classes.Yield(*part)
	}
	o.settled = err == nil
	return err
}

// ownerSeen is what the controller is told of the owner.
func (a *Agent) ownerSeen(now time.Time) *fleet.Owner {
	o := &a.owner
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.sampled.IsZero() {
		return nil
	}
	return o.watch.Owner(now.Sub(o.begun), now)
}

// classify gives a guest on this host what its job's class says.
func (a *Agent) classify(w *work) {
	if a.Classes == nil {
		return
	}
	a.trouble(classing+string(w.seat.guest), a.Classes.Class(w.task.Guest, w.task.Job.Spec.Class))
}

// classing begins the name of the trouble with a guest's class.
const classing = "the CPU class of guest "

// poke says that there is something, once.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
