/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0 */
/* Taps of a capture: hook macros where the front door has space for them.
 *
 *   TAP_ARRIVAL --> TAP_RULE --> TAP_LEAVES --> TAP_OUTCOME --> TAP_END
 *   record the frame on arrival, its rule, its egress port and its outcome, and write two records:
 *   the frame on arrival and, when it leaves here, as it leaves
 *
 *   TAP_VERDICT --> TAP_LEAVES --> TAP_AFTER_NIC, TAP_AFTER_TC
 *   record a frame behind a module: as it leaves, or as the module left a dropped one.
 *   At tc it leaves by the stack's egress on the same CPU directly afterwards, and is captured there.
 *   One that waits for its session's share is captured in the cell.
 *
 * Intermediate state is per CPU: one CPU handles one packet at a time from begin to end.
 *
 */
#ifndef TAM_TAP_H
#define TAM_TAP_H

#ifndef TAM_TAPPED

#define TAP_ARRIVAL(ctx)
#define TAP_RULE(flow)
#define TAP_LEAVES(port)
#define TAP_OUTCOME(outcome)
#define TAP_END(ctx, action)
#define TAP_VERDICT(level, meta, verdict, trapped)
#define TAP_WAITS(meta)
#define TAP_AFTER_NIC(ctx, action)
#define TAP_AFTER_TC(ctx, action)

#else

#include "capture.h"
#include "context.h"
#include "tap_ring.h"

/* Continue with the next program at egress (TCX_NEXT of newer headers). */
#define TAP_NEXT -1

/* Set before loading. */
const volatile __u32 tap_port = 0;
const volatile __u32 tap_arriving = 1;
const volatile __u32 tap_leaving = 1;
const volatile __u32 tap_dropped_only = 0;

/* Copies the frame as it is now. */
static __always_inline void tap_read(void *ctx, enum tam_level level, struct tap_scratch *scratch,
				     __u8 way)
{
	struct __sk_buff *skb = ctx;
	__u32 length = frame_length(ctx, level);
	__u32 captured = length < tap_snap ? length : tap_snap;
	long failed;

	scratch->head.time_ns = bpf_ktime_get_ns();
	scratch->head.length = length;
	scratch->head.way = way;
	scratch->head.tagged = 0;
	if (level == TAM_LEVEL_KERNEL && skb->vlan_present) {
		scratch->head.tagged = 1;
		scratch->head.tci = skb->vlan_tci;
		scratch->head.tpid_be = skb->vlan_proto;
	}
	scratch->head.captured = 0;
	if (captured > TAM_SNAP_MAX)
		captured = TAM_SNAP_MAX;
	if (!captured)
		return;
	failed = level == TAM_LEVEL_NIC ? bpf_xdp_load_bytes(ctx, 0, scratch->bytes, captured)
					: bpf_skb_load_bytes(ctx, 0, scratch->bytes, captured);
	if (!failed)
		scratch->head.captured = captured;
}

static __noinline int tap_arrival(tam_context *ctx)
{
	struct tap_scratch *came = tap_scratch(TAP_CAME), *goes = tap_scratch(TAP_GOES),
			   *egress = tap_scratch(TAP_EGRESS);

	if (!came || !goes || !egress)
		return 0;
	tap_begin(came, tap_port);
	tap_begin(goes, TAP_NO_PORT);
	/* State of a packet that did not get there. */
	tap_begin(egress, TAP_NO_PORT);
	tap_read(ctx, TAM_LEVEL_DOOR, came, TAM_ARRIVED);
	return 0;
}

static __noinline int tap_rule(__u32 rule, __u32 session, __u32 entry)
{
	struct tap_scratch *scratch = tap_scratch(TAP_CAME);

	if (!scratch)
		return 0;
	scratch->head.rule = rule == TAM_RULE_NONE ? 0xffffffff : rule;
	scratch->head.session = session;
	scratch->head.entry = entry;
	return 0;
}

#ifndef TAM_AT_TC
static __noinline int tap_leaves(__u32 port)
{
	struct tap_scratch *scratch = tap_scratch(TAP_GOES);

	if (scratch)
		scratch->head.port = port;
	return 0;
}
#endif

static __noinline int tap_outcome(__u32 outcome)
{
	struct tap_scratch *scratch = tap_scratch(TAP_CAME);

	if (scratch)
		scratch->head.outcome = outcome;
	return 0;
}

static __noinline int tap_end(tam_context *ctx, __u32 action)
{
	struct tap_scratch *came = tap_scratch(TAP_CAME), *goes = tap_scratch(TAP_GOES);
	int dropped;

	/* The packet goes on to a module. */
	if (action == TAM_RUN)
		action = XDP_PASS;
	dropped = action != XDP_PASS && action != XDP_TX && action != XDP_REDIRECT;
	if (!came || !goes || (tap_dropped_only && !dropped))
		return 0;
	came->head.action = action;
	if (tap_arriving)
		tap_put(came);
	/* Packets to the cell leave later, from there; those to a module below, from
	 * there. */
	if (!tap_leaving || action != XDP_REDIRECT || goes->head.port == TAP_NO_PORT)
		return 0;
	tap_read(ctx, TAM_LEVEL_DOOR, goes, TAM_LEFT);
	goes->head.outcome = came->head.outcome;
	goes->head.action = action;
	goes->head.rule = came->head.rule;
	goes->head.session = came->head.session;
	goes->head.entry = came->head.entry;
	tap_put(goes);
	return 0;
}

#ifndef TAM_AT_TC
/* Records the verdict of the last module that handled the packet. */
static __noinline int tap_verdict(enum tam_level level, const struct tam_meta *meta, __u32 session,
				  __u32 verdict, __u32 trapped)
{
	struct tap_scratch *came = tap_scratch(TAP_CAME), *goes = tap_scratch(TAP_GOES);

	if (!came || !goes || !meta)
		return 0;
	came->head.port = meta->arrival_port;
	tap_begin(goes, TAP_NO_PORT);
	goes->head.level = level;
	goes->head.verdict = verdict;
	goes->head.trapped = trapped;
	goes->head.entry = meta->entry;
	goes->head.rule = meta->rule == TAM_RULE_NONE ? 0xffffffff : meta->rule;
	goes->head.session = session;
	return 0;
}

/* The packet leaves later, from the cell, which reports the verdict. */
static __always_inline void tap_waits(struct tam_meta *meta)
{
	struct tap_scratch *goes = tap_scratch(TAP_GOES);

	if (goes)
		__builtin_memcpy(meta->then, &goes->head.verdict, sizeof(meta->then));
}

/* Records a packet that ends, or leaves by a port; one that goes to the stack or up is
 * seen there. */
static __always_inline int tap_after(void *ctx, enum tam_level level, int action)
{
	struct tap_scratch *came = tap_scratch(TAP_CAME), *goes = tap_scratch(TAP_GOES),
			   *egress = tap_scratch(TAP_EGRESS);

	if (!came || !goes || !egress)
		return 0;
	if (action == dropped(level)) {
		goes->head.port = came->head.port;
		tap_read(ctx, level, goes, TAM_ENDED);
		if (tap_arriving)
			tap_put(goes);
		return 0;
	}
	if (!tap_leaving || goes->head.port == TAP_NO_PORT)
		return 0;
	if (level == TAM_LEVEL_KERNEL) {
		egress->head = goes->head;
		return 0;
	}
	/* There was no device, and the stack gets the packet. */
	if (action == XDP_PASS)
		return 0;
	tap_read(ctx, level, goes, TAM_LEFT);
	tap_put(goes);
	return 0;
}

static __noinline int tap_after_nic(struct xdp_md *ctx, int action)
{
	return tap_after(ctx, TAM_LEVEL_NIC, action);
}

static __noinline int tap_after_tc(struct __sk_buff *ctx, int action)
{
	return tap_after(ctx, TAM_LEVEL_KERNEL, action);
}
#endif

static __always_inline int tap_egress(struct __sk_buff *skb)
{
	struct tap_scratch *scratch = tap_scratch(TAP_EGRESS);

	if (!scratch)
		return TAP_NEXT;
	/* Otherwise the packet does not come from a module that sent it out of here just
	 * now, on this CPU: the scratch may be of another port, or still all zeros. */
	if (scratch->head.level != TAM_LEVEL_KERNEL || scratch->head.port != tap_port)
		tap_begin(scratch, tap_port);
	tap_read(skb, TAM_LEVEL_KERNEL, scratch, TAM_LEFT_KERNEL);
	tap_put(scratch);
	tap_begin(scratch, TAP_NO_PORT);
	return TAP_NEXT;
}

#define TAP_ARRIVAL(ctx) tap_arrival(ctx)
#define TAP_RULE(flow) \
	tap_rule((flow)->meta.rule, session_of((flow)->meta.rule), (flow)->meta.entry)
#define TAP_LEAVES(port) tap_leaves(port)
#define TAP_OUTCOME(outcome) tap_outcome(outcome)
#define TAP_END(ctx, action) tap_end(ctx, action)
#define TAP_VERDICT(level, meta, verdict, trapped) \
	tap_verdict(level, meta, session_of((meta)->rule), verdict, trapped)
#define TAP_WAITS(meta) tap_waits(meta)
#define TAP_AFTER_NIC(ctx, action) tap_after_nic(ctx, action)
#define TAP_AFTER_TC(ctx, action) tap_after_tc(ctx, action)

#endif
#endif
