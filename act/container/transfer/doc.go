// Package transfer carries a container from the source host to the target host: its files and
// memory, pass by pass while it runs and once more while it is suspended, and CRIU's images.
//
// The target's Listener (listener.go) accepts a connection that proves to know the migration's
// secret, one at a time. Sender (out.go) and Receiver (in.go) are its two ends. Source and
// Target (send.go, receive.go) keep a folder equal on both hosts while it changes: owners, hard
// links, extended attributes, overlay marks. The container's root may change its files at any
// time, so neither side ever follows a symbolic link.
//
// A checkpoint is a Sender's stream in a file: a Recording (recording.go) answers the Sender in a
// target's place, and Replay gives the file to a Receiver.
//
// The package must not know when a guest is suspended, who judges a copy, or how a guest is made
// from what arrived. Its tests are those of the driver, real tmpfs and overlay mounts,
// connections over loopback, and malformed messages.
package transfer
