package api

import (
	"testing"
	"time"
)

// ends reads a stream until it is over.
func (s *stream) ends() <-chan struct{} {
	over := make(chan struct{})
	go func() {
		defer close(over)
		for _, more := s.next(); more; _, more = s.next() {
		}
	}()
	return over
}

// Nobody is locked out by others who watch, however many they are: a feed without watchers gives way first, then the one that began first. Its
// watchers are cut off and may come again. An administrator is not cut off.
func TestNobodyIsLockedOutOfEvents(t *testing.T) {
	w := newTown(t)
	w.face.feeds.most = 2
	admin := w.watches("", "admin", "")
	admin.until("ready")
	ada := w.watches("", "ada", "")
	ada.until("ready")
	grace := w.watches("", "grace", "")
	grace.until("ready")
	select {
	case <-ada.ends():
	case <-time.After(time.Minute):
		t.Fatal("ada's goes on beside as many as there may be")
	}
	again := w.watches("", "ada", "")
	again.until("ready")
	select {
	case <-grace.ends():
	case <-time.After(time.Minute):
		t.Fatal("grace's goes on")
	}
	again.stop()
	for { // that nobody watches it any more is noticed a little later
		w.face.feeds.mu.Lock()
		watched := 0
		for _, f := range w.face.feeds.by {
			watched += f.watchers
		}
		w.face.feeds.mu.Unlock()
		if watched == 1 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	w.watches("", "grace", "").until("ready") // in the place of the one that nobody watches
	if n := len(w.face.feeds.by); n > 2 {
		t.Errorf("there are %d feeds", n)
	}
	over := admin.ends()
	select {
	case <-over:
		t.Error("the administrators' was cut off")
	default:
	}
}
