/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0 */
/* Services below user level: from a rule to the module's program.
 *
 *   act() --> to_service(): enter the lane, up or below?
 *               | up: the cell's socket, leave the lane
 *               | below: fill the hand-over, stay in the lane
 *               v
 *             run_module() --tail call--> the module --tail call--> afterwards.h
 *
 * One CPU at a time is in a lane, and so in the module's memory: it holds `busy`
 * from here to afterwards.h. Another CPU waits for it, for a bounded time. The
 * memory goes to the packet's CPU, not the packet to the memory's: a frame that
 * was queued for another CPU (cpumap) has lost the number of its receive queue,
 * and no socket may be given it from there when the module raises it.
 *
 * Where packets go changes only under `busy`, so all CPUs see one order.
 */
#ifndef TAM_SERVICE_H
#define TAM_SERVICE_H

#include "classify.h"

/* Looks at a lane that another CPU is in before the packet is dropped: about
 * 0.2 ms, four times what the least fuel budget takes. */
#define TAM_LANE_PATIENCE 65536

/* What act() returns when a program is to be called: no XDP action. */
#define TAM_RUN 0x100

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, TAM_ENTRIES_MAX);
	__type(key, __u32);
	__type(value, struct tam_lane);
} tam_lanes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tam_hand_over);
} tam_hand_over SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, TAM_MODULES_MAX);
	__type(key, __u32);
	__type(value, __u32);
} tam_modules SEC(".maps");

/* At 0: what modules' programs end with. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} tam_after SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, TAM_ENTRIES_MAX);
	__type(key, __u32);
	__type(value, struct tam_service_stats);
} tam_services SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, TAM_REASONS_MAX);
	__type(key, struct tam_reason_key);
	__type(value, __u64);
} tam_reasons SEC(".maps");

/* What waiting for a lane needs to know. */
struct waiting {
	struct tam_lane *lane;
	__u32 self;
	__u32 entered;
};

/* Reads before it writes, so that the CPU inside keeps its cache line. */
static long try_lane(__u32 turn, struct waiting *waiting)
{
	struct tam_lane *lane = waiting->lane;

	(void)turn;
	if (*(volatile __u32 *)&lane->busy || __sync_val_compare_and_swap(&lane->busy, 0, waiting->self))
		return 0;
	waiting->entered = 1;
	return 1;
}

/* Returns 0 when the lane stays with another CPU for too long. */
static __always_inline int wait_for_lane(struct tam_lane *lane, __u32 self)
{
	struct waiting waiting = { .lane = lane, .self = self };

	bpf_loop(TAM_LANE_PATIENCE, try_lane, &waiting, 0);
	return waiting.entered;
}

/* A full barrier: what the last one in the lane wrote is seen. A CPU that finds
 * itself in the lane left it without saying so: nothing here runs within itself. */
static __always_inline int enter_lane(struct tam_lane *lane)
{
	__u32 self = bpf_get_smp_processor_id() + 1;
	__u32 found = __sync_val_compare_and_swap(&lane->busy, 0, self);

	return !found || found == self || wait_for_lane(lane, self);
}

/* A full barrier: who comes next sees what was written here. */
static __always_inline void leave_lane(struct tam_lane *lane)
{
	__sync_lock_test_and_set(&lane->busy, 0);
}

/* Room for metadata in front of the frame, or none. */
static __always_inline struct tam_meta *meta_in_front(struct xdp_md *ctx)
{
	if (bpf_xdp_adjust_meta(ctx, -(int)sizeof(struct tam_meta)))
		return 0;

	struct tam_meta *meta = (void *)(long)ctx->data_meta;

	return (void *)(meta + 1) > (void *)(long)ctx->data ? 0 : meta;
}

/* Gives a packet to the cell's socket with its metadata in front; returns an XDP
 * action, XDP_REDIRECT when there is a socket. The caller is in the lane. */
static __always_inline int send_up(struct xdp_md *ctx, struct tam_lane *lane,
				   const struct tam_meta *from)
{
	__u32 queue = ctx->rx_queue_index, epoch = *(volatile __u32 *)&lane->epoch;

	lane->level = TAM_LEVEL_USER;
	if (queue >= TAM_QUEUES_MAX)
		return XDP_PASS;

	struct tam_meta *meta = meta_in_front(ctx);

	if (!meta)
		return XDP_DROP;
	*meta = *from;
	meta->flags |= epoch << TAM_META_EPOCH_SHIFT;
	if (bpf_redirect_map(&tam_sockets, from->arrival_port * TAM_QUEUES_MAX + queue, XDP_PASS) !=
	    XDP_REDIRECT)
		return XDP_PASS;
	if (lane->epoch_seen != epoch) {
		lane->epoch_start = lane->sent_up;
		/* The cell reads epoch_start once it sees this. */
		__sync_lock_test_and_set(&lane->epoch_seen, epoch);
	}
	lane->sent_up++;
	return XDP_REDIRECT;
}

/* Whether this packet meets the module below; the caller is in the lane. */
static __always_inline int goes_below(struct tam_lane *lane, __u32 outcome)
{
	if (*(volatile __u32 *)&lane->target != TAM_LEVEL_NIC || outcome == TAM_KERNEL_PARTIAL)
		return 0;
	if (lane->level == TAM_LEVEL_NIC)
		return 1;
	if (*(volatile __u64 *)&lane->left != lane->sent_up)
		return 0;
	/* A full barrier: what the cell wrote before it said that all has left is seen. */
	__sync_lock_test_and_set(&lane->level, TAM_LEVEL_NIC);
	return 1;
}

/* What a subprogram is told of a packet, in one argument: a pointer would keep
 * the whole of it in memory, for every packet. */
static __always_inline __u64 extent_of(const struct packet *packet)
{
	return (__u64)packet->length << 32 | (__u32)packet->l4_offset << 16 | packet->l3_offset;
}

static __always_inline void fill_way(struct tam_meta *meta, const struct tam_flow *flow,
				     __u64 extent, __u32 outcome)
{
	*meta = flow->meta;
	meta->l3_offset = extent;
	meta->l4_offset = extent >> 16;
	if (outcome == TAM_FORWARDED)
		meta->flags |= TAM_META_ROUTED;
}

/* The node's time: milliseconds of CLOCK_MONOTONIC_COARSE, counted on by jiffies,
 * which move with it. No packet reads a clock, the first of a jiffy divides, and
 * all CPUs agree: it never goes back. */
static __always_inline __u64 now_ms(struct tam_hand_over *hand_over)
{
	__u64 now = bpf_jiffies64();

	if (now != hand_over->clock_jiffies) {
		__u32 zero = 0;
		struct tam_config *shared = bpf_map_lookup_elem(&tam_shared, &zero);

		if (shared)
			hand_over->clock_ms = shared->clock_ms + (now - shared->clock_jiffies) *
									 shared->tick_ns / 1000000;
		hand_over->clock_jiffies = now;
	}
	return hand_over->clock_ms;
}

static __always_inline void fill_hand_over(struct tam_hand_over *hand_over,
					   const struct tam_flow *flow, const struct tam_lane *lane,
					   __u64 extent, __u32 outcome)
{
	__u32 length = extent >> 32, window = lane->window;

	hand_over->packet_length = length;
	hand_over->window_length = length < window ? length : window;
	hand_over->l3_offset = extent;
	hand_over->l4_offset = extent >> 16;
	hand_over->begins_with = 1;
	hand_over->ip_version = flow->meta.flags >> 8;
	hand_over->protocol = flow->meta.flags >> 16;
	hand_over->flags = flow->meta.flags >> 1 & 3;	/* TAM_META_FRAGMENT is bit 1 */
	hand_over->port = flow->meta.arrival_port;
	hand_over->session = flow->meta.session;
	hand_over->rule = flow->meta.rule;
	hand_over->flow_hash = flow->meta.flow_hash;
	hand_over->lane = 0;
	hand_over->now_ms = now_ms(hand_over);
	hand_over->mark[0] = 0;
	hand_over->mark[1] = 0;
	hand_over->level = TAM_LEVEL_NIC;
	fill_way(&hand_over->meta, flow, extent, outcome);
	__builtin_memcpy(hand_over->own_mac, flow->own_mac, ETH_ALEN);
	hand_over->mtu = flow->mtu;
	hand_over->length = length;
	hand_over->program = lane->trapped ? TAM_PROGRAM_NONE : lane->program;
}

/* A packet of a service that can run below user level. `outcome` is TAM_FORWARDED
 * when it has a route, else why not. Returns an XDP action, or TAM_RUN. */
static __always_inline int to_service(struct xdp_md *ctx, const struct tam_flow *flow, __u64 extent,
				      __u32 outcome, struct tam_port_stats *stats)
{
	__u32 zero = 0, entry = flow->meta.entry, cpu = bpf_get_smp_processor_id();
	struct tam_lane *lane = bpf_map_lookup_elem(&tam_lanes, &entry);
	struct tam_hand_over *hand_over = bpf_map_lookup_elem(&tam_hand_over, &zero);

	if (!lane || !hand_over)
		return finish(stats, TAM_KERNEL_NO_SOCKET);
	if (!enter_lane(lane))
		return finish(stats, TAM_DROP_LANE);
	if (!goes_below(lane, outcome)) {
		fill_way(&hand_over->meta, flow, extent, outcome);

		int action = send_up(ctx, lane, &hand_over->meta);

		leave_lane(lane);
		finish(stats, action == XDP_REDIRECT ? TAM_TO_USER
			      : action == XDP_DROP   ? TAM_DROP_ADJUST
						     : TAM_KERNEL_NO_SOCKET);
		return action;
	}
	fill_hand_over(hand_over, flow, lane, extent, outcome);
	hand_over->moved = lane->cpu != cpu;
	lane->cpu = cpu;
	lane->ran = 1;
	finish(stats, TAM_TO_NIC);
	return TAM_RUN;
}

/* Calls the module that the hand-over names. A constant index is a patched jump,
 * a fourth of what another costs. Returns only when all is gone. */
static __always_inline int run_module(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct tam_hand_over *hand_over = bpf_map_lookup_elem(&tam_hand_over, &zero);

	if (!hand_over)
		return XDP_DROP;	/* the map has it: not reached */
	switch (hand_over->program) {
	case 0: bpf_tail_call_static(ctx, &tam_modules, 0); break;
	case 1: bpf_tail_call_static(ctx, &tam_modules, 1); break;
	case 2: bpf_tail_call_static(ctx, &tam_modules, 2); break;
	case 3: bpf_tail_call_static(ctx, &tam_modules, 3); break;
	case 4: bpf_tail_call_static(ctx, &tam_modules, 4); break;
	case 5: bpf_tail_call_static(ctx, &tam_modules, 5); break;
	case 6: bpf_tail_call_static(ctx, &tam_modules, 6); break;
	case 7: bpf_tail_call_static(ctx, &tam_modules, 7); break;
	default: bpf_tail_call(ctx, &tam_modules, hand_over->program);
	}
	hand_over->trapped = TAM_NOT_RUN;	/* no such program */
	bpf_tail_call_static(ctx, &tam_after, 0);

	/* A node that is being taken down. */
	__u32 entry = hand_over->meta.entry;
	struct tam_lane *lane = bpf_map_lookup_elem(&tam_lanes, &entry);

	if (lane)
		leave_lane(lane);
	return XDP_PASS;
}

#endif
