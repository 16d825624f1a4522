package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// xenMemory is what the kernel of a guest of Xen says of its balloon.
const xenMemory = "sys/devices/system/xen_memory/xen_memory0/target_kb"

// overcommit has the kernel refuse no memory to a program, when it is 1. What Xen's balloon has it counts for memory that there is not, other than virtio's, so it
// would refuse an array that is larger than the rest.
const overcommit = "proc/sys/vm/overcommit_memory"

const (
	lookForTaken = time.Second           // while the guest has all of its memory
	lookForRoom  = 20 * time.Millisecond // while its host has some of it
	leastRoom    = 16                    // the share of its memory that is to be free: half of what the host leaves free
)

// keepRoom takes a guest's memory back from its host when little of the rest is free. virtio's balloon does so by itself; Xen's lets the kernel end
// a process instead. It returns if the guest is none of Xen.
func keepRoom(root string) {
	path := filepath.Join(root, xenMemory)
	all, err := number(path)
	if err != nil {
		if onXen() {
			say("memory that the host takes is not taken back when it is needed: %v", err)
		}
		return
	}
	if err := os.WriteFile(filepath.Join(root, overcommit), []byte("1"), 0); err != nil {
		say("programs cannot have memory that the host has: %v", err)
	}
	for every := lookForTaken; ; time.Sleep(every) {
		every = lookForTaken
		has, err := number(path)
		if err != nil || has >= all {
			all = max(all, has)
			continue
		}
		every = lookForRoom
		text, err := os.ReadFile(filepath.Join(root, "proc/meminfo"))
		if err != nil || readMeminfo(string(text))["MemAvailable"] >= all<<10/leastRoom {
			continue
		}
		if err := os.WriteFile(path, []byte(strconv.FormatInt(all, 10)), 0); err != nil {
			say("cannot take memory back from the host: %v", err)
		}
	}
}

// number reads a file that holds one.
func number(path string) (int64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
}
