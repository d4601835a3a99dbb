// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0
/* The start of a benchmark: run over live frames (BPF_PROG_TEST_RUN), it
 * redirects each to a device of the source namespace.
 *
 * The kernel uses a frame again when the far end has freed it, with whatever
 * a node wrote into it. So every run writes the headers anew.
 *
 * Unpaced, it sends as fast as it is run. Paced, it drops runs until the next
 * frame is due: a spinning clock, which keeps a rate without system calls. A
 * run may wait a little for its frame to be due: then there are fewer runs in a
 * second, and what is left of them when it is stopped is soon over. But frames
 * go out together, after 64 runs: what is to leave at its time must not wait. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/udp.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include "stamp.h"

#define PORT_FIRST 1024		/* L4 ports below belong to system services */
#define PORT_MASK 0x3fff
#define READINGS_MAX 32		/* of the clock in a run that waits: some 0.7 us */
#define CATCH_UP_MAX 256	/* frames: the node's work in between must not lower the rate */

/* Ethernet, IPv4 and UDP without its checksum: 40 bytes, as words. */
struct headers {
	__u64 words[5];
};

struct settings {
	__u64 stopped;		/* nonzero: drop all, so that the call ends soon */
	__u64 interval_ns;	/* between two frames; 0: no pace */
};

struct headers headers;		/* set before loading */
const volatile __u32 flows = 1;	/* destinations to walk through: a power of two */
const volatile __u32 stride = 1;	/* from one destination to the next: odd, so that none is left out */
const volatile __u32 train;	/* so many frames in a row go to one destination: a power of two, as its logarithm */
const volatile __u32 waits;	/* whether runs wait for their frames to be due */
const volatile __u32 stamp_at;	/* where in the frame its stamp goes; 0: it has none */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct settings);
} settings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} device SEC(".maps");

/* What frames carry that must not be the same twice: several datagrams in a slot, one after the
 * other. */
#define SLOT_LENGTH 2400

struct slot {
	__u8 bytes[SLOT_LENGTH];
};

const volatile __u32 datagram_length;	/* of each; 0: frames carry what they were given */
const volatile __u32 datagrams_per_slot = 1;
const volatile __u32 datagrams_count;	/* behind the last one nothing is sent */
const volatile __u32 datagrams_again;	/* or else the first one again */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct slot);
} datagrams SEC(".maps");

/* One generator runs on one CPU: the counter needs no other. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} sent SEC(".maps");

static __u64 due_ns;

/* RFC 1624, equation 3, for the low half of an address. */
static __always_inline __sum16 checksum_after(__sum16 old, __be16 before, __be16 after)
{
	__u32 sum = (__u16)~old + (__u32)(__u16)~before + after;

	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return (__u16)~sum;
}

/* Another destination address and source port for each flow, at most 65,536. */
static __always_inline void vary(struct iphdr *ip, struct udphdr *udp, __u32 flow)
{
	__be16 *low = (__be16 *)&ip->daddr + 1;
	__be16 other = *low ^ bpf_htons(flow);

	ip->check = checksum_after(ip->check, *low, other);
	*low = other;
	udp->source = bpf_htons(PORT_FIRST + (flow & PORT_MASK));
}

/* Gives the frame the datagram of this number; nonzero when there is none. */
static __always_inline int carry(struct xdp_md *ctx, __u64 number)
{
	if (datagrams_again)
		number %= datagrams_count;
	__u32 slot_number = number / datagrams_per_slot;
	__u32 at = number % datagrams_per_slot * datagram_length;
	struct slot *slot = bpf_map_lookup_elem(&datagrams, &slot_number);

	if (!slot || number >= datagrams_count || at > SLOT_LENGTH - datagram_length)
		return 1;
	return bpf_xdp_store_bytes(ctx, sizeof(struct ethhdr) + sizeof(struct iphdr) +
				   sizeof(struct udphdr), slot->bytes + at, datagram_length);
}

static __always_inline int is_due(__u64 interval_ns)
{
	__u64 now = bpf_ktime_get_ns();

	for (int reading = 1; waits && now < due_ns && reading < READINGS_MAX; reading++)
		now = bpf_ktime_get_ns();
	if (now < due_ns)
		return 0;
	if (due_ns + CATCH_UP_MAX * interval_ns < now)
		due_ns = now - CATCH_UP_MAX * interval_ns;
	due_ns += interval_ns;
	return 1;
}

SEC("xdp")
int generate(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct iphdr *ip = data + sizeof(struct ethhdr);
	struct udphdr *udp = (void *)(ip + 1);
	__u32 zero = 0;
	struct settings *now = bpf_map_lookup_elem(&settings, &zero);
	__u64 *counter = bpf_map_lookup_elem(&sent, &zero);

	if (!now || !counter || (void *)(udp + 1) > end)
		return XDP_ABORTED;
	if (*(volatile __u64 *)&now->stopped)
		return XDP_DROP;
	if (now->interval_ns && !is_due(now->interval_ns))
		return XDP_DROP;
	__builtin_memcpy(data, &headers, sizeof(headers));
	if (datagram_length && carry(ctx, *counter))
		return XDP_DROP;
	/* Writing through the kernel has made it forget what is known of the packet. */
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	ip = data + sizeof(struct ethhdr);
	udp = (void *)(ip + 1);
	if ((void *)(udp + 1) > end)
		return XDP_ABORTED;
	if (flows > 1)
		vary(ip, udp, (__u32)(*counter >> (train & 31)) * stride & (flows - 1) & 0xffff);
	if (stamp_at) {
		struct stamp *stamp = data + stamp_at;

		if ((void *)(stamp + 1) > end)
			return XDP_ABORTED;
		stamp->magic = STAMP_MAGIC;
		stamp->number = *counter;
		stamp->sent_ns = bpf_ktime_get_ns();
	}
	++*counter;
	return bpf_redirect_map(&device, 0, XDP_DROP);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
