/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0 */
/* Ring buffer of the taps (tap.h, tapped_stack.bpf.c). */
#ifndef TAM_TAP_RING_H
#define TAM_TAP_RING_H

#include "capture.h"
#include "tam_bpf.h"

/* Most bytes of a frame that are kept; set before loading. */
const volatile __u32 tap_snap = TAM_SNAP_MAX;

/* Number of records lost because the ring was full. A section of its own is a map of its
 * own. */
__u64 tap_lost SEC(".data.tap_lost") = 0;

struct tap_scratch {
	struct tam_captured head;
	__u8 bytes[TAM_SNAP_MAX];
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} tam_captured_ring SEC(".maps");

enum tap_scratches {
	TAP_CAME = 0,	/* on arrival */
	TAP_GOES = 1,	/* leaving, or as a module left it */
	TAP_EGRESS = 2,	/* at the stack's egress */
	TAP_STACK = 3,	/* at a drop by the kernel */
	TAP_SCRATCHES = 4
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, TAP_SCRATCHES);
	__type(key, __u32);
	__type(value, struct tap_scratch);
} tam_tap_scratch SEC(".maps");

/* Value of tam_captured.port without a port. */
#define TAP_NO_PORT 0xffff

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

/* Resets the state of a packet. */
static __always_inline void tap_begin(struct tap_scratch *scratch, __u32 port)
{
	scratch->head.port = port;
	scratch->head.outcome = 0xff;
	scratch->head.action = 0;
	scratch->head.session = 0;
	scratch->head.entry = 0;
	scratch->head.level = 0;
	scratch->head.trapped = 0;
	scratch->head.rule = 0xffffffff;
	scratch->head.verdict = 0;
}

#endif
