package fleet

import "time"

type (
	// UserID names a person or program that uses the cluster.
	UserID string
	// TokenID names a join token.
	TokenID string
)

// Role is what a member of the cluster is.
type Role string

// The roles. What each may do is decided in one table, decide/access.
const (
	AdminRole Role = "admin" // acts on everything
	UserRole  Role = "user"  // acts on their own jobs, and on the hosts that they own
	HostRole  Role = "host"  // runs guests; asks for nothing
	// ControllerRole is one of a cluster's controllers. It has the cluster's keys, so only its certificate says so.
	ControllerRole Role = "controller"
)

// Credential is a host's proof of who it is. The zero value is that of a host whose agent
// uses the controller's UNIX socket.
type Credential struct {
	Key     string    `json:"key"`               // fingerprint of its public key; a certificate for another key is refused
	Machine string    `json:"machine"`           // its Facts.Machine must be this
	Address string    `json:"address,omitempty"` // the address it said it would use when it joined; empty: the one it calls from
	Site    string    `json:"site,omitempty"`    // its token's, which it has to be in; empty: any
	Joined  time.Time `json:"joined"`
}

// User is a person or program that is known by certificates, and by uid on the
// controller's own machine.
type User struct {
	ID     UserID    `json:"id"`
	Role   Role      `json:"role"` // AdminRole or UserRole
	UID    uint32    `json:"uid"`  // as whom the user's jobs run on hosts
	GID    uint32    `json:"gid"`
	Groups []uint32  `json:"groups,omitempty"`
	Owns   []HostID  `json:"owns,omitempty"` // hosts that the user owns
	Keys   []string  `json:"keys,omitempty"` // fingerprints of the public keys of the user's logins
	Since  time.Time `json:"since"`
}

// JoinToken lets somebody into the cluster. The controller never stores its secret.
type JoinToken struct {
	ID      TokenID   `json:"id"`
	Hash    string    `json:"hash"` // SHA-256 of the secret
	Role    Role      `json:"role"`
	User    UserID    `json:"user,omitempty"` // whose login it is, if Role is UserRole or AdminRole
	Uses    int       `json:"uses"`           // that are left; 0 with Access
	Expires time.Time `json:"expires"`
	Site    string    `json:"site,omitempty"`         // of hosts that join by it; empty: they name theirs
	SameID  bool      `json:"same_machine,omitempty"` // hosts of one machine may join by it: a lab
	Access  bool      `json:"access,omitempty"`       // nobody joins by it: a program shows it with each request, and acts as User
	Since   time.Time `json:"since"`
	Keys    []string  `json:"keys,omitempty"` // of the controllers that joined by it

	// Of a token whose request has a key (Idempotency-Key); set by the controller.
	Request RequestID `json:"request,omitempty"`
	Asks    string    `json:"asks,omitempty"` // of the request
	Maker   UserID    `json:"maker,omitempty"`
	Salt    string    `json:"salt,omitempty"` // with which controllers find the secret again, for the same request
}

// Enrolment is what a machine or a person says that joins by a token. The controller sets
// Token and Hash from what the caller shows, and Key from a request signed with that key.
type Enrolment struct {
	Token   TokenID `json:"token"`
	Hash    string  `json:"hash"`
	Key     string  `json:"key"`
	Host    HostID  `json:"host,omitempty"`    // that joins; empty: a person logs in
	Machine string  `json:"machine,omitempty"` // of a host
	Foreign bool    `json:"foreign,omitempty"` // it says that it is a controller's machine and calls from another; set by the controller
	Address string  `json:"address,omitempty"` // of a host that wants to use another than the one it calls from

	Controller string `json:"controller,omitempty"` // what a controller that joins is called
	NotLetIn   bool   `json:"not_let_in,omitempty"` // the others did not take it: it keeps its use of the token
}
