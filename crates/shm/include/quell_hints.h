/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Hints of a service to Quell: when the request that a thread serves began, and what waits in the service's own
 * queues. Header only; C11 and C++11, GCC or Clang, Linux. docs/reference/hints.md of Quell is the guide.
 *
 *     struct quell_hints hints;
 *     quell_hints_open(&hints, NULL, 64);        // once; NULL: the path in $QUELL_HINTS
 *     struct quell_hints_slot *slot = quell_hints_register(&hints);   // once in each thread that serves
 *     for (;;) {
 *         request = next();
 *         quell_hints_begin(slot);
 *         serve(request);
 *         quell_hints_end(slot);
 *     }
 *
 * Every function takes a NULL slot and a page that could not be opened, and does nothing then: a service runs
 * the same with and without Quell. Hints cost two stores at a request's begin and end, and never a system call.
 *
 * The layout is version 1 of crates/shm/src/layout.rs.
 */
#ifndef QUELL_HINTS_H
#define QUELL_HINTS_H

/* With -std=c11 rather than gnu11, include this header first. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C" {
#endif

#define QUELL_HINTS_VERSION 1u
#define QUELL_HINTS_LINE 64u
#define QUELL_HINTS_SLOTS_MAX 1024u

/* A thread's slot: one cache line. Times are CLOCK_MONOTONIC in nanoseconds, 0 for none. */
struct quell_hints_slot {
	uint32_t thread; /* gettid(), 0: free */
	uint32_t queue_depth; /* requests that wait for this thread */
	uint64_t request_start; /* when the request in service began */
	uint64_t request_check; /* ~request_start */
	uint64_t oldest_queued; /* since when the oldest of the waiting ones waits */
	uint64_t requests; /* requests begun so far */
	uint64_t reserved[3];
};

struct quell_hints_header {
	uint64_t magic;
	uint32_t version;
	uint32_t slots;
	uint32_t slot_bytes;
	uint32_t used; /* slots that were ever in use */
	uint64_t size; /* bytes of the page */
	uint64_t reserved[4];
};

/* An open page; all zero for one that could not be opened. */
struct quell_hints {
	struct quell_hints_header *header;
	struct quell_hints_slot *slots;
	size_t size;
};

#ifdef __cplusplus
static_assert(sizeof(struct quell_hints_slot) == QUELL_HINTS_LINE, "a slot is a cache line");
static_assert(sizeof(struct quell_hints_header) == QUELL_HINTS_LINE, "the header is a cache line");
#else
_Static_assert(sizeof(struct quell_hints_slot) == QUELL_HINTS_LINE, "a slot is a cache line");
_Static_assert(sizeof(struct quell_hints_header) == QUELL_HINTS_LINE, "the header is a cache line");
#endif

static inline uint64_t quell_hints_magic(void)
{
	uint64_t magic;
	memcpy(&magic, "QUELLHNT", sizeof(magic));
	return magic;
}

/* CLOCK_MONOTONIC in nanoseconds; no system call. */
static inline uint64_t quell_hints_now(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* The part of quell_hints_open that is done under the file's lock. Returns the slots of the page, 0 with errno. */
static inline uint32_t quell_hints_prepare(int file, uint32_t slots)
{
	struct stat found;
	struct quell_hints_header header;

	if (fstat(file, &found) < 0)
		return 0;
	if (found.st_size == 0) {
		/* Allocated, not only sized: a full tmpfs is an error here rather than a SIGBUS later. */
		int error = posix_fallocate(file, 0, (off_t)(QUELL_HINTS_LINE * (slots + 1)));
		if (error) {
			errno = error;
			return 0;
		}
		memset(&header, 0, sizeof(header));
		header.magic = quell_hints_magic();
		header.version = QUELL_HINTS_VERSION;
		header.slots = slots;
		header.slot_bytes = QUELL_HINTS_LINE;
		header.size = (uint64_t)QUELL_HINTS_LINE * (slots + 1);
		return pwrite(file, &header, sizeof(header), 0) == (ssize_t)sizeof(header) ? slots : 0;
	}
	if (pread(file, &header, sizeof(header), 0) != (ssize_t)sizeof(header) ||
	    header.magic != quell_hints_magic() || header.version != QUELL_HINTS_VERSION ||
	    header.slots == 0 || header.slots > QUELL_HINTS_SLOTS_MAX ||
	    header.slot_bytes != QUELL_HINTS_LINE ||
	    header.size != (uint64_t)QUELL_HINTS_LINE * (header.slots + 1) ||
	    (uint64_t)found.st_size < header.size) {
		errno = EINVAL;
		return 0;
	}
	return header.slots;
}

/*
 * Opens the page at path, which is created with room for so many threads if it is not there. A NULL path is the one
 * in $QUELL_HINTS, which Quell sets for programs that it launches. 0, or -1 with errno; hints is usable either way.
 * Several processes of one service may open one page.
 */
static inline int quell_hints_open(struct quell_hints *hints, const char *path, uint32_t slots)
{
	int file, error = 0;
	void *map = MAP_FAILED;

	memset(hints, 0, sizeof(*hints));
	if (!path)
		path = getenv("QUELL_HINTS");
	if (!path) {
		errno = ENOENT;
		return -1;
	}
	if (slots == 0)
		slots = 1;
	if (slots > QUELL_HINTS_SLOTS_MAX)
		slots = QUELL_HINTS_SLOTS_MAX;
	file = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644);
	if (file < 0)
		return -1;
	/* Whoever comes first sets the page up. The mapping would hold the lock beyond close. */
	slots = flock(file, LOCK_EX) == 0 ? quell_hints_prepare(file, slots) : 0;
	error = errno;
	flock(file, LOCK_UN);
	errno = error;
	error = 0;
	if (slots) {
		hints->size = (size_t)QUELL_HINTS_LINE * (slots + 1);
		map = mmap(NULL, hints->size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	}
	if (map == MAP_FAILED) {
		error = errno ? errno : EIO;
		memset(hints, 0, sizeof(*hints));
	} else {
		hints->header = (struct quell_hints_header *)map;
		hints->slots = (struct quell_hints_slot *)map + 1;
	}
	close(file);
	errno = error;
	return error ? -1 : 0;
}

static inline void quell_hints_close(struct quell_hints *hints)
{
	if (hints->header)
		munmap(hints->header, hints->size);
	memset(hints, 0, sizeof(*hints));
}

/*
 * All stores below are relaxed: the page publishes nothing but these words, and the reader copies it without any
 * order. A start is there twice, the second time inverted, so that a copy taken between the stores is told from one.
 */

/* The thread serves a request that began then. */
static inline void quell_hints_begin_at(struct quell_hints_slot *slot, uint64_t start)
{
	if (!slot)
		return;
	__atomic_store_n(&slot->request_start, start, __ATOMIC_RELAXED);
	__atomic_store_n(&slot->request_check, ~start, __ATOMIC_RELAXED);
	__atomic_store_n(&slot->requests, __atomic_load_n(&slot->requests, __ATOMIC_RELAXED) + 1,
			 __ATOMIC_RELAXED);
}

/* The thread begins to serve a request. */
static inline void quell_hints_begin(struct quell_hints_slot *slot)
{
	if (slot)
		quell_hints_begin_at(slot, quell_hints_now());
}

/* The request is served. */
static inline void quell_hints_end(struct quell_hints_slot *slot)
{
	if (!slot)
		return;
	__atomic_store_n(&slot->request_start, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&slot->request_check, ~(uint64_t)0, __ATOMIC_RELAXED);
}

/* So many requests wait for this thread, the oldest since then (0: none, or not known). */
static inline void quell_hints_queue(struct quell_hints_slot *slot, uint32_t depth, uint64_t oldest)
{
	if (!slot)
		return;
	__atomic_store_n(&slot->queue_depth, depth, __ATOMIC_RELAXED);
	__atomic_store_n(&slot->oldest_queued, oldest, __ATOMIC_RELAXED);
}

static inline void quell_hints_blank(struct quell_hints_slot *slot)
{
	quell_hints_end(slot);
	quell_hints_queue(slot, 0, 0);
	__atomic_store_n(&slot->requests, 0, __ATOMIC_RELAXED);
}

/* Takes a slot for the calling thread: its own, a free one, or that of a thread which is gone. NULL: none is left. */
static inline struct quell_hints_slot *quell_hints_register(struct quell_hints *hints)
{
	const uint32_t me = (uint32_t)syscall(SYS_gettid);
	uint32_t at, used, slots = hints->header ? (uint32_t)(hints->size / QUELL_HINTS_LINE - 1) : 0;

	for (at = 0; at < slots; at++) {
		struct quell_hints_slot *slot = &hints->slots[at];
		uint32_t holder = __atomic_load_n(&slot->thread, __ATOMIC_RELAXED);
		if (holder != me && holder != 0 && !(kill((pid_t)holder, 0) < 0 && errno == ESRCH))
			continue;
		/* Acquire: pairs with the release in quell_hints_unregister. */
		if (!__atomic_compare_exchange_n(&slot->thread, &holder, me, 0, __ATOMIC_ACQUIRE,
						 __ATOMIC_RELAXED))
			continue;
		quell_hints_blank(slot);
		used = __atomic_load_n(&hints->header->used, __ATOMIC_RELAXED);
		/* Relaxed: a bound alone; whoever reads the old one misses this slot for a moment. */
		while (used < at + 1 &&
		       !__atomic_compare_exchange_n(&hints->header->used, &used, at + 1, 0,
						    __ATOMIC_RELAXED, __ATOMIC_RELAXED))
			;
		return slot;
	}
	return NULL;
}

/* Gives the slot back. A thread that ends without doing so loses it to the next one that looks for one. */
static inline void quell_hints_unregister(struct quell_hints_slot *slot)
{
	if (!slot)
		return;
	quell_hints_blank(slot);
	/* Release: pairs with the acquire in quell_hints_register. */
	__atomic_store_n(&slot->thread, 0, __ATOMIC_RELEASE);
}

#ifdef __cplusplus
}
#endif

#endif /* QUELL_HINTS_H */
