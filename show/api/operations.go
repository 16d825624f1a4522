package api

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"slices"

	"pagurus/fleet"
	"pagurus/serve/wire"
	"pagurus/show/view"
)

// Operations are all operations. A test compares them with the requests and calls that package access knows, and with the
// commands.
var Operations = slices.Concat(reads, orders, []Operation{
	{ID: "readOutput", Method: http.MethodGet, Path: "/jobs/{job}/output/{stream}", Command: "job logs", Summary: "Print a job's output",
		Media: "application/octet-stream", raw: readOutput, Query: []Parameter{
			{"offset", "integer", "the first byte wanted; 0 if it is left out"},
			{"wait", "boolean", "wait some seconds for a byte if there is none yet"},
		}},
	{ID: "writeInput", Method: http.MethodPost, Path: "/jobs/{job}/input", Summary: "Give a job's program standard input",
		Takes: "application/octet-stream", Gives: typeOf[Offset](), raw: writeInput, Query: []Parameter{
			{"offset", "integer", "the place of the first byte; the answer says at which to go on"},
			{"eof", "boolean", "nothing follows"},
		}},
	{ID: "waitForJob", Method: http.MethodGet, Path: "/jobs/{job}/wait", Command: "job wait", Summary: "Wait for jobs to end",
		Gives: typeOf[view.Job](), raw: waitForJob},
	{ID: "exportUsage", Method: http.MethodGet, Path: "/usage/csv", Summary: "Export what users, jobs and hosts used as comma-separated values, with seconds, bytes and joules",
		Media: "text/csv", raw: exportUsage, Query: []Parameter{usedSince, usedBy, usedOf, usedOn}},
	{ID: "exportSacct", Method: http.MethodGet, Path: "/usage/sacct", Summary: "Export ended jobs as Slurm's sacct writes them, for importers",
		Media: "text/plain", raw: exportSacct, Query: []Parameter{usedSince, usedOf}},
	{ID: "backUp", Method: http.MethodGet, Path: "/backup", Command: "backup", Summary: "Save the controller's state to a file, while it runs",
		Media: "application/octet-stream", raw: backUp},
	{ID: "watchEvents", Method: http.MethodGet, Path: "/events", Summary: "Watch jobs, guests, hosts, moves and checkpoints",
		Media: "text/event-stream", raw: watchEvents, Query: []Parameter{
			{"kinds", "string", "only these, with commas between: " + kindList()},
			{"brief", "boolean", "hosts and guests with what a picture of a large cluster needs, and many things in one event"},
		}},
})

func typeOf[T any]() reflect.Type { return reflect.TypeFor[T]() }

// reads are the operations that change nothing.
var reads = slices.Concat([]Operation{
	reading("whoAmI", "/whoami", "whoami", "Show who you are to the controller", func(ctx context.Context, c Cluster, _ Asked) (wire.Who, error) { return c.WhoAmI(ctx) }),

	list("listJobs", "/jobs", "job ls", "List the jobs", func(c view.Cluster) []view.Job { return c.Jobs }),
	reading("showJob", "/jobs/{job}", "job show", "Show what a job's ranks do, and how moves affected them", showJob),
	list("listGuests", "/guests", "guest ls", "List the guests and where they are", func(c view.Cluster) []view.Guest { return c.Guests }),
	one("showGuest", "/guests/{guest}", func(c view.Cluster, id string) (view.Guest, bool) { return c.Guest(fleet.GuestID(id)) }),
	list("listHosts", "/hosts", "host ls", "List the hosts", func(c view.Cluster) []view.Host { return c.Hosts }),
	one("showHost", "/hosts/{host}", func(c view.Cluster, id string) (view.Host, bool) { return c.Host(fleet.HostID(id)) }),
	list("listMoves", "/moves", "move ls", "List the moves, under way and past", func(c view.Cluster) []view.Move { return c.Moves }),
	one("showMove", "/moves/{move}", func(c view.Cluster, id string) (view.Move, bool) { return c.Move(fleet.MoveID(id)) }).as("move show", "Show a move: its phases, what it sent, the downtime"),
	filtered(list("listCheckpoints", "/checkpoints", "checkpoint ls", "List the checkpoints, of one job or of all", func(c view.Cluster) []view.Checkpoint { return c.Checkpoints }), "job", "only this job's",
		func(c view.Checkpoint, job string) bool { return string(c.Job) == job }),
	one("showCheckpoint", "/checkpoints/{checkpoint}", func(c view.Cluster, id string) (view.Checkpoint, bool) { return c.Checkpoint(fleet.CheckpointID(id)) }).as("checkpoint show", "Show a checkpoint with the part of each guest"),
	list("listPolicies", "/policies", "policy ls", "List the policies, and which one is in force", func(c view.Cluster) []view.Policy { return view.Policies(c.Rules) }),
	one("showPolicy", "/policies/{policy}", func(c view.Cluster, id string) (view.Policy, bool) { return policy(c.Rules, id) }).as("policy show", "Show what a policy does"),
	list("listUsers", "/users", "user ls", "List the users", func(c view.Cluster) []fleet.User { return c.Users }),
	list("listTokens", "/tokens", "token ls", "List the join tokens", func(c view.Cluster) []fleet.JoinToken { return c.Tokens }),
	list("listSites", "/sites", "sites", "Show how sites reach each other: directly or relayed, how fast, how much", view.Cluster.SitePaths),
	list("listKinds", "/kinds", "kinds", "Show what each kind of guest can do, and on which hosts", view.Cluster.Kinds),
	list("listHealth", "/health", "health", "Show hosts with signs of failing, and what was done about it", view.Cluster.Unwell),
	one("showHostPolicy", "/hosts/{host}/policy", func(c view.Cluster, id string) (fleet.OwnerPolicy, bool) {
		h, there := c.Host(fleet.HostID(id))
		return h.Policy, there
	}),

	reading("showQuota", "/quota", "quota", "Show how much output, checkpoints and images are kept, of whom, by how much jobs have grown, and what may be", func(ctx context.Context, c Cluster, _ Asked) (fleet.Output, error) { return c.Output(ctx) }),
	withQuery(reading("showUsage", "/usage", "usage", "Show what users, jobs and hosts used: processors, memory, moves, energy", readUsage), usedSince, usedBy, usedOf, usedOn),
	reading("showScore", "/score", "", "Show how good past predictions were", func(ctx context.Context, c Cluster, _ Asked) (fleet.Calibration, error) { return c.Score(ctx) }),
	reading("listControllers", "/controllers", "controller ls", "List the cluster's controllers", func(ctx context.Context, c Cluster, _ Asked) ([]wire.Head, error) { return c.Heads(ctx) }),
	withQuery(reading("listAudit", "/audit", "audit", "Show who did what, when and from where", readAudit), Parameter{"since", "string", "RFC 3339; a day ago if it is left out"}),
}, explaining())

// orders are the operations that make a request.
var orders = []Operation{
	{ID: "submitJob", Method: http.MethodPost, Path: "/jobs", Command: "job run", Summary: "Run an MPI program in guests, as mpirun would", Verb: fleet.Submit, Fields: []string{"spec", "now"}},
	{ID: "cancelJob", Method: http.MethodPost, Path: "/jobs/{job}/cancel", Command: "job cancel", Summary: "Cancel jobs", Verb: fleet.Cancel, Fields: []string{"grace_ns"}},
	{ID: "removeJob", Method: http.MethodDelete, Path: "/jobs/{job}", Command: "job rm", Summary: "Remove ended jobs with their output", Verb: fleet.RemoveJob},
	{ID: "signalJob", Method: http.MethodPost, Path: "/jobs/{job}/signal", Command: "job signal", Summary: "Send a signal to the ranks of a job", Verb: fleet.SendSignal, Fields: []string{"signal"}},
	{ID: "growJob", Method: http.MethodPost, Path: "/jobs/{job}/grow", Summary: "Give a running job more guests, as its program may ask for them", Verb: fleet.Grow, Fields: []string{"count", "within_ns"}},
	{ID: "restartJob", Method: http.MethodPost, Path: "/jobs/{job}/restart", Command: "job restart", Summary: "Begin a job again, from its newest checkpoint or another one", Verb: fleet.Restart, Fields: []string{"checkpoint", "beginning"}},
	{ID: "suspendJob", Method: http.MethodPost, Path: "/jobs/{job}/suspend", Command: "job suspend", Summary: "Suspend a running job: keep its state, and free its hosts", Verb: fleet.SuspendJob},
	{ID: "resumeJob", Method: http.MethodPost, Path: "/jobs/{job}/resume", Command: "job resume", Summary: "Let a suspended job go on, as soon as there is room", Verb: fleet.ResumeJob, Fields: []string{"on"}},
	{ID: "makeCheckpoint", Method: http.MethodPost, Path: "/jobs/{job}/checkpoints", Command: "checkpoint", Summary: "Keep the state of a running job, to go on from it", Verb: fleet.MakeCheckpoint},
	{ID: "takeCheckpoint", Method: http.MethodPost, Path: "/jobs/{job}/copies", Summary: "Have vaults get ready for a copy of a checkpoint that comes back", Verb: fleet.TakeCheckpoint, Fields: []string{"copy"}},
	{ID: "removeCheckpoint", Method: http.MethodDelete, Path: "/checkpoints/{checkpoint}", Command: "checkpoint rm", Summary: "Remove checkpoints, or give up one that is being made", Verb: fleet.RemoveCheckpoint},

	{ID: "migrate", Method: http.MethodPost, Path: "/moves", Command: "guest migrate", Summary: "Move guests to other hosts while they run", Verb: fleet.Migrate, Fields: moving},
	{ID: "predictMove", Method: http.MethodPost, Path: "/moves/prediction", Command: "move predict", Summary: "Predict what a move would cost now, and do nothing", Verb: fleet.Migrate, Fields: moving, Predicts: true},
	{ID: "cancelMove", Method: http.MethodPost, Path: "/moves/{move}/cancel", Command: "move cancel", Summary: "Cancel a move before its guests switch", Verb: fleet.CancelMove},

	{ID: "drainHost", Method: http.MethodPost, Path: "/hosts/{host}/drain", Command: "host drain", Summary: "Move all guests off a host and keep it empty", Verb: fleet.Drain, Fields: []string{"limits"}},
	{ID: "predictDrain", Method: http.MethodPost, Path: "/hosts/{host}/drain/prediction", Summary: "Predict what draining a host would cost now, and do nothing", Verb: fleet.Drain, Fields: []string{"limits"}, Predicts: true},
	{ID: "undrainHost", Method: http.MethodPost, Path: "/hosts/{host}/undrain", Command: "host undrain", Summary: "Let a drained host run guests again", Verb: fleet.Undrain},
	{ID: "forgetHost", Method: http.MethodDelete, Path: "/hosts/{host}", Command: "host forget", Summary: "Remove a host that is gone for good", Verb: fleet.Forget},
	{ID: "setHostPolicy", Method: http.MethodPut, Path: "/hosts/{host}/policy", Command: "host policy", Summary: "Show or set what happens to guests when a host's owner is there", Verb: fleet.SetPolicy, Whole: "policy",
		Gives: typeOf[fleet.OwnerPolicy](), do: afterwards(func(_ context.Context, _ Cluster, q fleet.Request, _ fleet.Answer) (any, error) {
			return *q.Policy, nil
		})},
	{ID: "claimHost", Method: http.MethodPost, Path: "/hosts/{host}/claim", Command: "host claim", Summary: "Say that a host's owner needs it now, whatever its sensors report", Verb: fleet.Claim},
	{ID: "releaseHost", Method: http.MethodPost, Path: "/hosts/{host}/release", Command: "host release", Summary: "Say that a host's owner no longer needs it", Verb: fleet.Release},
	{ID: "isolateCPUs", Method: http.MethodPost, Path: "/hosts/{host}/isolate", Command: "host isolate", Summary: "Isolate some of a host's CPUs for guests, or put everything back", Verb: fleet.Isolate, Fields: []string{"isolation"}},

	{ID: "setPolicy", Method: http.MethodPut, Path: "/policy", Command: "policy set", Summary: "Set the policy in force", Verb: fleet.SetRules, Whole: "rules",
		Gives: typeOf[view.Policy](), do: afterwards(func(_ context.Context, _ Cluster, q fleet.Request, _ fleet.Answer) (any, error) {
			p, _ := policy(*q.Rules, "")
			return p, nil
		})},
	{ID: "createToken", Method: http.MethodPost, Path: "/tokens", Command: "token create", Summary: "Create a join token and print it", Verb: fleet.AddToken, Whole: "token",
		Gives: typeOf[Token](), do: afterwards(func(_ context.Context, _ Cluster, q fleet.Request, a fleet.Answer) (any, error) {
			return Token{a.Token, q.Token.Expires}, nil
		})},
	{ID: "removeToken", Method: http.MethodDelete, Path: "/tokens/{token}", Command: "token rm", Summary: "Remove a join token; members that joined by it stay", Verb: fleet.DropToken},
	{ID: "setUser", Method: http.MethodPut, Path: "/users/{user}", Command: "user add", Summary: "Add a user, or change one", Verb: fleet.SetUser, Whole: "user"},
	{ID: "removeUser", Method: http.MethodDelete, Path: "/users/{user}", Command: "user rm", Summary: "Remove a user with all logins; the user's jobs go on", Verb: fleet.DropUser},
	{ID: "logOut", Method: http.MethodPost, Path: "/logout", Command: "logout", Summary: "End this account's login", Verb: fleet.Logout},
	{ID: "removeController", Method: http.MethodDelete, Path: "/controllers/{controller}", Command: "controller remove", Summary: "Remove a controller that does not lead from the cluster", Gives: typeOf[struct{}](),
		do: func(ctx context.Context, c Cluster, q Asked) (any, error) {
			return struct{}{}, c.RemoveHead(ctx, q.Path["controller"])
		}},
}

// moving are the fields of a request to move guests.
var moving = []string{"guest", "guests", "job", "host", "to", "to_site", "limits"}

// Alone are commands without an operation, each with the reason.
var Alone = map[string]string{
	"host rm":         "drainHost, watchEvents until it is empty, then forgetHost",
	"user role":       "setUser",
	"checkpoint copy": "it writes into a folder of its machine; the parts of a checkpoint pass by the protocol",
	"join":            "it makes a key that stays on its machine",
	"login":           "it makes a key that stays on its machine",
	"top":             "it draws on a terminal; watchEvents shows the same to programs",
	"page":            "it is for a person's browser; whoAmI says where the page is, createToken makes the token",

	"owner status":  "an owner asks the agent of their own machine",
	"owner history": "an owner asks the agent of their own machine",
	"owner pause":   "an owner asks the agent of their own machine; claimHost is for others",
	"owner resume":  "an owner asks the agent of their own machine; releaseHost is for others",
	"owner policy":  "an owner asks the agent of their own machine; setHostPolicy is for others",

	"owner page":       "it is for the browser of one person, on their own machine",
	"owner notify on":  "it is about the desktop of one person",
	"owner notify off": "it is about the desktop of one person",
}

func init() {
	for i := range Operations {
		Operations[i].complete()
	}
}

// complete has an operation that makes a request make it.
func (o *Operation) complete() {
	switch {
	case o.Verb == "":
		return
	case o.Predicts:
		o.Gives, o.do = typeOf[fleet.Forecast](), func(ctx context.Context, c Cluster, q Asked) (any, error) { return c.Predict(ctx, q.Request) }
	case o.do == nil:
		o.Gives, o.do = typeOf[fleet.Answer](), func(ctx context.Context, c Cluster, q Asked) (any, error) { return c.Ask(ctx, q.Request) }
	}
}

// afterwards makes a request and answers with something else than its answer.
func afterwards(give func(context.Context, Cluster, fleet.Request, fleet.Answer) (any, error)) func(context.Context, Cluster, Asked) (any, error) {
	return func(ctx context.Context, c Cluster, q Asked) (any, error) {
		a, err := c.Ask(ctx, q.Request)
		if err != nil {
			return nil, err
		}
		return give(ctx, c, q.Request, a)
	}
}

// reading is an operation that reads one value.
func reading[T any](id, path, command, summary string, read func(context.Context, Cluster, Asked) (T, error)) Operation {
	return Operation{ID: id, Method: http.MethodGet, Path: path, Command: command, Summary: summary, Gives: typeOf[T](),
		do: func(ctx context.Context, c Cluster, q Asked) (any, error) { return read(ctx, c, q) }}
}

// list is an operation that lists what the command of the same name does.
func list[T any](id, path, command, summary string, rows func(view.Cluster) []T) Operation {
	return reading(id, path, command, summary, func(ctx context.Context, c Cluster, _ Asked) ([]T, error) {
		all, err := read(ctx, c)
		if err != nil {
			return nil, err
		}
		return rows(all), nil
	})
}

// one is an operation that reads one of a list's elements.
func one[T any](id, path string, find func(view.Cluster, string) (T, bool)) Operation {
	name := parameters(path)[0]
	return reading(id, path, "", "Show one "+name, func(ctx context.Context, c Cluster, q Asked) (out T, err error) {
		all, err := read(ctx, c)
		if err != nil {
			return out, err
		}
		out, there := find(all, q.Path[name])
		if !there {
			return out, missing(name, q.Path[name])
		}
		return out, nil
	})
}

// as names the command that does the same.
func (o Operation) as(command, summary string) Operation {
	o.Command, o.Summary = command, summary
	return o
}

func withQuery(o Operation, p ...Parameter) Operation {
	o.Query = append(o.Query, p...)
	return o
}

// filtered adds a parameter that chooses some elements of a list.
func filtered[T any](o Operation, name, says string, keep func(T, string) bool) Operation {
	all := o.do
	o.do = func(ctx context.Context, c Cluster, q Asked) (any, error) {
		rows, err := all(ctx, c, q)
		if only := q.Query.Get(name); err == nil && only != "" {
			return slices.DeleteFunc(slices.Clone(rows.([]T)), func(row T) bool { return !keep(row, only) }), nil
		}
		return rows, err
	}
	return withQuery(o, Parameter{name, "string", says})
}

func missing(kind, id string) error {
	return &wire.Error{Status: http.StatusNotFound, Reason: fmt.Sprintf("there is no %s %q: `pagurus %s ls` lists them", kind, id, kind)}
}

// policy is one by its name, or the one in force.
func policy(r fleet.Rules, name string) (view.Policy, bool) {
	all := view.Policies(r)
	i := slices.IndexFunc(all, func(p view.Policy) bool { return p.InForce && name == "" || name != "" && string(p.Name) == name })
	if i < 0 {
		return view.Policy{}, false
	}
	return all[i], true
}

// showJob is a job with everything known of it.
func showJob(ctx context.Context, c Cluster, q Asked) (out view.JobDetail, err error) {
	all, err := read(ctx, c)
	if err != nil {
		return out, err
	}
	job, there := all.Job(fleet.JobID(q.Path["job"]))
	if !there {
		return out, missing("job", q.Path["job"])
	}
	var traces []fleet.Trace
	if job.Spec.Trace {
		if traces, err = c.Trace(ctx, job.ID); err != nil {
			return out, err
		}
	}
	return all.Detail(job, traces), nil
}

// explaining are the operations that explain something.
func explaining() (out []Operation) {
	for _, kind := range []string{"guest", "job", "host", "move"} {
		name := "explain" + string(kind[0]-'a'+'A') + kind[1:]
		out = append(out, reading(name, "/"+kind+"s/{"+kind+"}/explanation", kind+" explain", "Explain why something is where it is, and its state", func(ctx context.Context, c Cluster, q Asked) (out wire.Explanation, err error) {
			id := q.Path[kind]
			all, err := read(ctx, c)
			if err != nil {
				return out, err
			}
			there, about := false, wire.About{}
			switch kind {
			case "guest":
				about.Guest = fleet.GuestID(id)
				_, there = all.Guest(about.Guest)
			case "job":
				about.Job = fleet.JobID(id)
				_, there = all.Job(about.Job)
			case "host":
				about.Host = fleet.HostID(id)
				_, there = all.Host(about.Host)
			default:
				if m, known := all.Move(fleet.MoveID(id)); known {
					return wire.Explanation{Lines: m.Explain(all.At)}, nil
				}
			}
			if !there {
				return out, missing(kind, id)
			}
			out.Lines, err = c.Explain(ctx, about)
			return out, err
		}))
	}
	return out
}
