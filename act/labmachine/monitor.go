package labmachine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"
)

// monitorLimit limits how long the machine's process may take to answer.
const monitorLimit = 20 * time.Second

// Stop stops the whole machine, as a hang or a closed lid does, and its clock.
func (m Machine) Stop(ctx context.Context) error { return m.ask(ctx, "stop", nil) }

// Continue ends what Stop did.
func (m Machine) Continue(ctx context.Context) error { return m.ask(ctx, "cont", nil) }

// Stopped reports whether Stop holds. A machine that cannot be asked is not stopped.
func (m Machine) Stopped(ctx context.Context) bool {
	var status struct {
		Status string `json:"status"`
	}
	return m.ask(ctx, "query-status", &status) == nil && status.Status == "paused"
}

// ask has QEMU do something, by its monitor's protocol (QMP).
func (m Machine) ask(ctx context.Context, command string, result any) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %s: %w", m.Name, command, err)
		}
	}()
	ctx, stop := context.WithTimeout(ctx, monitorLimit)
	defer stop()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", m.monitor())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if end, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(end); err != nil {
			return err
		}
	}
	write, read := json.NewEncoder(conn), json.NewDecoder(conn)
	for _, c := range []string{"qmp_capabilities", command} {
		if err := write.Encode(map[string]string{"execute": c}); err != nil {
			return err
		}
		answer, err := answerOf(read)
		if err != nil {
			return err
		}
		if c == command && result != nil {
			return json.Unmarshal(answer, result)
		}
	}
	return nil
}

// answerOf reads the next answer. The greeting and events between are of no use here.
func answerOf(read *json.Decoder) (json.RawMessage, error) {
	for {
		var said struct {
			Return json.RawMessage `json:"return"`
			Error  *struct {
				Desc string `json:"desc"`
			} `json:"error"`
		}
		if err := read.Decode(&said); err != nil {
			return nil, err
		}
		if said.Error != nil {
			return nil, errors.New(said.Error.Desc)
		}
		if said.Return != nil {
			return said.Return, nil
		}
	}
}
