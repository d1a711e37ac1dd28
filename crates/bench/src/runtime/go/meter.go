package main

import (
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

const samplesMax = 50_000

type request struct{ warmUp, time time.Duration }

// answer is what the benchmark reads.
type answer struct {
	Ops     uint64  `json:"ops"`
	Ns      int64   `json:"ns"`
	CPUNs   int64   `json:"cpu_ns"`
	Samples []int64 `json:"samples"`
}

// meter counts operations: first for nothing, then for the time asked.
type meter struct {
	countsFrom  time.Time
	time        time.Duration
	since       time.Time
	cpuSince    int64
	ops, others uint64
	counting    bool
	samples     []int64
}

func newMeter(request *request) *meter {
	return &meter{
		countsFrom: time.Now().Add(request.warmUp),
		time:       request.time,
		samples:    make([]int64, 0, samplesMax),
	}
}

func (meter *meter) goesOn(done uint64) bool {
	return meter.goesOnWith(done, nil)
}

// goesOnWith says whether to go on; done operations were done since the last call, and others' by others for ever.
func (meter *meter) goesOnWith(done uint64, others *atomic.Uint64) bool {
	at := time.Now()
	if meter.counting {
		meter.ops += done
		return at.Sub(meter.since) < meter.time
	}
	if !at.Before(meter.countsFrom) {
		meter.counting = true
		meter.since, meter.cpuSince = at, cpuTime()
		meter.samples = meter.samples[:0]
		if others != nil {
			meter.others = others.Load()
		}
	}
	return true
}

func (meter *meter) sample(latency time.Duration) {
	if len(meter.samples) < samplesMax {
		meter.samples = append(meter.samples, max(int64(latency), 0))
	}
}

func (meter *meter) finish() {
	meter.finishWith(nil)
}

func (meter *meter) finishWith(others *atomic.Uint64) {
	answer := answer{
		Ops:     meter.ops,
		Ns:      int64(time.Since(meter.since)),
		CPUNs:   cpuTime() - meter.cpuSince,
		Samples: meter.samples,
	}
	if others != nil {
		answer.Ops += others.Load() - meter.others
	}
	meter.print(answer)
}

// cpuTime is CLOCK_PROCESS_CPUTIME_ID in nanoseconds: getrusage counts in microseconds.
func cpuTime() int64 {
	const processCPUTime = 2
	var at syscall.Timespec
	_, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, processCPUTime, uintptr(unsafe.Pointer(&at)), 0)
	if errno != 0 {
		must(errno)
	}
	return at.Nano()
}

func millis(count int) time.Duration {
	return time.Duration(count) * time.Millisecond
}

func compute(gap time.Duration) {
	for since := time.Now(); time.Since(since) < gap; {
	}
}
