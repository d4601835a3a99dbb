/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0 */
/* Passage: the state of the packet that a CPU handles, which does not fit the stack. */
#ifndef TAM_PASSAGE_H
#define TAM_PASSAGE_H

#include "classify.h"

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tam_passage);
} tam_passages SEC(".maps");

/* Packs a packet's extent into one argument of a subprogram: a pointer would keep the
 * whole struct in memory, for every packet. */
static __always_inline __u64 extent_of(const struct packet *packet)
{
	return (__u64)packet->length << 32 | (__u32)packet->l4_offset << 16 | packet->l3_offset;
}

static __always_inline void fill_meta(struct tam_meta *meta, const struct tam_flow *flow,
				     __u64 extent, __u32 outcome)
{
	*meta = flow->meta;
	meta->l3_offset = extent;
	meta->l4_offset = extent >> 16;
	if (outcome == TAM_FORWARDED)
		meta->flags |= TAM_META_ROUTED;
}

#endif
