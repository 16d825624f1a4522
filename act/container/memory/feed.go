package memory

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"pagurus/act/container/criu"
	"pagurus/act/host"
)

// LazyFill is what one guest depends on.
type LazyFill struct {
	LazyPager, PageProxy host.Process
	Verdict              string // file with the keeper's
}

// ErrLost says that some memory never comes. What wants it waits until it is ended: as
// long as the pager or the keeper is there nobody is given zeros in its place.
var ErrLost = errors.New("some of its memory never comes")

// checkEvery is how often is looked.
const checkEvery = 10 * time.Millisecond

// CheckFill says whether all memory is in its place and nobody has hold of it any more. An
// error that wraps ErrLost is for good.
func (f LazyFill) CheckFill() (done bool, err error) {
	if f.LazyPager.PID == 0 {
		return true, nil
	}
	pager, keeper := f.LazyPager.Gone(), f.PageProxy.Gone() // asked first: the verdict is the last that they do
	said, err := os.ReadFile(f.Verdict)
	switch verdict := string(said); {
	case errors.Is(err, os.ErrNotExist): // of before there were verdicts for all
		return pager, nil
	case err != nil:
		return false, err
	case verdict == Fetched:
		return pager && keeper, nil
	case verdict != "":
		return false, fmt.Errorf("%w: %s", ErrLost, verdict)
	case keeper:
		return false, fmt.Errorf("%w: the process that had it was ended", ErrLost)
	}
	return false, nil
}

// Await waits until Look says that it is done, or gives an error.
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

// FillOrder is what memory is put where.
type FillOrder struct {
	Store   *Store
	Criu    criu.Criu
	Images  string   // which it belongs to, from which the guest is to be made
	Rest    *os.File // a connection to who has what is owed, from now on Start's; nil: nothing is
	Verdict string   // file for it
}

// PendingFill is a Feed whose guest is not made yet.
type PendingFill struct {
	LazyFill
	pageProxy *PageProxy
	lazyPager *criu.LazyPager
}

// StartFill begins, for a guest that is to be made with Lazy. After an error there are no
// processes.
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
		b.lazyPager, err = o.Criu.StartLazyPager(ctx, o.Images, b.pageProxy.Socket, b.pageProxy.Own)
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

// fillHoldLimit is how long the pager may take to have hold of all processes: it hears of
// each as it is made.
const fillHoldLimit = 10 * time.Second

// HoldUffds sees to it that nobody finds zeros where memory is still to come if the pager is
// killed. It is called once all processes are made, and none of them runs.
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

// End ends it. What was made is to be ended before.
func (b *PendingFill) End() (err error) {
	b.pageProxy.Close()
	if b.lazyPager != nil {
		err = b.lazyPager.Close()
	}
	return errors.Join(err, b.PageProxy.End())
}
