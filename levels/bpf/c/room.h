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
#ifndef TAM_ROOM_H
#define TAM_ROOM_H

#include "tam_bpf.h"
#include "tam_maps.h"

/* Result in place of an action: its session has no credit for the packet. */
#define TAM_NO_ROOM 0x101

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, TAM_ROOMS_MAX);
	__type(key, __u32);
	__type(value, struct tam_room);
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
static __always_inline int put_in(struct tam_room *room, __u32 epoch, __u64 memory)
{
	__u64 sent = __sync_fetch_and_add(&room->sent[epoch], memory) + memory +
		     *(volatile __u64 *)&room->sent[epoch ^ 1];

	if ((__s64)(sent - *(volatile __u64 *)&room->done - *(volatile __u64 *)&room->most) <= 0)
		return 1;
	__sync_fetch_and_add(&room->sent[epoch], -memory);
	return 0;
}

static __always_inline struct tam_room *shared_room(const struct tam_room *room)
{
	__u32 at = TAM_ROOM_SHARED;

	return *(volatile __u32 *)&room->shared ? bpf_map_lookup_elem(&tam_rooms, &at) : 0;
}

static __noinline int take_counted(struct tam_room *room, __u32 length)
{
	if (!room)
		return 0;	/* not reached */

	__u32 epoch = *(volatile __u32 *)&room->epoch & 1;
	__u64 memory = memory_of(length);
	struct tam_room *shared;

	if (put_in(room, epoch, memory)) {
		shared = shared_room(room);
		if (!shared || put_in(shared, epoch, memory))
			return TAM_META_COUNTED | epoch << TAM_META_COUNTED_SHIFT;
		__sync_fetch_and_add(&room->sent[epoch], -memory);
	}
	__sync_fetch_and_add(&room->dropped, 1);
	return -1;
}

/* Takes credit for a packet of that many bytes. Returns the bits to add to the metadata's
 * flags, or -1 when there is none. */
static __always_inline int take_room(__u32 session, __u32 length)
{
	struct tam_room *room = bpf_map_lookup_elem(&tam_rooms, &session);

	if (!room || !*(volatile __u64 *)&room->most)
		return 0;
	return take_counted(room, length);
}

/* Saves the beginning of a packet that is dropped for lack of credit, for a module that
 * watches the queue: one at a time, so that a flood of them costs one read each. */
static __always_inline void leave_head(void *ctx, enum tam_level level, __u32 session, __u32 length)
{
	struct tam_room *room = bpf_map_lookup_elem(&tam_rooms, &session);
	__u64 bytes = length;
	long failed;

	if (!room || *(volatile __u32 *)&room->head_state != TAM_HEAD_WANTED || !bytes ||
	    __sync_val_compare_and_swap(&room->head_state, TAM_HEAD_WANTED, TAM_HEAD_TAKEN) !=
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
	failed = level == TAM_LEVEL_NIC ? bpf_xdp_load_bytes(ctx, 0, room->head, bytes) :
					  bpf_skb_load_bytes(ctx, 0, room->head, bytes);
	room->head_length = failed ? 0 : bytes;
	__sync_lock_test_and_set(&room->head_state, TAM_HEAD_THERE);
}

/* Releases the credit of a packet that does not go up after all; `counted` is the result
 * of take_room(). */
static __noinline int return_room(__u32 session, __u32 length, __u32 counted)
{
	struct tam_room *room = bpf_map_lookup_elem(&tam_rooms, &session), *shared;
	__u32 epoch = counted >> TAM_META_COUNTED_SHIFT & 1;

	if (!room || !(counted & TAM_META_COUNTED))
		return 0;
	__sync_fetch_and_add(&room->sent[epoch], -memory_of(length));
	shared = shared_room(room);
	if (shared)
		__sync_fetch_and_add(&shared->sent[epoch], -memory_of(length));
	return 0;
}

#endif
