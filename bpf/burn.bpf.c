// SPDX-License-Identifier: GPL-2.0
/*
 * A socket filter that keeps the softirq which delivers a packet busy: a
 * known cause, for tests of what finds causes.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

#define LOOPS_MAX (1 << 23)

const volatile __u64 burn_ns;

struct __sk_buff;

static long is_over(__u64 turn, __u64 *until)
{
	return bpf_ktime_get_ns() >= *until;
}

SEC("socket")
int burn(struct __sk_buff *packet)
{
	__u64 until = bpf_ktime_get_ns() + burn_ns;

	bpf_loop(LOOPS_MAX, is_over, &until, 0);
	/* Nobody reads it. */
	return 0;
}
