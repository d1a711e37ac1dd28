// The cases of `quell bench runtime` with goroutines.
//
//	goroutines CASE WORKERS WARM_UP_MS TIME_MS | goroutines list
//
// Go has no park and no join: a channel of one element stands in for both.
package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

const (
	burst         = 128
	sleepTime     = 100 * time.Microsecond
	longSleep     = 10 * time.Millisecond
	sleeperCount  = 1000
	stealPatience = 10 * time.Millisecond
	gapPolling    = 3 * time.Microsecond
	gapParked     = 500 * time.Microsecond
)

var cases = []struct {
	name string
	run  func(*request)
}{
	{"mutex", runMutex},
	{"yield", runYield},
	{"condvar", runCondvar},
	{"spawn-join", runSpawnJoin},
	{"channel-stream", runChannelStream},
	{"channel-ping-pong", runChannelHandOver},
	{"park", runPark},
	{"timer", runTimer},
	{"sleepers", runSleepers},
	{"steal-polling", func(request *request) { runSteal(request, gapPolling) }},
	{"steal-parked", func(request *request) { runSteal(request, gapParked) }},
	{"echo", runEcho},
}

func runMutex(request *request) {
	meter := newMeter(request)
	var mutex sync.Mutex
	value := 0
	for meter.goesOn(1000) {
		for range 1000 {
			mutex.Lock()
			value++
			mutex.Unlock()
		}
	}
	runtime.KeepAlive(&value)
	meter.finish()
}

func runYield(request *request) {
	var over atomic.Bool
	var others atomic.Uint64
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for !over.Load() {
			runtime.Gosched()
			others.Add(1)
		}
	}()
	meter := newMeter(request)
	for meter.goesOnWith(100, &others) {
		for range 100 {
			runtime.Gosched()
		}
	}
	meter.finishWith(&others)
	over.Store(true)
	<-ended
}

// turns says whose turn it is; turnsOver: nobody's any more.
type turns struct {
	lock    sync.Mutex
	changed [2]*sync.Cond
	turn    int
}

const turnsOver = 2

func (turns *turns) pass(mine int) bool {
	turns.lock.Lock()
	defer turns.lock.Unlock()
	for turns.turn != mine {
		if turns.turn == turnsOver {
			return false
		}
		turns.changed[mine].Wait()
	}
	turns.turn = 1 - mine
	turns.changed[1-mine].Signal()
	return true
}

func runCondvar(request *request) {
	shared := &turns{}
	for at := range shared.changed {
		shared.changed[at] = sync.NewCond(&shared.lock)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for shared.pass(1) {
		}
	}()
	meter := newMeter(request)
	for meter.goesOn(200) {
		for range 100 {
			shared.pass(0)
		}
	}
	meter.finish()
	shared.lock.Lock()
	shared.turn = turnsOver
	shared.changed[1].Signal()
	shared.lock.Unlock()
	<-ended
}

func runSpawnJoin(request *request) {
	meter := newMeter(request)
	for meter.goesOn(100) {
		for at := range 100 {
			ended := make(chan int, 1)
			go func() { ended <- at }()
			<-ended
		}
	}
	meter.finish()
}

func runChannelStream(request *request) {
	there, back := make(chan uint64, burst), make(chan struct{}, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		seen := 0
		for range there {
			seen++
			if seen%burst == 0 {
				back <- struct{}{}
			}
		}
	}()
	meter := newMeter(request)
	for meter.goesOn(burst) {
		for message := range uint64(burst) {
			there <- message
		}
		<-back
	}
	meter.finish()
	close(there)
	<-ended
}

func runChannelHandOver(request *request) {
	there, back := make(chan uint64, 1), make(chan uint64, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for message := range there {
			back <- message
		}
	}()
	meter := newMeter(request)
	for meter.goesOn(200) {
		for message := range uint64(100) {
			there <- message
			<-back
		}
	}
	meter.finish()
	close(there)
	<-ended
}

func runPark(request *request) {
	var bells [2]chan struct{}
	for at := range bells {
		bells[at] = make(chan struct{}, 1)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for range bells[1] {
			bells[0] <- struct{}{}
		}
	}()
	meter := newMeter(request)
	for meter.goesOn(200) {
		for range 100 {
			bells[1] <- struct{}{}
			<-bells[0]
		}
	}
	meter.finish()
	close(bells[1])
	<-ended
}

func runTimer(request *request) {
	meter := newMeter(request)
	for meter.goesOn(1) {
		due := time.Now().Add(sleepTime)
		time.Sleep(sleepTime)
		meter.sample(time.Since(due))
	}
	meter.finish()
}

func runSleepers(request *request) {
	var over atomic.Bool
	var count atomic.Uint64
	var all sync.WaitGroup
	for range sleeperCount {
		all.Add(1)
		go func() {
			defer all.Done()
			for !over.Load() {
				time.Sleep(longSleep)
				count.Add(1)
			}
		}()
	}
	meter := newMeter(request)
	for meter.goesOnWith(0, &count) {
		due := time.Now().Add(longSleep)
		time.Sleep(longSleep)
		meter.sample(time.Since(due))
	}
	meter.finishWith(&count)
	over.Store(true)
	all.Wait()
}

func runSteal(request *request, gap time.Duration) {
	meter := newMeter(request)
	for meter.goesOn(1) {
		compute(gap)
		var first atomic.Int64
		ready := time.Now()
		var both sync.WaitGroup
		both.Add(2)
		for range 2 {
			go func() {
				first.CompareAndSwap(0, int64(time.Since(ready)))
				both.Done()
			}()
		}
		for first.Load() == 0 && time.Since(ready) < stealPatience {
		}
		both.Wait()
		meter.sample(time.Duration(first.Load()))
	}
	meter.finish()
}

func runEcho(*request) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	fmt.Printf("{\"port\":%d}\n", listener.Addr().(*net.TCPAddr).Port)
	for {
		connection, err := listener.Accept()
		must(err)
		go serve(connection)
	}
}

// serve sends back what comes until the client goes. Nagle's delay is off by default.
func serve(connection net.Conn) {
	defer connection.Close()
	buffer := make([]byte, 4096)
	for {
		taken, err := connection.Read(buffer)
		if err != nil {
			return
		}
		if _, err := connection.Write(buffer[:taken]); err != nil {
			return
		}
	}
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(2)
	}
}

func main() {
	words := os.Args[1:]
	if len(words) == 1 && words[0] == "list" {
		for _, one := range cases {
			fmt.Println(one.name)
		}
		return
	}
	if len(words) == 4 {
		var numbers [3]int
		for at, word := range words[1:] {
			number, err := strconv.Atoi(word)
			must(err)
			numbers[at] = number
		}
		runtime.GOMAXPROCS(numbers[0])
		asked := &request{millis(numbers[1]), millis(numbers[2])}
		for _, one := range cases {
			if one.name == words[0] {
				one.run(asked)
				return
			}
		}
	}
	must(fmt.Errorf("usage: goroutines CASE WORKERS WARM_UP_MS TIME_MS | goroutines list"))
}

func (meter *meter) print(answer answer) {
	must(json.NewEncoder(os.Stdout).Encode(answer))
}
