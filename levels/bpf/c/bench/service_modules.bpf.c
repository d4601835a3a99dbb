// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0
/* Stand-ins for modules' programs in the front door's tests: they write the script's
 * result into the hand-over and end with tam_after. */
#include <linux/pkt_cls.h>
#include <linux/udp.h>

#include "tam_bpf.h"
#include "tam_maps.h"

struct script {
	__u32 verdict;
	__u32 trapped;
	__s32 head;		/* argument of bpf_xdp_adjust_head() */
	__be16 ethertype_be;	/* written into the frame when not 0 */
	__u16 ttl;		/* the same, plus 1 */
	__u32 growth;		/* enum growth; at tc only */
	__u32 fuel;		/* fuel to use */
	__u32 source_be;	/* new source when not 0: of IPv4 the address, of IPv6 its last 4 bytes, */
	__be16 source_port_be;	/* and the UDP port that goes with it */
	__u16 zero;
	__u32 destination_be;	/* new destination, in the same way */
	__be16 destination_port_be;
	__u16 zero_end;
};

enum growth {
	GROWTH_NONE,
	GROWTH_TAG,		/* a VLAN tag with the identifier 7 */
	GROWTH_TUNNEL,		/* an IPv4 header in front of the one that is there */
	GROWTH_TAIL,		/* 8 bytes */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct script);
} script SEC(".maps");

/* Memory that two CPUs at once would corrupt. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} memory SEC(".maps");

/* Entry of the service, set before loading. */
const volatile __u32 own_entry = 0;

struct tam_hand_over tam_hand_overs[TAM_MODULES_MAX] SEC(".data.hand_overs");

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} tam_after SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} tam_after_tc SEC(".maps");

static __always_inline void leave(__u32 verdict, __u32 trapped, __u32 fuel)
{
	struct tam_hand_over *hand_over = &tam_hand_overs[own_entry & (TAM_MODULES_MAX - 1)];

	hand_over->verdict = verdict;
	hand_over->trapped = trapped;
	hand_over->fuel_used += fuel;
}

/* Updates a checksum for a changed word and port (RFC 1624). */
static __always_inline void follow(__u16 *check, __u32 old, __u32 new, __u32 old_port, __u32 new_port)
{
	__u32 sum = (__u16)~*check;

	sum += (~old & 0xffff) + (~old >> 16) + (new & 0xffff) + (new >> 16);
	sum += (__u16)~old_port + (__u16)new_port;
	sum = (sum & 0xffff) + (sum >> 16);
	*check = ~((sum & 0xffff) + (sum >> 16));
}

/* Gives a UDP packet another source, or another destination. */
static __always_inline void translate(__u32 address_be, __be16 port_be, int is_destination, void *data,
				      void *data_end)
{
	struct ethhdr *eth = data;
	struct iphdr *ip = (void *)(eth + 1);
	int is_v4 = eth->h_proto == bpf_htons(ETH_P_IP);
	__u32 *address = is_v4 ? &ip->saddr : data + sizeof(*eth) + 20;
	struct udphdr *udp = data + sizeof(*eth) + (is_v4 ? 20 : 40);
	__be16 *port = is_destination ? &udp->dest : &udp->source;
	__u32 old;

	if ((void *)(udp + 1) > data_end)
		return;
	if (is_destination)
		address += is_v4 ? 1 : 4;
	old = *address;
	follow(&udp->check, old, address_be, *port, port_be);
	if (is_v4)
		follow(&ip->check, old, address_be, 0, 0);
	*address = address_be;
	*port = port_be;
}

static __always_inline void change(const struct script *script, void *data, void *data_end)
{
	struct ethhdr *eth = data;
	struct iphdr *ip = (void *)(eth + 1);

	if ((void *)(ip + 1) > data_end)
		return;
	if (script->ethertype_be)
		eth->h_proto = script->ethertype_be;
	if (script->ttl)
		ip->ttl = script->ttl - 1;
	if (script->source_be)
		translate(script->source_be, script->source_port_be, 0, data, data_end);
	if (script->destination_be)
		translate(script->destination_be, script->destination_port_be, 1, data, data_end);
}

static __always_inline void grow(struct __sk_buff *ctx, __u32 growth)
{
	__u8 macs[2 * ETH_ALEN];
	struct vlan_header tag = { .tci_be = bpf_htons(ETH_P_8021Q), .ethertype_be = bpf_htons(7) };
	struct iphdr outer = {
		.version = 4, .ihl = 5, .ttl = 30, .protocol = IPPROTO_IPIP,
		.tot_len = bpf_htons(ctx->len - sizeof(struct ethhdr) + sizeof(outer)),
		.saddr = bpf_htonl(0x0a000001), .daddr = bpf_htonl(0xcb00714d),
	};
	__u32 bytes = growth == GROWTH_TAG ? sizeof(tag) : sizeof(outer);

	if (growth == GROWTH_TAIL)
		bpf_skb_change_tail(ctx, ctx->len + 8, 0);
	if (growth == GROWTH_NONE || growth == GROWTH_TAIL)
		return;
	__u32 sum = bpf_csum_diff(0, 0, (void *)&outer, sizeof(outer), 0);

	sum = (sum & 0xffff) + (sum >> 16);
	outer.check = ~((sum & 0xffff) + (sum >> 16));
	if (bpf_skb_load_bytes(ctx, 0, macs, sizeof(macs)) || bpf_skb_change_head(ctx, bytes, 0))
		return;
	bpf_skb_store_bytes(ctx, 0, macs, sizeof(macs), 0);
	if (growth == GROWTH_TAG) {
		bpf_skb_store_bytes(ctx, sizeof(macs), &tag, sizeof(tag), 0);
	} else {
		__be16 type = bpf_htons(ETH_P_IP);

		bpf_skb_store_bytes(ctx, sizeof(macs), &type, sizeof(type), 0);
		bpf_skb_store_bytes(ctx, sizeof(struct ethhdr), &outer, sizeof(outer), 0);
	}
}

SEC("tcx/ingress")
int scripted_tc(struct __sk_buff *ctx)
{
	__u32 zero = 0;
	struct script *says = bpf_map_lookup_elem(&script, &zero);

	if (!says)
		return TC_ACT_SHOT;
	leave(says->verdict, says->trapped, says->fuel);
	change(says, (void *)(long)ctx->data, (void *)(long)ctx->data_end);
	grow(ctx, says->growth);
	bpf_tail_call_static(ctx, &tam_after_tc, 0);
	return TC_ACT_SHOT;
}

SEC("xdp.frags")
int scripted(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct script *says = bpf_map_lookup_elem(&script, &zero);

	if (!says)
		return XDP_ABORTED;
	leave(says->verdict, says->trapped, says->fuel);
	if (!says->head || !bpf_xdp_adjust_head(ctx, says->head))
		change(says, (void *)(long)ctx->data, (void *)(long)ctx->data_end);
	bpf_tail_call_static(ctx, &tam_after, 0);
	return XDP_ABORTED;
}

/* Counts its packets non-atomically, so that some are lost when two CPUs count at once,
 * and drops them. */
SEC("xdp.frags")
int counting(struct xdp_md *ctx)
{
	__u32 zero = 0;
	volatile __u64 *count = bpf_map_lookup_elem(&memory, &zero);

	if (!count)
		return XDP_ABORTED;

	__u64 before = *count;

	for (int i = 0; i < 200; i++)
		*count = before;
	*count = before + 1;
	leave(1, 0, 0);
	bpf_tail_call_static(ctx, &tam_after, 0);
	return XDP_ABORTED;
}

/* Drops each packet with its TTL as the reason. */
SEC("xdp.frags")
int telling(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	struct iphdr *ip = data + sizeof(struct ethhdr);

	leave(0, 1, 0);
	if ((void *)(ip + 1) <= data_end)
		leave(1 | (__u32)ip->ttl << 16, 0, 0);
	bpf_tail_call_static(ctx, &tam_after, 0);
	return XDP_ABORTED;
}

/* Smallest possible program: the overhead of a packet beside its module. */
SEC("xdp.frags")
int dropping(struct xdp_md *ctx)
{
	leave(1, 0, 0);
	bpf_tail_call_static(ctx, &tam_after, 0);
	return XDP_ABORTED;
}

/* Metadata for tc in place of XDP's, true or false. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tam_meta);
} marked SEC(".maps");

SEC("xdp.frags")
int marking(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct tam_meta *says = bpf_map_lookup_elem(&marked, &zero), *meta;

	if (!says || bpf_xdp_adjust_meta(ctx, -(int)sizeof(*meta)))
		return XDP_ABORTED;
	meta = (void *)(long)ctx->data_meta;
	if ((void *)(meta + 1) > (void *)(long)ctx->data)
		return XDP_ABORTED;
	*meta = *says;
	return XDP_PASS;
}

/* Program for the other end of a port: with any program there a veth takes redirected
 * frames. */
SEC("xdp.frags")
int passing(struct xdp_md *ctx)
{
	(void)ctx;
	return XDP_PASS;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
