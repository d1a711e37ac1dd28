// Command go-gc is a best-effort antagonist: it churns maps and slices so that Go's concurrent
// collector works all the time. An op is one entry replaced.
//
// It publishes its work as quell-antagonist does; the layout of the file is described in
// crates/load/src/be.rs.
package main

import (
	"encoding/binary"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

const (
	magic       = 0x0045426c6c657551 // "QuellBE\0", little-endian
	version     = 1
	unit        = "map entry replaced"
	headerBytes = 64
	slotBytes   = 32
	slotsMax    = (4096 - headerBytes) / slotBytes

	publishEvery = time.Millisecond
	// Entries replaced between two looks at the clock.
	batch = 64

	// Rests, as crates/load/src/rests.rs has them, in nanoseconds.
	restPeriod = 300_000_000
	restLength = 5_000_000
	restJitter = 90_000_000

	clockMonotonic      = 1
	clockProcessCPUTime = 2
)

func main() {
	progress := flag.String("progress", "", "publish ops and CPU time in this `file`; put it into a tmpfs")
	threads := flag.Int("threads", 1, "goroutines that churn, and threads that run Go code")
	seconds := flag.Float64("seconds", 0, "stop so long after the start; 0: on SIGTERM or SIGINT")
	liveMiB := flag.Int("live-mib", 128, "live data of all goroutines in MiB")
	gogc := flag.Int("gogc", 50, "GOGC: how much the heap grows, in percent, until it is collected")
	seed := flag.Uint64("rests", 0, "rest for 5 ms in each 300 ms, at times by this `seed`; 0: never")
	flag.Parse()
	if err := run(*progress, *threads, *seconds, *liveMiB, *gogc, *seed); err != nil {
		fmt.Fprintln(os.Stderr, "go-gc:", err)
		os.Exit(1)
	}
}

func run(progress string, threads int, seconds float64, liveMiB, gogc int, seed uint64) error {
	if threads < 1 || threads > slotsMax {
		return fmt.Errorf("-threads %d: use 1 to %d", threads, slotsMax)
	}
	if liveMiB < threads || seconds < 0 {
		return fmt.Errorf("-live-mib must be at least 1 a thread, -seconds not below 0")
	}
	runtime.GOMAXPROCS(threads)
	debug.SetGCPercent(gogc)

	var stop atomic.Bool
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	var over <-chan time.Time
	if seconds > 0 {
		over = time.After(time.Duration(seconds * float64(time.Second)))
	}
	go func() {
		select {
		case <-signals:
		case <-over:
		}
		stop.Store(true)
	}()

	churns := make([]*churn, threads)
	for i := range churns {
		churns[i] = newChurn(uint64(i)+1, liveMiB<<20/threads)
	}
	file, err := createProgress(progress, threads)
	if err != nil {
		return err
	}
	begun := time.Now()
	var total atomic.Uint64
	var all sync.WaitGroup
	for i, c := range churns {
		all.Add(1)
		go func() {
			defer all.Done()
			total.Add(work(c, &slot{file: file, index: i}, &stop, seed))
		}()
	}
	all.Wait()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	fmt.Printf("%d ops (%s) in %.3f s, %d collections, %.1f ms stopped in all\n",
		total.Load(), unit, time.Since(begun).Seconds(), stats.NumGC, float64(stats.PauseTotalNs)/1e6)
	return nil
}

func work(c *churn, s *slot, stop *atomic.Bool, seed uint64) uint64 {
	for !stop.Load() {
		c.replace(batch)
		s.add(batch)
		if seed != 0 {
			rest(seed)
		}
	}
	s.publish()
	return s.ops
}

// rest sleeps while a rest is on.
func rest(seed uint64) {
	now := clock(clockMonotonic)
	start := restStart(seed, now/restPeriod)
	if start <= now && now < start+restLength {
		time.Sleep(time.Duration(start + restLength - now))
	}
}

// restStart says when the rest of a period begins, by SplitMix64 (Steele et al., OOPSLA 2014).
func restStart(seed, period uint64) uint64 {
	word := (seed ^ period) + 0x9e3779b97f4a7c15
	word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9
	word = (word ^ (word >> 27)) * 0x94d049bb133111eb
	word ^= word >> 31
	return period*restPeriod + word%restJitter
}

// entry is what the collector must follow: a map value that points to a slice of pointers.
type entry struct {
	cells []*[8]uint64
}

const cellsPerEntry = 8

// churn replaces the entries of a map in random order; each replaced entry is garbage.
type churn struct {
	entries map[uint64]*entry
	count   uint64
	state   uint64
}

func newChurn(seed uint64, liveBytes int) *churn {
	const entryBytes = cellsPerEntry*(64+8) + 64
	c := &churn{entries: map[uint64]*entry{}, count: uint64(liveBytes/entryBytes) + 1, state: seed}
	for key := range c.count {
		c.entries[key] = newEntry(key)
	}
	return c
}

func newEntry(seed uint64) *entry {
	e := &entry{cells: make([]*[8]uint64, cellsPerEntry)}
	for i := range e.cells {
		e.cells[i] = &[8]uint64{seed}
	}
	return e
}

func (c *churn) replace(times int) {
	for range times {
		// xorshift64 (Marsaglia 2003).
		c.state ^= c.state << 13
		c.state ^= c.state >> 7
		c.state ^= c.state << 17
		c.entries[c.state%c.count] = newEntry(c.state)
	}
}

// createProgress makes the file appear whole. Without a path nothing is published.
func createProgress(path string, slots int) (*os.File, error) {
	if path == "" {
		return nil, nil
	}
	bytes := make([]byte, headerBytes+slots*slotBytes)
	binary.LittleEndian.PutUint64(bytes[0:], magic)
	binary.LittleEndian.PutUint64(bytes[8:], version)
	binary.LittleEndian.PutUint64(bytes[16:], uint64(slots))
	copy(bytes[24:headerBytes], unit)
	for i := range slots {
		putSlot(bytes[headerBytes+i*slotBytes:], 0, 0, 0)
	}
	draft := path + ".new"
	if err := os.WriteFile(draft, bytes, 0o644); err != nil {
		return nil, err
	}
	if err := os.Rename(draft, path); err != nil {
		return nil, err
	}
	return os.OpenFile(path, os.O_WRONLY, 0)
}

func putSlot(bytes []byte, ops, cpuNs, atNs uint64) {
	for i, word := range [...]uint64{ops, cpuNs, atNs, ops ^ cpuNs ^ atNs ^ magic} {
		binary.LittleEndian.PutUint64(bytes[i*8:], word)
	}
}

// slot is one goroutine's counter.
type slot struct {
	file  *os.File
	index int
	ops   uint64
	next  time.Time
}

func (s *slot) add(ops uint64) {
	s.ops += ops
	if now := time.Now(); now.After(s.next) {
		s.next = now.Add(publishEvery)
		s.publish()
	}
}

func (s *slot) publish() {
	if s.file == nil {
		return
	}
	// Goroutines move between threads and the collector has threads of its own, so the CPU time of
	// the whole process counts, in the first slot.
	var cpuNs uint64
	if s.index == 0 {
		cpuNs = clock(clockProcessCPUTime)
	}
	var bytes [slotBytes]byte
	putSlot(bytes[:], s.ops, cpuNs, clock(clockMonotonic))
	// A tmpfs write fails only where memory is out; the next one is a millisecond away.
	_, _ = s.file.WriteAt(bytes[:], int64(headerBytes+s.index*slotBytes))
}

// clock reads a clock of clock_gettime(2) in nanoseconds.
func clock(id uintptr) uint64 {
	var at syscall.Timespec
	// SYS_CLOCK_GETTIME fails only on a bad pointer or clock.
	_, _, _ = syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, id, uintptr(unsafe.Pointer(&at)), 0)
	return uint64(at.Nano())
}
