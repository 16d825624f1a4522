package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"pagurus/act/qemu/qmp"
	"pagurus/bench"
	"pagurus/bench/drive"
	"pagurus/fleet"
	"pagurus/internal/thread"
)

// byHand is the limit of a migration driven by hand.
const byHand = 2 * time.Minute

// migration compares the total time of moving a guest of 512 MiB that runs a
// busy rank with `migrate` typed into its QEMU by hand, default settings, for a
// guest of the same job between two hosts of the same lab. The two are taken in
// turn.
func (b *experiments) migration(ctx context.Context) error {
	busy := []string{"./witness", "600", "64"}
	if err := b.InTurn(ctx, nil, b.moveArm("move", busy), b.handArm("hand", busy)); err != nil {
		return err
	}
	return b.Ratio("total time of a move / QEMU's migrate by hand", "move_s", "hand_s", 1.25)
}

// moveArm is a move by Pagurus of a guest that runs a program.
func (b *experiments) moveArm(name string, program []string) bench.Arm {
	return bench.Arm{Name: name, Measure: func(ctx context.Context) (figures map[string]float64, err error) {
		err = b.onHost1(ctx, func(job string) error {
			m, took, err := b.moved(ctx, job, "host2")
			if err == nil && m.Cost.SentBytes == 0 {
				err = fmt.Errorf("move of %s does not say how much was sent", job)
			}
			figures = map[string]float64{"s": took.Seconds(), "bytes": float64(m.Cost.SentBytes), "dropped_bytes": float64(m.Cost.DroppedBytes)}
			return err
		}, program)
		return figures, err
	}}
}

// handArm is the same by hand.
func (b *experiments) handArm(name string, program []string) bench.Arm {
	return bench.Arm{Name: name, Measure: func(ctx context.Context) (figures map[string]float64, err error) {
		err = b.onHost1(ctx, func(job string) error {
			sent, took, err := b.hand(ctx, job)
			figures = map[string]float64{"s": took.Seconds(), "bytes": float64(sent)}
			return err
		}, program)
		return figures, err
	}}
}

// onHost1 runs a program in a virtual machine of 512 MiB on host1, and does something when it computes.
func (b *experiments) onHost1(ctx context.Context, do func(job string) error, program []string) error {
	return b.computes(ctx, do, append([]string{"--kind", string(fleet.VM), "-n", "1", "--mem", "512M", "--image", "openmpi", "--on", "host1", "--"}, program...)...)
}

// computing is how long ranks have computed before anything is done with their job.
const computing = 2 * time.Second

// computes does something with a job when its ranks compute.
func (b *experiments) computes(ctx context.Context, do func(job string) error, words ...string) error {
	return b.During(ctx, "START", func(job string) error {
		if err := drive.Pause(ctx, computing); err != nil {
			return err
		}
		return do(job)
	}, words...)
}

// moved moves a job's only guest, and gives what that cost and how long it took.
func (b *experiments) moved(ctx context.Context, job, to string, flags ...string) (m fleet.Migration, took time.Duration, err error) {
	if _, err := b.Type(ctx, append([]string{"migrate", job + "g0", "--to", to, "--wait"}, flags...)...); err != nil {
		return m, 0, err
	}
	return b.LastMove(ctx)
}

// migrate undoes the settings the driver left, runs QEMU's own migration from a host and
// gives how many bytes it sent. The source is in its jail, without a network, and is given the connection.
func migrate(ctx context.Context, source *qmp.Client, from, address string) (sent int64, err error) {
	off := map[string]any{"capabilities": []map[string]any{
		{"capability": "pause-before-switchover", "state": false}, {"capability": "return-path", "state": false}, {"capability": "multifd", "state": false},
	}}
	if err := source.Do(ctx, "migrate-set-capabilities", off, nil); err != nil {
		return 0, err
	}
	defaults := map[string]any{"max-bandwidth": 128 << 20, "downtime-limit": 300}
	if err := source.Do(ctx, "migrate-set-parameters", defaults, nil); err != nil {
		return 0, err
	}
	for { // until the target listens
		if err := connect(ctx, source, from, address); err != nil {
			return 0, err
		}
		if err := source.Do(ctx, "migrate", map[string]any{"uri": "fd:" + handConnection}, nil); err != nil {
			return 0, err
		}
		for {
			var state struct {
				Status string `json:"status"`
				RAM    struct {
					Sent int64 `json:"transferred"`
				} `json:"ram"`
			}
			if err := source.Do(ctx, "query-migrate", nil, &state); err != nil {
				return 0, err
			}
			if state.Status == "completed" {
				return state.RAM.Sent, nil
			}
			if err := drive.Pause(ctx, 10*time.Millisecond); err != nil {
				return 0, err
			}
			if state.Status == "failed" {
				break
			}
		}
	}
}

// handConnection is QEMU's name of the connection that it is given.
const handConnection = "hand"

// connect gives a QEMU of a host of the lab a connection to an address, once somebody listens there.
func connect(ctx context.Context, source *qmp.Client, host, address string) error {
	for {
		var file *os.File
		err := thread.Visit("/run/netns/pagurus-lab-"+host, func() error {
			var dialer net.Dialer
			conn, err := dialer.DialContext(ctx, "tcp", address)
			if err != nil {
				return err
			}
			defer conn.Close()
			file, err = conn.(*net.TCPConn).File()
			return err
		})
		if err == nil {
			defer file.Close()
			return source.Give(ctx, handConnection, file)
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return err
		}
		if err := drive.Pause(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
}

// labRun is where a lab's hosts have what runs.
const labRun = "/run/pagurus/lab/"

// guestFolder is where a lab's host has what belongs to a guest.
func guestFolder(host, guest string) string {
	return filepath.Join(labRun, host, "guests", guest)
}

// processesIn gives the processes whose working folder is like a pattern.
func processesIn(pattern string) (pids []int) {
	dirs, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, d := range dirs {
		if at, err := os.Readlink(d); err != nil {
			continue
		} else if is, _ := filepath.Match(pattern, at); is {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(d)))
			pids = append(pids, pid)
		}
	}
	return pids
}

// running gives the process of the QEMU in a guest's folder and its arguments.
func running(folder string) (int, []string, error) {
	for _, pid := range processesIn(folder) {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err == nil && strings.Contains(string(line), "qemu") {
			return pid, strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")[1:], nil
		}
	}
	return 0, nil, fmt.Errorf("no QEMU runs in %s", folder)
}

// handPort is where the first guest that moves by hand is waited for.
const handPort = 4999

// elsewhere is the command line of the same machine as a target by hand: a
// tap of its own, no sandbox, and it listens at once.
func elsewhere(args []string, index int) []string {
	var out []string
	for i := 0; i < len(args); i++ {
		switch a := args[i]; a {
		case "-S":
		case "-incoming", "-sandbox":
			i++
		case "-netdev":
			i++
			out = append(out, a, fmt.Sprintf("tap,id=net,ifname=pghand%d,script=no,downscript=no", index))
		default:
			out = append(out, a)
		}
	}
	return append(slices.Clip(out), "-incoming", fmt.Sprintf("tcp:0.0.0.0:%d", handPort+index))
}
