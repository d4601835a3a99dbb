/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* What stands around a measured program in test-run, which gives a program the
 * packet as its last run left it. `restore` writes the saved bytes over the
 * part of the packet that NAT changes, and goes on to the measured program;
 * `empty` takes that program's place, or runs by itself, to measure the rest. */
#include "xdp.h"

/* From the IPv4 checksum's word on (8-byte words as they lie from the IP header
 * on, so that no load of the measured program straddles two stores) to the end
 * of the TCP checksum's. */
#define RESTORED_FROM 22
#define RESTORED_WORDS 4

u64 saved[RESTORED_WORDS];

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} measured SEC(".maps");

SEC("xdp.frags") int restore(struct xdp_md *ctx)
{
	u8 *head = (u8 *)(long)ctx->data;
	if (head + RESTORED_FROM + 8 * RESTORED_WORDS > (u8 *)(long)ctx->data_end)
		return -1;
	u64 *words = (u64 *)(head + RESTORED_FROM);
	for (u32 i = 0; i < RESTORED_WORDS; i++)
		words[i] = saved[i];
	bpf_tail_call(ctx, &measured, 0);
	return -1;
}

SEC("xdp.frags") int empty(struct xdp_md *ctx)
{
	return 0;
}
