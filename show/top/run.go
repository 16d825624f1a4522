package top

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	tea "charm.land/bubbletea/v2"

	"pagurus/fleet"
	"pagurus/show/view"
)

// Controller is what the screen asks.
type Controller interface {
	// FollowCluster calls each with every new cluster, and away when the controller does not answer, or does again
	// (empty), until ctx ends or each fails.
	FollowCluster(ctx context.Context, each func(view.Cluster) error, away func(why string)) error
	Predict(ctx context.Context, r fleet.Request) (fleet.Forecast, error)
	Ask(ctx context.Context, r fleet.Request) (fleet.Answer, error)
	Explain(ctx context.Context, id string) ([]string, error)
}

// Terminal is where the screen is drawn and keys are read.
type Terminal struct {
	In, Out *os.File
	Color   bool
}

// Killed is the error of a screen that a signal ended.
type Killed struct{ Signal syscall.Signal }

// Error names the signal.
func (k Killed) Error() string { return "ended by " + k.Signal.String() }

// Run draws the screen until the user quits, the controller refuses, or a signal comes. Whatever
// ends it, a panic too, the terminal is as before.
func Run(ctx context.Context, c Controller, t Terminal) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer signal.Stop(signals)
	go func() {
		select {
		case s := <-signals:
			number, _ := s.(syscall.Signal)
			stop(Killed{number})
		case <-ctx.Done():
		}
	}()
	s := screen{model: New(t.Color), ctx: ctx, controller: c}
	// Bubble Tea's own handling of signals would quit as if the user had.
	p := tea.NewProgram(&s, tea.WithContext(ctx), tea.WithInput(t.In), tea.WithOutput(t.Out), tea.WithoutSignalHandler(), tea.WithFPS(framesPerSecond))
	s.send = p.Send
	end, err := p.Run()
	killed := Killed{}
	switch last, ok := end.(*screen); {
	case errors.Is(err, tea.ErrProgramPanic):
		return errors.New("a bug ended the screen; what it says is above")
	case errors.As(context.Cause(ctx), &killed):
		return killed
	case ok && last.failed != nil:
		return last.failed
	case err != nil:
		return fmt.Errorf("drawing on the terminal: %w", err)
	}
	return nil
}

// framesPerSecond is enough for numbers that people read.
const framesPerSecond = 30

// screen is a model with what its effects need.
type screen struct {
	model      Model
	ctx        context.Context
	controller Controller
	send       func(tea.Msg)
	failed     error // why there is no cluster any more
}

// ended says that the controller is no longer followed.
type ended struct{ err error }

// Init begins to follow the controller. Bubble Tea runs it, so that a panic restores the terminal.
func (s *screen) Init() tea.Cmd {
	return func() tea.Msg {
		err := s.controller.FollowCluster(s.ctx, func(c view.Cluster) error {
			s.send(Arrive(c))
			return s.ctx.Err()
		}, func(why string) { s.send(Away{why}) })
		return ended{err}
	}
}

// Update gives a message to the model, and begins what it wants.
func (s *screen) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	if over, ok := msg.(ended); ok {
		s.failed = over.err
		return s, tea.Quit
	}
	model, effect := s.model.Update(msg)
	s.model = model
	switch e := effect.(type) {
	case Quit:
		return s, tea.Quit
	case Pause:
		return s, tea.Suspend
	case Predict:
		return s, func() tea.Msg {
			f, err := s.controller.Predict(s.ctx, e.Request)
			return Foreseen{e.Number, f, err}
		}
	case Order:
		return s, func() tea.Msg {
			answer, err := s.controller.Ask(s.ctx, e.Request)
			return Answered{e.What, answer, err}
		}
	case Explain:
		return s, func() tea.Msg {
			lines, err := s.controller.Explain(s.ctx, e.ID)
			return Explained{e.Number, lines, err}
		}
	}
	return s, nil
}

// View draws the model on the terminal's other screen, so that what was there comes back.
func (s *screen) View() tea.View {
	v := tea.NewView(s.model.View())
	v.AltScreen = true
	return v
}
