package memory

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"pagurus/act/host"
)

// LazyFill names the processes that one running guest's memory depends on.
type LazyFill struct {
	LazyPager, PageProxy host.Process
	Verdict              string // path of the page proxy's verdict
}

// ErrLost says that some memory never arrives. Processes that need it wait until they are
// killed. They do not read zeros in its place as long as the lazy pager or the page proxy
// runs.
var ErrLost = errors.New("some of its memory never comes")

// checkEvery is the interval between two checks.
const checkEvery = 10 * time.Millisecond

// CheckFill reports whether all memory is in place and the lazy pager and the page proxy
// have ended. An error that wraps ErrLost is permanent.
func (f LazyFill) CheckFill() (done bool, err error) {
	if f.LazyPager.PID == 0 {
		return true, nil
	}
	pager, proxy := f.LazyPager.Gone(), f.PageProxy.Gone() // asked first: writing the verdict is the last thing that they do
	said, err := os.ReadFile(f.Verdict)
	switch verdict := string(said); {
	case errors.Is(err, os.ErrNotExist): // an earlier Pagurus wrote no verdict
		return pager, nil
	case err != nil:
		return false, err
	case verdict == Fetched:
		return pager && proxy, nil
	case verdict != "":
		return false, fmt.Errorf("%w: %s", ErrLost, verdict)
	case proxy:
		return false, fmt.Errorf("%w: the process that had it was ended", ErrLost)
	}
	return false, nil
}

// Await waits until CheckFill reports that it is done, or returns an error.
func (f LazyFill) Await(ctx context.Context) error {
	for {
		if done, err := f.CheckFill(); done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(checkEvery):
		}
	}
}

// Pager is CRIU's process that gives a guest its memory as it is asked for.
type Pager interface {
	PID() int
	Close() error
}

// FillOrder says which memory is put in place for which guest.
type FillOrder struct {
	Store   *Store
	Pager   func(ctx context.Context, images string, socket, own *os.File) (Pager, error) // starts one
	Images  string                                                                        // the folder of the images from which the guest will be restored
	Rest    *os.File                                                                      // a connection to the page server, owned by StartFill; nil: there are no lazy pages
	Verdict string                                                                        // path for the verdict
}

// PendingFill is a lazy fill whose guest is not restored yet.
type PendingFill struct {
	LazyFill
	pageProxy *PageProxy
	lazyPager Pager
}

// StartFill starts lazy fill for a guest that will be restored with Lazy. After an error
// none of its processes runs.
func StartFill(ctx context.Context, o FillOrder) (b *PendingFill, err error) {
	late := &ProxyFiles{Rest: o.Rest}
	defer late.Close()
	if late.Verdict, err = os.Create(o.Verdict); err != nil {
		return nil, err
	}
	b = &PendingFill{LazyFill: LazyFill{Verdict: o.Verdict}}
	if b.pageProxy, err = o.Store.StartProxy(late); err != nil {
		return nil, err
	}
	host.Spare(b.pageProxy.PID)
	if b.PageProxy, err = host.Find(b.pageProxy.PID); err == nil {
		var pager Pager
		if pager, err = o.Pager(ctx, o.Images, b.pageProxy.Socket, b.pageProxy.Own); err == nil {
			b.lazyPager = pager
		}
	}
	if err == nil {
		host.Spare(b.lazyPager.PID())
		b.LazyPager, err = host.Find(b.lazyPager.PID())
	}
	if err != nil {
		return nil, errors.Join(err, b.End())
	}
	return b, nil
}

// fillHoldLimit is how long the lazy pager may take to have the userfaultfds of all
// processes. It is told about each process as it is made.
const fillHoldLimit = 10 * time.Second

// HoldUffds makes sure that no process reads zeros in place of missing memory if the lazy
// pager is killed. Call it when all processes are made and before any of them runs.
func (b *PendingFill) HoldUffds(first int) error {
	defer b.pageProxy.Close()
	for end := time.Now().Add(fillHoldLimit); ; time.Sleep(time.Millisecond) {
		held, err := b.pageProxy.HoldUffds(b.LazyPager.PID)
		if all := host.Alive(host.Family(first)); err != nil || held >= all {
			return err
		} else if time.Now().After(end) {
			return fmt.Errorf("CRIU fills the memory of %d of %d processes", held, all)
		}
	}
}

// End ends lazy fill. The guest's processes must be ended first.
func (b *PendingFill) End() (err error) {
	b.pageProxy.Close()
	if b.lazyPager != nil {
		err = b.lazyPager.Close()
	}
	return errors.Join(err, b.PageProxy.End())
}
