/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0 */
/* Services below user level: from a rule to the module's program.
 *
 *   act() --> to_service(): does the lane rest at user level? the cell's socket
 *               | else enter it; choose the destination
 *               | up: the cell's socket, leave the lane
 *               | tc: its metadata in front, on to the stack, leave the lane; continues in tc.h
 *               | nic: fill the entry's hand-over, stay in the lane
 *               v
 *             run_module() --tail call--> the module --tail call--> verdict.h
 *
 */
#ifndef TAM_SERVICE_H
#define TAM_SERVICE_H

#include "bridge.h"
#include "classify.h"
#include "context.h"
#include "lane.h"
#include "passage.h"
#include "credits.h"


/* A section of its own is a map of its own, of one value: its contents have an address. */
struct tam_hand_over tam_hand_overs[TAM_MODULES_MAX] SEC(".data.hand_overs");

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, TAM_MODULES_MAX);
	__type(key, __u32);
	__type(value, __u32);
} tam_modules SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, TAM_ACCOUNTS_MAX);
	__type(key, __u32);
	__type(value, struct tam_account);
} tam_accounts SEC(".maps");

/* Program at index 0: the end of modules' programs. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} tam_after SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, TAM_MODULES_MAX);
	__type(key, __u32);
	__type(value, struct tam_service_stats);
} tam_services SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, TAM_REASONS_MAX);
	__type(key, struct tam_reason_key);
	__type(value, __u64);
} tam_reasons SEC(".maps");

/* Returns the entry's hand-over, for the CPU in its lane. */
static __always_inline struct tam_hand_over *hand_over_of(__u32 entry)
{
	return &tam_hand_overs[entry & (TAM_MODULES_MAX - 1)];
}

/* Counts a packet for a module, run or not. */
static __always_inline void count_packet(struct tam_service_stats *stats, __u32 bytes)
{
	stats->packets++;
	stats->bytes += bytes;
}

/* Returns the place for metadata in front of the frame, or 0; behind the mark of the
 * module before, if there was one. */
static __always_inline struct tam_meta *meta_in_front(struct xdp_md *ctx,
						      const struct tam_passage *passage)
{
	if (passage && passage->meta.flags & TAM_META_MARK) {
		if (bpf_xdp_adjust_meta(ctx, -(int)sizeof(struct tam_marked)))
			return 0;

		struct tam_marked *marked = (void *)(long)ctx->data_meta;

		if ((void *)(marked + 1) > (void *)(long)ctx->data)
			return 0;
		__builtin_memcpy(marked->mark, passage->mark, sizeof(marked->mark));
		return &marked->meta;
	}
	if (bpf_xdp_adjust_meta(ctx, -(int)sizeof(struct tam_meta)))
		return 0;

	struct tam_meta *meta = (void *)(long)ctx->data_meta;

	return (void *)(meta + 1) > (void *)(long)ctx->data ? 0 : meta;
}

/* Gives a packet to the cell's socket with its metadata in front. Returns an XDP action,
 * XDP_REDIRECT when there is a socket, or TAM_NO_CREDIT. The caller is in the lane. */
static __always_inline int send_up(struct xdp_md *ctx, struct tam_lane *lane,
				   const struct tam_passage *passage)
{
	const struct tam_meta *from = &passage->meta;
	__u32 queue = ctx->rx_queue_index, epoch = epoch_of(lane);

	lane->level = TAM_LEVEL_USER;
	if (queue >= TAM_QUEUES_MAX)
		return XDP_PASS;

	struct tam_meta *meta = meta_in_front(ctx, passage);

	if (!meta)
		return XDP_DROP;
	*meta = *from;
	meta->flags |= epoch << TAM_META_EPOCH_SHIFT;
	if (bpf_redirect_map(&tam_sockets, from->arrival_port * TAM_QUEUES_MAX + queue, XDP_PASS) !=
	    XDP_REDIRECT)
		return XDP_PASS;

	__u32 length = frame_length(ctx, TAM_LEVEL_NIC);
	int counted = take_credit(lane->session, length);

	if (counted < 0) {
		save_head(ctx, TAM_LEVEL_NIC, lane->session, length);
		return TAM_NO_CREDIT;
	}
	meta->flags |= counted;
	count_up(lane, epoch);
	return XDP_REDIRECT;
}

/* Gives a packet to the stack with its metadata in front, for tam_tc. Returns an XDP
 * action, XDP_PASS on success. The caller is in the lane. */
static __always_inline int send_to_tc(struct xdp_md *ctx, struct tam_lane *lane,
				      const struct tam_passage *passage, int whole)
{
	struct tam_meta *meta = meta_in_front(ctx, passage);

	if (!meta)
		return XDP_DROP;
	*meta = passage->meta;
	meta->flags |= lane->tc_epoch << TAM_META_EPOCH_SHIFT | TAM_META_TO_TC |
		       (whole ? 0 : TAM_META_UP);
	count_to_tc(lane);
	return XDP_PASS;
}

/* Returns the node's time: milliseconds of CLOCK_MONOTONIC_COARSE, extrapolated by
 * jiffies, which advance together. No packet reads a clock, the first of a jiffy divides,
 * and all CPUs agree: it never goes back. */
static __always_inline __u64 now_ms(struct tam_passage *passage)
{
	__u64 now = bpf_jiffies64();

	if (now != passage->clock_jiffies) {
		__u32 zero = 0;
		struct tam_config *shared = bpf_map_lookup_elem(&tam_shared, &zero);

		if (shared)
			passage->clock_ms = shared->clock_ms + (now - shared->clock_jiffies) *
								   shared->tick_ns / 1000000;
		passage->clock_jiffies = now;
	}
	return passage->clock_ms;
}

/* Fills an account, which other CPUs use meanwhile, for that many jiffies. */
static __always_inline void fill_account(struct tam_account *account, __u64 jiffies)
{
	__s64 gain, left, over;

	if (jiffies > TAM_FILL_MAX)
		jiffies = TAM_FILL_MAX;
	gain = jiffies * account->per_tick;
	left = __sync_fetch_and_add(&account->left, gain);
	over = left + gain - (__s64)account->full;
	if (over > 0)
		__sync_fetch_and_add(&account->left, -over);
}

/* Fills an account for the elapsed jiffies, at the first packet in a jiffy. */
static __always_inline void fill_for_now(struct tam_account *account)
{
	__u64 now = bpf_jiffies64(), ticked = *(volatile __u64 *)&account->ticked;

	if ((__s64)(now - ticked) > 0 &&
	    __sync_val_compare_and_swap(&account->ticked, ticked, now) == ticked)
		fill_account(account, now - ticked);
}

/* Charges an account for the fuel that the entry's packets have used; returns true if it
 * is empty then. The caller is in the lane. */
static __noinline int is_spent(__u32 number, __u32 entry)
{
	struct tam_account *account = bpf_map_lookup_elem(&tam_accounts, &number);
	struct tam_hand_over *hand_over = hand_over_of(entry);
	__u64 used = hand_over->fuel_used - hand_over->fuel_charged;

	if (!account)
		return 0;
	hand_over->fuel_charged += used;
	if (used)
		__sync_fetch_and_add(&account->left, -(__s64)(used << TAM_FUEL_SHIFT));
	fill_for_now(account);
	return *(volatile __s64 *)&account->left <= 0;
}

/* Fills the hand-over with the module's view of a packet, from `meta`, and the program to
 * call. The caller is in the lane. */
static __always_inline void fill_hand_over(struct tam_passage *passage, const struct tam_meta *meta,
					   struct tam_lane *lane, __u64 extent,
					   enum tam_level level)
{
	__u32 length = extent >> 32, window = lane->window, cpu = bpf_get_smp_processor_id();
	struct tam_hand_over *hand_over = hand_over_of(meta->entry);

	hand_over->packet_length = length;
	hand_over->window_length = length < window ? length : window;
	hand_over->l3_offset = extent;
	hand_over->l4_offset = extent >> 16;
	hand_over->begins_with = 1;
	hand_over->ip_version = meta->flags >> 8;
	hand_over->protocol = meta->flags >> 16;
	hand_over->flags = meta->flags >> 1 & 3;	/* TAM_META_FRAGMENT is bit 1 */
	hand_over->port = meta->arrival_port;
	hand_over->session = lane->session;
	hand_over->rule = meta->rule;
	hand_over->flow_hash = meta->flow_hash;
	hand_over->lane = 0;
	hand_over->now_ms = now_ms(passage);
	hand_over->mark[0] = passage->mark[0];
	hand_over->mark[1] = passage->mark[1];
	hand_over->level = level;
	passage->bytes = length;
	passage->program = lane->program;
	if (lane->trapped)
		passage->program = TAM_PROGRAM_NONE;
	else if (lane->over || (lane->beyond && is_spent(lane->account, meta->entry)))
		passage->program = TAM_PROGRAM_OVER;
	passage->payer = lane->session;
	passage->moved = lane->cpu != cpu;
	lane->cpu = cpu;
	lane->ran = 1;
}

/* Gives a packet to the cell's socket, with its metadata in front. Returns an XDP action,
 * XDP_REDIRECT when there is a socket, or TAM_NO_CREDIT. `counted` is set with the former:
 * to the result of take_credit(). */
static __always_inline int give_to_socket(struct xdp_md *ctx, const struct tam_flow *flow,
					  __u64 extent, __u32 outcome, const struct tam_lane *lane,
					  __u32 epoch, int *counted)
{
	__u32 queue = ctx->rx_queue_index;

	if (queue >= TAM_QUEUES_MAX)
		return XDP_PASS;

	struct tam_meta *meta = meta_in_front(ctx, 0);

	if (!meta)
		return XDP_DROP;
	fill_meta(meta, flow, extent, outcome);
	meta->flags |= epoch << TAM_META_EPOCH_SHIFT;
	if (bpf_redirect_map(&tam_sockets, port_number * TAM_QUEUES_MAX + queue, XDP_PASS) !=
	    XDP_REDIRECT)
		return XDP_PASS;
	*counted = take_credit(lane->session, extent >> 32);
	if (*counted < 0) {
		save_head(ctx, TAM_LEVEL_NIC, lane->session, extent >> 32);
		return TAM_NO_CREDIT;
	}
	meta->flags |= *counted;
	return XDP_REDIRECT;
}

/* Gives a packet to the socket of a lane that rests at user level. Returns -1 when the
 * lane must be entered: then the packet is unchanged. */
static __always_inline int send_up_outside(struct xdp_md *ctx, struct tam_lane *lane,
					   const struct tam_flow *flow, __u64 extent, __u32 outcome)
{
	int counted, action = give_to_socket(ctx, flow, extent, outcome, lane, epoch_of(lane), &counted);

	if (action != XDP_REDIRECT || count_up_outside(lane))
		return action;
	return_credit(lane->session, extent >> 32, counted);
	return bpf_xdp_adjust_meta(ctx, sizeof(struct tam_meta)) ? XDP_DROP : -1;
}

/* Returns true if a rule of a later stage forbids that a packet goes past it: it drops,
 * or its service is closed, and there is no cell. */
static __always_inline int is_kept(__u32 rule)
{
	const struct tam_rule_fact *fact = fact_of(rule);

	if (!fact || fact->action == TAM_ACTION_FORWARD || fact->action == TAM_ACTION_OUT)
		return 0;
	return fact->action == TAM_ACTION_DROP || fact->action == TAM_ACTION_DOWN ||
	       is_closed(fact->entry);
}

/* Returns true if a packet that its service cannot have must be dropped. */
static __noinline int stays_here(const struct tam_meta *meta)
{
	return meta && (is_closed(meta->entry) || is_kept(meta->then[0]) || is_kept(meta->then[1]));
}

/* Counts a packet on its way to the cell by the resulting action; without a cell it goes
 * as if there were no rule, or is dropped if the service's failure policy is closed. */
static __always_inline int sent_up(struct xdp_md *ctx, const struct tam_flow *flow,
				   struct tam_port_stats *stats, int action)
{
	if (action == TAM_NO_CREDIT)
		return finish(stats, TAM_DROP_QUEUE);
	if (action == XDP_PASS && stays_here(&flow->meta))
		return finish(stats, TAM_DROP_DOWN);
	if (action == XDP_PASS && flow->meta.flags & TAM_META_BRIDGED)
		return cross_flow(ctx, flow, stats);
	finish(stats, action == XDP_REDIRECT ? TAM_TO_USER
		      : action == XDP_DROP   ? TAM_DROP_ADJUST
					     : TAM_KERNEL_NO_SOCKET);
	return action;
}

/* Handles a packet of a service that runs at user level only. */
static __always_inline int to_cell(struct xdp_md *ctx, const struct tam_flow *flow, __u64 extent,
				   __u32 outcome, struct tam_port_stats *stats)
{
	__u32 entry = flow->meta.entry;
	struct tam_lane *lane = bpf_map_lookup_elem(&tam_lanes, &entry);
	int counted;

	if (!lane)
		return finish(stats, TAM_KERNEL_NO_SOCKET);
	return sent_up(ctx, flow, stats,
		       give_to_socket(ctx, flow, extent, outcome, lane, 0, &counted));
}

/* Handles a packet of a service that can run below user level. `outcome` is TAM_FORWARDED
 * when it has a route, else the reason why not. Returns an XDP action, or TAM_RUN. */
static __always_inline int to_service(struct xdp_md *ctx, const struct tam_flow *flow, __u64 extent,
				      __u32 outcome, struct tam_port_stats *stats)
{
	__u32 zero = 0, entry = flow->meta.entry;
	struct tam_lane *lane = bpf_map_lookup_elem(&tam_lanes, &entry);
	int complete = outcome != TAM_KERNEL_PARTIAL;
	/* The kernel strips tags from a frame before tc. */
	int whole = complete && (__u16)extent == sizeof(struct ethhdr), action;

	if (!lane)
		return finish(stats, TAM_KERNEL_NO_SOCKET);
	if (rests_up(lane)) {
		action = send_up_outside(ctx, lane, flow, extent, outcome);
		if (action >= 0)
			return sent_up(ctx, flow, stats, action);
	}

	struct tam_passage *passage = bpf_map_lookup_elem(&tam_passages, &zero);

	if (!passage)
		return finish(stats, TAM_KERNEL_NO_SOCKET);
	if (!enter_lane(lane))
		return finish(stats, TAM_DROP_LANE);
	fill_meta(&passage->meta, flow, extent, outcome);
	passage->mark[0] = 0;
	passage->mark[1] = 0;
	switch (choose_destination(lane, complete, whole)) {
	case TAM_GO_NIC:
		fill_hand_over(passage, &flow->meta, lane, extent, TAM_LEVEL_NIC);
		__builtin_memcpy(passage->own_mac, flow->own_mac, ETH_ALEN);
		passage->mtu = flow->mtu;
		passage->length = extent >> 32;
		finish(stats, TAM_TO_NIC);
		return TAM_RUN;
	case TAM_GO_TC:
		action = send_to_tc(ctx, lane, passage, whole);
		leave_lane(lane);
		finish(stats, action == XDP_PASS ? TAM_TO_KERNEL_MODULE : TAM_DROP_ADJUST);
		return action;
	default:
		if (is_held(lane)) {
			leave_lane(lane);
			return finish(stats, TAM_DROP_LANE);
		}
		action = send_up(ctx, lane, passage);
		leave_lane(lane);
		return sent_up(ctx, flow, stats, action);
	}
}

/* Tail-calls a program of `modules`. A constant index is a patched jump, a fourth of the
 * cost of another. Returns when there is none. */
static __always_inline void call_module(void *ctx, void *modules, __u32 program)
{
	switch (program) {
	case 0: bpf_tail_call_static(ctx, modules, 0); break;
	case 1: bpf_tail_call_static(ctx, modules, 1); break;
	case 2: bpf_tail_call_static(ctx, modules, 2); break;
	case 3: bpf_tail_call_static(ctx, modules, 3); break;
	case 4: bpf_tail_call_static(ctx, modules, 4); break;
	case 5: bpf_tail_call_static(ctx, modules, 5); break;
	case 6: bpf_tail_call_static(ctx, modules, 6); break;
	case 7: bpf_tail_call_static(ctx, modules, 7); break;
	default: bpf_tail_call(ctx, modules, program);
	}
}

/* Tail-calls the module that the packet's passage names; the program in `after` finishes
 * the packet. Returns only when both are gone. */
static __always_inline void run_module(void *ctx, void *modules, void *after)
{
	__u32 zero = 0;
	struct tam_passage *passage = bpf_map_lookup_elem(&tam_passages, &zero);

	if (!passage)
		return;		/* the map has every index: not reached */
	call_module(ctx, modules, passage->program);

	__u32 entry = passage->meta.entry;

	/* The program is missing. */
	hand_over_of(entry)->trapped = passage->program == TAM_PROGRAM_OVER ? TAM_OVER_BUDGET : TAM_NOT_RUN;
	bpf_tail_call_static(ctx, after, 0);

	/* The node is being taken down. */
	struct tam_lane *lane = bpf_map_lookup_elem(&tam_lanes, &entry);

	if (lane)
		leave_lane(lane);
}

#endif
