package fleet

import "time"

// NoticeID names what happened, the same each time that it is told.
type NoticeID string

// NoticeKind is what kind of thing happened.
type NoticeKind string

// The kinds of notices.
const (
	JobEndedNotice    NoticeKind = "job-ended"
	HostLostNotice    NoticeKind = "host-lost"
	MoveStalledNotice NoticeKind = "move-stalled"
)

// NoticeKinds are all of them.
var NoticeKinds = []string{string(JobEndedNotice), string(HostLostNotice), string(MoveStalledNotice)}

// Notice tells somebody outside what happened in the cluster.
type Notice struct {
	ID      NoticeID   `json:"id"`
	Kind    NoticeKind `json:"kind"`
	At      time.Time  `json:"at"` // when it happened
	Cluster string     `json:"cluster"`
	Text    string     `json:"text"` // one sentence for people

	Job    JobID     `json:"job,omitempty"`
	UID    *uint32   `json:"uid,omitempty"` // whose job
	User   UserID    `json:"user,omitempty"`
	Result JobResult `json:"result,omitempty"`
	Exit   *Exit     `json:"exit,omitempty"`
	Cause  string    `json:"cause,omitempty"`
	Host   HostID    `json:"host,omitempty"`
	Move   MoveID    `json:"move,omitempty"`
}

// NoticeMark says how far a receiver has been told.
type NoticeMark struct {
	Receiver string     `json:"receiver"`       // its name, without secrets
	Through  time.Time  `json:"through"`        // all until then is over: told, or given up
	Told     []NoticeID `json:"told,omitempty"` // of later ones, those that are
}
