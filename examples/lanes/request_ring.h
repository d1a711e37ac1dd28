/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * How a client and request-server.c talk: a file in memory (below /dev/shm) that both map. Little-endian as the host.
 *
 *     offset 0                        one page of control, each word that one side writes on a cache line of its own
 *     offset 4096                     capacity requests of 32 bytes
 *     offset 4096 + 32 * capacity     capacity responses of 32 bytes
 *
 * The client makes the file, at its whole length, and sets magic, version and capacity. Requests have one producer, the
 * client; responses have one, the server. A head counts what was ever put, a tail what was ever taken; entry number n
 * is at n modulo capacity. Who puts writes the entry and then its head (release); who takes reads the head (acquire),
 * the entry, and then writes its tail (release). Each side checks the other's counters: at most capacity entries lie
 * between a tail and its head.
 */
#ifndef REQUEST_RING_H
#define REQUEST_RING_H

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define REQUEST_RING_MAGIC "QUELLREQ"
#define REQUEST_RING_VERSION 1u
#define REQUEST_RING_CONTROL_BYTES 4096u
#define REQUEST_RING_CAPACITY_MIN 2u
#define REQUEST_RING_CAPACITY_MAX (1u << 20)
/* A longer service is cut to this. */
#define REQUEST_RING_SERVICE_NS_MAX 1000000000u

/* The states that the server writes. */
#define REQUEST_SERVER_ABSENT 0u
#define REQUEST_SERVER_READY 1u /* it takes requests */
#define REQUEST_SERVER_ENDED 2u /* it takes no more, and has answered what it took */

struct request {
	uint64_t id; /* the client's own, given back */
	uint64_t sent_ns; /* CLOCK_MONOTONIC, given back */
	uint64_t service_ns; /* how much work it is */
	uint64_t reserved;
};

struct response {
	uint64_t id;
	uint64_t sent_ns;
	uint64_t done_ns; /* CLOCK_MONOTONIC, when its work was done */
	uint32_t preempted; /* how often it was */
	uint32_t reserved;
};

struct request_ring {
	/* Written by the client before the server starts. */
	char magic[8];
	uint32_t version;
	uint32_t capacity; /* of each ring: a power of two */
	uint8_t line0[48];
	uint64_t request_head; /* client */
	uint8_t line1[56];
	uint64_t request_tail; /* server */
	uint8_t line2[56];
	uint64_t response_head; /* server */
	uint8_t line3[56];
	uint64_t response_tail; /* client */
	uint8_t line4[56];
	uint32_t closing; /* client: 1: no more requests will come, the server may end when it has answered them */
	uint8_t line5[60];
	uint32_t server; /* server: REQUEST_SERVER_* */
	uint8_t line6[60];
	uint8_t unused[REQUEST_RING_CONTROL_BYTES - 7 * 64];
};

_Static_assert(sizeof(struct request) == 32, "a request is half a cache line");
_Static_assert(sizeof(struct response) == 32, "a response is half a cache line");
_Static_assert(sizeof(struct request_ring) == REQUEST_RING_CONTROL_BYTES, "the control is a page");
_Static_assert(offsetof(struct request_ring, request_head) == 64, "a line each");
_Static_assert(offsetof(struct request_ring, request_tail) == 128, "a line each");
_Static_assert(offsetof(struct request_ring, response_head) == 192, "a line each");
_Static_assert(offsetof(struct request_ring, response_tail) == 256, "a line each");
_Static_assert(offsetof(struct request_ring, closing) == 320, "a line each");
_Static_assert(offsetof(struct request_ring, server) == 384, "a line each");

/* The length of the file. */
static inline size_t request_ring_bytes(uint32_t capacity)
{
	return REQUEST_RING_CONTROL_BYTES + (size_t)capacity * (sizeof(struct request) + sizeof(struct response));
}

/* What is wrong with a page of control that begins a file of so many bytes; NULL: nothing. */
static inline const char *request_ring_flaw(const struct request_ring *ring, uint64_t bytes)
{
	if (bytes < sizeof(*ring))
		return "it is shorter than a page";
	if (memcmp(ring->magic, REQUEST_RING_MAGIC, sizeof(ring->magic)) != 0)
		return "it is no ring of requests";
	if (ring->version != REQUEST_RING_VERSION)
		return "its version is another one";
	if (ring->capacity < REQUEST_RING_CAPACITY_MIN || ring->capacity > REQUEST_RING_CAPACITY_MAX ||
	    (ring->capacity & (ring->capacity - 1)) != 0)
		return "its capacity is no power of two from 2 to 1048576";
	if (bytes < request_ring_bytes(ring->capacity))
		return "it is shorter than its rings";
	return NULL;
}

static inline struct request *request_ring_requests(struct request_ring *ring)
{
	return (struct request *)((char *)ring + REQUEST_RING_CONTROL_BYTES);
}

static inline struct response *request_ring_responses(struct request_ring *ring, uint32_t capacity)
{
	return (struct response *)(request_ring_requests(ring) + capacity);
}

/* ---- The server's end. ---- */

/* Its own counters are kept here: what a client scribbles over them in the file changes nothing. */
struct request_ring_end {
	struct request_ring *ring;
	uint32_t capacity;
	uint64_t request_tail, response_head;
};

/* Maps the file. NULL, or what is wrong with it. */
static inline const char *request_ring_open(struct request_ring_end *end, const char *path)
{
	struct request_ring head;
	struct stat found;
	const char *flaw = NULL;
	int file = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);

	if (file < 0)
		return strerror(errno);
	memset(&head, 0, sizeof(head));
	if (fstat(file, &found) < 0 || pread(file, &head, sizeof(head), 0) < 0)
		flaw = strerror(errno);
	else
		flaw = request_ring_flaw(&head, (uint64_t)found.st_size);
	if (!flaw) {
		end->capacity = head.capacity;
		end->request_tail = head.request_tail;
		end->response_head = head.response_head;
		end->ring = (struct request_ring *)mmap(NULL, request_ring_bytes(head.capacity), PROT_READ | PROT_WRITE,
							MAP_SHARED, file, 0);
		if (end->ring == MAP_FAILED)
			flaw = strerror(errno);
	}
	close(file);
	return flaw;
}

/* Whether a request waits whose response will have room beside those of as many that were taken: 1 or 0. -1 with EPROTO: the
 * client broke the ring. */
static inline int request_ring_waits(const struct request_ring_end *end, uint64_t in_work)
{
	uint64_t waiting = __atomic_load_n(&end->ring->request_head, __ATOMIC_ACQUIRE) - end->request_tail;
	uint64_t unread = end->response_head - __atomic_load_n(&end->ring->response_tail, __ATOMIC_ACQUIRE);

	if (waiting > end->capacity || unread > end->capacity) {
		errno = EPROTO;
		return -1;
	}
	return waiting && unread + in_work < end->capacity;
}

/* Takes the request that waits. */
static inline void request_ring_take(struct request_ring_end *end, struct request *request)
{
	*request = request_ring_requests(end->ring)[end->request_tail & (end->capacity - 1)];
	__atomic_store_n(&end->ring->request_tail, ++end->request_tail, __ATOMIC_RELEASE);
}

/* Puts a response, for which there is room. */
static inline void request_ring_respond(struct request_ring_end *end, const struct response *response)
{
	request_ring_responses(end->ring, end->capacity)[end->response_head & (end->capacity - 1)] = *response;
	__atomic_store_n(&end->ring->response_head, ++end->response_head, __ATOMIC_RELEASE);
}

/* Whether no request will come any more, and all were taken. */
static inline int request_ring_is_closed(const struct request_ring_end *end)
{
	return __atomic_load_n(&end->ring->closing, __ATOMIC_ACQUIRE) &&
	       __atomic_load_n(&end->ring->request_head, __ATOMIC_ACQUIRE) == end->request_tail;
}

/* Tells the client how the server is: REQUEST_SERVER_*. */
static inline void request_ring_tell(struct request_ring_end *end, uint32_t state)
{
	__atomic_store_n(&end->ring->server, state, __ATOMIC_RELEASE);
}

#endif /* REQUEST_RING_H */
