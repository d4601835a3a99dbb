/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0 */
/* Answers by which port the kernel would send a packet: the cell, which asks, may neither load BPF
 * nor open netlink.
 *
 *   cell ─▶ write to its TAP device: │ number, 4 │ note, 8 │ type, 2 │ head of the IP packet │
 *             └─▶ here, at tcx ingress, on the way of that very system call
 *                   └─▶ tam_answers: │ number │ 1 + port, or 0 │      the question ends here
 *
 * A note is zero, or the IPv4 source with which a packet leaves that the kernel gets with the one
 * with which it came (translate.h): │ address, 4 │ port, 2 │ TAM_ASK_NOTES, 1 │ zero, 1 │
 */
#ifndef TAM_ASK_H
#define TAM_ASK_H

#include "translate.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tam_answer);
} tam_answers SEC(".maps");

#define TAM_ASK_NOTES 1

struct tam_question {
	__u32 number;
	__u8 address[4];
	__be16 port_be;
	__u8 kind;		/* TAM_ASK_NOTES, or 0 */
	__u8 zero;
	__be16 type;
} __attribute__((packed));

/* Notes the source with which a packet leaves; 0: the kernel is to have it as it is. */
static __always_inline int take_note(struct __sk_buff *ctx, const struct tam_question *question,
				     __u32 egress)
{
	struct tam_end source = { .port_be = question->port_be };
	struct tam_ends ends;

	__builtin_memcpy(source.address, question->address, sizeof(question->address));
	if (read_ends(ctx, TAM_LEVEL_KERNEL, sizeof(struct ethhdr), &ends) ||
	    !is_translated_at(egress, &ends))
		return 0;
	note(&ends.key, &source);
	return 1;
}

/* Ends it, also where it is none: what is written to this device is for nobody else. */
SEC("tcx/ingress")
int tam_ask(struct __sk_buff *ctx)
{
	__u32 zero = 0, port;
	const struct tam_question *at = (void *)(long)ctx->data;
	struct tam_answer *answer = bpf_map_lookup_elem(&tam_answers, &zero);
	const struct tam_config *shared = bpf_map_lookup_elem(&tam_shared, &zero);
	struct tam_question question;

	if (!answer || !shared || (void *)(at + 1) > (void *)(long)ctx->data_end)
		return TC_ACT_STOLEN;
	question = *at;
	port = egress_at_tc(ctx, sizeof(struct ethhdr), *(volatile __u32 *)&shared->kernel_ifindex);
	if (question.kind == TAM_ASK_NOTES)
		port = take_note(ctx, &question, port);
	else if (port == TAM_ANSWERED)
		port = TAM_NO_EGRESS;
	*(volatile __u64 *)&answer->value = (__u64)question.number << 32 | port;
	return TC_ACT_STOLEN;
}

#endif
