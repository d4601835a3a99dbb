/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0 */
/* The taps of a capture, where the front door has room for them.
 *
 *   TAP_ARRIVAL --> TAP_RULE --> TAP_OUTCOME --> TAP_END
 *   keeps the frame as it came, what it matched and where it ended, and gives both away:
 *   the frame as it came and, when it leaves here, the frame as it is then
 *
 * What is kept meanwhile is per CPU: one CPU handles one packet at a time from begin to end.
 */
#ifndef TAM_TAP_H
#define TAM_TAP_H

#ifndef TAM_TAPPED

#define TAP_ARRIVAL(ctx)
#define TAP_RULE(flow)
#define TAP_OUTCOME(outcome)
#define TAP_END(ctx, action)

#else

#include "capture.h"

/* Go on to the next program at egress (TCX_NEXT of newer headers). */
#define TAP_NEXT -1

/* Set before loading. */
const volatile __u32 tap_port = 0;
const volatile __u32 tap_snap = TAM_SNAP_MAX;
const volatile __u32 tap_arriving = 1;
const volatile __u32 tap_leaving = 1;
const volatile __u32 tap_dropped_only = 0;

/* What there was no room for. A section of its own is a map of its own. */
__u64 tap_lost SEC(".data.tap_lost") = 0;

struct tap_scratch {
	struct tam_captured head;
	__u8 bytes[TAM_SNAP_MAX];
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} tam_captured_ring SEC(".maps");

/* 0: as it came; 1: as it leaves; 2: at egress. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 3);
	__type(key, __u32);
	__type(value, struct tap_scratch);
} tam_tap_scratch SEC(".maps");

static __always_inline struct tap_scratch *tap_scratch(__u32 at)
{
	return bpf_map_lookup_elem(&tam_tap_scratch, &at);
}

static __always_inline void tap_put(struct tap_scratch *scratch)
{
	__u32 size = sizeof(scratch->head) + scratch->head.captured;

	if (size > sizeof(*scratch))
		size = sizeof(*scratch);
	if (bpf_ringbuf_output(&tam_captured_ring, scratch, size, 0))
		__sync_fetch_and_add(&tap_lost, 1);
}

static __always_inline void tap_read(struct xdp_md *ctx, struct tap_scratch *scratch, __u8 way)
{
	__u32 length = bpf_xdp_get_buff_len(ctx);
	__u32 captured = length < tap_snap ? length : tap_snap;

	scratch->head.time_ns = bpf_ktime_get_ns();
	scratch->head.length = length;
	scratch->head.port = tap_port;
	scratch->head.way = way;
	scratch->head.tagged = 0;
	scratch->head.captured = 0;
	if (captured > TAM_SNAP_MAX)
		captured = TAM_SNAP_MAX;
	if (captured && !bpf_xdp_load_bytes(ctx, 0, scratch->bytes, captured))
		scratch->head.captured = captured;
}

static __noinline int tap_arrival(struct xdp_md *ctx)
{
	struct tap_scratch *scratch = tap_scratch(0);

	if (!scratch)
		return 0;
	tap_read(ctx, scratch, TAM_ARRIVED);
	scratch->head.outcome = 0xff;
	scratch->head.rule = 0xffffffff;
	scratch->head.session = 0;
	scratch->head.entry = 0;
	return 0;
}

static __noinline int tap_rule(__u32 rule, __u32 session, __u32 entry)
{
	struct tap_scratch *scratch = tap_scratch(0);

	if (!scratch)
		return 0;
	scratch->head.rule = rule == TAM_RULE_NONE ? 0xffffffff : rule;
	scratch->head.session = session;
	scratch->head.entry = entry;
	return 0;
}

static __noinline int tap_outcome(__u32 outcome)
{
	struct tap_scratch *scratch = tap_scratch(0);

	if (scratch)
		scratch->head.outcome = outcome;
	return 0;
}

static __noinline int tap_end(struct xdp_md *ctx, __u32 action)
{
	struct tap_scratch *scratch = tap_scratch(0), *leaves = tap_scratch(1);
	int dropped = action != XDP_PASS && action != XDP_TX && action != XDP_REDIRECT &&
		      action != 0x100;

	if (!scratch || !leaves || (tap_dropped_only && !dropped))
		return 0;
	scratch->head.action = action;
	if (tap_arriving)
		tap_put(scratch);
	/* What goes to the cell leaves later, from there; what runs below, from there. */
	if (!tap_leaving || scratch->head.outcome != TAM_FORWARDED)
		return 0;
	tap_read(ctx, leaves, TAM_LEFT);
	leaves->head.outcome = scratch->head.outcome;
	leaves->head.action = action;
	leaves->head.rule = scratch->head.rule;
	leaves->head.session = scratch->head.session;
	leaves->head.entry = scratch->head.entry;
	tap_put(leaves);
	return 0;
}

static __always_inline int tap_egress(struct __sk_buff *skb)
{
	__u32 length = skb->len;
	__u32 captured = length < tap_snap ? length : tap_snap;
	struct tap_scratch *scratch = tap_scratch(2);

	if (!scratch)
		return TAP_NEXT;
	scratch->head.time_ns = bpf_ktime_get_ns();
	scratch->head.length = length;
	scratch->head.port = tap_port;
	scratch->head.way = TAM_LEFT_KERNEL;
	scratch->head.outcome = 0xff;
	scratch->head.action = 0;
	scratch->head.rule = 0xffffffff;
	scratch->head.tagged = skb->vlan_present ? 1 : 0;
	scratch->head.tci = skb->vlan_tci;
	scratch->head.tpid_be = skb->vlan_proto;
	scratch->head.captured = 0;
	if (captured > TAM_SNAP_MAX)
		captured = TAM_SNAP_MAX;
	if (captured && !bpf_skb_load_bytes(skb, 0, scratch->bytes, captured))
		scratch->head.captured = captured;
	tap_put(scratch);
	return TAP_NEXT;
}

#define TAP_ARRIVAL(ctx) tap_arrival(ctx)
#define TAP_RULE(flow) \
	tap_rule((flow)->meta.rule, session_of((flow)->meta.rule), (flow)->meta.entry)
#define TAP_OUTCOME(outcome) tap_outcome(outcome)
#define TAP_END(ctx, action) tap_end(ctx, action)

#endif
#endif
