// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0
/* What a module's program looks like to the front door, for its tests: it leaves
 * what the script says in the hand-over and ends with tam_after. */
#include "tam_bpf.h"
#include "tam_maps.h"

struct script {
	__u32 verdict;
	__u32 trapped;
	__s32 head;		/* bpf_xdp_adjust_head() */
	__be16 ethertype_be;	/* written into the frame when not 0 */
	__u16 ttl;		/* the same, plus 1 */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct script);
} script SEC(".maps");

/* A memory that is spoilt when two CPUs are in it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} memory SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tam_hand_over);
} tam_hand_over SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} tam_after SEC(".maps");

static __always_inline void change(struct xdp_md *ctx, const struct script *script)
{
	if (script->head && bpf_xdp_adjust_head(ctx, script->head))
		return;

	void *data = (void *)(long)ctx->data;
	struct ethhdr *eth = data;
	struct iphdr *ip = (void *)(eth + 1);

	if ((void *)(ip + 1) > (void *)(long)ctx->data_end)
		return;
	if (script->ethertype_be)
		eth->h_proto = script->ethertype_be;
	if (script->ttl)
		ip->ttl = script->ttl - 1;
}

SEC("xdp.frags")
int scripted(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct script *says = bpf_map_lookup_elem(&script, &zero);
	struct tam_hand_over *hand_over = bpf_map_lookup_elem(&tam_hand_over, &zero);

	if (!says || !hand_over)
		return XDP_ABORTED;
	hand_over->verdict = says->verdict;
	hand_over->trapped = says->trapped;
	change(ctx, says);
	bpf_tail_call_static(ctx, &tam_after, 0);
	return XDP_ABORTED;
}

/* Counts its packets in a way that loses some when two CPUs count at once, and drops them. */
SEC("xdp.frags")
int counting(struct xdp_md *ctx)
{
	__u32 zero = 0;
	volatile __u64 *count = bpf_map_lookup_elem(&memory, &zero);
	struct tam_hand_over *hand_over = bpf_map_lookup_elem(&tam_hand_over, &zero);

	if (!count || !hand_over)
		return XDP_ABORTED;

	__u64 before = *count;

	for (int i = 0; i < 200; i++)
		*count = before;
	*count = before + 1;
	hand_over->verdict = 1;
	hand_over->trapped = 0;
	bpf_tail_call_static(ctx, &tam_after, 0);
	return XDP_ABORTED;
}

/* The least there can be: what a packet costs beside its module. */
SEC("xdp.frags")
int dropping(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct tam_hand_over *hand_over = bpf_map_lookup_elem(&tam_hand_over, &zero);

	if (!hand_over)
		return XDP_ABORTED;
	hand_over->verdict = 1;
	hand_over->trapped = 0;
	bpf_tail_call_static(ctx, &tam_after, 0);
	return XDP_ABORTED;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
