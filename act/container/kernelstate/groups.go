package kernelstate

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The kernel lists the groups of each link, but not the sockets that joined them. For a socket
// that is in a group it returns the accepted sources. So each socket is asked about each group.

// group is a multicast group of a link.
type group struct {
	level   int
	link    uint32
	address []byte // as struct sockaddr
}

// membership is a socket's membership: struct group_filter with its sources.
type membership struct {
	Level  int
	Filter []byte
}

// Offsets in struct group_filter: the link's number, the group, the mode (1: only the listed
// sources are accepted, 0: all others are), the number of sources, and the sources.
const (
	groupAt      = 8
	modeAt       = 136
	countAt      = 140
	sourcesAt    = 144
	addressBytes = 128
	mostSources  = 64
)

// groupsOf returns the groups of all links in a process's network.
func groupsOf(pid int) (all []group, err error) {
	read := func(name string) (string, error) {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, name))
		if errors.Is(err, os.ErrNotExist) {
			err = nil
		}
		return string(text), err
	}
	four, err := read("igmp")
	if err != nil {
		return nil, err
	}
	six, err := read("igmp6")
	if err != nil {
		return nil, err
	}
	return append(groups4(four), groups6(six)...), nil
}

// groups4 reads /proc/net/igmp: a line for each link that begins with its number, followed by an
// indented line for each group with its address as a number.
func groups4(text string) (all []group) {
	link := uint64(0)
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		if !strings.HasPrefix(line, "\t\t") {
			link, _ = strconv.ParseUint(f[0], 10, 32)
			continue
		}
		if number, err := strconv.ParseUint(f[0], 16, 32); err == nil && link > 0 {
			address := binary.NativeEndian.AppendUint16(nil, unix.AF_INET)
			address = binary.NativeEndian.AppendUint32(append(address, 0, 0), uint32(number))
			all = append(all, group{IPLevel, uint32(link), address})
		}
	}
	return all
}

// groups6 reads /proc/net/igmp6: the link's number, its name, the group.
func groups6(text string) (all []group) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 3 {
			continue
		}
		link, err := strconv.ParseUint(f[0], 10, 32)
		number, wrong := hex.DecodeString(f[2])
		if err == nil && wrong == nil && len(number) == 16 {
			address := binary.NativeEndian.AppendUint16(nil, unix.AF_INET6)
			address = append(append(address, 0, 0, 0, 0, 0, 0), number...)
			all = append(all, group{IPv6Level, uint32(link), append(address, 0, 0, 0, 0)})
		}
	}
	return all
}

// memberships returns the socket's memberships among these groups.
func (s socket) memberships(groups []group) (all []membership) {
	if !s.inet() || s.tcp() {
		return nil
	}
	for _, g := range groups {
		if g.level == IPv6Level && s.kind.Family != unix.AF_INET6 {
			continue
		}
		filter := make([]byte, sourcesAt+mostSources*addressBytes)
		binary.NativeEndian.PutUint32(filter, g.link)
		copy(filter[groupAt:], g.address)
		binary.NativeEndian.PutUint32(filter[countAt:], mostSources)
		if _, err := getsockopt(s.fd, g.level, unix.MCAST_MSFILTER, filter); err != nil {
			continue
		}
		count := min(binary.NativeEndian.Uint32(filter[countAt:]), mostSources)
		all = append(all, membership{g.level, filter[:sourcesAt+count*addressBytes]})
	}
	return all
}

// join restores a membership.
func (s socket) join(m membership) error {
	if len(m.Filter) < sourcesAt {
		return errors.New("a membership was not recorded whole")
	}
	request := m.Filter[:modeAt]
	err := setsockopt(s.fd, m.Level, unix.MCAST_JOIN_GROUP, request)
	if errors.Is(err, unix.EADDRINUSE) {
		err = nil
	}
	const all = 0 // all sources except the listed ones
	if err == nil && (binary.NativeEndian.Uint32(m.Filter[modeAt:]) != all || len(m.Filter) > sourcesAt) {
		err = setsockopt(s.fd, m.Level, unix.MCAST_MSFILTER, m.Filter)
	}
	if err != nil {
		return fmt.Errorf("join a group again: %w", err)
	}
	return nil
}
