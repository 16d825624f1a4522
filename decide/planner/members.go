package planner

import (
	"fmt"
	"slices"
	"time"

	"pagurus/decide/lifecycle"
	"pagurus/fleet"
)

// mostLogins is how many logins one user may have; the oldest makes room.
const mostLogins = 16

// changeMembers answers requests about tokens and users.
func (d *draft) changeMembers(r fleet.Request) (fleet.Answer, error) {
	switch r.Verb {
	case fleet.AddToken:
		return d.addToken(r)
	case fleet.DropToken:
		return d.dropToken(r)
	case fleet.SetUser:
		return d.setUser(r)
	case fleet.DropUser:
		return d.dropUser(r)
	}
	return d.logout(r)
}

func (d *draft) addToken(r fleet.Request) (fleet.Answer, error) {
	if r.Token == nil || r.Token.ID == "" || r.Token.Hash == "" {
		return refuse(r, "the request has no token; `pagurus token create` makes one")
	}
	t := *r.Token
	if t.Request, t.Asks, t.Maker = "", "", ""; r.ID != "" && r.Asks != "" {
		t.Request, t.Asks, t.Maker = r.ID, r.Asks, r.By.User
	}
	if before, again := d.Tokens.Find(t.ID); again && before.Hash != t.Hash {
		return refuse(r, "there is a token %s already; create another", t.ID)
	}
	if reason := t.Refused(d.at); reason != "" {
		return refuse(r, "%s", reason)
	}
	u, known := d.Users.Find(t.User)
	switch {
	case t.User != "" && !known:
		return refuse(r, "a token for a login needs a user of the cluster: add one with `pagurus user add %s`", t.User)
	case t.Role == fleet.AdminRole && u.Role != fleet.AdminRole:
		return refuse(r, "%s is not an administrator; `pagurus user role %s admin` makes them one", u.ID, u.ID)
	}
	for _, old := range d.base.Tokens {
		if t.Request != "" && old.Request == t.Request { // askedOther has refused any other request
			return fleet.Answer{}, nil
		}
	}
	if reason := d.tooMany(t); reason != "" {
		return refuse(r, "%s", reason)
	}
	t.Since = d.at
	for _, old := range d.base.Tokens { // those that have expired are of no use to anybody
		if !old.Expires.After(d.at) {
			d.Tokens.Drop(old.ID)
		}
	}
	d.Tokens.Put(t.ID, t)
	return fleet.Answer{}, nil
}

// mostAccess is how many tokens for programs may act as one user: users make them for themselves.
const mostAccess = 32

// tooMany says why a user may have no further token for programs; empty: they may.
func (d *draft) tooMany(t fleet.JoinToken) string {
	n := 0
	for _, old := range d.base.Tokens {
		if old.Access && old.User == t.User && old.ID != t.ID && old.Expires.After(d.at) {
			n++
		}
	}
	if t.Access && n >= mostAccess {
		return fmt.Sprintf("%s has %d tokens for programs, which is the most: remove one with `pagurus token rm`, `pagurus token ls` lists them", t.User, n)
	}
	return ""
}

// dropToken refuses a token that is not there: who mistypes one believes that it counts no more.
func (d *draft) dropToken(r fleet.Request) (fleet.Answer, error) {
	if r.Token == nil || r.Token.ID == "" {
		return refuse(r, "no token is named; `pagurus token ls` lists them")
	}
	if _, known := d.Tokens.Find(r.Token.ID); !known {
		return refuse(r, "there is no token %s; `pagurus token ls` lists those that there are", r.Token.ID)
	}
	d.Tokens.Drop(r.Token.ID)
	return fleet.Answer{}, nil
}

// setUser adds a user or changes one; logins stay.
func (d *draft) setUser(r fleet.Request) (fleet.Answer, error) {
	if r.User == nil {
		return refuse(r, "no user is named; `pagurus user add NAME` adds one")
	}
	u := *r.User
	if reason := u.Refused(); reason != "" {
		return refuse(r, "%s", reason)
	}
	for _, host := range u.Owns {
		if _, known := d.Hosts.Find(host); !known {
			return refuse(r, "there is no host %s that %s could own; `pagurus host ls` lists them", orNone(host), u.ID)
		}
	}
	for _, other := range d.base.Users {
		if other.ID != u.ID && other.UID == u.UID {
			return refuse(r, "uid %d is that of user %s; give %s another with --uid", u.UID, other.ID, u.ID)
		}
	}
	u.Keys, u.Since = nil, d.at
	if before, known := d.Users.Find(u.ID); known {
		u.Keys, u.Since = before.Keys, before.Since
	}
	d.Users.Put(u.ID, u)
	answer := fleet.Answer{User: u.ID}
	switch {
	case u.UID == 0:
		answer.Notes = append(answer.Notes, fmt.Sprintf("the jobs of %s run as root on all hosts (uid 0, gid %d)", u.ID, u.GID))
	case u.GID == 0:
		answer.Notes = append(answer.Notes, fmt.Sprintf("the jobs of %s run in root's group on all hosts (uid %d, gid 0)", u.ID, u.UID))
	}
	return answer, nil
}

// dropUser removes a user with their logins. Their jobs stay.
func (d *draft) dropUser(r fleet.Request) (fleet.Answer, error) {
	if r.User == nil {
		return refuse(r, "no user is named; `pagurus user ls` lists them")
	}
	u, known := d.Users.Find(r.User.ID)
	if !known {
		return refuse(r, "there is no user %s; `pagurus user ls` lists them", r.User.ID)
	}
	var out fleet.Answer
	for _, j := range d.base.Jobs {
		if j.Spec.UID == u.UID && j.State != fleet.JobEnded {
			out.Notes = append(out.Notes, fmt.Sprintf("job %s of uid %d goes on; `pagurus cancel %s` ends it", j.ID, u.UID, j.ID))
		}
	}
	slices.Sort(out.Notes)
	for _, t := range d.base.Tokens {
		if t.User == u.ID {
			d.Tokens.Drop(t.ID)
		}
	}
	d.Users.Drop(u.ID)
	return out, nil
}

// logout ends one login. It is not an error if it has ended.
func (d *draft) logout(r fleet.Request) (fleet.Answer, error) {
	u, known := d.Users.Find(r.By.User)
	if !known {
		return refuse(r, "you are not logged in: on the controller's own machine its socket knows you without a login")
	}
	u.Keys = slices.DeleteFunc(slices.Clone(u.Keys), func(key string) bool { return key == r.Key })
	d.Users.Put(u.ID, u)
	return fleet.Answer{User: u.ID}, nil
}

// turnAway is the answer to somebody who may not join.
func turnAway(format string, args ...any) (fleet.Answer, error) {
	return refuse(fleet.Request{}, format, args...)
}

// enrol lets in whoever shows a token. Asked twice with the same key it is answered twice
// and costs one use.
func (d *draft) enrol(e fleet.Enrolment) (fleet.Answer, error) {
	if e.Key == "" {
		return turnAway("the request to join has no key")
	}
	t, known := d.Tokens.Find(e.Token)
	switch {
	case !known || t.Hash != e.Hash:
		return turnAway("this cluster does not know the token: it was removed, or it is another cluster's; an administrator makes one with `pagurus token create`")
	case t.Access:
		return turnAway("nobody joins by this token: a program sends it with each request; an administrator makes one for a login with `pagurus token create --role user --user NAME`")
	case !t.Expires.After(d.at):
		return turnAway("the token expired on %s; an administrator makes another with `pagurus token create`", t.Expires.UTC().Format(time.DateTime))
	case (t.Role == fleet.ControllerRole) != (e.Controller != ""):
		if t.Role == fleet.ControllerRole {
			return turnAway("the token is for a controller: use it with `pagurus controller join`")
		}
		return turnAway("the token is not for a controller: an administrator makes one with `pagurus token create --role controller`")
	case (t.Role == fleet.HostRole) != (e.Host != ""):
		if t.Role == fleet.HostRole {
			return turnAway("the token is for hosts: use it with `pagurus join`")
		}
		return turnAway("the token is for a user: use it with `pagurus login`")
	}
	answer := fleet.Answer{User: t.User}
	h, u := d.Hosts.At(e.Host), d.Users.At(t.User)
	switch {
	case e.NotLetIn:
		d.returnUse(e, t)
		return answer, nil
	case t.Role == fleet.HostRole && h.Credential.Key == e.Key, slices.Contains(u.Keys, e.Key), slices.Contains(t.Keys, e.Key):
		return answer, nil
	case t.Uses < 1:
		return turnAway("the token was used up; an administrator makes another with `pagurus token create`")
	case t.Role == fleet.HostRole:
		if reason := d.enrolHost(e, t); reason != "" {
			return turnAway("%s", reason)
		}
	case t.Role == fleet.ControllerRole: // the store's members are those of record
		t.Keys = append(slices.Clone(t.Keys), e.Key)
	case u.ID == "":
		return turnAway("user %s of this token was removed", t.User)
	default:
		u.Keys = append(slices.Clone(u.Keys), e.Key)
		u.Keys = u.Keys[max(0, len(u.Keys)-mostLogins):]
		d.Users.Put(u.ID, u)
	}
	t.Uses--
	d.Tokens.Put(t.ID, t)
	return answer, nil
}

// returnUse makes it as if a controller had not shown the token.
func (d *draft) returnUse(e fleet.Enrolment, t fleet.JoinToken) {
	if !slices.Contains(t.Keys, e.Key) {
		return
	}
	t.Uses++
	t.Keys = slices.DeleteFunc(slices.Clone(t.Keys), func(key string) bool { return key == e.Key })
	d.Tokens.Put(t.ID, t)
}

// enrolHost writes down a host that joins, or says why it cannot.
func (d *draft) enrolHost(e fleet.Enrolment, t fleet.JoinToken) (reason string) {
	id := e.Host
	if reason := id.Refused(); reason != "" {
		return reason
	}
	if e.Machine == "" {
		return "the machine has no identity: `systemd-machine-id-setup` makes one in /etc/machine-id"
	}
	if _, known := d.Hosts.Find(id); known {
		return fmt.Sprintf("there is a host %s already; join under another name with --%s, or, if it is this machine after a new installation, remove it first with `pagurus host rm %s`", id, fleet.HostFlag, id)
	}
	if e.Foreign && !t.SameID {
		return "a controller's own machine has this machine identity: if this is that machine, join by its own controller, at 127.0.0.1; if this is a copy of its disk, run `rm /etc/machine-id && systemd-machine-id-setup` here and join again"
	}
	if reason := fleet.RefusedAddress(e.Address); e.Address != "" && reason != "" {
		return reason
	}
	for _, other := range d.base.Hosts {
		if e.Address != "" && (e.Address == other.Address || e.Address == other.Credential.Address) {
			return fmt.Sprintf("host %s has the address %s; join without --address, or with this machine's own", other.ID, e.Address)
		}
	}
	if !t.SameID {
		for _, other := range d.base.Hosts {
			if other.Credential.Key == e.Key {
				return fmt.Sprintf("this machine is host %s already: join as that, or have it removed first with `pagurus host rm %s`", other.ID, other.ID)
			}
			if m := other.Credential.Machine; m != "" && m == e.Machine {
				return fmt.Sprintf("host %s has the same machine identity: if this is a copy of its disk, run `rm /etc/machine-id && systemd-machine-id-setup` here and join again", other.ID)
			}
		}
	}
	h := lifecycle.Enlist(id, d.at)
	h.Number = d.hostNumber()
	h.Credential = fleet.Credential{Key: e.Key, Machine: e.Machine, Address: e.Address, Site: t.Site, Joined: d.at}
	d.Hosts.Put(id, h)
	return ""
}
