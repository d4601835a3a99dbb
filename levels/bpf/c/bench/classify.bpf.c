// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0
/* Programs of `tam bench classify` beside a node's front door.
 *
 *   test-run ─▶ replay: the next flow's headers into the packet ─ tail call ─▶ measured[0]
 *
 * measured[0] is the front door, or one of the programs below: `empty`, which shows
 * the overhead of the benchmark itself, and two flow tables of plain C, the simplest
 * solution for that many flows and no rules.
 *
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#define FLOWS_MAX (1 << 20)
#define HEADERS 48	/* Ethernet, IPv4, the beginning of L4: in words of 8 bytes */

struct headers {
	__u64 words[HEADERS / 8];
};

/* Flows, in the order in which they are replayed. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, FLOWS_MAX);
	__type(key, __u32);
	__type(value, struct headers);
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} measured SEC(".maps");

/* Position of the next packet: [0] its number, [1] the number of flows, [2] not 0: each
 * packet gets a source address of its own. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64[4]);
} state SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} classify_out SEC(".maps");

struct flow_key {
	__be32 source;
	__be32 destination;
	__be32 ports;
	__u32 protocol;
};

struct flow_value {
	__u8 macs[12];
	__u32 port;
	__u64 packets;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, FLOWS_MAX);
	__type(key, struct flow_key);
	__type(value, struct flow_value);
} flow_table SEC(".maps");

SEC("xdp.frags")
int replay(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 zero = 0, at;
	__u64 *now = bpf_map_lookup_elem(&state, &zero);
	struct headers *headers, *packet = data;

	if (!now || (void *)(packet + 1) > end)
		return XDP_ABORTED;
	at = now[0];
	now[0] = at + 1 < now[1] ? at + 1 : 0;
	headers = bpf_map_lookup_elem(&flows, &at);
	if (!headers)
		return XDP_ABORTED;
	*packet = *headers;
	if (now[2]) {
		/* 10.x.y.z, a different one each time (for 2^24 packets); RFC 1624. */
		__u32 source = (__u32)(++now[3] * 0x9e3779b1) << 8 | 10;
		struct iphdr *ip = data + sizeof(struct ethhdr);
		__u32 before = ~ip->saddr;
		__u32 sum = (__u16)~ip->check + (before & 0xffff) + (before >> 16) +
			    (source & 0xffff) + (source >> 16);

		sum = (sum & 0xffff) + (sum >> 16);
		sum = (sum & 0xffff) + (sum >> 16);
		ip->saddr = source;
		ip->check = ~sum;
	}
	bpf_tail_call_static(ctx, &measured, 0);
	return XDP_ABORTED;
}

SEC("xdp.frags")
int empty(struct xdp_md *ctx)
{
	return XDP_DROP;
}

/* Returns the flow of an IPv4 packet without options, or 0. */
static __always_inline struct flow_value *flow_of(void *data, void *end)
{
	struct ethhdr *eth = data;
	struct iphdr *ip = (void *)(eth + 1);
	__be32 *ports = (void *)(ip + 1);
	struct flow_key key;

	if ((void *)(ports + 1) > end || eth->h_proto != bpf_htons(ETH_P_IP) || ip->ihl != 5 ||
	    ip->frag_off & bpf_htons(0x3fff) || ip->ttl <= 1 ||
	    (ip->protocol != IPPROTO_TCP && ip->protocol != IPPROTO_UDP))
		return 0;
	key.source = ip->saddr;
	key.destination = ip->daddr;
	key.ports = *ports;
	key.protocol = ip->protocol;
	return bpf_map_lookup_elem(&flow_table, &key);
}

/* Looks the flow up and counts, nothing else. */
SEC("xdp.frags")
int look_up(struct xdp_md *ctx)
{
	struct flow_value *flow = flow_of((void *)(long)ctx->data, (void *)(long)ctx->data_end);

	if (!flow)
		return XDP_ABORTED;
	flow->packets++;
	return XDP_DROP;
}

/* Looks the flow up, counts, and forwards by its entry. */
SEC("xdp.frags")
int look_up_and_forward(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct flow_value *flow = flow_of(data, end);
	struct iphdr *ip = data + sizeof(struct ethhdr);
	__u32 check;

	if (!flow || (void *)(ip + 1) > end)
		return XDP_ABORTED;
	flow->packets++;
	check = ip->check + bpf_htons(0x0100);	/* RFC 1141 */
	ip->check = check + (check >= 0xffff);
	ip->ttl--;
	__builtin_memcpy(data, flow->macs, sizeof(flow->macs));
	return bpf_redirect_map(&classify_out, flow->port, XDP_ABORTED);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
