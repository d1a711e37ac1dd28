/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Records for a reader that visits the ring by itself, and how many of them
 * found it full.
 */
#ifndef QUELL_RING_H
#define QUELL_RING_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} lost SEC(".maps");

/* A record of zeros; NULL, and counted, where the ring is full. */
static __always_inline void *reserve(void *ring, __u64 size)
{
	void *record = bpf_ringbuf_reserve(ring, size, 0);
	__u32 zero = 0;
	__u64 *count;

	if (record) {
		__builtin_memset(record, 0, size);
		return record;
	}
	count = bpf_map_lookup_elem(&lost, &zero);
	if (count)
		__sync_fetch_and_add(count, 1);
	return NULL;
}

/* Without waking the reader: that would be an event of the scheduler itself. */
static __always_inline void submit(void *record)
{
	bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
}

#endif
