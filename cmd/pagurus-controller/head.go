package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"pagurus/act/audit"
	"pagurus/act/etcd"
	"pagurus/act/image"
	"pagurus/act/machine"
	"pagurus/cmd/roles"
	"pagurus/decide/planner"
	"pagurus/internal/note"
	"pagurus/serve/controller"
	"pagurus/serve/identity"
	"pagurus/serve/wire"
	"pagurus/show/api"
	"pagurus/show/cli"
	"pagurus/show/page"
)

// Here store and images meet the controller's interfaces.
var (
	_ controller.Store  = (*etcd.Store)(nil)
	_ controller.Images = (*image.Store)(nil)

	_ controller.UsageStore  = (*etcd.Store)(nil)
	_ controller.NoticeStore = (*etcd.Store)(nil)
	_ wire.Face              = (*api.API)(nil)
)

// spoolReserve is what programs' output and images leave free on their disk.
const spoolReserve = roles.DiskReserve

const _ = uint(spoolReserve - 4*etcd.ReserveBytes) // is enough for the store, or this does not compile

// auditReserve is what the audit leaves free. It is less than what output leaves, or who prints much could have the audit removed; and enough for the store.
const auditReserve = 2 * etcd.ReserveBytes

const _ = uint(spoolReserve/2 - auditReserve) // or this does not compile

// run runs the controller until ctx ends.
func run(ctx context.Context, f roles.Controller, log *slog.Logger) (err error) {
	lock, err := roles.HoldLock(f.Socket, f.Purpose)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Release()) }()
	if _, err := os.Stat(filepath.Join(f.StateDir, roles.RemovedFile)); err == nil {
		return forGood(f)
	}
	defer func() {
		if errors.Is(err, etcd.ErrRemoved) {
			err = forGood(f)
		}
	}()
	here, err := machine.ID()
	if err != nil {
		return err
	}
	if _, _, err := net.SplitHostPort(f.Listen); f.Listen != "" && err != nil { // before anything is made
		return fmt.Errorf("listening on %s: %w", f.Listen, err)
	}
	authority, err := identity.OpenAuthority(f.StateDir)
	if err != nil {
		return err
	}
	images, err := image.Open(f.ImageDir)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	told, err := f.Notices.Receivers()
	if err != nil {
		return err
	}
	store, peer, err := takeSeat(ctx, f, here, authority, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	listeners, faces, err := listen(f, authority)
	if err != nil {
		return err
	}
	kept, err := audit.Open(filepath.Join(f.StateDir, "audit"), audit.Bounds{Most: f.Audit, Reserve: auditReserve})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, kept.Close()) }()
	h := &heads{store: store, peer: peer, authority: authority, log: log}
	config := controller.Config{Store: store, Images: images, Authority: authority, Encryption: f.Encryption, Spool: filepath.Join(f.StateDir, "spool"), Reserve: spoolReserve, Limits: f.Output, ImageLimits: f.Images, Changes: f.Changes, Usages: store, Notify: controller.Notify{Receivers: told, Kinds: f.Notices.Kinds, Cluster: authority.Name(), Store: store}, Planner: planner.Planner{KeepJobs: f.Output.Keep, Keeps: f.Checkpoints, GrowEach: f.GrowEach, VLANs: f.VLANs}, Alive: roles.NewSupervisor(ctx, log).Alive, Audit: kept, Log: log}
	m := &mirror{images: images, limits: f.Images, others: h.list, leading: h.leading, load: store.Load, reserve: spoolReserve, said: map[string]string{}, log: log}
	if store.Several() {
		config.Term, config.Others, config.SeekImage = store.Term, h.list, m.seek
	}
	c := controller.New(config)
	saves := &saving{flags: f, store: store, images: images, authority: authority, state: c.Snapshot, log: log}
	serving := wire.ServeConfig{Listeners: listeners, Faces: faces, Face: api.New(authority.Certificate()), Page: page.New(), Names: names(), Members: c.Members(), Cluster: authority.Name(), Machine: here, Controller: c, Streams: c.Streams(), Forecasts: c, Output: c.Output, Usage: c.Usage, Copies: c, Backup: saves.write, Audit: kept, Version: version, Refused: c.Refused, Log: log}
	if store.Several() {
		h.leads, h.crowded = c.Ready(), c.Crowded
		serving.Passing, serving.Heads, serving.Between = h.passing(), h, c.Between()
		go h.watch(ctx)
		go m.run(ctx)
	}
	if err := showMeasures(ctx, f.Metrics, c, log); err != nil {
		return err
	}
	return serve(ctx, stop, parts{f, store, c, serving, config.Alive})
}

// takeSeat opens the store as what this controller is among others, on the machine of an ID.
func takeSeat(ctx context.Context, f roles.Controller, machine string, authority *identity.Authority, log *slog.Logger) (*etcd.Store, etcd.Peer, error) {
	peer, err := seatOf(f)
	peer.Machine = machine
	if err == nil && peer.Listen != "" {
		err = certify(ctx, f, peer.Name, authority, log)
	}
	if err != nil {
		return nil, peer, err
	}
	store, err := openStore(ctx, f, peer)
	return store, peer, err
}

// forGood is the end of a controller that was removed from its cluster. It may have been most of the cluster once, and must
// not become one of its own.
func forGood(f roles.Controller) error {
	err := note.Write(filepath.Join(f.StateDir, roles.RemovedFile), nil, 0o600)
	return cli.Exit{Code: roles.ExitRemoved, Err: errors.Join(etcd.ErrRemoved, err)}
}

// parts are what runs together.
type parts struct {
	flags   roles.Controller
	store   *etcd.Store
	c       *controller.Controller
	serving wire.ServeConfig
	alive   func() // tells the service manager
}

// livesUntilItLeads tells the service manager that this controller lives. When it leads, its main loop says that.
func (p parts) livesUntilItLeads(ctx context.Context) {
	for {
		p.alive()
		select {
		case <-p.c.Ready():
			return
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
		}
	}
}

// serve runs a controller's parts until ctx or one of them ends.
func serve(ctx context.Context, stop func(), p parts) error {
	log := p.serving.Log
	anew := stopWithRoom(ctx, p.store, stop, log)
	ended := make(chan error, 2)
	go tellHosts(ctx, p.flags.Listen, log)
	go func() { ended <- p.c.Run(ctx) }()
	go func() { ended <- wire.Serve(ctx, p.serving) }()
	begins := func(leads bool) {
		log.Info("controller begins", "socket", p.flags.Socket, "listen", p.flags.Listen, "leads", leads, "version", version)
	}
	ready := p.c.Ready()
	if p.store.Several() { // it answers already, by passing requests on
		begins(false)
		ready = nil
		go p.livesUntilItLeads(ctx)
	}
	var err error
	select {
	case <-ready:
		begins(true)
		err = <-ended
	case err = <-ended:
	}
	stop()
	log.Info("controller ends; jobs run on")
	lost := errors.Is(err, controller.ErrLost) || p.store.Several() && etcd.Away(err)
	err = errors.Join(err, <-ended)
	if lost {
		log.Warn("this controller cannot lead any more; it begins again, as one that does not", "cause", err)
		return errAnew
	}
	select {
	case <-anew:
		return errAnew // other errors follow from the full disk
	default:
		return err
	}
}

// stopWithRoom stops the controller when its store's disk is no longer full; then the channel is closed.
func stopWithRoom(ctx context.Context, store *etcd.Store, stop func(), log *slog.Logger) <-chan struct{} {
	anew := make(chan struct{})
	go func() {
		if store.RoomAgain(ctx) == nil {
			log.Warn("the store's disk has room again; the controller restarts")
			close(anew)
			stop()
		}
	}()
	return anew
}

// errAnew requests a restart of this process.
var errAnew = errors.New("the process has to restart")

// again replaces this process by itself, with the same PID, so that its supervisor notices
// nothing. It returns only after a failure.
func again() error {
	self, err := os.Executable()
	if err == nil {
		err = syscall.Exec(self, os.Args, os.Environ())
	}
	return fmt.Errorf("restarting: %w", err)
}

// listen opens the socket for this machine and, if asked for, the port for others and that for programs.
func listen(f roles.Controller, authority *identity.Authority) (all, faces []net.Listener, err error) {
	defer func() {
		for _, l := range append(all, faces...) {
			if err != nil {
				_ = l.Close() // nothing came on it
			}
		}
	}()
	local, err := wire.ListenUnix(f.Socket)
	if err != nil {
		return nil, nil, err
	}
	all = append(all, local)
	if f.Listen != "" {
		remote, err := wire.ListenTLS(f.Listen, authority)
		if err != nil {
			return all, nil, err
		}
		all = append(all, remote)
	}
	if f.HTTP != "" {
		face, err := wire.ListenFace(f.HTTP, authority, loopback(f.HTTP))
		if err != nil {
			return all, nil, err
		}
		faces = append(faces, face)
	}
	return all, faces, nil
}

// loopback reports whether only this machine reaches an address, so that nobody else hears a token there.
func loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	return err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
}

// names are those by which programs call this controller, beside its addresses.
func names() []string {
	out := []string{"localhost", identity.ServerName}
	if here, err := os.Hostname(); err == nil {
		out = append(out, here)
	}
	return out
}

// openStore opens the cluster's store.
func openStore(ctx context.Context, f roles.Controller, peer etcd.Peer) (*etcd.Store, error) {
	if len(f.Etcd) > 0 {
		return etcd.Connect(ctx, etcd.ConnectConfig{Endpoints: f.Etcd})
	}
	return etcd.Embed(ctx, etcd.EmbedConfig{Dir: filepath.Join(f.StateDir, "etcd"), Peer: peer})
}
