// Package access says who may ask what of the controller: one table of requests, one of
// the other calls. It must not know how a caller is identified. Its tests ask every
// request and every call of every role.
package access

import (
	"crypto/ecdh"
	"encoding/base64"
	"fmt"

	"pagurus/decide/lifecycle"
	"pagurus/fleet"
)

// right is what a request needs.
type right int

const (
	member    right = iota // any user of the cluster
	ownJob                 // the user whose job it is; an administrator
	ownHost                // the user who owns the host; an administrator
	moveGuest              // the user whose guests they are; the owner of the host that is emptied; an administrator
	ownToken               // the user whose token for programs it is; an administrator
	admin                  // an administrator
)

// requests says what every request needs. A verb that is not here is refused.
var requests = map[fleet.RequestVerb]right{
	fleet.Submit:     member,
	fleet.Cancel:     ownJob,
	fleet.RemoveJob:  ownJob,
	fleet.SendSignal: ownJob,
	fleet.Grow:       ownJob,

	fleet.MakeCheckpoint:   ownJob,
	fleet.RemoveCheckpoint: ownJob, // whose checkpoint it is
	fleet.TakeCheckpoint:   ownJob,
	fleet.Restart:          ownJob,
	fleet.SuspendJob:       ownJob,
	fleet.ResumeJob:        ownJob,

	fleet.Migrate:    moveGuest,
	fleet.CancelMove: moveGuest,
	fleet.Drain:      admin,
	fleet.Undrain:    admin,
	fleet.Forget:     admin,
	fleet.SetPolicy:  ownHost,
	fleet.SetRules:   admin,
	fleet.Claim:      ownHost,
	fleet.Release:    ownHost,
	fleet.Isolate:    admin,
	fleet.AddToken:   ownToken,
	fleet.DropToken:  ownToken,
	fleet.SetUser:    admin,
	fleet.DropUser:   admin,
	fleet.Logout:     member,
}

// Known reports whether there is such a request, which a caller may or may not make.
func Known(v fleet.RequestVerb) bool { _, known := requests[v]; return known }

// Call is something that a caller does other than making a request.
type Call string

// The calls.
const (
	ReadCluster Call = "read the cluster" // snapshots, watches, explanations, predictions
	ReadImage   Call = "read images"
	ReadTrace   Call = "read traces"
	Attach      Call = "be a host's agent"
	Renew       Call = "renew a certificate"
	Ask         Call = "ask for anything" // of a user: MayAsk says what
	PassStream  Call = "pass streams"     // MayPass says which
	BackUp      Call = "back up the cluster"
	ReadAudit   Call = "read the audit"
	RemoveHead  Call = "remove controllers"
	CopyParts   Call = "copy checkpoints" // of own jobs
	HandParts   Call = "hand parts of checkpoints"
	ReadUsage   Call = "read what jobs used"          // VisibleUsage says whose
	ReadOutput  Call = "read how much output is kept" // VisibleOutput says whose
)

// calls says which roles may make a call. A call that is not here is refused.
var calls = map[Call]map[fleet.Role]bool{
	ReadCluster: {fleet.AdminRole: true, fleet.UserRole: true},
	ReadImage:   {fleet.AdminRole: true, fleet.UserRole: true, fleet.HostRole: true},
	ReadTrace:   {fleet.AdminRole: true, fleet.UserRole: true},
	Attach:      {fleet.AdminRole: true, fleet.HostRole: true},
	Renew:       {fleet.AdminRole: true, fleet.UserRole: true, fleet.HostRole: true},
	Ask:         {fleet.AdminRole: true, fleet.UserRole: true},
	PassStream:  {fleet.AdminRole: true, fleet.UserRole: true, fleet.HostRole: true},
	BackUp:      {fleet.AdminRole: true},
	ReadAudit:   {fleet.AdminRole: true},
	RemoveHead:  {fleet.AdminRole: true},
	CopyParts:   {fleet.AdminRole: true, fleet.UserRole: true},
	HandParts:   {fleet.AdminRole: true, fleet.HostRole: true},
	ReadUsage:   {fleet.AdminRole: true, fleet.UserRole: true},
	ReadOutput:  {fleet.AdminRole: true, fleet.UserRole: true},
}

// RoleOf is the role of a caller.
func RoleOf(by fleet.Caller) fleet.Role {
	switch {
	case by.Host != "":
		return fleet.HostRole
	case by.Admin:
		return fleet.AdminRole
	}
	return fleet.UserRole
}

// MayCall says why a caller may not make a call; empty: it may.
func MayCall(by fleet.Caller, what Call) string {
	if calls[what][RoleOf(by)] {
		return ""
	}
	if by.Host != "" {
		return fmt.Sprintf("the agent of %s may not %s", by.Host, what)
	}
	return fmt.Sprintf("only an administrator may %s; ask as root on the controller's machine, or log in as one", what)
}

// View is what of the cluster the rules need.
type View struct {
	Job   func(fleet.JobID) (fleet.Job, bool)
	Guest func(fleet.GuestID) (fleet.Guest, bool)
	Move  func(fleet.MoveID) []fleet.JobID // whose guests it moves
	User  func(fleet.UserID) (fleet.User, bool)
	Token func(fleet.TokenID) (fleet.JoinToken, bool)
}

// MayAsk says why a caller may not make a request; empty: it may. What a request names
// and is not there forbids nothing: the answer to the request says so.
func MayAsk(v View, r fleet.Request) string {
	need, known := requests[r.Verb]
	switch {
	case !known:
		return fmt.Sprintf("there is no request %q; pagurus and its controller may be of different versions, see `pagurus version`", r.Verb)
	case r.By.Host != "":
		return fmt.Sprintf("the agent of %s may not %s: hosts run guests and ask for nothing", r.By.Host, r.Verb)
	case r.By.Guest != "":
		return v.steers(r)
	case r.By.Admin || need == member:
		return ""
	}
	switch need {
	case ownJob:
		if job, named := r.Checkpoint.Job(); named { // the names of others' checkpoints open nothing
			return v.jobs(r.By, r.Verb, r.Job, job)
		}
		return v.jobs(r.By, r.Verb, r.Job)
	case ownHost:
		if v.owns(r.By, r.Host) {
			return ""
		}
		return fmt.Sprintf("only the owner of %s or an administrator may do this; ask as root on the controller's machine, or log in as one", r.Host)
	case ownToken:
		if v.tokens(r) {
			return ""
		}
	case moveGuest:
		return v.jobs(r.By, r.Verb, v.moved(r)...)
	}
	return fmt.Sprintf("only an administrator may %s; ask as root on the controller's machine, or log in as one", words[r.Verb])
}

// steering are the requests that a program may make of its own job.
var steering = map[fleet.RequestVerb]bool{fleet.Migrate: true, fleet.MakeCheckpoint: true, fleet.Grow: true}

// steers says why a program may not make a request; empty: it may. It acts for its own job's user, and on that job alone.
func (v View) steers(r fleet.Request) string {
	g, known := v.Guest(r.By.Guest)
	own := known && steering[r.Verb] && !r.By.Admin && r.Move == "" && r.Checkpoint == "" && r.Host == "" && (r.Job == "" || r.Job == g.Job)
	for _, id := range append([]fleet.GuestID{r.Guest}, r.Guests...) {
		if other, there := v.Guest(id); id != "" && (!there || other.Job != g.Job) {
			own = false
		}
	}
	if !own {
		return fmt.Sprintf("a program in guest %s may have its own job moved and checkpointed, and let it grow, and nothing else", r.By.Guest)
	}
	return v.jobs(r.By, r.Verb, g.Job)
}

// words says in a sentence what only administrators do.
var words = map[fleet.RequestVerb]string{
	fleet.Drain:     "drain a host",
	fleet.Undrain:   "undrain a host",
	fleet.Forget:    "forget a host",
	fleet.SetRules:  "set the cluster's policy",
	fleet.Isolate:   "isolate CPUs of a host",
	fleet.AddToken:  "make join tokens",
	fleet.DropToken: "remove join tokens",
	fleet.SetUser:   "add or change users",
	fleet.DropUser:  "remove users",
}

// owns reports whether the caller owns a host.
func (v View) owns(by fleet.Caller, host fleet.HostID) bool {
	u, known := v.User(by.User)
	if !known || host == "" {
		return false
	}
	for _, own := range u.Owns {
		if own == host {
			return true
		}
	}
	return false
}

// tokens reports whether a request is about a token for programs that acts as the caller, and may no more than they.
func (v View) tokens(r fleet.Request) bool {
	t := r.Token
	if t == nil || r.By.User == "" {
		return false
	}
	if r.Verb == fleet.AddToken {
		return t.Access && t.User == r.By.User && t.Role == fleet.UserRole
	}
	kept, known := v.Token(t.ID)
	return known && kept.Access && kept.User == r.By.User
}

// moved names the jobs whose guests a request moves, or whose move it cancels. The owner
// of the host that is emptied needs no leave to send away the guests that are there.
func (v View) moved(r fleet.Request) []fleet.JobID {
	var jobs []fleet.JobID
	if r.Move != "" {
		jobs = append(jobs, v.Move(r.Move)...)
	}
	if r.Job != "" {
		jobs = append(jobs, r.Job)
	}
	for _, id := range append([]fleet.GuestID{r.Guest}, r.Guests...) {
		if g, known := v.Guest(id); known && !(g.Home == r.Host && v.owns(r.By, r.Host)) {
			jobs = append(jobs, g.Job)
		}
	}
	return jobs
}

// jobs says which of some jobs is not the caller's.
func (v View) jobs(by fleet.Caller, verb fleet.RequestVerb, ids ...fleet.JobID) string {
	for _, id := range ids {
		if j, known := v.Job(id); known && j.Spec.UID != by.UID {
			return fmt.Sprintf("job %s belongs to another user (uid %d); only that user or an administrator may %s it", id, j.Spec.UID, doing[verb])
		}
	}
	return ""
}

var doing = map[fleet.RequestVerb]string{
	fleet.Cancel: "cancel",

	fleet.MakeCheckpoint:   "make a checkpoint of",
	fleet.RemoveCheckpoint: "remove a checkpoint of",
	fleet.TakeCheckpoint:   "give back a checkpoint of",
	fleet.Restart:          "restart",
	fleet.SuspendJob:       "suspend",
	fleet.ResumeJob:        "resume",

	fleet.RemoveJob:  "remove",
	fleet.SendSignal: "send signals to",
	fleet.Grow:       "grow",
	fleet.Migrate:    "move",
	fleet.CancelMove: "stop moving",
}

// Stream is a stream of a job, with what decides who may pass it.
type Stream struct {
	Job       fleet.Job
	Guest0    fleet.Guest     // runs the job's program
	Migration fleet.Migration // that has Guest0, if any
	Name      string          // fleet.Stdin, Stdout or Stderr
}

// MayPass says why a caller may not read or write a stream; empty: it may. Users
// read output and write input, of their own jobs; the host that runs the program does the
// reverse, and during a migration both of its hosts do.
func MayPass(by fleet.Caller, s Stream, write bool) string {
	if by.Host != "" {
		for _, place := range append(lifecycle.Places(s.Guest0, s.Migration), s.Guest0.Home) {
			if place == by.Host && write == (s.Name != fleet.Stdin) {
				return ""
			}
		}
		return fmt.Sprintf("the program of job %s does not run on %s", s.Job.ID, by.Host)
	}
	switch {
	case by.Admin:
		return ""
	case by.UID != s.Job.Spec.UID:
		return fmt.Sprintf("job %s is not yours", s.Job.ID)
	case write && s.Name != fleet.Stdin:
		return "output is written by agents only"
	}
	return ""
}

// MayBe says why an agent may not be what it says that it is; empty: it may. says.From is the
// IP address that its connection comes from. Root on the controller's own machine
// (by.Host is empty) is believed, as long as no host has joined by that name. Nobody has the
// address that a host of another machine uses now. Where a cluster encrypts, keys say who is who, and a host behind NAT has
// an address that only its own network knows, and that others have in theirs.
func MayBe(by fleet.Caller, h fleet.Host, says fleet.Facts, hosts map[fleet.HostID]fleet.Host, encryption fleet.Encryption) string {
	c, from := h.Credential, says.From
	switch {
	case by.Host == "" && c.Key != "":
		return fmt.Sprintf("host %s has joined with a certificate of its own: give its agent the folder of it with --credentials", h.ID)
	case by.Host == "": // believed
	case by.Host != h.ID:
		return fmt.Sprintf("the agent of %s says that it is %s; `pagurus join` gives a machine its name", by.Host, h.ID)
	case says.Machine != c.Machine:
		return fmt.Sprintf("%s joined with another machine identity: if its system was installed again or this is a copy of its disk, remove the host or join under another name", h.ID)
	case c.Site != "" && says.Site != c.Site:
		return fmt.Sprintf("%s joined by a token for site %q and says that it is in %q: start its agent without --%s, or have it removed and join again by a token for that site", h.ID, c.Site, says.Site, fleet.SiteFlag)
	case says.Address != from && says.Address != c.Address && !encryption.On():
		return fmt.Sprintf("%s calls from %s and says that its address is %s: join again with --address %s if that is right; a host behind NAT needs a cluster that encrypts", h.ID, from, says.Address, says.Address)
	}
	if h.Facts.Connected && h.Facts.Address == says.Address && key(&h.Facts) == key(&says) { // compared before: facts come every second
		return ""
	}
	if k := key(&says); k != "" && !wellFormed(k) {
		return fmt.Sprintf("%s says that its WireGuard key is %q, which is none: remove wireguard.key from the agent's folder of state, and start the agent again", h.ID, k)
	}
	if other := keyed(h.ID, key(&says), hosts); other != "" {
		return fmt.Sprintf("%s says that its WireGuard key is that of host %s: if this is a copy of its disk, remove wireguard.key from the agent's folder of state, and start the agent again", h.ID, other)
	}
	if encryption.On() && says.Address != from && from != "" {
		return ""
	}
	if other := sharing(h.ID, says, hosts); other != "" {
		return fmt.Sprintf("%s says that its address is %s, which host %s uses: guests' networks would lead to one of the two. Remove the one that does not have the address with `pagurus host rm`, and join it again with its own", h.ID, says.Address, other)
	}
	return ""
}

// key is the WireGuard key that a host says it has; empty: none.
func key(says *fleet.Facts) string {
	if says.WireGuard == nil {
		return ""
	}
	return says.WireGuard.Key
}

// wellFormed reports whether a text is a public key as WireGuard's tools print it. Each key has one such
// text, so texts can be compared. A point of low order is none: what it has in common with any private key everybody knows.
func wellFormed(key string) bool {
	bytes, err := base64.StdEncoding.Strict().DecodeString(key)
	if err != nil || len(bytes) != 32 || base64.StdEncoding.EncodeToString(bytes) != key {
		return false
	}
	public, err := ecdh.X25519().NewPublicKey(bytes)
	if err != nil {
		return false
	}
	any, err := ecdh.X25519().NewPrivateKey(make([]byte, 32)) // clamped, as each is
	if err != nil {
		return false
	}
	_, err = any.ECDH(public) // fails if what comes out is zero
	return err == nil
}

// keyed is another host with a WireGuard key, now or when it last called. Who could pass off
// another's key as its own would have that host's packets sent to itself, where they are lost.
func keyed(id fleet.HostID, with string, hosts map[fleet.HostID]fleet.Host) (other fleet.HostID) {
	for _, o := range hosts {
		if with != "" && o.ID != id && (o.WireGuard.Key == with || key(&o.Facts) == with) && (other == "" || o.ID < other) {
			other = o.ID
		}
	}
	return other
}

// sharing is a host of another machine that uses the same address now. Hosts of one machine, as in
// a lab, may: only an administrator lets several join. One that does not call is no hindrance,
// because addresses are given out again; it is compared when it comes back. Nor is one that calls from elsewhere: it is behind
// NAT, and its address is another network's.
func sharing(id fleet.HostID, says fleet.Facts, hosts map[fleet.HostID]fleet.Host) (other fleet.HostID) {
	for _, o := range hosts {
		f := &o.Facts
		if o.ID != id && f.Connected && f.Address == says.Address && (f.From == "" || f.From == f.Address) && f.Machine != says.Machine && says.Address != "" && (other == "" || o.ID < other) {
			other = o.ID
		}
	}
	return other
}
