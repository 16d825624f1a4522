package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"pagurus/act/daemon"
	"pagurus/fleet"
	faultpoint "pagurus/internal/fault"
)

// The folders and names of a lab.
const (
	labRun      = "/run/pagurus/lab"
	labState    = "/var/lib/pagurus/lab"
	labLogs     = labState + "/log"
	namespaceOf = "pagurus-lab-"
	head        = "controller"
)

// service is one daemon of the lab with its supervisor: it is restarted after its end.
type service struct {
	mu     sync.Mutex // held while it is killed and started
	d      daemon.Daemon
	always string // fault points that it has besides its naps
}

// services finds the lab's daemons.
func services(hosts, controllers int) (map[string]*service, error) {
	all := map[string]*service{}
	for n := 1; n <= controllers; n++ {
		name := controllerOf(n)
		all[name] = &service{d: daemon.Daemon{Name: "the lab's " + name,
			PIDFile: filepath.Join(labRun, name+".pid"), LogFile: filepath.Join(labLogs, name+".log")}}
	}
	for n := 1; n <= hosts; n++ {
		name := fmt.Sprintf("host%d", n)
		all[name] = &service{d: daemon.Daemon{Name: "the agent of " + name, Namespace: daemon.Namespace(namespaceOf + name),
			PIDFile: filepath.Join(labRun, name, "agent.pid"), LogFile: filepath.Join(labLogs, name+".log")}}
	}
	for name, s := range all {
		p, ok := s.d.Running()
		if !ok {
			return nil, fmt.Errorf("%s of the lab does not run: %w", name, s.d.Died())
		}
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID))
		if err != nil {
			return nil, err
		}
		s.d.Command = strings.Split(string(bytes.TrimSuffix(line, []byte{0})), "\x00")
	}
	return all, nil
}

// kill kills the daemon and starts it again after a pause, with naps.
func (s *service) kill(pause time.Duration, naps string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.d.Running()
	if !ok {
		return errMissed
	}
	if err := p.End(0); err != nil {
		return err
	}
	time.Sleep(pause)
	return s.start(naps)
}

func (s *service) start(naps string) error {
	d := s.d
	d.Command = append([]string{"env", faultpoint.Environment + "=" + strings.Trim(naps+","+s.always, ",")}, s.d.Command...)
	d.Ended = func(how *os.ProcessState) { noteEnd(d.LogFile, how) }
	return d.Start()
}

// endNoted marks a line of noteEnd.
const endNoted = "pagurus-chaos: process"

// noteEnd adds to a daemon's log how it ended. One that is killed writes nothing itself, and nobody could tell later who had killed it, or whether it
// had ended by itself.
func noteEnd(file string, how *os.ProcessState) {
	log, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return // the lab is being removed
	}
	defer log.Close()
	fmt.Fprintf(log, "time=%s %s %d ended: %s\n", time.Now().UTC().Format(time.RFC3339Nano), endNoted, how.Pid(), how)
}

// replace has the daemon be of other programs from now on: it is killed, and started from another folder.
func (s *service) replace(folder, naps string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := filepath.Dir(s.d.Command[0])
	for i, arg := range s.d.Command {
		if arg == was || strings.HasPrefix(arg, was+"/") {
			s.d.Command[i] = folder + strings.TrimPrefix(arg, was)
		}
	}
	if p, ok := s.d.Running(); ok {
		if err := p.End(0); err != nil {
			return err
		}
	}
	return s.start(naps)
}

// revive starts the daemon if it has ended by itself. ended then holds the end of its log.
func (s *service) revive(naps string) (ended, err error) {
	if !s.mu.TryLock() {
		return nil, nil // it is being killed and started
	}
	defer s.mu.Unlock()
	if _, ok := s.d.Running(); ok {
		return nil, nil
	}
	return s.d.Died(), s.start(naps)
}

// errMissed: a fault found nothing to inject into.
var errMissed = errors.New("there was nothing to inject the fault into")

// killCopy kills the QEMU of a guest on one host.
func killCopy(guest fleet.GuestID, host fleet.HostID) error {
	c, err := find(guest, host)
	if err != nil {
		return err
	}
	return c.End(0)
}

func find(guest fleet.GuestID, host fleet.HostID) (copyOf, error) {
	all, err := copies()
	if err != nil {
		return copyOf{}, err
	}
	for _, c := range all {
		if c.guest == guest && c.host == host {
			return c, nil
		}
	}
	return copyOf{}, errMissed
}
