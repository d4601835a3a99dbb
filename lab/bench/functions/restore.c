/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Programs around a measured program in test-run, which hands a program the
 * packet as its last run left it. `restore` writes the saved bytes over the
 * part of the packet that NAT changes, and tail-calls the measured program;
 * `empty` replaces that program, or runs by itself, to measure the rest.
 * `restore_head` also restores the packet's length, after a program that removed
 * bytes at the front, and writes both lengths to the metadata, as a front door
 * would. */
#include "xdp.h"

/* Range from the IPv4 checksum's word (in 8-byte words counted from the IP header,
 * so that no load of the measured program straddles two stores) to the end
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

/* Head of the packet, from its beginning to the end of the longest IPv4 header less four bytes. */
#define HEAD_WORDS 8
#define HEAD_LENGTH (6 + 8 * HEAD_WORDS)

u64 saved_ethernet;
u64 saved_head[HEAD_WORDS];
u32 saved_length;
u32 saved_window;

/* Hand-over block of the measured program. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct hand_over);
} handed_over SEC(".maps");

SEC("xdp.frags") int restore_head(struct xdp_md *ctx)
{
	u32 zero = 0;
	long length = (u8 *)(long)ctx->data_end - (u8 *)(long)ctx->data;
	/* Otherwise clang derives the saved length from a pointer, which the verifier refuses. */
	__asm__ volatile("" : "+r"(length));
	struct hand_over *to = bpf_map_lookup_elem(&handed_over, &zero);
	if (!to || bpf_xdp_adjust_head(ctx, (int)(length - saved_length)))
		return -1;
	to->packet_length = saved_length;
	to->window_length = saved_window;
	u8 *head = (u8 *)(long)ctx->data;
	if (head + HEAD_LENGTH > (u8 *)(long)ctx->data_end)
		return -1;
	*(u32 *)head = saved_ethernet;
	*(u16 *)(head + 4) = saved_ethernet >> 32;
	u64 *words = (u64 *)(head + 6);
	for (u32 i = 0; i < HEAD_WORDS; i++)
		words[i] = saved_head[i];
	bpf_tail_call(ctx, &measured, 0);
	return -1;
}

SEC("xdp.frags") int empty(struct xdp_md *ctx)
{
	return 0;
}
