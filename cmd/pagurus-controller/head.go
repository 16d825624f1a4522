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

	"pagurus/act/audit"
	"pagurus/act/etcd"
	"pagurus/act/image"
	"pagurus/act/machine"
	"pagurus/cmd/roles"
	"pagurus/decide/planner"
	"pagurus/serve/controller"
	"pagurus/serve/identity"
	"pagurus/serve/wire"
)

// Here store and images meet the controller's interfaces.
var (
	_ controller.Store  = (*etcd.Store)(nil)
	_ controller.Images = (*image.Store)(nil)
)

// spoolReserve is what programs' output leaves free on its disk. It is several times what
// the store needs for another change, since many programs may write at once and others fill
// the disk, too.
const spoolReserve = 4 * etcd.ReserveBytes

// run runs the controller until ctx ends.
func run(ctx context.Context, f roles.Controller, log *slog.Logger) (err error) {
	lock, err := roles.HoldLock(f.Socket, f.Purpose)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Release()) }()
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
	store, err := openStore(ctx, f)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	listeners, err := listen(f, authority)
	if err != nil {
		return err
	}
	c := controller.New(controller.Config{Store: store, Images: images, Authority: authority, Encryption: f.Encryption, Spool: filepath.Join(f.StateDir, "spool"), Reserve: spoolReserve, Limits: f.Output, Planner: planner.Planner{KeepJobs: f.Output.Keep}, Alive: roles.NewSupervisor(ctx, log).Alive, Log: log})
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	anew := stopWithRoom(ctx, store, stop, log)
	kept, err := audit.Open(filepath.Join(f.StateDir, "audit"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, kept.Close()) }()
	saves := &saving{flags: f, store: store, images: images, authority: authority, state: c.Snapshot, log: log}
	ended := make(chan error, 2)
	go tellHosts(ctx, f.Listen, log)
	go func() { ended <- c.Run(ctx) }()
	go func() {
		ended <- wire.Serve(ctx, wire.ServeConfig{Listeners: listeners, Members: c.Members(), Cluster: authority.Name(), Machine: here, Controller: c, Streams: c.Streams(), Forecasts: c, Output: c.Output, Backup: saves.write, Audit: kept, Version: version, Refused: c.Refused, Log: log})
	}()
	select {
	case <-c.Ready():
		log.Info("controller begins", "socket", f.Socket, "listen", f.Listen, "version", version)
	case err := <-ended:
		stop()
		return errors.Join(err, <-ended)
	}
	err = <-ended
	stop()
	log.Info("controller ends; jobs run on")
	err = errors.Join(err, <-ended)
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

// listen opens the socket for this machine and, if asked for, the port for
// others.
func listen(f roles.Controller, authority *identity.Authority) ([]net.Listener, error) {
	local, err := wire.ListenUnix(f.Socket)
	if err != nil {
		return nil, err
	}
	if f.Listen == "" {
		return []net.Listener{local}, nil
	}
	remote, err := wire.ListenTLS(f.Listen, authority)
	if err != nil {
		return nil, errors.Join(err, local.Close())
	}
	return []net.Listener{local, remote}, nil
}

// openStore opens the cluster's store.
func openStore(ctx context.Context, f roles.Controller) (*etcd.Store, error) {
	if len(f.Etcd) > 0 {
		return etcd.Connect(ctx, etcd.ConnectConfig{Endpoints: f.Etcd})
	}
	return etcd.Embed(ctx, etcd.EmbedConfig{Dir: filepath.Join(f.StateDir, "etcd")})
}
