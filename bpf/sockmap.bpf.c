// SPDX-License-Identifier: GPL-2.0
/*
 * TCP connections over loopback whose bytes go from one socket to the other
 * without TCP: a rival of `quell bench net`.
 *
 * Both ends of a connection to `server_ip` enter a map once they are up; what
 * one of them sends is queued at the other. A cgroup with the first program
 * and a map with the second end with the process that has loaded them.
 */
#include "kernel.h"
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

/* include/uapi/linux/bpf.h */
#define BPF_MAP_TYPE_SOCKHASH 18
#define BPF_NOEXIST 1
#define BPF_F_INGRESS 1
#define SK_PASS 1
#define ACTIVE_ESTABLISHED 4
#define PASSIVE_ESTABLISHED 5
/* include/linux/socket.h */
#define AF_INET 2

struct bpf_sock_ops {
	__u32 op;
	__u32 args[4];
	__u32 family;
	__u32 remote_ip4;
	__u32 local_ip4;
	__u32 remote_ip6[4];
	__u32 local_ip6[4];
	__u32 remote_port;
	__u32 local_port;
};

struct sk_msg_md {
	__u64 data;
	__u64 data_end;
	__u32 family;
	__u32 remote_ip4;
	__u32 local_ip4;
	__u32 remote_ip6[4];
	__u32 local_ip6[4];
	__u32 remote_port;
	__u32 local_port;
};

/* One end of a connection: addresses as in packets, ports as numbers. */
struct end {
	__u32 own_ip;
	__u32 peer_ip;
	__u32 own_port;
	__u32 peer_port;
};

struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, 4096);
	__type(key, struct end);
	__type(value, __u64);
} ends SEC(".maps");

const volatile __u32 server_ip;

SEC("sockops")
int enter(struct bpf_sock_ops *ops)
{
	struct end end = {};

	if (ops->op != ACTIVE_ESTABLISHED && ops->op != PASSIVE_ESTABLISHED)
		return 1;
	if (ops->family != AF_INET)
		return 1;
	end.own_ip = ops->local_ip4;
	end.peer_ip = ops->remote_ip4;
	if (end.own_ip != server_ip && end.peer_ip != server_ip)
		return 1;
	end.own_port = ops->local_port;
	end.peer_port = bpf_ntohl(ops->remote_port);
	/* A full map: what the other end sends is refused (EACCES), as of a connection that is not complete. */
	bpf_sock_hash_update(ops, &ends, &end, BPF_NOEXIST);
	return 1;
}

SEC("sk_msg")
int pass(struct sk_msg_md *msg)
{
	struct end peer = {};

	peer.own_ip = msg->remote_ip4;
	peer.peer_ip = msg->local_ip4;
	peer.own_port = bpf_ntohl(msg->remote_port);
	peer.peer_port = msg->local_port;
	/*
	 * Both ends are in the map before either can send: the kernel calls the
	 * first program when a handshake is complete. A connection that is not is
	 * refused here (EACCES), rather than that its bytes come out of order.
	 */
	return bpf_msg_redirect_hash(msg, &ends, &peer, BPF_F_INGRESS);
}
