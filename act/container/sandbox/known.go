package sandbox

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"slices"

	"golang.org/x/sys/unix"
)

// earlier lists the digests of the filters that earlier versions gave. A container keeps its filter for life, and may live through
// many upgrades. When a change of calls.go changes the filter, its test says which digest to put here; one that turns out to
// allow too much is removed, and containers that have it stay where they are.
var earlier = []string{}

// Known returns an error unless each of these threads, with the filters of system calls that it would be restored with here, has one
// that this host gives its containers or that an earlier version gave.
func Known(threads [][][]byte) error {
	own, err := program()
	if err != nil {
		return err
	}
	today := digest(asText(own))
	given := func(filter []byte) bool { is := digest(filter); return is == today || slices.Contains(earlier, is) }
	for _, its := range threads {
		if !slices.ContainsFunc(its, given) {
			return errors.New("a program of the guest has no filter of system calls that Pagurus gave it, or one of a version unknown here: it is not resumed (upgrade this host's agent if the source's is newer)")
		}
	}
	return nil
}

// asText is a filter as the kernel keeps it.
func asText(program []unix.SockFilter) []byte {
	var b []byte
	for _, i := range program {
		b = binary.NativeEndian.AppendUint16(b, i.Code)
		b = binary.NativeEndian.AppendUint32(append(b, i.Jt, i.Jf), i.K)
	}
	return b
}

func digest(filter []byte) string {
	sum := sha256.Sum256(filter)
	return hex.EncodeToString(sum[:])
}
