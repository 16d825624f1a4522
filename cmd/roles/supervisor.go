package roles

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// Supervisor is the service manager that started this program, as NOTIFY_SOCKET says. If there
// is none, its methods do nothing.
//
// A program's main loop calls Alive. A loop that hangs stops calling it, and the service
// manager restarts the program.
type Supervisor struct {
	log   *slog.Logger
	every time.Duration // 0: it does not watch
	mu    sync.Mutex
	ready bool
	last  time.Time
}

// often says how many signs of life are sent in the time in which one is expected.
const often = 4

// NewSupervisor finds the service manager, and tells it when ctx ends that the program stops.
func NewSupervisor(ctx context.Context, log *slog.Logger) *Supervisor {
	s := &Supervisor{log: log}
	limit, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		log.Warn("the service manager's watchdog is unknown", "cause", err)
	}
	s.every = limit / often
	context.AfterFunc(ctx, func() { s.say(daemon.SdNotifyStopping) })
	return s
}

// Alive says that the program is ready and, from then on, that it lives.
func (s *Supervisor) Alive() {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	switch {
	case !s.ready:
		s.ready, s.last = true, now
		s.say(daemon.SdNotifyReady)
	case s.every > 0 && now.Sub(s.last) >= s.every:
		s.last = now
		s.say(daemon.SdNotifyWatchdog)
	}
}

// say tells the service manager something. The variables stay for a program that replaces
// itself.
func (s *Supervisor) say(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		s.log.Warn("the service manager does not listen", "said", state, "cause", err)
	}
}
