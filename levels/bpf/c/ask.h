/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0 */
/* Requests of the cell, which may neither load BPF nor open netlink.
 *
 *   cell ─▶ write to its TAP device: │ begins as a frame does │ struct tam_request │
 *             └─▶ here, at tcx ingress, within that very system call
 *                   └─▶ tam_answers: │ number │ 1 + port, or 0 │
 *
 *   TAM_ASK_EGRESS  │ zero, 12 │ TAM_ETHERTYPE_ASKED │ head of the IP packet │
 *                   by which port would the kernel send it?
 *   TAM_ASK_NOTE    the same, and records that it leaves with another source than the kernel sees, or
 *                   arrived with another destination (translate.h)
 *   TAM_ASK_ARRIVE  │ frame │ is received by its arrival port's device, as if the front door had
 *                   left it to the kernel (docs/adr/0016)
 *
 * The request is a trailer: the kernel removes bytes at the end of any frame, but at the beginning
 * of few, and so no bytes of a packet are ever read as one. All but frames to receive end here.
 *
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

/* Records a module's changes of a packet. Returns 0 when the kernel must get it with the
 * module's source. */
static __always_inline int take_note(struct __sk_buff *ctx, const struct tam_request *request,
				     __u32 egress, __u32 arrival)
{
	struct tam_ends ends;

	if (read_ends(ctx, TAM_LEVEL_KERNEL, sizeof(struct ethhdr), &ends))
		return 0;
	if (request->changed & TAM_CHANGED_DESTINATION)
		note_destination(&ends.key, &request->destination);
	if (!(request->changed & TAM_CHANGED_SOURCE))
		return 1;
	if (!is_translated_at(egress, &ends))
		return 0;
	ends.key.arrival = 1 + arrival;
	note(&ends, &request->source);
	return 1;
}

/* Returns the device by which a frame is received again, or 0: there is none, or the
 * frame would meet a front door at tc again, which is behind the point where a device
 * receives it. */
static __always_inline __u32 arrival_device(__u32 port)
{
	const struct tam_port_config *config = bpf_map_lookup_elem(&tam_ports, &port);

	return config && !(config->flags & (TAM_PORT_GENERIC | TAM_PORT_TC | TAM_PORT_PACKET))
		       ? config->ifindex : 0;
}

/* Answers by which port the kernel would send a packet that arrives by `device`. */
static __always_inline __u32 answer_question(struct __sk_buff *ctx, const struct tam_request *request,
					     __u32 device)
{
	__u32 port = egress_at_tc(ctx, sizeof(struct ethhdr), device);

	if (request->kind == TAM_ASK_NOTE)
		return take_note(ctx, request, port, arrival_by(device));
	return port == TAM_ANSWERED ? TAM_NO_EGRESS : port;
}

/* Consumes every frame that is written to this device, requests or not: they have no
 * other receiver. */
SEC("tcx/ingress")
int tam_ask(struct __sk_buff *ctx)
{
	__u32 zero = 0, at = ctx->len - sizeof(struct tam_request), device, port;
	struct tam_answer *answer = bpf_map_lookup_elem(&tam_answers, &zero);
	const struct tam_config *shared = bpf_map_lookup_elem(&tam_shared, &zero);
	struct tam_request request;

	if (!answer || !shared || ctx->len < sizeof(struct ethhdr) + sizeof(request) ||
	    bpf_skb_load_bytes(ctx, at, &request, sizeof(request)) ||
	    bpf_skb_change_tail(ctx, at, 0))
		return TC_ACT_STOLEN;
	device = arrival_device(request.port);
	if (request.kind == TAM_ASK_ARRIVE)
		port = device ? 1 + request.port : 0;
	else
		port = answer_question(ctx, &request,
				       device ? device : *(volatile __u32 *)&shared->kernel_ifindex);
	*(volatile __u64 *)&answer->value = (__u64)request.number << 32 | port;
	if (request.kind != TAM_ASK_ARRIVE || !device)
		return TC_ACT_STOLEN;
	return bpf_redirect(device, BPF_F_INGRESS);
}

#endif
