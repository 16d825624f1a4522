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

// Feed is what one guest depends on.
type Feed struct {
	Pager, Keeper host.Process
	Verdict       string // file with the keeper's
}

// ErrLost says that some memory never comes. What wants it waits until it is ended: as
// long as the pager or the keeper is there nobody is given zeros in its place.
var ErrLost = errors.New("some of its memory never comes")

// lookEvery is how often is looked.
const lookEvery = 10 * time.Millisecond

// Look says whether all memory is in its place and nobody has hold of it any more. An
// error that wraps ErrLost is for good.
func (f Feed) Look() (done bool, err error) {
	if f.Pager.PID == 0 {
		return true, nil
	}
	pager, keeper := f.Pager.Gone(), f.Keeper.Gone() // asked first: the verdict is the last that they do
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
func (f Feed) Await(ctx context.Context) error {
	for {
		if done, err := f.Look(); done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(lookEvery):
		}
	}
}

// FeedOrder is what memory is put where.
type FeedOrder struct {
	Store   *Store
	Criu    criu.Criu
	Images  string   // which it belongs to, from which the guest is to be made
	Rest    *os.File // a connection to who has what is owed, from now on Start's; nil: nothing is
	Verdict string   // file for it
}

// Beginning is a Feed whose guest is not made yet.
type Beginning struct {
	Feed
	keeper *Keeper
	pager  *criu.Pager
}

// StartFeed begins, for a guest that is to be made with Lazy. After an error there are no
// processes.
func StartFeed(ctx context.Context, o FeedOrder) (b *Beginning, err error) {
	late := &Late{Rest: o.Rest}
	defer late.Close()
	if late.Verdict, err = os.Create(o.Verdict); err != nil {
		return nil, err
	}
	b = &Beginning{Feed: Feed{Verdict: o.Verdict}}
	if b.keeper, err = o.Store.Entrust(late); err != nil {
		return nil, err
	}
	host.Spare(b.keeper.PID)
	if b.Keeper, err = host.Find(b.keeper.PID); err == nil {
		b.pager, err = o.Criu.PagerOn(ctx, o.Images, b.keeper.Socket, b.keeper.Own)
	}
	if err == nil {
		host.Spare(b.pager.PID())
		b.Pager, err = host.Find(b.pager.PID())
	}
	if err != nil {
		return nil, errors.Join(err, b.End())
	}
	return b, nil
}

// feedHoldLimit is how long the pager may take to have hold of all processes: it hears of
// each as it is made.
const feedHoldLimit = 10 * time.Second

// Hold sees to it that nobody finds zeros where memory is still to come if the pager is
// killed. It is called once all processes are made, and none of them runs.
func (b *Beginning) Hold(first int) error {
	defer b.keeper.Close()
	for end := time.Now().Add(feedHoldLimit); ; time.Sleep(time.Millisecond) {
		held, err := b.keeper.Grasp(b.Pager.PID)
		if all := host.Alive(host.Family(first)); err != nil || held >= all {
			return err
		} else if time.Now().After(end) {
			return fmt.Errorf("CRIU fills the memory of %d of %d processes", held, all)
		}
	}
}

// End ends it. What was made is to be ended before.
func (b *Beginning) End() (err error) {
	b.keeper.Close()
	if b.pager != nil {
		err = b.pager.Close()
	}
	return errors.Join(err, b.Keeper.End())
}
