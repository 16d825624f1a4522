// Command witness stands in for the guest agent in the contract tests. As the only process
// of a guest it keeps counters in memory that it constantly dirties. Tests ask it over the
// guest's link whether the memory is intact.
//
// Each question and answer is one line that begins with the question's number, since an
// answer may come late. "report" gives "STEPS PASSES WRONG". "round" gives the same after an
// extra pass over all memory at full speed. "dirty MIB" sets the MiB dirtied a second,
// "hog SECONDS" leaves nothing else of the guest any time, "shout KIB" fills the console, "net" gives the guest's first hardware address,
// "listen" begins to count numbered frames, "heard" gives how many came, "cards" how many network cards it finds on its bus, "shape" its
// nodes with CPUs and distances and its sockets. "disk" gives the first bytes of its disk,
// "read" reads the disk into the page cache, "drop" empties that and the memory where it was, "exit" ends the guest.
//
// In a container, which is made before it starts, the link is a socket. In a guest of Xen it is a terminal.
package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/freemem"
)

const (
	page     = 4096
	pages    = 16 << 20 / page // dirtied in turn
	tick     = 10 * time.Millisecond
	linkName = "org.pagurus.link"
)

var steps, passes, wrong, rate atomic.Int64

// disk is the disk after a read; nil before.
var disk *os.File

// inContainer reports whether the guest is a container.
var inContainer = os.Getenv("container") != ""

func main() {
	if inContainer {
		work()
		serve()
	}
	for _, m := range []struct{ kind, at string }{{"devtmpfs", "/dev"}, {"proc", "/proc"}, {"sysfs", "/sys"}} {
		os.MkdirAll(m.at, 0o755)
		unix.Mount(m.kind, m.at, m.kind, 0, "")
	}
	modules()
	work()
	if onXen() {
		serveConsole()
	}
	for {
		if port, err := open(); err == nil {
			answer(port)
			port.Close()
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// work starts dirtying memory. All of it is in use before the first question.
func work() {
	rate.Store(8)
	go dirty()
	round()
	fmt.Println("witness: up")
}

// serve answers on a container's link. A new connection ends the one before.
func serve() {
	listener, err := net.Listen("unix", "/run/pagurus/link.sock")
	if err != nil {
		fmt.Println("witness:", err)
		os.Exit(1)
	}
	for last := net.Conn(nil); ; {
		conn, err := listener.Accept()
		if err != nil {
			continue
		}
		if last != nil {
			last.Close()
		}
		last = conn
		go func() {
			answer(conn)
			conn.Close()
		}()
	}
}

func modules() {
	order, _ := os.ReadFile("/modules.order.pagurus")
	for _, path := range strings.Split(strings.TrimSpace(string(order)), "\n") {
		if !strings.HasPrefix(path, "/") {
			continue // for guests that have a device of their host
		}
		text, err := os.ReadFile(path)
		if err == nil {
			err = unix.InitModule(text, "")
		}
		if err != nil {
			fmt.Println("witness:", path, err)
		}
	}
}

func open() (*os.File, error) {
	names, _ := filepath.Glob("/sys/class/virtio-ports/*/name")
	for _, name := range names {
		if text, _ := os.ReadFile(name); string(bytes.TrimSpace(text)) == linkName {
			return os.OpenFile("/dev/"+filepath.Base(filepath.Dir(name)), os.O_RDWR, 0)
		}
	}
	return nil, os.ErrNotExist
}

// answer serves the link until it breaks: a read ends with EOF while the other end is
// closed.
func answer(port io.ReadWriter) {
	lines := bufio.NewReader(port)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return
		}
		if words := strings.Fields(line); len(words) > 1 {
			fmt.Fprintln(port, words[0], do(words[1], words[len(words)-1]))
		}
	}
}

// do answers one question.
func do(what, value string) string {
	switch what {
	case "round":
		round()
		fallthrough
	case "report":
		return fmt.Sprintf("%d %d %d", steps.Load(), passes.Load(), wrong.Load())
	case "dirty":
		var n int64
		fmt.Sscan(value, &n)
		rate.Store(n)
		return "ok"
	case "hog":
		var seconds int
		fmt.Sscan(value, &seconds)
		go hog(time.Duration(seconds) * time.Second)
		return "ok"
	case "shout":
		var kib int
		fmt.Sscan(value, &kib)
		for range kib {
			fmt.Println(strings.Repeat("#", 1022)) // and a carriage return
		}
		return "ok"
	case "net":
		macs, _ := filepath.Glob("/sys/class/net/e*/address")
		text := []byte("none")
		if len(macs) > 0 {
			text, _ = os.ReadFile(macs[0])
		}
		return string(bytes.TrimSpace(text))
	case "listen":
		return fmt.Sprint(listen())
	case "heard":
		heard.Lock()
		defer heard.Unlock()
		return heard.String()
	case "cards":
		return cards()
	case "shape":
		return shape()
	case "disk":
		head := make([]byte, 8)
		disk, err := os.Open(diskDevice())
		if err == nil {
			_, err = io.ReadFull(disk, head)
			disk.Close()
		}
		return fmt.Sprintf("%x %v", head, err)
	case "read":
		return fmt.Sprint(read())
	case "drop":
		return fmt.Sprint(drop())
	case "exit":
		if inContainer {
			os.Exit(0)
		}
		unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	}
	return ""
}

// cards counts network cards.
func cards() string {
	classes, _ := filepath.Glob("/sys/bus/pci/devices/*/class")
	found := 0
	for _, path := range classes {
		if text, _ := os.ReadFile(path); strings.HasPrefix(string(text), "0x0200") {
			found++
		}
	}
	return fmt.Sprint(found)
}

// read reads all of the disk.
func read() (err error) {
	if disk == nil { // kept open: closing it would drop its cache
		disk, err = os.Open(diskDevice())
	}
	if err == nil {
		_, err = disk.Seek(0, io.SeekStart)
	}
	if err == nil {
		_, err = io.Copy(io.Discard, disk)
	}
	return err
}

// drop empties the page cache, and all free memory: the kernel does not say where the cache was.
func drop() error {
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("1"), 0); err != nil {
		return err
	}
	_, release, err := freemem.Zero(1<<40, time.Now().Add(time.Minute))
	if err == nil {
		release()
	}
	return err
}

// rounds are the requested passes; each channel is closed when its pass is over.
var rounds = make(chan chan struct{})

// round has every page checked and written once more.
func round() {
	over := make(chan struct{})
	rounds <- over
	<-over
}

// dirty writes memory at the set rate, and one more pass on request.
func dirty() {
	m := memory{data: make([]byte, pages*page)}
	begun, done := time.Now(), int64(0)
	for {
		select {
		case over := <-rounds:
			for range pages {
				m.step()
			}
			close(over)
		default:
		}
		due := int64(time.Since(begun).Seconds() * float64(rate.Load()<<20/page))
		if due-done > 4096 || due < done {
			begun, done, due = time.Now(), 0, 0 // the rate changed, or the guest was suspended
		}
		for ; done < due; done++ {
			m.step()
		}
		time.Sleep(tick)
	}
}

// memory is the memory that is dirtied, page after page.
type memory struct {
	data []byte
	at   int
	pass uint64
}

// step writes its number into the next page, at its beginning and end. Both must hold the
// number of the pass before.
func (m *memory) step() {
	p := m.data[m.at*page : (m.at+1)*page]
	head, tail := binary.LittleEndian.Uint64(p), binary.LittleEndian.Uint64(p[page-8:])
	if head != m.pass*uint64(pages)+uint64(m.at) && m.pass > 0 || head != tail {
		wrong.Add(1)
	}
	next := (m.pass+1)*uint64(pages) + uint64(m.at)
	binary.LittleEndian.PutUint64(p, next)
	binary.LittleEndian.PutUint64(p[page-8:], next)
	steps.Add(1)
	if m.at++; m.at == pages {
		m.at = 0
		m.pass++
		passes.Add(1)
	}
}

// shape gives the guest's processors and memory as its kernel sees them.
func shape() string {
	var said []string
	text := func(path string) string {
		b, _ := os.ReadFile(path)
		return strings.Join(strings.Fields(string(b)), "-")
	}
	nodes, _ := filepath.Glob("/sys/devices/system/node/node[0-9]*")
	for _, n := range nodes {
		said = append(said, fmt.Sprintf("%s:%s:%s", filepath.Base(n), text(n+"/cpulist"), text(n+"/distance")))
	}
	cpus, _ := filepath.Glob("/sys/devices/system/cpu/cpu[0-9]*/topology")
	for _, c := range cpus {
		said = append(said, fmt.Sprintf("%s:%s:%s", filepath.Base(filepath.Dir(c)), text(c+"/physical_package_id"), text(c+"/thread_siblings_list")))
	}
	return strings.Join(said, " ")
}

// hog leaves nothing else of a guest with one CPU a moment of it, from when the answer has gone.
func hog(long time.Duration) {
	time.Sleep(100 * time.Millisecond)
	runtime.LockOSThread() // for good: the thread ends with its goroutine
	_ = os.WriteFile("/proc/sys/kernel/sched_rt_runtime_us", []byte("-1"), 0)
	err := unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 99}, 0)
	if err != nil {
		fmt.Println("hog:", err)
	}
	for end := time.Now().Add(long); time.Now().Before(end); {
	}
}
