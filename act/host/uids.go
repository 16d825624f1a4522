package host

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
)

// UIDs is a range of user IDs that belong to guests alone, each with the group ID of the same number.
type UIDs struct{ First, Last uint32 }

// UsualUIDs is the range unless another is named. Nobody gives these to people: they are above what
// systemd gives to containers, what useradd gives to users' own containers, and what the
// identities of directories (SSSD, FreeIPA) are mapped to by default, and below the numbers that some programs take for negative.
var UsualUIDs = UIDs{2_100_000_000, 2_100_009_999}

// leastUID is above all that a passwd file has, and nobody's.
const leastUID = 1 << 16

// mostUID is the largest; the next one means none.
const mostUID = 1<<32 - 2

// ErrNoUID says that each number of a range belongs to a guest that is here.
var ErrNoUID = errors.New("each user ID for guests is in use")

// ParseUIDs reads a range as String writes it.
func ParseUIDs(text string) (UIDs, error) {
	low, high, both := strings.Cut(text, "-")
	first, err := strconv.ParseUint(low, 10, 32)
	last, wrong := strconv.ParseUint(high, 10, 32)
	if !both || err != nil || wrong != nil {
		return UIDs{}, fmt.Errorf("%q is not a range of user IDs, like %s", text, UsualUIDs)
	}
	if first < leastUID || last > mostUID || last < first {
		return UIDs{}, fmt.Errorf("%q is no range of user IDs for guests: they are from %d on, where no user has one, to %d", text, leastUID, uint32(mostUID))
	}
	return UIDs{uint32(first), uint32(last)}, nil
}

// String writes the range as "first-last".
func (u UIDs) String() string { return fmt.Sprintf("%d-%d", u.First, u.Last) }

// Has reports whether an ID is of the range.
func (u UIDs) Has(id uint32) bool { return u.First <= id && id <= u.Last }

// Users are the users of this machine's processes.
func Users() (map[uint32]bool, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	used := map[uint32]bool{}
	for _, e := range entries {
		if _, no := strconv.Atoi(e.Name()); no != nil {
			continue
		}
		var st unix.Stat_t
		if unix.Stat("/proc/"+e.Name(), &st) == nil { // its owner is the process's user, also of one that nobody may look into
			used[st.Uid] = true
		}
	}
	return used, nil
}

// Free returns the lowest ID that is not in use.
func (u UIDs) Free(used map[uint32]bool) (uint32, error) {
	for id := uint64(u.First); id <= uint64(u.Last); id++ {
		if !used[uint32(id)] {
			return uint32(id), nil
		}
	}
	return 0, fmt.Errorf("%w (%s): name more of them by the agent's --%s", ErrNoUID, u, fleet.UIDsFlag)
}
