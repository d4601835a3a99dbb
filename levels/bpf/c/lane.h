/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0 */
/* Lane of an entry: which CPU is in it, which packets are under way, where the next
 * packet goes. tam_maps.h has the picture.
 *
 * One CPU at a time is in a lane, and so in the module's memory: it holds `busy` from
 * here to verdict.h. Another CPU waits for it, for a bounded time. The memory moves to
 * the packet's CPU, not the packet to the memory's: a frame that was queued for another
 * CPU (cpumap) has lost the number of its receive queue, and could not be given to a
 * socket from there when the module raises it.
 *
 * The destination of packets changes only under `busy`, so all CPUs see one order.
 * Packets of a lane that rests at user level do not enter it: they are only counted.
 */
#ifndef TAM_LANE_H
#define TAM_LANE_H

#include "tam_bpf.h"
#include "tam_maps.h"

/* Most attempts to enter a lane that another CPU is in before the packet is dropped: about
 * 0.2 ms, four times as long as the least fuel budget lasts. */
#define TAM_LANE_ATTEMPTS_MAX 65536

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, TAM_ENTRIES_MAX);
	__type(key, __u32);
	__type(value, struct tam_lane);
} tam_lanes SEC(".maps");

/* Returns true if packets that the entry's service cannot have are dropped. */
static __always_inline int is_closed(__u32 entry)
{
	struct tam_lane *lane = bpf_map_lookup_elem(&tam_lanes, &entry);

	return lane && *(volatile __u32 *)&lane->closed;
}

/* Arguments of the wait for a lane. */
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

	bpf_loop(TAM_LANE_ATTEMPTS_MAX, try_lane, &waiting, 0);
	return waiting.entered;
}

/* Enters a lane. A full barrier: makes the writes of the last CPU in the lane visible. A
 * CPU that finds itself in the lane left it without unlocking: programs here are not
 * nested. */
static __always_inline int enter_lane(struct tam_lane *lane)
{
	__u32 self = bpf_get_smp_processor_id() + 1;
	__u32 found = __sync_val_compare_and_swap(&lane->busy, 0, self);

	return !found || found == self || wait_for_lane(lane, self);
}

/* Leaves a lane. A full barrier: makes this CPU's writes visible to the next one. */
static __always_inline void leave_lane(struct tam_lane *lane)
{
	__sync_lock_test_and_set(&lane->busy, 0);
}

/* Returns true if a lane rests at user level: then a packet goes up without entering it. */
static __always_inline int rests_up(struct tam_lane *lane)
{
	return *(volatile __u32 *)&lane->target == TAM_LEVEL_USER &&
	       *(volatile __u32 *)&lane->level == TAM_LEVEL_USER &&
	       *(volatile __u32 *)&lane->path == TAM_PATH_DIRECT &&
	       *(volatile __u32 *)&lane->epoch == *(volatile __u32 *)&lane->epoch_seen;
}

/* Counts a packet that goes up without entering the lane. Returns 0 when the lane has
 * left its rest meanwhile: then the packet may not go, and counts as one that never
 * arrived.
 *
 * Here a packet is counted, then `level` and `path` are read; a CPU that takes the lane
 * below writes them, then reads the count (take_below). Both have a full barrier in
 * between, so one of the two sees the other. */
static __always_inline int count_up_outside(struct tam_lane *lane)
{
	/* The result is used: without it there is no barrier. */
	if (__sync_fetch_and_add(&lane->sent_up, 1) == ~0ULL)
		return 0;
	return *(volatile __u32 *)&lane->level == TAM_LEVEL_USER &&
	       *(volatile __u32 *)&lane->path == TAM_PATH_DIRECT;
}

/* Callers of the following functions are in the lane. */

/* Returns the epoch that a packet for user level must carry. */
static __always_inline __u32 epoch_of(struct tam_lane *lane)
{
	return *(volatile __u32 *)&lane->epoch;
}

/* Counts a packet with `epoch` that is given to user level. */
static __always_inline void count_up(struct tam_lane *lane, __u32 epoch)
{
	if (lane->epoch_seen != epoch) {
		lane->epoch_start = *(volatile __u64 *)&lane->sent_up;
		/* The cell reads epoch_start once it sees this. */
		__sync_lock_test_and_set(&lane->epoch_seen, epoch);
	}
	__sync_fetch_and_add(&lane->sent_up, 1);
}

/* Returns true if every packet given to user level is gone from there. */
static __always_inline int is_drained(struct tam_lane *lane)
{
	return *(volatile __u64 *)&lane->left == *(volatile __u64 *)&lane->sent_up;
}

static __always_inline void count_to_tc(struct tam_lane *lane)
{
	lane->sent_tc++;
}

/* Counts a packet that has arrived at tc. */
static __always_inline void count_at_tc(struct tam_lane *lane, __u32 epoch)
{
	if (epoch != lane->tc_epoch) {
		if (lane->tc_awaited)
			lane->tc_awaited--;
	} else if (lane->left_tc != lane->sent_tc) {
		lane->left_tc++;
	}
}

/* Returns true if no packet is under way to tc. Those missing for long are given up. */
static __always_inline int is_tc_drained(struct tam_lane *lane)
{
	if (lane->left_tc == lane->sent_tc && !lane->tc_awaited)
		return 1;

	__u32 now = bpf_jiffies64();

	if (now - lane->tc_began <= TAM_TC_PATIENCE)
		return 0;
	lane->tc_awaited = lane->sent_tc - lane->left_tc;
	lane->left_tc = lane->sent_tc;
	lane->tc_epoch = (lane->tc_epoch + 1) & 0xff;
	lane->tc_began = now;
	return !lane->tc_awaited;
}

/* Gives up packets lost on their way to tc while the lane stays there, so that it can
 * leave when required: a move does not wait for that long. */
static __always_inline void give_up_lost(struct tam_lane *lane)
{
	__u32 now = bpf_jiffies64();

	if (lane->left_tc == lane->sent_tc && !lane->tc_awaited)
		lane->tc_drained = now;
	else if (now - lane->tc_drained > TAM_TC_PATIENCE)
		is_tc_drained(lane);
}

/* Takes a drained lane below, by writing its new place: `field` is `level` or `path`. A
 * full barrier: makes visible what the cell wrote before it reported the last packet
 * gone, and what count_up_outside() counted before it could see this. Returns 0 when a
 * packet was counted: then the lane stays where it was. */
static __always_inline int take_below(struct tam_lane *lane, __u32 *field, __u32 word)
{
	__u32 before = __sync_lock_test_and_set(field, word);

	if (is_drained(lane))
		return 1;
	*field = before;
	return 0;
}

/* Destination of a packet in XDP. */
enum tam_destination {
	TAM_GO_UP,	/* the cell's socket */
	TAM_GO_NIC,	/* the module at nic, here */
	TAM_GO_TC,
};

/* Chooses while the lane moves, or is at kernel. `complete`: the packet can be run at
 * nic; `whole`: also at kernel. */
static __noinline int choose_among_all(struct tam_lane *lane, int complete, int whole)
{
	if (!lane)
		return TAM_GO_UP;	/* not reached: the verifier requires it */

	__u32 target = *(volatile __u32 *)&lane->target;

	if (lane->path == TAM_PATH_TC) {
		if (target == TAM_LEVEL_KERNEL) {
			give_up_lost(lane);
			return TAM_GO_TC;
		}
		if (!is_tc_drained(lane) || !is_drained(lane))
			return TAM_GO_TC;
		lane->path = TAM_PATH_DIRECT;
	}
	if (target == TAM_LEVEL_USER || !complete || !is_drained(lane))
		return TAM_GO_UP;
	if (target == TAM_LEVEL_NIC)
		return take_below(lane, &lane->level, TAM_LEVEL_NIC) ? TAM_GO_NIC : TAM_GO_UP;
	if (!whole || lane->level == TAM_LEVEL_NIC)
		return TAM_GO_UP;
	lane->tc_drained = bpf_jiffies64();
	return take_below(lane, &lane->path, TAM_PATH_TC) ? TAM_GO_TC : TAM_GO_UP;
}

/* Chooses the destination; a lane that stays at nic or at user is handled first, and nic
 * without reading the lane's second cache line. */
static __always_inline int choose_destination(struct tam_lane *lane, int complete, int whole)
{
	__u32 target = *(volatile __u32 *)&lane->target;

	if (target == TAM_LEVEL_NIC && lane->level == TAM_LEVEL_NIC)
		return complete ? TAM_GO_NIC : TAM_GO_UP;
	if (target == TAM_LEVEL_USER && lane->path == TAM_PATH_DIRECT)
		return TAM_GO_UP;
	return choose_among_all(lane, complete, whole);
}

/* Returns true if nothing may go up now, for the lane to come below (tam_maps.h, `held`). */
static __always_inline int is_held(struct tam_lane *lane)
{
	return *(volatile __u32 *)&lane->held &&
	       *(volatile __u32 *)&lane->target != TAM_LEVEL_USER && !is_drained(lane);
}

/* Returns true if a packet that arrived at tc meets the module there. So does one whose
 * lane moves from there to nic: it need not go by the cell. */
static __always_inline int runs_at_tc(struct tam_lane *lane)
{
	__u32 target = *(volatile __u32 *)&lane->target;

	if (lane->level == TAM_LEVEL_KERNEL)
		return target != TAM_LEVEL_USER;
	return target == TAM_LEVEL_KERNEL && is_drained(lane) &&
	       take_below(lane, &lane->level, TAM_LEVEL_KERNEL);
}

#endif
