// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0
/* Source of a benchmark: run over live frames (BPF_PROG_TEST_RUN), it redirects each to a
 * device of the source namespace.
 *
 * The kernel reuses a frame when the far end has freed it, with whatever a node wrote
 * into it. So every run writes the headers anew.
 *
 * Unpaced, it sends as fast as it is run. Paced, it drops runs until the next frame is
 * due: a spinning clock, which keeps a rate without system calls. A run may wait a little
 * for its frame to be due: then there are fewer runs in a second, and the remaining ones
 * of a stopped call end soon. But frames are sent in batches, after 64 runs: a frame that
 * must leave exactly on time must not wait. */
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
#define CATCH_UP_MAX 256	/* frames: a busy node in between must not lower the rate */

/* Ethernet, IPv4 and UDP without its checksum: 40 bytes, as words. */
struct headers {
	__u64 words[5];
};

struct settings {
	__u64 stopped;		/* nonzero: drop all, so that the call ends soon */
	__u64 interval_ns;	/* between two frames; 0: unpaced */
};

struct headers headers;		/* set before loading */
const volatile __u32 flows = 1;	/* destinations in rotation: a power of two */
const volatile __u32 stride = 1;	/* step between destinations: odd, so that none is left out */
const volatile __u32 train;	/* log2 of the number of consecutive frames to one destination */
const volatile __u32 waits;	/* true if runs wait for their frames to be due */
const volatile __u32 stamp_at;	/* offset of the frame's stamp; 0: no stamp */

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

/* Payloads that must not repeat: each slot holds several datagrams, one after the other. */
#define SLOT_LENGTH 2400

struct slot {
	__u8 bytes[SLOT_LENGTH];
};

const volatile __u32 datagram_length;	/* length of each; 0: frames keep their payload */
const volatile __u32 datagrams_per_slot = 1;
const volatile __u32 datagrams_count;	/* number of datagrams; after the last one nothing is sent */
const volatile __u32 datagrams_again;	/* or else the first one again */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct slot);
} datagrams SEC(".maps");

/* Counter of frames. One generator runs on one CPU: no other is needed. */
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

/* Gives each flow another destination address and source port, at most 65,536. */
static __always_inline void vary(struct iphdr *ip, struct udphdr *udp, __u32 flow)
{
	__be16 *low = (__be16 *)&ip->daddr + 1;
	__be16 other = *low ^ bpf_htons(flow);

	ip->check = checksum_after(ip->check, *low, other);
	*low = other;
	udp->source = bpf_htons(PORT_FIRST + (flow & PORT_MASK));
}

/* Copies the datagram of this number into the frame; returns nonzero when there is none. */
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
	/* Writing through the helper invalidates the packet pointers. */
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
