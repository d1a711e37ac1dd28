/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A request server without head-of-line blocking: a short request does not wait for a long one that came before it,
 * although one core serves both and its workers are plain pthreads that know nothing of each other.
 *
 *     cc -O2 -pthread -I crates/lane/include -o request-server examples/lanes/request-server.c
 *     ./request-server --ring /dev/shm/requests --core 1 [--workers 128] [--budget 5] [--requests-max N] [--for S]
 *                      [--nap US] [--spins-per-us N]
 *
 * Requests come through a file in memory that a client makes (request_ring.h, request-client.c). All threads but the
 * first share one core, and the levels of quell_lane.h say who has it:
 *
 *   - the dispatcher polls the ring. It gives a request to a worker that sleeps and wakes it: the worker is above
 *     it, so that the dispatcher goes on when the worker has done its request and sleeps again, or was preempted.
 *   - the switcher sleeps on the lane's timer, which is armed for the budget at each turn: by the worker for its first
 *     one, by the dispatcher when it has one go on. When it expires, the switcher parks the worker: below the
 *     dispatcher, which then looks for new requests.
 *   - a parked worker goes on where it was when nothing new waits, or after a few new ones: nobody starves.
 *
 * A turn is as long as the budget, or longer where timers are slow: turn_ns of what is printed at the end.
 *
 * --budget 0 is the same server without preemption: first come, first served. --nap has an idle dispatcher sleep so
 * many microseconds between looks. --spins-per-us says how much work a microsecond is, which is measured otherwise.
 * SIGINT and SIGTERM end it when it has answered what it took.
 */
#include "quell_lane.h"

#include "request_ring.h"
#include "request_work.h"

#include <getopt.h>
#include <inttypes.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdbool.h>

#define WORKERS_MAX 4096
/* A few calls deep; the usual 8 MB would be locked for each worker. */
#define STACK_BYTES (64 * 1024)
/* After so many new requests in a row one turn goes to the worker that is parked longest. */
#define FRESH_IN_A_ROW 8
/* Tries of how long it takes until a worker whose turn is armed runs, and for a time that is before the next tick: only
 * then the kernel has to set the hardware's timer. */
#define PROBES 101
#define PROBE_NS 200000u
/*
 * A turn that is preempted costs its timer twice, two switches and an interrupt: about both floors. It is at least so many
 * times as long, or the core would do little else: where timers are quick, the budget is longer anyway.
 */
#define TURN_PER_COST 3
/* Who was preempted so often in one request gets more time: the floor may have been measured on a better day. */
#define PATIENT_TURNS 256
/*
 * A core whose real-time threads never sleep is taken from them for 50 ms a second (sched_rt_runtime_us; the fair server since
 * Linux 6.12), if an ordinary thread waits there, and the kernel has some on every core. They need microseconds.
 */
#define BREATH_EVERY_NS 20000000u
#define BREATH_NS 30000u
/* How long nothing comes until the dispatcher naps, if it does. */
#define IDLE_NS 1000000u

struct worker {
	struct quell_lane_thread lane;
	pthread_t thread;
	struct request request;
	uint64_t done_ns;
	uint32_t go; /* a futex. 1: there is a request, or the end */
	uint32_t done; /* by the worker: its request is */
	uint32_t parked; /* by the switcher: it was preempted */
	uint32_t preempted; /* how often, in this request */
	uint32_t quit;
	uint32_t probes; /* of the floors, left to do */
	uint64_t arming_ns; /* of the last probe */
	struct worker *next; /* in one of the dispatcher's two queues */
};

struct queue {
	struct worker *first, *last;
};

static struct {
	/* Options. */
	const char *path;
	long core, workers;
	uint64_t budget_ns, nap_ns, requests_max, for_ns;
	struct request_ring_end ring;
	/* The threads. */
	struct quell_lane lane;
	struct worker *worker;
	struct worker *current; /* whose turn it is: written by the dispatcher, read by the switcher */
	pthread_t main_thread, dispatcher_thread, switcher_thread;
	sem_t entered;
	bool stop;
	/* The dispatcher's. */
	struct queue idle, parked;
	uint64_t in_work, fresh_in_a_row;
	uint64_t spins_per_us;
	uint64_t first_floor_ns, floor_ns; /* what a turn loses before its worker works: the first one, later ones */
	uint64_t turn_ns; /* a worker's own part of a turn: the budget, or longer */
	/* What happened. */
	uint64_t served, preemptions, spurious;
	const char *failed; /* in words */
	int failed_errno;
} server = { .core = -1, .workers = 128, .budget_ns = 5000 };

static void die(const char *what, const char *why)
{
	fprintf(stderr, "request-server: %s: %s\n", what, why);
	exit(1);
}

/* A thread of the lane failed: the first thread says so and ends the server. */
static void fail(const char *what)
{
	int error = errno;

	if (!__atomic_exchange_n(&server.failed, what, __ATOMIC_ACQ_REL))
		__atomic_store_n(&server.failed_errno, error, __ATOMIC_RELEASE);
	pthread_kill(server.main_thread, SIGTERM);
}

static long futex(uint32_t *word, int operation, uint32_t value)
{
	return syscall(SYS_futex, word, operation | FUTEX_PRIVATE_FLAG, value, NULL, NULL, 0);
}

static void serve(const struct request *request)
{
	const uint64_t most = REQUEST_RING_SERVICE_NS_MAX, ns = request->service_ns;

	request_work_spin((ns < most ? ns : most) * server.spins_per_us / 1000);
}

/* ---- A worker. ---- */

/* As after an expiry: a timer that still runs would be cancelled first, which takes as long again. */
static void clear_timer(void)
{
	static const struct itimerspec none;

	timerfd_settime(server.lane.timer, 0, &none, NULL);
	__atomic_store_n(&server.lane.timer_at, 0, __ATOMIC_RELAXED);
}

/* Parks itself and notes when it runs again, and how long it takes to arm a turn. */
static void be_probed(struct worker *own)
{
	for (; own->probes; own->probes--) {
		if (quell_lane_set(&server.lane, &own->lane, QUELL_LANE_PARKED) < 0)
			fail("a worker cannot be parked");
		own->done_ns = quell_lane_now();
		clear_timer();
		own->arming_ns = quell_lane_now();
		if (quell_lane_arm(&server.lane, PROBE_NS) < 0)
			fail("a turn cannot be armed");
		own->arming_ns = quell_lane_now() - own->arming_ns;
		quell_lane_disarm(&server.lane);
		clear_timer();
	}
}

/* From its arming until its disarming a request can be preempted, wherever it is. */
static void serve_in_turns(struct worker *own)
{
	if (server.budget_ns && quell_lane_arm(&server.lane, server.turn_ns + server.first_floor_ns) < 0)
		fail("a turn cannot be armed");
	serve(&own->request);
	quell_lane_disarm(&server.lane);
	own->done_ns = quell_lane_now();
}

static void *work(void *data)
{
	struct worker *own = data;

	/* Asleep on the level on which it will run: to be woken is its turn, without another system call. */
	if (quell_lane_enter(&server.lane, &own->lane, QUELL_LANE_RUNNING) < 0)
		fail("a worker cannot enter the lane");
	sem_post(&server.entered);
	for (;;) {
		/* Acquire: pairs with the Releases in wake() and at the end of dispatch(): the request, probes or quit. */
		while (!__atomic_load_n(&own->go, __ATOMIC_ACQUIRE))
			futex(&own->go, FUTEX_WAIT, 0);
		/* Relaxed: nothing is published by it, and the dispatcher sets it again only after done. */
		__atomic_store_n(&own->go, 0, __ATOMIC_RELAXED);
		if (__atomic_load_n(&own->quit, __ATOMIC_ACQUIRE))
			break;
		if (own->probes)
			be_probed(own);
		else
			serve_in_turns(own);
		/* Release: pairs with the Acquires in end_turn(): done_ns, and that go is 0. */
		__atomic_store_n(&own->done, 1, __ATOMIC_RELEASE);
	}
	if (quell_lane_is_in(&own->lane) && quell_lane_leave(&server.lane, &own->lane) < 0)
		fail("a worker cannot leave the lane");
	return NULL;
}

/* ---- The switcher. ---- */

static void *switch_turns(void *data)
{
	struct quell_lane_thread own;
	int over;

	(void)data;
	if (quell_lane_enter(&server.lane, &own, QUELL_LANE_SWITCHER) < 0)
		fail("the switcher cannot enter the lane");
	sem_post(&server.entered);
	while ((over = quell_lane_wait(&server.lane, &server.spurious)) > 0) {
		/* Acquire: pairs with the Release in give_turn(): turn_ns, and that parked is 0. */
		struct worker *worker = __atomic_load_n(&server.current, __ATOMIC_ACQUIRE);
		int parked = worker ? quell_lane_preempt(&server.lane, &worker->lane, server.turn_ns) : 0;

		/* Release: pairs with the Acquires in end_turn(): the worker has its level by then. */
		if (parked > 0)
			__atomic_store_n(&worker->parked, 1, __ATOMIC_RELEASE);
		else if (parked < 0)
			fail("a worker cannot be parked");
	}
	if (over < 0)
		fail("the timer failed");
	if (quell_lane_is_in(&own) && quell_lane_leave(&server.lane, &own) < 0)
		fail("the switcher cannot leave the lane");
	return NULL;
}

/* ---- The dispatcher. ---- */

static void put(struct queue *queue, struct worker *worker)
{
	worker->next = NULL;
	if (queue->first)
		queue->last->next = worker;
	else
		queue->first = worker;
	queue->last = worker;
}

static struct worker *take(struct queue *queue)
{
	struct worker *worker = queue->first;

	if (worker)
		queue->first = worker->next;
	return worker;
}

/* Whether a request waits that can be taken: its response will have room. */
static bool request_waits(void)
{
	int waits = request_ring_waits(&server.ring, server.in_work);

	if (waits < 0)
		fail("the client broke the ring");
	return waits > 0;
}

static void respond(const struct worker *worker)
{
	const struct response response = {
		.id = worker->request.id,
		.sent_ns = worker->request.sent_ns,
		.done_ns = worker->done_ns,
		.preempted = worker->preempted,
	};

	request_ring_respond(&server.ring, &response);
	server.served++;
}

/* The worker whose turn is next: it has a request. NULL: there is nothing to do. */
static struct worker *choose(bool taking)
{
	bool fresh = taking && server.idle.first && request_waits();
	struct worker *worker;

	if (server.parked.first && (!fresh || server.fresh_in_a_row >= FRESH_IN_A_ROW)) {
		server.fresh_in_a_row = 0;
		return take(&server.parked);
	}
	if (!fresh)
		return NULL;
	server.fresh_in_a_row++;
	worker = take(&server.idle);
	request_ring_take(&server.ring, &worker->request);
	worker->preempted = 0;
	server.in_work++;
	return worker;
}

static void wake(struct worker *worker)
{
	/* Relaxed: the worker sees it with go. Release: pairs with the Acquire in work(): all that was set for it. */
	__atomic_store_n(&worker->done, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&worker->go, 1, __ATOMIC_RELEASE);
	futex(&worker->go, FUTEX_WAKE, 1);
}

static int by_value(const void *left, const void *right)
{
	uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;

	return (a > b) - (a < b);
}

/*
 * How long it takes here from when a turn is armed until its worker works: a turn that is shorter would bring its worker
 * nowhere, and on a virtual machine that may be the whole budget. So it comes on top of the budget.
 */
static void measure_floors(struct worker *worker)
{
	uint64_t arming[PROBES], raising[PROBES];

	worker->probes = PROBES;
	wake(worker);
	for (int n = 0; n < PROBES; n++) {
		uint64_t begin = quell_lane_now();
		if (quell_lane_run(&server.lane, &worker->lane, PROBE_NS) < 0)
			fail("a worker cannot have its turn");
		raising[n] = worker->done_ns - begin;
		arming[n] = worker->arming_ns;
	}
	qsort(arming, PROBES, sizeof(arming[0]), by_value);
	qsort(raising, PROBES, sizeof(raising[0]), by_value);
	/* Not the least: a turn that brings its worker nowhere costs more than one that is too long. */
	server.first_floor_ns = arming[PROBES * 9 / 10];
	server.floor_ns = raising[PROBES * 9 / 10];
	server.turn_ns = TURN_PER_COST * (server.first_floor_ns + server.floor_ns);
	if (server.turn_ns < server.budget_ns)
		server.turn_ns = server.budget_ns;
}

static uint64_t later_turn_ns(const struct worker *worker)
{
	return server.turn_ns + server.floor_ns * (1 + worker->preempted / PATIENT_TURNS);
}

/* A turn: returns when the worker is done, preempted, or asleep within its request (a page fault, a lock). */
static void give_turn(struct worker *worker)
{
	/* Relaxed: the switcher sees it with current. Release: pairs with the Acquire in switch_turns(). */
	__atomic_store_n(&worker->parked, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&server.current, worker, __ATOMIC_RELEASE);
	if (worker->preempted) {
		if (quell_lane_run(&server.lane, &worker->lane, later_turn_ns(worker)) < 0)
			fail("a worker cannot have its turn");
	} else {
		wake(worker);
	}
}

/* What became of a turn. Acquires: pair with the Releases in work() (done) and switch_turns() (parked). */
static void end_turn(struct worker *worker)
{
	/* Without preemption the next request waits for this one, even while it sleeps. */
	while (!server.budget_ns && !__atomic_load_n(&worker->done, __ATOMIC_ACQUIRE))
		;
	quell_lane_disarm(&server.lane);
	if (__atomic_load_n(&worker->done, __ATOMIC_ACQUIRE)) {
		/* It was preempted after all that counts, and is on its way to sleep: its level is put right. */
		if (__atomic_load_n(&worker->parked, __ATOMIC_ACQUIRE) &&
		    quell_lane_set(&server.lane, &worker->lane, QUELL_LANE_RUNNING) < 0)
			fail("a worker cannot be raised");
		respond(worker);
		server.in_work--;
		put(&server.idle, worker);
		return;
	}
	/* One that sleeps within its request makes way like one that was preempted. */
	if (!__atomic_load_n(&worker->parked, __ATOMIC_ACQUIRE) &&
	    quell_lane_set(&server.lane, &worker->lane, QUELL_LANE_PARKED) < 0)
		fail("a worker cannot be parked");
	worker->preempted++;
	server.preemptions++;
	put(&server.parked, worker);
}

/* Whether the client closed the ring and everything is answered, or as much as was asked for. */
static bool is_over(void)
{
	if (server.requests_max && server.served >= server.requests_max)
		return true;
	return !server.in_work && request_ring_is_closed(&server.ring);
}

static void nap(uint64_t ns)
{
	struct timespec time = { .tv_nsec = (long)ns };

	clock_nanosleep(CLOCK_MONOTONIC, 0, &time, NULL);
}

/* With nothing to do: ordinary threads of this core get a moment now and then. */
static void breathe(uint64_t now)
{
	static uint64_t last;

	if (now - last < BREATH_EVERY_NS)
		return;
	nap(BREATH_NS);
	last = quell_lane_now();
}

static void serve_all(void)
{
	uint64_t idle_since = 0;

	for (;;) {
		bool stop = __atomic_load_n(&server.stop, __ATOMIC_ACQUIRE);
		bool enough = server.requests_max && server.served + server.in_work >= server.requests_max;
		struct worker *worker = choose(!stop && !enough);

		if (worker) {
			idle_since = 0;
			give_turn(worker);
			end_turn(worker);
		} else if (stop || is_over()) {
			return;
		} else {
			uint64_t now = quell_lane_now();
			breathe(now);
			if (!idle_since)
				idle_since = now;
			else if (server.nap_ns && now - idle_since > IDLE_NS)
				nap(server.nap_ns);
		}
	}
}

static void *dispatch(void *data)
{
	struct quell_lane_thread own;

	(void)data;
	if (quell_lane_enter(&server.lane, &own, QUELL_LANE_DISPATCHER) < 0) {
		fail("the dispatcher cannot enter the lane");
	} else {
		if (!server.spins_per_us)
			server.spins_per_us = request_work_calibrate();
		if (server.budget_ns)
			measure_floors(&server.worker[0]);
		request_ring_tell(&server.ring, REQUEST_SERVER_READY);
		serve_all();
	}
	/* Workers and switcher are above it and end at once. Releases: pair with the Acquires in work(). */
	for (long n = 0; n < server.workers; n++) {
		__atomic_store_n(&server.worker[n].quit, 1, __ATOMIC_RELEASE);
		__atomic_store_n(&server.worker[n].go, 1, __ATOMIC_RELEASE);
		futex(&server.worker[n].go, FUTEX_WAKE, 1);
	}
	quell_lane_stop(&server.lane);
	if (quell_lane_is_in(&own) && quell_lane_leave(&server.lane, &own) < 0)
		fail("the dispatcher cannot leave the lane");
	pthread_kill(server.main_thread, SIGTERM);
	return NULL;
}

/* ---- The first thread: options, start and end. ---- */

static double number(const char *option, const char *text, double low, double high)
{
	char *end;
	double value = strtod(text, &end);

	if (end == text || *end || !(value >= low && value <= high)) {
		fprintf(stderr, "request-server: --%s: `%s` is not from %g to %g\n", option, text, low, high);
		exit(2);
	}
	return value;
}

static void read_options(int argc, char **argv)
{
	static const struct option options[] = {
		{ "ring", required_argument, NULL, 'r' },     { "core", required_argument, NULL, 'c' },
		{ "workers", required_argument, NULL, 'w' },  { "budget", required_argument, NULL, 'b' },
		{ "nap", required_argument, NULL, 'n' },      { "requests-max", required_argument, NULL, 'm' },
		{ "for", required_argument, NULL, 'f' },      { "spins-per-us", required_argument, NULL, 's' },
		{ NULL, 0, NULL, 0 },
	};
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (option) {
		case 'r': server.path = optarg; break;
		case 'c': server.core = (long)number("core", optarg, 0, QUELL_LANE_CORES_MAX - 1); break;
		case 'w': server.workers = (long)number("workers", optarg, 1, WORKERS_MAX); break;
		case 'b': server.budget_ns = (uint64_t)(number("budget", optarg, 0, 1e6) * 1e3); break;
		case 'n': server.nap_ns = (uint64_t)(number("nap", optarg, 0, 1e5) * 1e3); break;
		case 'm': server.requests_max = (uint64_t)number("requests-max", optarg, 1, 1e15); break;
		case 'f': server.for_ns = (uint64_t)(number("for", optarg, 0.001, 1e6) * 1e9); break;
		case 's': server.spins_per_us = (uint64_t)number("spins-per-us", optarg, 1, 1e6); break;
		default: exit(2);
		}
	}
	if (!server.path || server.core < 0 || optind != argc) {
		fprintf(stderr, "usage: request-server --ring FILE --core N [--workers N] [--budget US] [--nap US]\n"
				"                      [--requests-max N] [--for SECONDS] [--spins-per-us N]\n");
		exit(2);
	}
}

/* This thread leaves the core to the lane, where it can: beside a dispatcher that polls it would hardly run. */
static void step_aside(void)
{
	struct quell_lane_cores others = server.lane.allowed;
	size_t word = (size_t)server.core / QUELL_LANE_WORD_BITS;

	others.words[word] &= ~(1ul << ((size_t)server.core % QUELL_LANE_WORD_BITS));
	if (quell_lane_set_cores(&others) < 0)
		fprintf(stderr, "request-server: there is no other core: signals will be late\n");
}

static void start(pthread_t *thread, void *(*body)(void *), void *data)
{
	pthread_attr_t attr;
	size_t least = (size_t)sysconf(_SC_THREAD_STACK_MIN);
	int error;

	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, least > STACK_BYTES ? least : STACK_BYTES);
	error = pthread_create(thread, &attr, body, data);
	pthread_attr_destroy(&attr);
	if (error)
		die("a thread", strerror(error));
}

static void start_all(void)
{
	server.worker = calloc((size_t)server.workers, sizeof(*server.worker));
	if (!server.worker)
		die("workers", strerror(errno));
	for (long n = 0; n < server.workers; n++) {
		start(&server.worker[n].thread, work, &server.worker[n]);
		put(&server.idle, &server.worker[n]);
	}
	start(&server.switcher_thread, switch_turns, NULL);
	/* The dispatcher last: on a core where it polls nobody below it would get as far as to enter. */
	for (long n = 0; n < server.workers + 1; n++)
		while (sem_wait(&server.entered) < 0)
			;
	/* Only asked for: a page fault would be a worker's sleep in the midst of a request. */
	mlockall(MCL_CURRENT);
	start(&server.dispatcher_thread, dispatch, NULL);
}

/* Until a signal, the end of the time, or the dispatcher's own end. */
static void wait_for_end(const sigset_t *signals)
{
	struct timespec time = {
		.tv_sec = (time_t)(server.for_ns / 1000000000u),
		.tv_nsec = (long)(server.for_ns % 1000000000u),
	};
	int got;

	do
		got = server.for_ns ? sigtimedwait(signals, NULL, &time) : sigwaitinfo(signals, NULL);
	while (got < 0 && errno == EINTR);
	__atomic_store_n(&server.stop, true, __ATOMIC_RELEASE);
	pthread_join(server.dispatcher_thread, NULL);
	for (long n = 0; n < server.workers; n++)
		pthread_join(server.worker[n].thread, NULL);
	pthread_join(server.switcher_thread, NULL);
	request_ring_tell(&server.ring, REQUEST_SERVER_ENDED);
}

int main(int argc, char **argv)
{
	const char *flaw;
	sigset_t signals;

	read_options(argc, argv);
	flaw = request_ring_open(&server.ring, server.path);
	if (flaw)
		die(server.path, flaw);
	if (quell_lane_open(&server.lane, (int)server.core, NULL) < 0)
		die("no lane", server.lane.why);
	/* Blocked before any other thread is: this one waits for them. */
	sigemptyset(&signals);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGTERM);
	pthread_sigmask(SIG_BLOCK, &signals, NULL);
	step_aside();
	server.main_thread = pthread_self();
	sem_init(&server.entered, 0, 0);
	start_all();
	wait_for_end(&signals);
	quell_lane_close(&server.lane);
	if (server.failed)
		die(server.failed, strerror(server.failed_errno));
	printf("{\"served\": %" PRIu64 ", \"preemptions\": %" PRIu64 ", \"expiries_in_vain\": %" PRIu64
	       ", \"spins_per_us\": %" PRIu64 ", \"first_floor_ns\": %" PRIu64 ", \"floor_ns\": %" PRIu64
	       ", \"turn_ns\": %" PRIu64 "}\n",
	       server.served, server.preemptions, server.spurious, server.spins_per_us, server.first_floor_ns,
	       server.floor_ns, server.turn_ns);
	return 0;
}
