// Package thaw lets a container run on that is suspended for a checkpoint if nobody else does:
// when the agent that suspended it has died, or does not go on in time.
//
// That takes a process of its own, which outlives the agent. It knows a container's first
// process, its control group, and the link that holds frames for it; not why it is suspended.
// The agent and that process share a token, and who takes it lets the container run: so a
// checkpoint whose guest ran on by itself is never taken for one. The tests are those of
// package container, with a real guest and killed agents.
package thaw

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"pagurus/act/container/criu"
	"pagurus/act/container/interrupted"
	"pagurus/act/container/shim"
	"pagurus/act/host"
	"pagurus/act/host/port"
)

// Cut is what the process has to know of a container that is about to be suspended.
type Cut struct {
	PID     int           `json:"pid"`     // of its first process
	Freezer string        `json:"freezer"` // folder of its control group
	Port    port.Port     `json:"port"`    // may hold frames for it
	Criu    criu.Criu     `json:"criu"`    // may hold the container while its agent dies
	Limit   time.Duration `json:"limit_ns"`
}

// Shims are the processes that this package starts, for shim.Become.
var Shims = shim.Table{name: watch}

// name is the name under which the process runs.
const name = "pagurus-thaw"

// The process's descriptors beyond the three standard ones.
const (
	ordersFile = 3 + iota // a Cut; its end says that the caller needs the process no longer, or has died
	answerFile            // a line when the process watches
	tokenFile             // one byte: who reads it lets the container run
)

// watching is that line.
const watching = "watching\n"

// answerLimit is how long the process may take for what takes milliseconds.
const answerLimit = 5 * time.Second

// Guard is the process that lets a container run if its caller dies or takes too long.
type Guard struct {
	orders, token *os.File
	cmd           *exec.Cmd
}

// Watch starts a guard for a container, before it is suspended. The caller is in the network
// namespace of the container's port. After an error none runs.
func Watch(c Cut) (g *Guard, err error) {
	var ends [6]*os.File // read and write ends in turn
	for i := range 3 {
		if ends[2*i], ends[2*i+1], err = os.Pipe(); err != nil {
			break
		}
	}
	orders, ours, theirs, answer, token, given := ends[0], ends[1], ends[2], ends[3], ends[4], ends[5]
	g = &Guard{orders: ours, token: token}
	if err == nil {
		_, err = given.Write([]byte{0})
	}
	if err == nil {
		g.cmd = &exec.Cmd{
			Path: shim.Daemon(), Args: []string{name}, Env: []string{}, Dir: "/",
			ExtraFiles: []*os.File{orders, answer, token}, SysProcAttr: &syscall.SysProcAttr{Setsid: true},
		}
		err = g.cmd.Start()
	}
	for _, f := range []*os.File{orders, answer, given} {
		f.Close() // the ends of pipes are noticed only if no other process has these
	}
	if err == nil {
		err = g.tell(c, theirs)
	}
	theirs.Close()
	if err != nil {
		g.Claim()
		return nil, fmt.Errorf("start a process that lets the container run on: %w", err)
	}
	return g, nil
}

// tell says what to watch, and waits until the process does.
func (g *Guard) tell(c Cut, answer *os.File) error {
	text, err := json.Marshal(c)
	if err == nil {
		_, err = g.orders.Write(append(text, '\n'))
	}
	if err == nil {
		err = answer.SetReadDeadline(time.Now().Add(answerLimit))
	}
	if err != nil {
		return err
	}
	if said, err := bufio.NewReader(answer).ReadString('\n'); err != nil || said != watching {
		return fmt.Errorf("it says %q: %w", said, err)
	}
	return nil
}

// Claim ends the guard: from here on only the caller lets the container run. false: the guard has
// let it run, or is about to. It waits for nobody. A second call is false.
func (g *Guard) Claim() bool {
	mine := takeToken(g.token)
	g.Leave()
	return mine
}

// Leave lets the guard let the container run at once, unless that was claimed. It does not wait
// for that.
func (g *Guard) Leave() {
	g.orders.Close()
	g.token.Close()
	if cmd := g.cmd; cmd != nil && cmd.Process != nil {
		go func() { _ = cmd.Wait() }() // after the agent's end another reaps it
	}
	g.cmd = nil
}

// takeToken reports whether this process has the token.
func takeToken(token *os.File) bool {
	n, _ := token.Read(make([]byte, 1)) // it does not wait: nobody has the other end
	return n == 1
}

// watch is the process.
func watch([]string) error {
	orders, token := bufio.NewReader(os.NewFile(ordersFile, "orders")), os.NewFile(tokenFile, "token")
	line, err := orders.ReadBytes('\n')
	if err != nil {
		return nil // whoever started this process has ended before anything was suspended
	}
	var c Cut
	if err := json.Unmarshal(line, &c); err != nil {
		return err
	}
	here, err := host.Find(c.PID)
	if err != nil {
		return err
	}
	answer := os.NewFile(answerFile, "answer")
	if _, err := answer.WriteString(watching); err != nil {
		return nil
	}
	answer.Close()
	over := make(chan struct{})
	go func() {
		_, _ = orders.ReadByte()
		close(over)
	}()
	select {
	case <-over:
	case <-time.After(c.Limit):
	}
	if !takeToken(token) {
		return nil
	}
	return c.release(here)
}

// patience is how long the process tries to let a container run. CRIU may have to be ended before.
const (
	patience = time.Minute
	again    = 200 * time.Millisecond
)

// release lets the container run, unless its first process has ended.
func (c Cut) release(here host.Process) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		if here.Gone() {
			return nil
		}
		err := c.Criu.Release(ctx, c.PID, c.Freezer)
		if err == nil {
			err = interrupted.Continue(c.PID, nil, func() error { return host.Freezer(c.Freezer).Set(false) })
		}
		err = errors.Join(err, c.Port.Free())
		if err == nil || ctx.Err() != nil {
			return err
		}
		time.Sleep(again)
	}
}
