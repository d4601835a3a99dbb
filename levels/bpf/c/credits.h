/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0 */
/* Queue credits: limit of a session's packets on their way to user level and there. tam_maps.h has
 * the record.
 *
 *   a packet that goes up ─▶ has its session's queue enough credit?
 *                              │ yes: it takes the credit, and records that in its metadata
 *                              │ no:  dropped here, counted for that session
 *
 * The credits of all sessions together do not exceed the entries of each receive ring, so no
 * session's packets can overflow a ring in front of another's. The cell releases the credit, and
 * takes some itself for packets that came otherwise (node/cell's queue_credits.rs).
 *
 * Only packets that go up come here; while a node has only the two sessions that every
 * node has nothing is counted.
 *
 */
#ifndef TAM_CREDITS_H
#define TAM_CREDITS_H

#include "tam_bpf.h"
#include "tam_maps.h"

/* Result in place of an action: its session has no credit for the packet. */
#define TAM_NO_CREDIT 0x101

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, TAM_ROOMS_MAX);
	__type(key, __u32);
	__type(value, struct tam_queue_credits);
} tam_rooms SEC(".maps");

/* Returns the packet memory of a frame: most fit into one frame of it. */
static __always_inline __u64 memory_of(__u32 length)
{
	__u32 frames = 1;

	if (length > TAM_FRAME_BYTES)
		frames = (length + TAM_FRAME_BYTES - 1) / TAM_FRAME_BYTES;
	return (__u64)frames * TAM_FRAME_MEMORY;
}

/* Takes credit and checks the limit. The result of the addition is used, so there is a
 * full barrier before the check, as in the cell: of two that take credit at once at least
 * one sees both, and no queue exceeds its limit. */
static __always_inline int add_credit(struct tam_queue_credits *credits, __u32 epoch, __u64 memory)
{
	__u64 sent = __sync_fetch_and_add(&credits->sent[epoch], memory) + memory +
		     *(volatile __u64 *)&credits->sent[epoch ^ 1];

	if ((__s64)(sent - *(volatile __u64 *)&credits->done - *(volatile __u64 *)&credits->most) <= 0)
		return 1;
	__sync_fetch_and_add(&credits->sent[epoch], -memory);
	return 0;
}

static __always_inline struct tam_queue_credits *shared_credits(const struct tam_queue_credits *credits)
{
	__u32 at = TAM_ROOM_SHARED;

	return *(volatile __u32 *)&credits->shared ? bpf_map_lookup_elem(&tam_rooms, &at) : 0;
}

static __noinline int take_counted(struct tam_queue_credits *credits, __u32 length)
{
	if (!credits)
		return 0;	/* not reached */

	__u32 epoch = *(volatile __u32 *)&credits->epoch & 1;
	__u64 memory = memory_of(length);
	struct tam_queue_credits *shared;

	if (add_credit(credits, epoch, memory)) {
		shared = shared_credits(credits);
		if (!shared || add_credit(shared, epoch, memory))
			return TAM_META_COUNTED | epoch << TAM_META_COUNTED_SHIFT;
		__sync_fetch_and_add(&credits->sent[epoch], -memory);
	}
	__sync_fetch_and_add(&credits->dropped, 1);
	return -1;
}

/* Takes credit for a packet of that many bytes. Returns the bits to add to the metadata's
 * flags, or -1 when there is none. */
static __always_inline int take_credit(__u32 session, __u32 length)
{
	struct tam_queue_credits *credits = bpf_map_lookup_elem(&tam_rooms, &session);

	if (!credits || !*(volatile __u64 *)&credits->most)
		return 0;
	return take_counted(credits, length);
}

/* Saves the beginning of a packet that is dropped for lack of credit, for a module that
 * watches the queue: one at a time, so that a flood of them costs one read each. */
static __always_inline void save_head(void *ctx, enum tam_level level, __u32 session, __u32 length)
{
	struct tam_queue_credits *credits = bpf_map_lookup_elem(&tam_rooms, &session);
	__u64 bytes = length;
	long failed;

	if (!credits || *(volatile __u32 *)&credits->head_state != TAM_HEAD_WANTED || !bytes ||
	    __sync_val_compare_and_swap(&credits->head_state, TAM_HEAD_WANTED, TAM_HEAD_TAKEN) !=
		    TAM_HEAD_WANTED)
		return;
	/* Both bounds on one and the same register, or the verifier does not accept them. */
	hide(bytes);
	if (bytes > TAM_HEAD_BYTES)
		bytes = TAM_HEAD_BYTES;
	hide(bytes);
	if (bytes < 1)
		bytes = 1;	/* not reached */
	hide(bytes);
	failed = level == TAM_LEVEL_NIC ? bpf_xdp_load_bytes(ctx, 0, credits->head, bytes) :
					  bpf_skb_load_bytes(ctx, 0, credits->head, bytes);
	credits->head_length = failed ? 0 : bytes;
	__sync_lock_test_and_set(&credits->head_state, TAM_HEAD_THERE);
}

/* Releases the credit of a packet that does not go up after all; `counted` is the result
 * of take_credit(). */
static __noinline int return_credit(__u32 session, __u32 length, __u32 counted)
{
	struct tam_queue_credits *credits = bpf_map_lookup_elem(&tam_rooms, &session), *shared;
	__u32 epoch = counted >> TAM_META_COUNTED_SHIFT & 1;

	if (!credits || !(counted & TAM_META_COUNTED))
		return 0;
	__sync_fetch_and_add(&credits->sent[epoch], -memory_of(length));
	shared = shared_credits(credits);
	if (shared)
		__sync_fetch_and_add(&shared->sent[epoch], -memory_of(length));
	return 0;
}

#endif
